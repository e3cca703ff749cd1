"""Who left how much of the history, and whose goes first when there is too much.

History is counted against the principal that left it, in records and in bytes. Over a limit, the eldest records of
whoever has left the most go first. So one who floods the history pushes out their own, and nobody else's.

Each row of the history says whose it is. The sums are changed in memory during a step, and written once at its end.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, TypeVar

from holdfast.core.events import names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from holdfast.core.events import Record
    from holdfast.journal.store import Store

    Weighed = tuple[int, int]
    """The number of a record, and how much it counts."""

Who = TypeVar("Who", str, bytes)
"""Somebody's name, as the store has it."""


def weight_of(record: Record, body: bytes) -> int:
    """Return how many bytes a record counts for: its own, and the names that it is listed under."""
    return len(body) + sum(len(name.encode()) for name in names_of(record.event))


def eldest_of_the_largest(
    sums: Iterable[tuple[str, int]], eldest: Callable[[str], Iterator[Weighed]], excess: int, most: int
) -> list[int]:
    """Return the numbers of the records to drop. `eldest` yields somebody's records."""
    sums = list(sums)
    records = {who: eldest(who) for who, _ in sums}
    choosing = choose(sums, excess, most)
    try:
        who = next(choosing)
        while True:
            who = choosing.send(next(records[who], None))
    except StopIteration as end:
        chosen: list[int] = end.value
        return chosen


def choose(
    sums: Iterable[tuple[Who, int]], excess: int, most: int
) -> Generator[Who, tuple[int, int] | None, list[int]]:
    """Choose the records to drop: as many as make up for `excess`, and at most `most`; return their numbers.

    One after another, each time the eldest of whoever has the largest sum then. It yields of whom the next eldest is
    wanted, and is sent its number and how much it counts, or None if there is none: so a store can be asked too that
    has to be waited for.
    """
    largest = [(-total, who) for who, total in sums]
    heapq.heapify(largest)
    chosen: list[int] = []
    while largest and excess > 0 and len(chosen) < most:
        total, who = heapq.heappop(largest)
        found = yield who
        if found is not None:
            seq, weight = found
            chosen.append(seq)
            excess -= weight
            heapq.heappush(largest, (total + weight, who))
    return chosen


class Share:
    """What one has left."""

    __slots__ = ("bytes", "name", "number", "records")

    def __init__(self, number: int, name: str, records: int = 0, size_bytes: int = 0) -> None:
        self.number = number
        self.name = name
        self.records = records
        self.bytes = size_bytes


class Shares:
    """What each has left, in memory, until `write`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.by_name = {row[1]: Share(*row) for row in store.some("read_who")}
        self.by_number = {share.number: share for share in self.by_name.values()}
        self._next = max(self.by_number, default=0) + 1
        self._changed: set[Share] = set()

    def add(self, name: str, size_bytes: int) -> int:
        """Count a record against somebody, and return their number."""
        share = self.by_name.get(name)
        if share is None:
            share = self.by_name[name] = self.by_number[self._next] = Share(self._next, name)
            self._next += 1
        share.records += 1
        share.bytes += size_bytes
        self._changed.add(share)
        return share.number

    def drop(self, number: int, size_bytes: int) -> None:
        """Count a record against somebody no more."""
        share = self.by_number[number]
        share.records -= 1
        share.bytes -= size_bytes
        self._changed.add(share)

    def records(self) -> int:
        """Return how many records all have left together."""
        return sum(share.records for share in self.by_name.values())

    def bytes(self) -> int:
        """Return how many bytes all have left together."""
        return sum(share.bytes for share in self.by_name.values())

    def write(self) -> None:
        """Write what has changed. Who has left nothing has no sums."""
        left = [share for share in self._changed if share.records]
        self._store.do("write_who", [(share.number, share.name, share.records, share.bytes) for share in left])
        for share in self._changed.difference(left):
            self._store.do("drop_who", [(share.number,)])
            del self.by_name[share.name], self.by_number[share.number]
        self._changed.clear()
