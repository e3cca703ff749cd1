"""The rules for names: syntax (N1), unreadable characters (N3), path traversal (N4).

A valid name stays valid: what is held under it can always be renewed, released and revoked. So `parse_name` never
becomes stricter; a new rule is checked where a lease or a wait would begin.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from urllib.parse import unquote_to_bytes

NAME_BYTES_MAX = 256
COMPONENT_BYTES_MAX = 64
_ESCAPED_DEEP_MAX = 4  # levels of escapes that are decoded in a name of a confined token
RESERVED_NAMES = frozenset({"list", "status"})

_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}(?:/[A-Za-z0-9._-]{1,64})*")
_PLAIN_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
_AS_LETTERS = bytes(ord("x") if byte in _PLAIN_BYTES else 0 for byte in range(256))  # plain bytes to letters
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")

_INVISIBLE = re.compile(
    # What Unicode calls default ignorable: shown as nothing by whoever does not know it.
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    # What has a shape without ink: a Braille cell without dots, a note without a head, two hieroglyphs, a filler.
    "\u2800\U0001d159\U00013441\U00013442\U00016fe4]"
)
_DOT_SEGMENT = re.compile(
    # Alone between what never ends a segment: readers of paths or URIs may cut at anything else. The dot comes first in
    # the pattern and what may not be before it second, because that is found much faster.
    r"\.(?<![\w.~%-]\.)\.?(?![\w.~%-])"
)
_URI = "Only a URI has a ':', and the first one ends its scheme, as in github://acme/app/issues/42"
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")


class BadNameError(ValueError):
    """The name breaks N1; the text says where."""


def parse_name(text: str) -> str:
    """Return the name if it is valid (N1), else raise `BadNameError` with the reason and the offending character."""
    if len(text) <= COMPONENT_BYTES_MAX and "/" not in text and text.isascii():
        # Most names have one part, and a regular expression takes three times as long for it.
        is_plain = text.encode().translate(_AS_LETTERS).isalpha()
    else:
        is_plain = len(text) <= NAME_BYTES_MAX and _PLAIN_NAME.fullmatch(text) is not None
    if is_plain and ".." not in text and text not in RESERVED_NAMES:
        return text  # as nearly all names
    if not text:
        raise BadNameError("a name has at least one character")
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > NAME_BYTES_MAX:
        raise BadNameError(f"a name has at most {NAME_BYTES_MAX} bytes of UTF-8, this one has {size}")
    if text in RESERVED_NAMES:
        raise BadNameError(f"{text!r} is reserved for a route: take a longer name")
    # Printable text has no surrogates, and no controls or blanks but the usual one: no need to check each character.
    for char in "" if text.isprintable() else text:
        if unicodedata.category(char) == "Cs":
            raise BadNameError(f"{_shown(char)} is half of a character")
    if not unicodedata.is_normalized("NFC", text):
        raise BadNameError("a name is written in Unicode form NFC")
    scheme, colon, rest = text.partition(":")
    if colon and "/" not in scheme:
        _check_uri(scheme, rest)
    else:
        _check_path(text)
    return text


def _check_uri(scheme: str, rest: str) -> None:
    if not _SCHEME.fullmatch(scheme):
        if not scheme:
            raise BadNameError(f"a name does not begin with ':'. {_URI}")
        raise BadNameError(f"{scheme!r} is not a URI scheme: a letter, then letters, digits, '+', '-', '.'. {_URI}")
    if not rest:
        raise BadNameError("a URI has something after its scheme")
    for char in "" if rest.isprintable() and " " not in rest else rest:
        if char.isspace() or unicodedata.category(char) in {"Cc", "Cf", "Zs", "Zl", "Zp"}:
            raise BadNameError(f"{_shown(char)} may not stand in a URI: percent-encode it")


def _check_path(text: str) -> None:
    for component in text.split("/"):
        if not component:
            raise BadNameError("a part between slashes is empty: no '/' at the beginning or end, and no two in a row")
        if component == "..":
            raise BadNameError("'..' may not be a part of a name between slashes")
        if len(component.encode()) > COMPONENT_BYTES_MAX:
            raise BadNameError(f"a part between slashes has at most {COMPONENT_BYTES_MAX} bytes")
        for char in component:
            if not (char.isalpha() or char.isdecimal() or char in "-_."):
                use = f"use letters, digits, '-', '_', '.', '/'. {_URI}"
                raise BadNameError(f"{_shown(char)} may not stand in a name: {use}")


def _shown(char: str) -> str:
    """Show a character without letting it act on a terminal."""
    return f"{char!r} (U+{ord(char):04X})" if char.isprintable() else f"U+{ord(char):04X}"


def why_unreadable(name: str) -> str | None:
    """Return why nobody may claim this name any more: a character of it looks like nothing or like a blank (N3)."""
    found = _INVISIBLE.search(name)
    return None if found is None else f"U+{ord(found[0]):04X} looks like nothing: take a name that people can read"


@lru_cache(maxsize=4_096)
def _as_usual(char: str) -> str:
    return unicodedata.normalize("NFKC", char)


def has_dot_segment(name: str) -> bool:
    """Return whether a reader of paths could find a segment `.` or `..` in a name, however it is written (N4).

    Escapes are decoded until there is none, since a reader may do it any number of times. An escape that is not UTF-8
    counts as such a segment; so does one that is escaped again and again, since a thousand such names would take long.
    Dots and slashes of other scripts count as ours.
    """
    if name.isascii() and "." not in name and "%" not in name:
        return False
    for _ in range(_ESCAPED_DEEP_MAX):
        if not unicodedata.is_normalized("NFKC", name):
            name = "".join(map(_as_usual, name))
        if _DOT_SEGMENT.search(name):
            return True
        if not _ESCAPE.search(name):
            return False
        try:
            name = unquote_to_bytes(name).decode()
        except UnicodeDecodeError:
            return True
    return True
