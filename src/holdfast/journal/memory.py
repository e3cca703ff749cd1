"""A journal in memory, for tests and simulations: the same promise, kept for as long as its shelf lives.

Closing and opening it again is a restart; `fork` is a copy as of now, as a crash would leave it; two journals on one
shelf are two servers on one directory. Records go through the codec, so that what is replayed is what a disk would have
given back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.core.events import is_history, principal_of
from holdfast.journal.base import (
    Health,
    HistoryPage,
    HistoryQuery,
    JournalLockedError,
    JournalUnavailableError,
    Keeping,
    Recovered,
    at_once,
    matches,
)
from holdfast.journal.codec import decode_batch, encode_batch, seal, unseal
from holdfast.journal.shares import eldest_of_the_largest, weight_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.core.events import Record


class Shelf:
    """Where journals in memory keep what outlives them: what a directory is to the other one."""

    def __init__(self) -> None:
        self.holder: MemoryJournal | None = None
        self.epoch = 0
        self.upto = 0
        self.snapshot: list[bytes] = []
        self.batches: list[tuple[int, bytes]] = []
        """The last number of each batch after the snapshot, and its bytes."""
        self.history: list[Record] = []
        self.pruned = 0
        """The number up to which history was dropped."""

    def copy(self) -> Shelf:
        """Return the same things, with nobody in the seat."""
        other = Shelf()
        other.epoch, other.upto = self.epoch, self.upto
        other.snapshot, other.batches = list(self.snapshot), list(self.batches)
        other.history, other.pruned = list(self.history), self.pruned
        return other

    def drop(self, seqs: set[int]) -> None:
        """Drop records from the history."""
        self.history = [record for record in self.history if record.seq not in seqs]
        self.pruned = max(self.pruned, *seqs, 0)

    @property
    def last_seq(self) -> int:
        """The number of the newest record."""
        return self.batches[-1][0] if self.batches else self.upto

    def tail(self) -> Iterator[Record]:
        """Yield the records after the snapshot."""
        for _, data in self.batches:
            yield from decode_batch(data)


class MemoryJournal:
    """Keeps everything in lists."""

    def __init__(self, keeping: Keeping | None = None, shelf: Shelf | None = None) -> None:
        """Stand before a shelf, a new one if none is given."""
        self.takes_claims = True
        self.appended_bytes = 0
        self._keeping = keeping or Keeping()
        self._shelf = shelf or Shelf()

    async def open(self) -> Recovered:
        """Take the seat; only one may have it."""
        shelf = self._shelf
        if shelf.holder is None:
            shelf.epoch += 1
            shelf.holder = self
        elif shelf.holder is not self:
            raise JournalLockedError("open: another journal has this shelf open; close it first")
        self.appended_bytes = sum(len(data) for _, data in shelf.batches)
        return Recovered(shelf.epoch, [unseal(part) for part in shelf.snapshot], shelf.tail())

    @at_once
    def append(self, batch: Sequence[Record]) -> None:
        """Keep a batch."""
        shelf = self._seated("append")
        if not batch:
            return
        if batch[0].seq != shelf.last_seq + 1:
            raise JournalUnavailableError(f"append: record {batch[0].seq} does not follow {shelf.last_seq}")
        data = encode_batch(batch)
        shelf.batches.append((batch[-1].seq, data))
        self.appended_bytes += len(data)

    async def compact(self, upto: int, snapshot: Iterable[bytes], wall_ms: int) -> None:
        """Let the snapshot stand for what came before."""
        shelf = self._seated("compact")
        if upto > shelf.upto:
            if upto not in {last for last, _ in shelf.batches}:
                raise JournalUnavailableError(f"compact: no durable batch ends with record {upto}")
            parts: list[bytes] = []
            for part in snapshot:
                parts.append(seal(part))
                await asyncio.sleep(0)
            self._seated("compact")
            kept = (record for record in shelf.tail() if record.seq <= upto and is_history(record.event))
            shelf.history.extend(kept)
            shelf.snapshot, shelf.upto = parts, upto
            shelf.batches = [(last, data) for last, data in shelf.batches if last > upto]
        oldest_ms = wall_ms - self._keeping.wall_ms
        shelf.drop({record.seq for record in shelf.history if record.wall_ms < oldest_ms})
        shelf.drop(_over(shelf.history, lambda _: 1, self._keeping.records_max))
        shelf.drop(_over(shelf.history, _bytes_of, self._keeping.bytes_max))

    async def history(self, query: HistoryQuery) -> HistoryPage:
        """Look through everything, newest first."""
        shelf = self._seated("history")
        found: list[Record] = []
        for record in reversed([*shelf.history, *(r for r in shelf.tail() if is_history(r.event))]):
            if len(found) >= query.limit:
                break
            if matches(query, record):
                found.append(record)
        return HistoryPage(found, found[-1].seq if len(found) >= query.limit else None)

    async def follow(self, after_seq: int, limit: int) -> Sequence[Record]:
        """Look through everything, oldest first."""
        shelf = self._seated("follow")
        everything = [*shelf.history, *(record for record in shelf.tail() if is_history(record.event))]
        return [record for record in everything if record.seq > after_seq][:limit]

    @property
    def history_begins_after(self) -> int:
        """The newest that was dropped."""
        return self._shelf.pruned

    def health(self) -> Health:
        """Memory is always well."""
        size_bytes = sum(len(data) for _, data in self._shelf.batches)
        return Health(takes_claims=self.takes_claims, size_bytes=size_bytes, storage="memory")

    async def close(self) -> None:
        """Give the seat back."""
        if self._shelf.holder is self:
            self._shelf.holder = None

    def fork(self) -> MemoryJournal:
        """Return what a crash at this instant would leave: the same records, nobody in the seat."""
        return MemoryJournal(self._keeping, self._shelf.copy())

    def _seated(self, operation: str) -> Shelf:
        if self._shelf.holder is not self:
            raise JournalUnavailableError(f"{operation}: the journal is not open; open it first")
        return self._shelf


def _bytes_of(record: Record) -> int:
    return weight_of(record, encode_batch([record]))


def _over(history: Sequence[Record], weigh: Callable[[Record], int], most: int) -> set[int]:
    """Return the numbers of the records that are too much, if all together may weigh so much."""
    shares: dict[str, list[tuple[int, int]]] = {}
    for record in history:
        shares.setdefault(principal_of(record.event), []).append((record.seq, weigh(record)))
    sums = [(who, sum(weight for _, weight in records)) for who, records in shares.items()]
    excess = sum(total for _, total in sums) - most
    return set(eldest_of_the_largest(sums, lambda who: iter(shares[who]), excess, len(history)))
