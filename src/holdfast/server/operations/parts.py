"""Reading the parts of a request: what cannot be meant is refused with the reason, before anything is decided.

Reading is strict and looks at nothing but the request. `reading` says in which order the parts are read.
"""

from __future__ import annotations

import difflib
import json
import re
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import parse_qsl, unquote_to_bytes
from uuid import UUID

import msgspec

from holdfast.core.values import KEY_CHARS_MAX
from holdfast.server.operations.sizes import BACKSLASH, SMALL_BODY_BYTES, pieces_of, too_large
from holdfast.wire.problems import Problem
from holdfast.wire.requests import field_names, lenient

if TYPE_CHECKING:
    from holdfast.server.http.messages import Request
    from holdfast.server.operations.sizes import Size

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_UNKNOWN_FIELD = re.compile(r"unknown field `([^`]*)`")
_JSON = b"application/json"
_ANY_JSON = msgspec.json.Decoder(msgspec.Raw)
"""Reads what is JSON and makes nothing of it."""
_MAPS = frozenset({b"labels", b"leases"})
"""The fields whose keys are the caller's own words: none of them may stand twice either."""
_QUOTES_OF_TEXT, _QUOTES_OF_ONE_KEY = 4, 3
"""Of a field with its text; and fewer than two fields have, whatever their values."""
SHOWN_CHARS = 64
QUERY_FIELDS_MAX = 64
TARGET_BYTES_MAX = 16_384
"""Of a path, and of a query. Decoding is slow, and a request of a mounted application may have a head of any size."""
_PERCENT = ord("%")
LABEL = "label"
"""The one field of a query that may stand several times."""


class BodyReader:
    def __init__(self, body: type[Any], size: Size, *, ignore_unknown: bool) -> None:
        """`ignore_unknown` passes over fields that the type does not have."""
        self._size = size
        self._bytes_max = size.bytes_max
        self._decode = msgspec.json.Decoder(lenient(body) if ignore_unknown else body).decode
        self._fields = field_names(body)
        self._known = frozenset(field.encode() for field in self._fields)
        texts = sum(field.required and field.type is str for field in msgspec.structs.fields(body))
        self._quotes_of_each_once = _QUOTES_OF_TEXT * texts + _QUOTES_OF_ONE_KEY
        """With so many quotes no field stands twice: texts that must be there take four each, one more field two."""

    def read(self, request: Request) -> Any:  # noqa: ANN401 - the type it was made for
        body, decode = request.body, self._decode
        if len(body) > self._bytes_max:
            raise too_large(self._bytes_max)
        content_type = request.content_type
        if content_type != _JSON:
            _check_content_type(content_type)
        try:
            if len(body) > SMALL_BODY_BYTES:
                self._check_twice(body, self._size.checked_pieces(body))
            elif body.count(b'"') > self._quotes_of_each_once:
                self._check_twice(body, pieces_of(body))
            return decode(body)
        except msgspec.ValidationError as error:
            self._check_whole(body)
            self._explain(error)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Problem("invalid_input", f"The body is not JSON: {error}") from None

    def _check_twice(self, body: bytes, pieces: list[bytes]) -> None:
        """Refuse a known field, or a key of a map, that stands twice. Only a body where one may is read slowly."""
        texts = pieces[1::2]
        if len(set(texts)) == len(texts) and BACKSLASH not in body:
            return
        keys = [text for text, after in zip(texts, pieces[2::2], strict=False) if after.lstrip()[:1] == b":"]
        different = set(keys)
        repeated = len(different) != len(keys) and (
            not _MAPS.isdisjoint(different) or any(keys.count(known) > 1 for known in self._known & different)
        )
        if not repeated and not any(BACKSLASH in key for key in keys):
            return
        try:
            # Numbers stay texts: nobody wants their value here, and it takes long to find that of a long one.
            json.loads(body, object_pairs_hook=_pairs, parse_constant=_no_constant, parse_int=str, parse_float=str)
        except (ValueError, RecursionError) as error:
            raise msgspec.DecodeError(str(error)) from None

    def _check_whole(self, body: bytes) -> None:
        """Raise if the body is not JSON at all, or a field stands twice: both come before what is wrong with types."""
        try:
            if _QUOTES_OF_ONE_KEY < body.count(b'"') <= self._quotes_of_each_once:
                # It was not looked at, because texts that must be there have as many. They are not there, or no texts.
                self._check_twice(body, pieces_of(body))
            body.decode()
            _ANY_JSON.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Problem("invalid_input", f"The body is not JSON: {error}") from None

    def _explain(self, error: msgspec.ValidationError) -> NoReturn:
        text = str(error)
        unknown = _UNKNOWN_FIELD.search(text)
        if unknown is None:
            raise Problem("invalid_input", f"{text}. See /docs for the fields.", status=422) from None
        field = unknown.group(1)
        near = difflib.get_close_matches(field[:SHOWN_CHARS], self._fields, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(self._fields)}."
        raise Problem("invalid_input", f"Unknown field {shown(field)}: {hint}", status=422) from None


def shown(text: str) -> str:
    return repr(text) if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]!r}…"


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the field {shown(name)} stands twice")
        found[name] = value
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _check_content_type(content_type: bytes | None) -> None:
    kind = (content_type or b"").split(b";", 1)[0].strip().lower()
    if kind == _JSON or (kind.startswith(b"application/") and kind.endswith(b"+json")):
        return
    raise Problem("invalid_input", "Send the body as Content-Type: application/json.", status=415)


def too_long(part: str) -> Problem:
    return Problem("invalid_input", f"The {part} of a request has at most {TARGET_BYTES_MAX} bytes.", status=431)


def read_segment(segment: bytes) -> str:
    if len(segment) > TARGET_BYTES_MAX:
        raise too_long("path")
    try:
        return (unquote_to_bytes(segment) if _PERCENT in segment else segment).decode()
    except UnicodeDecodeError:
        raise Problem("invalid_input", "The path is not UTF-8: percent-encode the bytes of UTF-8.") from None


def read_uuid_segment(segment: bytes) -> str:
    text = read_segment(segment)
    if _UUID.fullmatch(text):
        return text
    try:
        return str(UUID(text))
    except ValueError:
        raise Problem("invalid_input", "The id in the path is not a UUID.") from None


def read_uuid(text: str, field: str, *, status: int = 422) -> str:
    if _UUID.fullmatch(text):
        return text
    try:
        return str(UUID(text))
    except ValueError:
        raise Problem("invalid_input", f"{field} is not a UUID.", status=status) from None


def read_query(query: bytes, known: frozenset[str]) -> dict[str, Any]:
    """Return the query's fields; each must be known and may stand once, but for `label`: that is a set of pairs."""
    if not query:
        return {}
    if len(query) > TARGET_BYTES_MAX:
        raise too_long("query")
    try:
        pairs = parse_qsl(
            query.decode(),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=QUERY_FIELDS_MAX,
        )
    except (ValueError, UnicodeDecodeError):
        raise Problem("invalid_input", "The query is malformed.") from None
    plain = [pair for pair in pairs if pair[0] != LABEL]
    fields: dict[str, Any] = dict(plain)
    if len(fields) != len(plain):
        raise Problem("invalid_input", "A field stands twice in the query.")
    labels = [text for field, text in pairs if field == LABEL]
    for field in (*fields, *([LABEL] if labels else [])):
        if field not in known:
            raise Problem("invalid_input", f"Unknown query field {shown(field)}: known are {', '.join(sorted(known))}.")
    if labels:
        fields[LABEL] = frozenset(_read_label(text) for text in labels)
    return fields


def _read_label(text: str) -> tuple[str, str]:
    key, colon, value = text.partition(":")
    if not colon:
        raise Problem("invalid_input", f"The label {shown(text)} has no value: write it as key:value.")
    return key, value


def read_key(request: Request) -> str | None:
    if request.key is None:
        return None
    text = request.key.decode("latin-1").strip()
    if not 0 < len(text) <= KEY_CHARS_MAX or not text.isascii() or not text.isprintable():
        raise Problem("invalid_input", f"Idempotency-Key has 1 to {KEY_CHARS_MAX} printable ASCII characters.")
    return text
