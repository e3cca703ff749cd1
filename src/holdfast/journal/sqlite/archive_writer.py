"""Writes the archive: step by step, or all of it from a snapshot of another store.

    begin ──► enter the batches since the last step ──► change the state's rows ──► commit: prune, write, sync

It is synchronous: the child, a restore and tests run it. On any failure the transaction is rolled back.

**Entries.** A name's row says of a grant at which record it ended, and of an end which grant it ended. `living` has the
grant of each held name: an end finds its grant there. Most leases begin and end within one step, so rows are gathered
in memory, bounded in number and bytes: then both rows are written only once, in order.

The history of a backup is incomplete, so `repair_grants` corrects the rows by the state. A live lease may be older than
the history: it gets a made-up grant, with a negative number. A grant whose end is missing would live for ever: it ends
where the history begins.

**Pruning.** History counts against its principal, in records and in bytes. First the records that are too old go,
except the newest: it says since when nothing happened. Then, above the limits, the oldest of the principal with the
most: who floods the history loses their own.

A pruned grant whose lease lives, or whose end is still in the history, moves to a table of its own until the end is
pruned: who held what is answered from there.

A step drops a bounded number of records, and reads a bounded number of bytes at once: a record may have megabytes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Literal, NamedTuple, TypeVar

import msgspec

from holdfast.core.events import Event, Granted, Record, ends_of, grants_of, names_of, principal_of
from holdfast.core.values import Lease, Slot
from holdfast.journal.codec import decode_batch, encode_batch, history_in
from holdfast.journal.failpoints import failpoint
from holdfast.journal.interface import Changes, HistoryPart, JournalUnavailableError, Retention, Values
from holdfast.journal.sqlite.archive import OPEN, StateRows, block_of, ordinals_of, position_of, segment_of
from holdfast.journal.sqlite.store import DiskFullError, Store

Unit = Literal["records", "bytes"]
Weighed = tuple[int, int]  # The number of a record, and how much it counts.
NameRow = list[int | str | None]  # Segment, name, seq, until, began.

Who = TypeVar("Who", str, bytes)  # A principal's name, as the store has it.

ROWS_MAX = 32_768  # Gathered before they are written.
BYTES_MAX = 8 * 1024 * 1024  # Of gathered records. Small ones reach `ROWS_MAX` long before.
LIVING_MAX = 32 * 1024 * 1024  # Of cached names, with `CACHE_ENTRY_BYTES` for each.
CACHE_ENTRY_BYTES = 128

SLOTS = "slots"  # The table of the state that has the leases.
SOME = 1_024

_slot_of = msgspec.msgpack.Decoder(Slot).decode
_SEQ, _UNTIL, _BEGAN = 2, 3, 4


def weight_of(record: Record, body: bytes) -> int:
    """Return how many bytes a record counts for: its own, and those of its names."""
    return len(body) + sum(len(name.encode()) for name in names_of(record.event))


def oldest_of_the_largest(
    sums: Iterable[tuple[str, int]], oldest: Callable[[str], Iterator[Weighed]], excess: int, most: int
) -> list[int]:
    """Return the numbers of the records to drop (`choose`). `oldest` yields the oldest of a principal."""
    sums = list(sums)
    records = {who: oldest(who) for who, _ in sums}
    choosing = choose(sums, excess, most)
    found: Weighed | None = None
    try:
        while True:
            found = next(records[choosing.send(found)], None)
    except StopIteration as end:
        chosen: list[int] = end.value
        return chosen


def choose(
    sums: Iterable[tuple[Who, int]], excess: int, most: int
) -> Generator[Who, tuple[int, int] | None, list[int]]:
    """Choose up to `most` records whose weight makes up for `excess`, and return their numbers.

    Each is the oldest of the principal with the largest sum. The caller is sent the principal, and sends back number
    and weight of its oldest record, or None. A generator, because PostgreSQL must be awaited for that.
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


class PrincipalHistory(msgspec.Struct, eq=False):
    number: int
    name: str
    records: int = 0
    bytes: int = 0


class HistoryUsage:
    """The history of each principal, counted in memory until `write`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.by_name = {row[1]: PrincipalHistory(*row) for row in store.some("read_who")}
        self.by_number = {principal.number: principal for principal in self.by_name.values()}
        self._next = max(self.by_number, default=0) + 1
        self._changed: set[PrincipalHistory] = set()

    def add(self, name: str, size_bytes: int) -> int:
        """Count a record against a principal, and return their number."""
        principal = self.by_name.get(name)
        if principal is None:
            principal = self.by_name[name] = self.by_number[self._next] = PrincipalHistory(self._next, name)
            self._next += 1
        principal.records += 1
        principal.bytes += size_bytes
        self._changed.add(principal)
        return principal.number

    def drop(self, number: int, size_bytes: int) -> None:
        principal = self.by_number[number]
        principal.records -= 1
        principal.bytes -= size_bytes
        self._changed.add(principal)

    def sums(self, unit: Unit) -> list[tuple[str, int]]:
        return [(principal.name, getattr(principal, unit)) for principal in self.by_name.values()]

    def write(self) -> None:
        left = [principal for principal in self._changed if principal.records]
        self._store.do(
            "write_who", [(principal.number, principal.name, principal.records, principal.bytes) for principal in left]
        )
        for principal in self._changed.difference(left):
            self._store.do("drop_who", [(principal.number,)])
            del self.by_name[principal.name], self.by_number[principal.number]
        self._changed.clear()


class Entries:
    """Enters records, inside a transaction, until `write`."""

    def __init__(self, store: Store, usage: HistoryUsage) -> None:
        self._store = store
        self._usage = usage
        self._history: list[tuple[int, int, int, bytes]] = []
        self._bytes = 0
        self._names: list[NameRow] = []
        # Ends of written grants: until, and the key of their row.
        self._written_ends: list[tuple[int, int, str, int]] = []
        self._living: dict[str, NameRow | int | None] = {}  # Grants by name: row, number once written, or None.
        self._stored: set[str] = set()  # Of those, the names in the table `living`.
        self._living_bytes = 0
        self._fresh: list[str] = []  # Names granted since the last `write_rows`.
        self._untils: dict[int, int] = {}
        self._walls_ms: dict[int, int] = {}

    def add_batch(self, body: bytes) -> None:
        for frame, record in history_in(body):
            self.add(record, frame)

    def add(self, record: Record, body: bytes) -> None:
        seq, event = record.seq, record.event
        names = names_of(event)
        size_bytes = len(body)
        for name in names:
            size_bytes += len(name.encode())
        number = self._usage.add(principal_of(event), size_bytes)
        self._history.append((seq, record.wall_ms, number, body))
        self._bytes += size_bytes
        block = block_of(seq)
        if record.wall_ms < self._walls_ms.get(block, OPEN):
            self._walls_ms[block] = record.wall_ms
        if names:
            self._add_names(seq, event, names)
        if len(self._history) + len(self._names) >= ROWS_MAX or self._bytes >= BYTES_MAX:
            if self._living_bytes >= LIVING_MAX:
                self.write()
            else:
                self.write_rows()

    def _add_names(self, seq: int, event: Event, names: tuple[str, ...]) -> None:
        segment = segment_of(seq)
        rows: dict[str, NameRow] = {name: [segment, name, seq, None, None] for name in names}
        for name in ends_of(event):
            self._end(name, seq, rows[name])
        for name, _ in grants_of(event):
            self._begin(name, seq, rows[name])
        self._names.extend(rows.values())
        self._untils.setdefault(segment, 0)

    def add_missing_grant(self, name: str, seq: int, body: bytes) -> None:
        """Enter a grant that the history does not have."""
        self._store.do("write_retained_grant", [(seq, 1, body)])
        self._names.append([segment_of(seq), name, seq, OPEN, None])
        self._untils.setdefault(segment_of(seq), 0)
        self._living[name] = seq

    def add_missing_end(self, name: str, seq: int, until: int) -> None:
        """Enter the end of a grant that the history does not have."""
        self._written_ends.append((until, segment_of(seq), name, seq))
        self._raise_until(segment_of(seq), until)
        self._living[name] = None
        self._stored.add(name)

    def _end(self, name: str, seq: int, row: NameRow) -> None:
        held = self._held(name)
        self._living[name] = None
        if held is None:
            return
        if isinstance(held, list):
            began: int = held[_SEQ]  # type: ignore[assignment] # a number, in each row
            held[_UNTIL] = seq
        else:
            began = held
            self._written_ends.append((seq, segment_of(began), name, began))
        row[_BEGAN] = began
        self._raise_until(segment_of(began), seq)

    def _begin(self, name: str, seq: int, row: NameRow) -> None:
        if self._held(name) is not None:
            self._end(name, seq, row)
        row[_UNTIL] = OPEN
        self._living[name] = row
        self._fresh.append(name)

    def _held(self, name: str) -> NameRow | int | None:
        if name not in self._living:
            found = self._store.one("read_living", (name,))
            if found is not None:
                self._stored.add(name)
            self._living[name] = None if found is None else found[0]
            self._living_bytes += len(name) + CACHE_ENTRY_BYTES
        return self._living[name]

    def _raise_until(self, segment: int, until: int) -> None:
        if until > self._untils.get(segment, 0):
            self._untils[segment] = until

    def write_rows(self) -> None:
        """Write the gathered rows, in the order of the file."""
        self._store.do("write_history", self._history)
        self._names.sort()
        self._store.do("write_name", self._names)  # type: ignore[arg-type] # a row is a list here, to be changed
        self._store.do("end_name", self._written_ends)
        living = self._living
        for name in self._fresh:
            held = living[name]
            if isinstance(held, list):
                living[name] = held[_SEQ]  # type: ignore[assignment] # a number, in each row
        self._history, self._names, self._written_ends, self._fresh = [], [], [], []
        self._bytes = 0

    def write(self) -> None:
        self.write_rows()
        held = sorted((name, seq) for name, seq in self._living.items() if seq is not None)
        self._store.do("write_living", held)
        freed = sorted(name for name in self._stored if self._living[name] is None)
        self._store.do("drop_living", [(name,) for name in freed])
        self._store.do("write_segment", sorted(self._untils.items()))
        self._store.do("write_block", sorted(self._walls_ms.items()))
        self._living, self._stored, self._living_bytes = {}, set(), 0
        self._untils, self._walls_ms = {}, {}


def repair_grants(store: Store, entries: Entries, pruned: int) -> None:
    """Correct who holds what by the history to match the state."""
    number = {name: number for number, name in store.some("read_tables")}.get(SLOTS)
    after = ""
    while rows := store.some("read_some_living", (after, SOME)):
        for name, seq in rows:
            found = None if number is None else store.one("read_value", (number, name.encode()))
            lease = None if found is None else _slot_of(found[0]).lease
            if lease is None or lease.lease_id != _granted(store, name, seq).lease_id:
                entries.add_missing_end(name, seq, max(pruned, seq + 1))
        after = rows[-1][0]
    entries.write()
    if number is None:
        return
    made_up = -1
    ordinal, end = ordinals_of(number)
    while rows := store.some("read_state_after", (ordinal, end, SOME)):
        ordinal = rows[-1][0]
        for _, key, value, _ in rows:
            lease = _slot_of(value).lease
            name = key.decode()
            if lease is not None and store.one("read_living", (name,)) is None:
                record = Record(made_up, 0, lease.granted_wall_ms, Granted(name, lease))
                entries.add_missing_grant(name, made_up, encode_batch([record]))
                made_up -= 1


def _granted(store: Store, name: str, seq: int) -> Lease:
    found = store.one("read_body", (seq,))
    if found is None:
        raise store.damaged(f"the grant of {name}, record {seq}, is missing")
    (record,) = decode_batch(found[0])
    return dict(grants_of(record.event))[name]


STEP_MAX = 200_000  # Records that one step drops.
PRUNE_ROWS = 4_096  # Dropped together: most leases have both grant and end among them.
PRUNE_BYTES = 8 * 1024 * 1024  # Read at once.
BLOCKS = 256


class DoomedRecord(NamedTuple):
    seq: int
    who: int
    body: bytes


class Pruning:
    """Drops records, inside a transaction."""

    def __init__(self, store: Store, usage: HistoryUsage, retention: Retention) -> None:
        self._store = store
        self._usage = usage
        self._retention = retention
        self._left = STEP_MAX
        self.newest = 0  # The newest dropped record.

    def prune(self, wall_ms: int) -> None:
        newest = self._store.one("read_newest_wall")
        if newest is not None:
            self._drop_overdue(min(wall_ms - self._retention.wall_ms, newest[0]))
        self._drop_excess("records", self._retention.records_max)
        self._drop_excess("bytes", self._retention.bytes_max)
        if self.newest:
            self._drop_empty()

    def _drop_overdue(self, overdue_ms: int) -> None:
        while self._left > 0 and (blocks := self._store.some("read_overdue_blocks", (overdue_ms, BLOCKS))):
            for (block,) in blocks:
                first, end = block << 10, (block + 1) << 10
                bounds = (first, end, overdue_ms, PRUNE_ROWS)
                rows = self._store.some_bytes("read_overdue_history", bounds, PRUNE_BYTES)
                self._delete([DoomedRecord(*row) for row in rows])
                earliest = self._store.one("read_earliest", (first, end))
                if earliest is None or earliest[0] is None:
                    self._store.do("drop_block", [(block,)])
                else:
                    self._store.do("change_block", [(earliest[0], block)])

    def _drop_excess(self, unit: Unit, most: int) -> None:
        while self._left > 0:
            sums = self._usage.sums(unit)
            excess = sum(total for _, total in sums) - most
            some = self._chosen(unit, sums, excess) if excess > 0 else []
            if not some:
                return
            self._delete(some)

    def _chosen(self, unit: Unit, sums: list[tuple[str, int]], excess: int) -> list[DoomedRecord]:
        seen: dict[int, DoomedRecord] = {}
        size_bytes = 0

        def oldest(who: str) -> Iterator[Weighed]:
            # One by one: read only what is dropped.
            nonlocal size_bytes
            number = self._usage.by_name[who].number
            for seq, body in self._store.run("read_oldest_of", (number,)):
                if size_bytes >= PRUNE_BYTES:
                    return
                seen[seq] = DoomedRecord(seq, number, body)
                size_bytes += len(body)
                yield seq, 1 if unit == "records" else weight_of(next(decode_batch(body)), body)

        chosen = oldest_of_the_largest(sums, oldest, excess, min(PRUNE_ROWS, self._left))
        return [seen[seq] for seq in sorted(chosen)]

    def _delete(self, some: list[DoomedRecord]) -> None:
        if not some:
            return
        seqs = {doomed.seq for doomed in some}
        names: list[tuple[int, str, int]] = []
        retained: list[tuple[int, int, bytes]] = []
        ends: dict[int, list[str]] = {}
        for doomed in some:
            (record,) = decode_batch(doomed.body)
            needed = self._delete_names(doomed.seq, record.event, seqs, names, ends)
            if needed:
                retained.append((doomed.seq, needed, doomed.body))
            self._usage.drop(doomed.who, weight_of(record, doomed.body))
        for began, ended in ends.items():
            self._delete_ended_grants(began, ended, names)
        self._store.do("drop_name", sorted(names))
        self._store.do("write_retained_grant", retained)
        self._store.do("drop_history", [(doomed.seq,) for doomed in some])
        self.newest = max(self.newest, *seqs)
        self._left -= len(some)

    def _delete_names(
        self, seq: int, event: Event, doomed: set[int], names: list[tuple[int, str, int]], ends: dict[int, list[str]]
    ) -> int:
        """Add the rows to drop with a record, and the grants it ended. Return how many rows must stay."""
        segment = segment_of(seq)
        granted = {name for name, _ in grants_of(event)}
        needed = 0
        for name in dict.fromkeys(names_of(event)):
            found = self._store.one("read_name", (segment, name, seq))
            until, began = found or (None, None)
            if began is not None and began not in doomed:
                ends.setdefault(began, []).append(name)
            if name in granted and until is not None and self._is_needed(until, doomed):
                needed += 1
            else:
                names.append((segment, name, seq))
        return needed

    def _is_needed(self, until: int, doomed: set[int]) -> bool:
        """Return whether a grant must stay: it lives, or its end is in the history."""
        return until == OPEN or (until not in doomed and self._store.one("has_history", (until,)) is not None)

    def _delete_ended_grants(self, began: int, ended: list[str], names: list[tuple[int, str, int]]) -> None:
        """Drop a kept grant for some names: in one call, for changing their count rewrites a row of megabytes."""
        found = self._store.one("read_retained_grant", (began,))
        if found is None:
            return
        names.extend((segment_of(began), name, began) for name in ended)
        if found[0] > len(ended):
            self._store.do("change_retained_grant", [(found[0] - len(ended), began)])
        else:
            self._store.do("drop_retained_grant", [(began,)])

    def _drop_empty(self) -> None:
        first = self._store.one("read_first_history")
        if first is not None and first[0] is not None:
            self._store.do("drop_blocks_before", [(first[0] >> 10,)])
        for (segment,) in self._store.some("read_segments"):
            if self._store.one("has_names", (segment,)) is not None:
                return
            self._store.do("drop_segment", [(segment,)])


_STEP = "archive"
FILL_ROWS = 50_000  # Per transaction of a fill.


class Batches(msgspec.Struct, frozen=True, array_like=True, tag="batches"):
    """Batches as the journal has them: first number, last number, bytes. The first ones begin a step."""

    rows: list[tuple[int, int, bytes]]


class Commit(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """The end of a step. Without a head it only prunes."""

    upto: int
    head: bytes | None
    wall_ms: int


class Writer:
    def __init__(self, store: Store, retention: Retention) -> None:
        self._store = store
        self._retention = retention
        self.position = position_of(store)
        self._upto = self.position.upto
        self._has_begun_fill = False
        self._filled_rows = 0

    def do(self, order: Batches | Changes | Commit) -> None:
        match order:
            case Batches(rows):
                if rows[0][0] == self.position.upto + 1:
                    self._begin()
                with self._store.changing(_STEP):
                    for first, last, body in rows:
                        if first != self._upto + 1:
                            text = f"archive: record {first} was given where {self._upto + 1} should be"
                            raise JournalUnavailableError(text)
                        self._entries.add_batch(body)
                        self._upto = last
            case Changes():
                with self._store.changing(_STEP):
                    self._values.change(order)
                    failpoint("archive_mid")
            case Commit():
                if order.head is None:
                    self._begin()
                self._commit(order)

    def _begin(self) -> None:
        self._store.begin(_STEP)
        with self._store.changing(_STEP):
            self._usage = HistoryUsage(self._store)
            self._entries = Entries(self._store, self._usage)
            self._values = StateRows(self._store)
            self._upto = self.position.upto
            failpoint("archive_begin")

    def _commit(self, order: Commit) -> None:
        with self._store.changing(_STEP):
            if order.upto != self._upto:
                text = f"archive: the batches end with record {self._upto}, and not with {order.upto}"
                raise JournalUnavailableError(text)
            if order.head is not None:
                self._values.set_head(order.head)
            self._entries.write()
            pruning = Pruning(self._store, self._usage, self._retention)
            pruning.prune(order.wall_ms)
            self._write_totals(order.upto, max(self.position.pruned, pruning.newest))
            failpoint("archive_before_commit")
        self._end()

    def _write_totals(self, upto: int, pruned: int) -> None:
        self._usage.write()
        self._values.write_totals()
        self._store.do("write_meta", [("upto", upto), ("pruned", pruned)])

    def _end(self) -> None:
        try:
            self._store.end(_STEP)
        except DiskFullError as error:
            # COMMIT was sent. Only reopening the file tells whether it counts.
            raise self._store.outcome_unknown(f"archive: the disk is full: {error}") from error
        self.position = position_of(self._store)
        failpoint("archive_after_commit")

    def fill(self, part: Values | HistoryPart) -> None:
        """Write a part of an empty archive, which is not valid before `end_fill`."""
        if not self._has_begun_fill:
            self._begin()
            self._has_begun_fill = True
        with self._store.changing(_STEP):
            if isinstance(part, Values):
                self._values.change(Changes(part.table, new=part.rows))
                self._filled_rows += len(part.rows)
            else:
                for record in part.records:
                    self._entries.add(record, encode_batch([record]))
                self._filled_rows += len(part.records)
        if self._filled_rows >= FILL_ROWS:
            self._pause()

    def end_fill(self, upto: int, pruned: int) -> None:
        """Make the archive valid up to a record, with a history that is complete after `pruned`."""
        self._pause()
        with self._store.changing(_STEP):
            repair_grants(self._store, self._entries, pruned)
            self._entries.write()
            self._write_totals(upto, pruned)
        self._end()
        self._has_begun_fill = False

    def _pause(self) -> None:
        with self._store.changing(_STEP):
            self._entries.write()
            self._write_totals(0, 0)
        self._end()
        self._store.begin(_STEP)
        self._filled_rows = 0
