"""A journal in memory, for tests and simulations: the same promise, kept for as long as its shelf lives.

Closing and opening it again is a restart; `fork` is a copy as of now, as a crash would leave it; two journals on one
shelf are two servers on one directory. Records go through the codec, so that what is replayed is what a disk would have
given back.

    Shelf ─┬─ batches       the tail: the bytes of each append that is not archived
           └─ archive       never changed: each `archive` makes another one, and puts it there when it is whole
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.events import ends_of, grants_of, is_history, principal_of
from holdfast.journal.codec import decode_batch, encode_batch
from holdfast.journal.interface import (
    HEAD,
    Changes,
    Health,
    Held,
    HeldPage,
    HeldQuery,
    HistoryPage,
    HistoryQuery,
    JournalLockedError,
    JournalUnavailableError,
    Recovered,
    Retention,
    Values,
    sync_append,
)
from holdfast.journal.search import matches, suits
from holdfast.journal.sqlite.archive_writer import oldest_of_the_largest, weight_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

    from holdfast.core.events import Record
    from holdfast.core.values import Lease


class Hold(NamedTuple):
    """A time in which a name was held: by which lease, from which record, up to which; None while it lives."""

    name: str
    lease: Lease
    granted_seq: int
    ended_seq: int | None

    def is_at(self, seq: int) -> bool:
        """Tell whether it was held once that record was durable."""
        return self.granted_seq <= seq and (self.ended_seq is None or self.ended_seq > seq)


class Archive:
    """What stands for the records up to a number: the state as of then, and what has history value."""

    def __init__(self) -> None:
        self.upto = 0
        self.tables: dict[str, dict[bytes, bytes]] = {}
        """The archived state. The head is the only row of the table `HEAD`, and first."""
        self.history: list[Record] = []
        self.pruned = 0
        """The number up to which history was dropped."""
        self.holds: list[Hold] = []
        """Who held what: all that live, and those whose end is in the history."""

    def copy(self) -> Archive:
        """Return the same things, to be changed."""
        other = Archive()
        other.upto, other.pruned = self.upto, self.pruned
        other.tables = {table: dict(rows) for table, rows in self.tables.items()}
        other.history, other.holds = list(self.history), list(self.holds)
        return other

    def values(self) -> Iterator[Values]:
        """Yield the archived state, table by table."""
        for table, rows in self.tables.items():
            yield Values(table, list(rows.items()))

    def change(self, changes: Changes) -> None:
        """Put changed values in place. Raises for some that do not fit what is archived."""
        rows = self.tables.setdefault(changes.table, {})
        for key in changes.gone:
            _expect_row(rows, key, changes, is_there=True)
            del rows[key]
        for key, value in changes.changed:
            _expect_row(rows, key, changes, is_there=True)
            rows[key] = value
        for key, value in changes.new:
            _expect_row(rows, key, changes, is_there=False)
            rows[key] = value

    def take_in(self, records: Sequence[Record], upto: int, head: bytes) -> None:
        """Keep what has history value of the records up to a number."""
        self.history.extend(record for record in records if is_history(record.event))
        self.holds = holds_after(self.holds, records)
        self.tables[HEAD] = {HEAD.encode(): head}
        self.upto = upto

    def prune(self, retention: Retention, wall_ms: int) -> None:
        """Drop history that is too old or too much."""
        newest_ms = self.history[-1].wall_ms if self.history else wall_ms
        oldest_ms = min(wall_ms - retention.wall_ms, newest_ms)
        self._drop({record.seq for record in self.history if record.wall_ms < oldest_ms})
        self._drop(_over(self.history, lambda _: 1, retention.records_max))
        self._drop(_over(self.history, _bytes_of, retention.bytes_max))

    def _drop(self, seqs: set[int]) -> None:
        self.history = [record for record in self.history if record.seq not in seqs]
        self.holds = [hold for hold in self.holds if hold.ended_seq not in seqs]
        self.pruned = max(self.pruned, *seqs, 0)


class Shelf:
    """Where journals in memory keep what outlives them: what a directory is to the other one."""

    def __init__(self) -> None:
        self.holder: MemoryJournal | None = None
        self.epoch = 0
        self.archive = Archive()
        self.batches: list[tuple[int, bytes]] = []
        """The last number of each batch that is not archived, and its bytes."""

    def copy(self) -> Shelf:
        """Return the same things, with nobody in the leadership."""
        other = Shelf()
        other.epoch, other.archive, other.batches = self.epoch, self.archive, list(self.batches)
        return other

    @property
    def last_seq(self) -> int:
        """The number of the newest record."""
        return self.batches[-1][0] if self.batches else self.archive.upto

    def tail(self) -> Iterator[Record]:
        """Yield the records that are not archived."""
        for _, data in self.batches:
            yield from decode_batch(data)

    def history(self) -> list[Record]:
        """Return every record with history value that there is, oldest first."""
        return [*self.archive.history, *(record for record in self.tail() if is_history(record.event))]


class MemorySnapshot:
    """All that a shelf held at one instant."""

    def __init__(self, shelf: Shelf) -> None:
        self.last_seq = shelf.last_seq
        self.upto, self.pruned = shelf.archive.upto, shelf.archive.pruned
        self._archive, self._batches = shelf.archive, list(shelf.batches)

    async def tail(self) -> AsyncIterator[Sequence[Record]]:
        """Yield every record that is not archived, batch by batch."""
        for _, data in self._batches:
            yield list(decode_batch(data))

    async def values(self) -> AsyncIterator[Values]:
        """Yield the archived state."""
        for values in self._archive.values():
            yield values

    async def history(self) -> AsyncIterator[Sequence[Record]]:
        """Yield the archived history, all at once."""
        yield self._archive.history


class MemoryJournal:
    """Keeps everything in lists."""

    is_shared = False

    def __init__(self, retention: Retention | None = None, shelf: Shelf | None = None) -> None:
        """Stand before a shelf, a new one if none is given."""
        self.takes_claims = True
        self.tail_bytes = 0
        self._retention = retention or Retention()
        self._shelf = shelf or Shelf()

    async def open(self) -> Recovered:
        """Take the leadership; only one may have it."""
        shelf = self._shelf
        if shelf.holder is None:
            shelf.epoch += 1
            shelf.holder = self
        elif shelf.holder is not self:
            raise JournalLockedError("open: another journal has this shelf open; close it first")
        self._weigh_tail()
        return Recovered(shelf.epoch, shelf.archive.values(), shelf.tail())

    @sync_append
    def append(self, batch: Sequence[Record]) -> None:
        """Keep a batch."""
        shelf = self._require_open("append")
        if not batch:
            return
        if batch[0].seq != shelf.last_seq + 1:
            raise JournalUnavailableError(f"append: record {batch[0].seq} does not follow {shelf.last_seq}")
        data = encode_batch(batch)
        shelf.batches.append((batch[-1].seq, data))
        self.tail_bytes += len(data)

    async def archive(self, upto: int, head: bytes, changes: Iterable[Changes], wall_ms: int) -> None:
        """Let another archive stand for what came before."""
        archive = self._require_open("archive").archive.copy()
        if upto > archive.upto:
            if upto not in {last for last, _ in self._shelf.batches}:
                raise JournalUnavailableError(f"archive: no durable batch ends with record {upto}")
            # The head is the first table, also of the first archive.
            archive.tables.setdefault(HEAD, {})
            for each in changes:
                archive.change(each)
                await asyncio.sleep(0)
            shelf = self._require_open("archive")
            archive.take_in([record for record in shelf.tail() if record.seq <= upto], upto, head)
        archive.prune(self._retention, wall_ms)
        self._shelf.archive = archive
        self._shelf.batches = [(last, data) for last, data in self._shelf.batches if last > archive.upto]
        self._weigh_tail()

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[MemorySnapshot]:
        """Give all that there is now."""
        yield MemorySnapshot(self._require_open("snapshot"))

    async def history(self, query: HistoryQuery) -> HistoryPage:
        """Look through everything, newest first."""
        found: list[Record] = []
        for record in reversed(self._require_open("history").history()):
            if len(found) >= query.limit:
                break
            if matches(query, record):
                found.append(record)
        return HistoryPage(found, found[-1].seq if len(found) >= query.limit else None)

    async def follow(self, after_seq: int, limit: int) -> Sequence[Record]:
        """Look through everything, oldest first."""
        return [record for record in self._require_open("follow").history() if record.seq > after_seq][:limit]

    async def last_by(self, wall_ms: int) -> int:
        """Look through everything, newest first."""
        newest_first = reversed(self._require_open("last_by").history())
        return next((record.seq for record in newest_first if record.wall_ms <= wall_ms), 0)

    async def held(self, query: HeldQuery) -> HeldPage:
        """Follow every grant and every end."""
        shelf = self._require_open("held")
        found = [
            Held(hold.name, hold.lease, hold.granted_seq)
            for hold in holds_after(shelf.archive.holds, shelf.tail())
            if hold.is_at(query.seq) and suits(query, hold.lease)
            if hold.name.startswith(query.prefix) and (query.after is None or hold.name > query.after)
        ]
        found.sort(key=lambda held: held.name)
        page = found[: query.limit]
        return HeldPage(page, page[-1].name if len(found) > len(page) else None)

    @property
    def history_begins_after(self) -> int:
        """The newest that was dropped."""
        return self._shelf.archive.pruned

    def health(self) -> Health:
        """Memory is always well."""
        size_bytes = sum(len(data) for _, data in self._shelf.batches)
        return Health(takes_claims=self.takes_claims, size_bytes=size_bytes, storage="memory")

    def why_no_claims(self, principal: str) -> str | None:
        """Say what health says."""
        health = self.health()
        return None if health.takes_claims else health.text

    async def close(self) -> None:
        """Give the leadership back."""
        if self._shelf.holder is self:
            self._shelf.holder = None

    def fork(self) -> MemoryJournal:
        """Return what a crash at this instant would leave: the same records, nobody in the leadership."""
        return MemoryJournal(self._retention, self._shelf.copy())

    def _require_open(self, operation: str) -> Shelf:
        if self._shelf.holder is not self:
            raise JournalUnavailableError(f"{operation}: the journal is not open; open it first")
        return self._shelf

    def _weigh_tail(self) -> None:
        self.tail_bytes = sum(len(data) for _, data in self._shelf.batches)


def holds_after(holds: Iterable[Hold], records: Iterable[Record]) -> list[Hold]:
    """Return who held what, once these records are counted too. A name has one holder at a time (I1)."""
    all_holds = list(holds)
    living = {hold.name: index for index, hold in enumerate(all_holds) if hold.ended_seq is None}

    def end(name: str, seq: int) -> None:
        index = living.pop(name, None)
        if index is not None:
            all_holds[index] = all_holds[index]._replace(ended_seq=seq)

    def begin(name: str, lease: Lease, seq: int) -> None:
        end(name, seq)
        living[name] = len(all_holds)
        all_holds.append(Hold(name, lease, seq, None))

    for record in records:
        for name in ends_of(record.event):
            end(name, record.seq)
        for name, lease in grants_of(record.event):
            begin(name, lease, record.seq)
    return all_holds


def _expect_row(rows: dict[bytes, bytes], key: bytes, changes: Changes, *, is_there: bool) -> None:
    if (key in rows) is not is_there:
        state = "is archived already" if key in rows else "is not archived"
        raise JournalUnavailableError(f"archive: {key!r} of {changes.table} {state}: the changes do not fit")


def _bytes_of(record: Record) -> int:
    return weight_of(record, encode_batch([record]))


def _over(history: Sequence[Record], weigh: Callable[[Record], int], most: int) -> set[int]:
    """Return the numbers of the records that are too much, if all together may weigh so much."""
    shares: dict[str, list[tuple[int, int]]] = {}
    for record in history:
        shares.setdefault(principal_of(record.event), []).append((record.seq, weigh(record)))
    sums = [(who, sum(weight for _, weight in records)) for who, records in shares.items()]
    excess = sum(total for _, total in sums) - most
    return set(oldest_of_the_largest(sums, lambda who: iter(shares[who]), excess, len(history)))
