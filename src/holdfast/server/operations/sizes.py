r"""How large a body may be: what the largest legal one of its route needs, and no more.

It is counted from the fields of the row's type and from the settings. JSON may write any character as `\uXXXX`, and one
beyond U+FFFF as a pair of those: 12 bytes. A byte of a name's UTF-8 needs at most 6. What is larger than the largest
legal body cannot be meant, so it is refused unread; what has more texts in it than a legal body, before it is parsed.

Every field of every body has its line in `_fields`: a server with a field that has none does not start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.names import NAME_BYTES_MAX
from holdfast.core.values import (
    LABEL_VALUE_CHARS_MAX,
    LABELS_MAX,
    OWNER_CHARS_MAX,
    REASON_CHARS_MAX,
    SESSION_NAME_CHARS_MAX,
)
from holdfast.server.access.secrets import SECRET_CHARS_MAX
from holdfast.wire.problems import Problem
from holdfast.wire.requests import field_names

if TYPE_CHECKING:
    from holdfast.server.operations.operation import Operation
    from holdfast.settings import Settings

SMALL_BODY_BYTES = 16_384
"""Up to here a body is read before it is known who sends it; a larger one only for a bearer that is known."""

_PAIR_BYTES, _ESCAPE_BYTES = 12, 6
_AROUND_BYTES = 16
"""Quotes, comma, colon, and the blanks of a body that is written for people."""
_SPARE_BYTES = 1_024
"""More blanks; and what says a little more than it must, as `60.000`."""
_PLAIN_BYTES = 32
"""A number, a truth value, or one of a few words."""
_ID_CHARS_MAX = 64
"""A UUID may have braces around it, or `urn:uuid:` before it."""
_LABEL_KEY_CHARS_MAX = 63
_SCOPES_MAX = 16
_UNKNOWN_TEXTS_MAX = 1_024
"""In a large body with fields that are passed over; in a small one nobody counts."""
BACKSLASH = ord("\\")
"""A number, as every byte that is looked for in bytes: for bytes Python first makes an error that they are none."""
_MARKS = (b",", b"[", b"{")
"""What stands between the values of JSON, or before them. There are never more than two for each text of ours."""


class Size(msgspec.Struct, frozen=True):
    bytes_max: int
    texts_max: int
    """Strings in it, the names of its fields among them."""

    def checked_pieces(self, body: bytes) -> list[bytes]:
        """Return `pieces_of`, or raise if there are more texts, lists and objects than a legal body has.

        To count them costs little, to parse them much.
        """
        pieces = pieces_of(body, 2 * self.texts_max + 1)
        between = b"".join(pieces[::2])
        marks = sum(between.count(mark) for mark in _MARKS)
        if len(pieces) > 2 * self.texts_max + 1 or marks > 2 * self.texts_max + len(_MARKS):
            text = f"The body has more values than this request can have: at most {self.texts_max} texts."
            raise Problem("invalid_input", text, status=422)
        return pieces


def pieces_of(body: bytes, splits_max: int = -1) -> list[bytes]:
    """Split JSON at its quotes: what stands between texts and the texts take turns.

    Escaped quotes and backslashes are left out first, so that each quote begins or ends a text.
    """
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"") if BACKSLASH in body else body
    return plain.split(b'"', splits_max)


def too_large(bytes_max: int) -> Problem:
    return Problem("invalid_input", f"The body may have at most {bytes_max} bytes.", status=413)


def size_of(operation: Operation, settings: Settings) -> Size:
    body = operation.body
    if body is None:
        # It is not looked at: some clients send one with everything.
        return Size(min(SMALL_BODY_BYTES, settings.body_bytes_max), 0)
    known = _fields(settings)
    names = field_names(body)
    bytes_max = _SPARE_BYTES + sum(_escaped(len(name)) + known[name].bytes_max for name in names)
    texts_max = sum(1 + known[name].texts_max for name in names)
    if _passes_over_unknown(body, settings):
        # What is passed over may be anything, as long as all of it is small.
        bytes_max, texts_max = max(bytes_max, SMALL_BODY_BYTES), texts_max + _UNKNOWN_TEXTS_MAX
    most = settings.body_bytes_max if operation.scope is not None else min(SMALL_BODY_BYTES, settings.body_bytes_max)
    return Size(min(bytes_max, most), texts_max)


def _passes_over_unknown(body: type[Any], settings: Settings) -> bool:
    return settings.unknown_fields == "ignore" or not body.__struct_config__.forbid_unknown_fields


def _fields(settings: Settings) -> dict[str, Size]:
    plain = Size(_PLAIN_BYTES, 1)
    uuid, owner, words = _text(_ID_CHARS_MAX), _text(OWNER_CHARS_MAX), _text(settings.metadata_chars_max)
    name = Size(_escaped(NAME_BYTES_MAX), 1)
    label = Size(_escaped(_LABEL_KEY_CHARS_MAX) + _text(LABEL_VALUE_CHARS_MAX).bytes_max, 2)
    return {
        "acl": plain,
        # Either `any` or `all`, never both.
        "all": plain,
        "any": _times(settings.names_per_call_max, name),
        "ephemeral": plain,
        "expires_in_seconds": plain,
        "fencing_token": plain,
        "keep_sessions": plain,
        "never_expires": plain,
        "keep_ttl": plain,
        "labels": _times(LABELS_MAX, label),
        "lease_id": uuid,
        # Of both together there are as many as names in a call.
        "leases": _times(settings.names_per_call_max, Size(name.bytes_max + uuid.bytes_max, 2)),
        "lock_delay_seconds": plain,
        "lock_name": name,
        "metadata": words,
        "name": _text(SESSION_NAME_CHARS_MAX),
        "note": words,
        "outcome": plain,
        "owner": owner,
        "prefix": name,
        "reason": _text(REASON_CHARS_MAX),
        "redo": plain,
        "remember_seconds": plain,
        "resourceKey": name,
        "result": words,
        "resume": plain,
        "scopes": _times(_SCOPES_MAX, plain),
        "secret": _text(SECRET_CHARS_MAX),
        "session_id": uuid,
        "sessions": plain,
        "ticket": uuid,
        "to_owner": owner,
        "ttl": plain,
        "ttl_seconds": plain,
        "wait_seconds": plain,
    }


def _text(chars_max: int) -> Size:
    return Size(chars_max * _PAIR_BYTES + _AROUND_BYTES, 1)


def _escaped(bytes_max: int) -> int:
    return bytes_max * _ESCAPE_BYTES + _AROUND_BYTES


def _times(count: int, each: Size) -> Size:
    return Size(count * each.bytes_max, count * each.texts_max)
