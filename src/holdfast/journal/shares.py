"""Who left how much of the history, and whose goes first when there is too much.

History is counted against the principal that left it, in records and in bytes. Over a limit, the eldest records of
whoever has left the most go first. So one who floods the history pushes out their own, and nobody else's.

`history_share` has a row beside each row of the history; triggers keep the sums in `history_sum` in step with it, in
the same transaction. Rows of a release that did not count are entered under no name, a slice at a time.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from holdfast.core.events import names_of, principal_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.core.events import Record
    from holdfast.journal.store import Row, Store

    Weighed = tuple[int, int]
    """The number of a record, and how much it counts."""

UNCOUNTED = "uncounted_upto"
"""The scalar that says up to which number the history has no shares yet."""
ELDEST_ROWS = 16


def weight_of(record: Record, body: bytes) -> int:
    """Return how many bytes a record counts for: its own, and the names that it is listed under."""
    return len(body) + sum(len(name.encode()) for name in names_of(record.event))


def eldest_of_the_largest(
    sums: Iterable[tuple[str, int]], eldest: Callable[[str], Iterator[Weighed]], excess: int, most: int
) -> list[int]:
    """Return the numbers of the records to drop: as many as make up for `excess`, and at most `most`.

    One after another, each time the eldest of whoever has the largest sum then. `eldest` yields somebody's records.
    """
    largest = [(-total, who) for who, total in sums]
    heapq.heapify(largest)
    records = {who: eldest(who) for _, who in largest}
    chosen: list[int] = []
    while largest and excess > 0 and len(chosen) < most:
        total, who = heapq.heappop(largest)
        found = next(records[who], None)
        if found is not None:
            seq, weight = found
            chosen.append(seq)
            excess -= weight
            heapq.heappush(largest, (total + weight, who))
    return chosen


class Shares:
    """The shares of one store. What changes them is called inside a transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def enter(self, record: Record, body: bytes) -> None:
        """Count a record against whoever left it. One that was entered before is not counted twice."""
        row = (record.seq, principal_of(record.event), weight_of(record, body))
        self._store.do("write_share", [row])

    def drop(self, seqs: Iterable[Row]) -> None:
        """Count these records no more."""
        self._store.do("drop_share", seqs)

    def has_uncounted(self) -> bool:
        """Tell whether there are records that were kept before history was counted."""
        return self._store.meta(UNCOUNTED) > 0

    def count_some(self, most: int) -> None:
        """Enter some of the records that were kept before history was counted, newest first."""
        upto = self._store.meta(UNCOUNTED)
        rows = list(self._store.run("read_uncounted_history", (upto, most)))
        self._store.do("write_share", [(seq, "", size_bytes) for seq, size_bytes in rows])
        self._store.do("write_meta", [(UNCOUNTED, rows[-1][0] - 1 if rows else 0)])

    def too_many(self, excess: int, most: int) -> list[int]:
        """Return the numbers of records to drop because there are too many."""
        sums = self._store.run("read_largest_by_records", (most,))
        return eldest_of_the_largest(sums, lambda who: ((seq, 1) for seq, _ in self._eldest(who)), excess, most)

    def too_large(self, bytes_max: int, most: int) -> list[int]:
        """Return the numbers of records to drop because all together have more bytes than are kept."""
        excess = self._store.meta("history_bytes") - bytes_max
        sums = self._store.run("read_largest_by_bytes", (most,))
        return eldest_of_the_largest(sums, self._eldest, excess, most) if excess > 0 else []

    def _eldest(self, who: str) -> Iterator[Weighed]:
        after = -1
        while rows := list(self._store.run("read_eldest_of", (who, after, ELDEST_ROWS))):
            yield from rows
            after = rows[-1][0]
