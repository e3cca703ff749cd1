"""Metadata as fields for people: a JSON object or `key=value` pairs become keys and values, all else stays one text.

Anybody may send anything as metadata. So nothing here raises, nothing is evaluated, and what cannot be told apart is
shown as it came. A value is a link only if all of it is an address of http or https.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import msgspec

FIELDS_MAX = 64
"""How many fields are shown of one metadata. The last one then holds all that is left, as it came."""
LINK_CHARS_MAX = 2_048

_PAIR = re.compile(r"([\w./-]{1,63})=(.*)", re.DOTALL)
_BEGINNING = re.compile(r"[\s,;]*[\w./-]{1,63}=")
_BETWEEN = tuple(map(re.compile, (r"[\s,;]+", r"\s+", r"[\n;]\s*", r"\n\s*")))
"""What may stand between pairs. The finest comes first: the first that leaves nothing but pairs is taken.

None begins with blanks before something else: a long run of them would be looked at anew from each of its places.
"""
_LINK = re.compile(r"https?://[^\s<>\"\\^`{|}]+", re.IGNORECASE)
_RAW_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Field(msgspec.Struct, frozen=True):
    """One field. Its key is empty for a text that has none; `href` is there if its value is a link."""

    key: str
    value: str
    href: str | None = None


def fields_of(metadata: str | None, most: int = FIELDS_MAX) -> tuple[Field, ...]:
    """Return the fields of metadata, in their order: so many, and one more for all that is left."""
    text = "" if metadata is None else metadata.strip()
    if not text:
        return ()
    pairs = _of_json(text, most) if text.startswith("{") else _of_pairs(text, most)
    return tuple(Field(key, value, link_of(value)) for key, value in pairs or [("", text)])


def link_of(text: str) -> str | None:
    """Return the text if it is the address of a page; None if it is anything else, or could be taken for another."""
    if len(text) > LINK_CHARS_MAX or not text.isprintable() or not _LINK.fullmatch(text):
        return None
    try:
        return text if urlsplit(text).hostname else None
    except ValueError:
        return None


def _of_json(text: str, most: int) -> list[tuple[str, str]]:
    try:
        found = list(_RAW_OBJECT.decode(text.encode()).items())
        shown = [(key, _in_words(value)) for key, value in found[:most]]
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return []
    return shown if len(found) <= most else [*shown, ("…", f"{len(found) - most} more")]


def _in_words(value: msgspec.Raw) -> str:
    """Return what a value of JSON says: a text without its quotes, anything else as it was written."""
    written = bytes(value).strip()
    return msgspec.json.decode(written, type=str) if written.startswith(b'"') else written.decode()


def _of_pairs(text: str, most: int) -> list[tuple[str, str]]:
    if not _BEGINNING.match(text):
        return []  # Whatever stands between pairs, the first of them stands here.
    for between in _BETWEEN:
        pieces = [piece.strip() for piece in between.split(text, most) if piece.strip()]
        pairs = [_PAIR.fullmatch(piece) for piece in pieces]
        if pieces and all(pairs):
            return [(pair[1], pair[2].strip()) for pair in pairs if pair is not None]
    return []
