"""Recent events without a record: refused circular waits, and access tokens that ended. In memory, and bounded.

A restart and a change of the leader drop them; the pages say since when they are kept. No principal can push out
another's entries: each has a limit, and beyond the total the principal with most loses its oldest.
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

import msgspec

KEPT_MAX = 100
OF_ONE_MAX = 20
KEPT_MS = 86_400_000

T = TypeVar("T")


class Entry(msgspec.Struct, Generic[T]):
    what: T
    principal: str
    first_wall_ms: int
    last_wall_ms: int
    said_ms: int  # The last time, by the monotonic clock.
    count: int = 1


class RecentEvents(Generic[T]):
    def __init__(self, since_wall_ms: int) -> None:
        self.since_wall_ms = since_wall_ms  # When this process began to serve.
        self._entries: dict[tuple[str, T], Entry[T]] = {}  # The newest last.

    def note(self, what: T, principal: str, *, now_ms: int, wall_ms: int) -> None:
        self._forget(now_ms)
        place = (principal, what)
        entry = self._entries.pop(place, None)
        if entry is None:
            self._make_room(principal)
            entry = Entry(what, principal, wall_ms, wall_ms, now_ms)
        else:
            entry.count, entry.last_wall_ms, entry.said_ms = entry.count + 1, wall_ms, now_ms
        self._entries[place] = entry

    def newest_first(self, now_ms: int) -> list[Entry[T]]:
        self._forget(now_ms)
        return list(reversed(self._entries.values()))

    def _forget(self, now_ms: int) -> None:
        while self._entries:
            place, oldest = next(iter(self._entries.items()))
            if now_ms - oldest.said_ms <= KEPT_MS:
                return
            del self._entries[place]

    def _make_room(self, principal: str) -> None:
        owned = Counter(whose for whose, _ in self._entries)
        giver = principal if owned[principal] >= OF_ONE_MAX else None
        if giver is None and len(self._entries) >= KEPT_MAX:
            giver = owned.most_common(1)[0][0]
        if giver is not None:
            del self._entries[next(place for place in self._entries if place[0] == giver)]
