"""What the search field of the list understands. `static/search.js` reads it the same way; a test compares the two.

    prefix:github://acme     names that start so
    owner:agent-3            owners that start so, in upper or lower case
    label:team:web           jobs with this label; label:team is any value of it
    anything else            is in the name, the owner, the note, a label or the metadata, in upper or lower case

All of it must fit. A value with blanks is put in quotes: owner:"build bot". Whatever is typed is a search, no error.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.server.pages.rows import Row

SEARCH_CHARS_MAX = 512
"""What is longer is cut."""
TERMS_MAX = 16
"""Terms beyond these are passed over."""
SORTS = ("name", "owner", "held", "heartbeat", "left", "line")
"""By what the list can be sorted; with `-` before it, the other way round."""

_TERM = re.compile(r'(?:(prefix|owner|label):)?(?:"([^"]*)"?|(\S+))')

_UNFINISHED = frozenset({"prefix:", "owner:", "label:"})
"""Somebody is about to type what: nothing is looked for yet."""


class Search(msgspec.Struct, frozen=True):
    """What is looked for."""

    prefix: str = ""
    outside: bool = False
    """Whether two prefixes were given of which neither begins with the other: nothing can fit."""
    owners: tuple[str, ...] = ()
    labels: tuple[tuple[str, str | None], ...] = ()
    words: tuple[str, ...] = ()

    @property
    def is_of_names_alone(self) -> bool:
        """Whether a name is all that has to be looked at."""
        return not (self.owners or self.labels or self.words)

    def fits(self, row: Row) -> bool:
        """Tell whether a job is one that is looked for."""
        if self.outside or not row.name.startswith(self.prefix):
            return False
        if self.is_of_names_alone:
            return True
        owner = row.owner.lower()
        if not all(owner.startswith(each) for each in self.owners):
            return False
        if not all(
            row.labels.get(key) == value if value is not None else key in row.labels for key, value in self.labels
        ):
            return False
        text = _text_of(row) if self.words else ""
        return all(word in text for word in self.words)


def _text_of(row: Row) -> str:
    """Return all that a word may be found in. No word goes over a line break."""
    labels = (f"{key}:{value}" for key, value in row.labels.items())
    fields = (f"{key}={value}" for key, value in row.fields)
    return "\n".join((row.name, row.owner, row.note, *labels, *fields)).lower()


def read_search(text: str) -> Search:
    """Read what was typed."""
    prefix, outside = "", False
    owners: list[str] = []
    labels: list[tuple[str, str | None]] = []
    words: list[str] = []
    for number, term in enumerate(_TERM.finditer(text[:SEARCH_CHARS_MAX])):
        kind, value = term[1], term[2] if term[2] is not None else term[3] or ""
        if number >= TERMS_MAX:
            break
        if not value or (kind is None and value in _UNFINISHED):
            continue
        if kind == "prefix":
            outside = outside or not (value.startswith(prefix) or prefix.startswith(value))
            prefix = max(prefix, value, key=len)
        elif kind == "owner":
            owners.append(value.lower())
        elif kind == "label":
            key, colon, wanted = value.partition(":")
            labels.append((key, wanted if colon else None))
        else:
            words.append(value.lower())
    return Search(prefix, outside, tuple(owners), tuple(labels), tuple(words))


def name_in(text: str) -> str:
    """Return the one name that was typed, alone or behind `prefix:`; empty if it is another search."""
    term = _TERM.fullmatch(text.strip())
    if term is None or term[1] in {"owner", "label"}:
        return ""
    return term[2] if term[2] is not None else term[3] or ""


def label_term(key: str, value: str) -> str:
    """Return the search for a label. A value with blanks and quotes cannot be typed: then for its key."""
    if not any(char.isspace() for char in value):
        return f"label:{key}:{value}"
    return f"label:{key}" if '"' in value else f'label:"{key}:{value}"'


_KEYS: dict[str, Callable[[Row], tuple[object, ...]]] = {
    "name": lambda row: (row.name,),
    "owner": lambda row: (row.owner, row.name),
    "held": lambda row: (row.since, row.name),
    "heartbeat": lambda row: (row.beat, row.name),
    "left": lambda row: (row.until, row.name),
    "line": lambda row: (-row.line, row.name),
}


def read_sort(text: str) -> tuple[str, bool]:
    """Return by what the list is sorted, and whether the other way round. What is not known is by name."""
    kind = text.removeprefix("-")
    return (kind, text.startswith("-")) if kind in SORTS else ("name", False)


def sort_key(kind: str) -> Callable[[Row], tuple[object, ...]]:
    """Return what rows are sorted by.

    Who is held longest, was heard of longest ago, ends first or is waited for most comes first; equal ones by name.
    """
    return _KEYS[kind]
