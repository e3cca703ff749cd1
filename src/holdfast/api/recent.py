"""Recent events without a record: refused circular waits, and access tokens that ended. In memory, and bounded.

A restart and a change of the leader drop them; the pages say since when they are kept. No principal can push out
another's entries: each has a limit, and beyond the total the principal with most loses its oldest.
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

import msgspec

ENTRIES_MAX = 100
PER_PRINCIPAL_MAX = 20
RETENTION_MS = 86_400_000

T = TypeVar("T")


class Entry(msgspec.Struct, Generic[T]):
    what: T
    principal: str
    first_wall_ms: int
    last_wall_ms: int
    last_ms: int  # The last time, by the monotonic clock.
    count: int = 1


class RecentEvents(Generic[T]):
    def __init__(self, since_wall_ms: int) -> None:
        self.since_wall_ms = since_wall_ms  # When this process began to serve.
        self._entries: dict[tuple[str, T], Entry[T]] = {}  # The newest last.

    def note(self, what: T, principal: str, *, now_ms: int, wall_ms: int) -> None:
        self._forget(now_ms)
        key = (principal, what)
        entry = self._entries.pop(key, None)
        if entry is None:
            self._evict_for(principal)
            entry = Entry(what, principal, wall_ms, wall_ms, now_ms)
        else:
            entry.count, entry.last_wall_ms, entry.last_ms = entry.count + 1, wall_ms, now_ms
        self._entries[key] = entry

    def newest_first(self, now_ms: int) -> list[Entry[T]]:
        self._forget(now_ms)
        return list(reversed(self._entries.values()))

    def _forget(self, now_ms: int) -> None:
        while self._entries:
            key, oldest = next(iter(self._entries.items()))
            if now_ms - oldest.last_ms <= RETENTION_MS:
                return
            del self._entries[key]

    def _evict_for(self, principal: str) -> None:
        owned = Counter(whose for whose, _ in self._entries)
        evicted = principal if owned[principal] >= PER_PRINCIPAL_MAX else None
        if evicted is None and len(self._entries) >= ENTRIES_MAX:
            evicted = owned.most_common(1)[0][0]
        if evicted is not None:
            del self._entries[next(key for key in self._entries if key[0] == evicted)]
