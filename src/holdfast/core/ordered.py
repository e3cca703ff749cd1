"""The held names in order, for listings by prefix. A claim pays next to nothing for it: the order is made when needed.

Claims outnumber listings by far, so what came since the last listing is only noted, and a listing merges it: one sort
of two sorted runs, which is linear. Python compares strings by code point, which is the byte order of UTF-8.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class OrderedNames:
    """A set of names that can be walked in order from any place."""

    def __init__(self) -> None:
        self._order: list[str] = []
        self._fresh: set[str] = set()
        self._removed: set[str] = set()
        """Names that stand in `_order` and are no longer in the set."""

    def __len__(self) -> int:
        return len(self._order) - len(self._removed) + len(self._fresh)

    def add(self, name: str) -> None:
        """Put in a name that is not there."""
        if name in self._removed:
            self._removed.discard(name)
        else:
            self._fresh.add(name)

    def remove(self, name: str) -> None:
        """Take out a name that is there."""
        if name in self._fresh:
            self._fresh.discard(name)
        else:
            self._removed.add(name)

    def update(self, names: Iterable[str]) -> None:
        """Put in many names that are not there."""
        self._fresh.update(names)

    def walk(self, prefix: str = "", after: str = "") -> Iterator[str]:
        """Yield the names that start with `prefix` and come after `after`, in order. Not to be kept across changes."""
        self._merge()
        order = self._order
        place = bisect_left(order, prefix)
        if after:
            place = max(place, bisect_right(order, after))
        for index in range(place, len(order)):
            name = order[index]
            if not name.startswith(prefix):
                return
            yield name

    def _merge(self) -> None:
        if self._removed:
            removed = self._removed
            self._order = [name for name in self._order if name not in removed]
            self._removed = set()
        if self._fresh:
            self._order.extend(sorted(self._fresh))
            self._order.sort()
            self._fresh = set()
