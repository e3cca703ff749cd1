"""Pages: a list is answered in pieces that are bounded in bytes, and a piece is made a slice at a time.

How long a list is depends on what others keep: an item is encoded only when its page has room, and between two slices
the loop serves others. Items that change while a list is read may be in it or not; all others are in it once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from heapq import nsmallest
from typing import Any

from msgspec import Raw

from holdfast.api.rendering import encode
from holdfast.core.state import State
from holdfast.core.values import Instant
from holdfast.engine.engine import Engine
from holdfast.wire.problems import Problem

LIMIT = 1_000
LIMIT_MAX = 10_000
PAGE_BYTES = 1024 * 1024  # A page ends with the item that reaches this.
SLICE_ITEMS = 250
SLICE_BYTES = 128 * 1024
SLICE_NAMES = 1_000  # How many names a slice sorts, or filters.
_NUMBER = re.compile(r"[0-9]{1,9}")


def read_limit(query: dict[str, Any], default: int = LIMIT, maximum: int = LIMIT_MAX) -> dict[str, Any]:
    limit = query.setdefault("limit", str(default))
    if not _NUMBER.fullmatch(limit) or not 0 < int(limit) <= maximum:
        raise Problem("invalid_input", f"limit is 1 to {maximum}.")
    return query


class Page:
    def __init__(self, limit: int) -> None:
        self.items: list[Any] = []
        self._limit = limit
        self._bytes = 0
        self._slice_items_max = 0
        self._slice_bytes_max = 0

    def begin_slice(self) -> None:
        self._slice_items_max = len(self.items) + SLICE_ITEMS
        self._slice_bytes_max = self._bytes + SLICE_BYTES

    def add(self, reply: object) -> None:
        item = encode(reply)
        self.items.append(Raw(item))
        self._bytes += len(item)

    @property
    def is_full(self) -> bool:
        return len(self.items) >= self._limit or self._bytes >= PAGE_BYTES

    @property
    def ends_slice(self) -> bool:
        return len(self.items) >= self._slice_items_max or self._bytes >= self._slice_bytes_max


class Selection:
    """A page of what can be picked by its name: of a list that nobody else makes longer."""

    def __init__(
        self,
        query: dict[str, Any],
        names: Callable[[State], Iterable[str]],
        show: Callable[[str, State, Instant], object | None],
    ) -> None:
        """`names` is asked once, in any order; `show` has nothing to say of what has ended meanwhile."""
        self.page = Page(int(query["limit"]))
        self.next_after: str | None = None
        self.total = 0
        self._limit = int(query["limit"])
        self._after: str = query.get("after", "")
        self._names = names
        self._show = show
        self._candidates: list[str] | None = (
            None  # This page's candidates in order, and one more: is there a next page?
        )

    def take_slice(self, state: State, now: Instant) -> bool:
        if self._candidates is None:
            names = list(self._names(state))
            self.total = len(names)
            self._candidates = nsmallest(self._limit + 1, (name for name in names if name > self._after))
        self.page.begin_slice()
        for number, name in enumerate(self._candidates):
            if self.page.is_full:
                self.next_after = self._after
                return True
            if self.page.ends_slice:
                del self._candidates[:number]
                return False
            shown = self._show(name, state, now)
            if shown is not None:
                self.page.add(shown)
            self._after = name
        return True


async def in_slices(engine: Engine, take_slice: Callable[[State, Instant], bool]) -> None:
    """Call this in turn after turn until it says that it is done; then all that it saw is durable."""
    while not await engine.query(take_slice):
        pass


async def sort_held_names(engine: Engine) -> None:
    """Put the held names in order, as many as a slice may; what comes meanwhile is little."""
    while engine.state.index.held.unordered > SLICE_NAMES:
        engine.state.index.held.put_in_order(SLICE_NAMES)
        await asyncio.sleep(0)
