"""The journal's tail: the batches that are not archived yet, as they were appended.

Each batch is one row. Reads cover the tail and the archive: the archive ends at `upto`, the tail begins after it. Reads
and drops work in slices and yield to the loop between them. Each slice continues by record number, so records that a
step moves meanwhile are found in the archive.

`BacklogLimit` counts the bytes that wait for the archive, and refuses claims above a limit. Half of it is the limit of
each principal, so that one that outruns the compactor is refused alone. Small records cannot outrun it, so only large
batches are counted by principal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import accumulate, islice

from holdfast.core.events import Record, is_history, principal_of
from holdfast.journal.codec import decode_batch, frame_sizes
from holdfast.journal.failpoints import failpoint
from holdfast.journal.interface import HeldPage, HeldQuery, HistoryPage, HistoryQuery, JournalUnavailableError, Values
from holdfast.journal.search import (
    Grants,
    HeldPageBuilder,
    Latest,
    Texts,
    all_held,
    follow,
    held_names,
    last_by_in,
    matches,
)
from holdfast.journal.sqlite.archive import Reader
from holdfast.journal.sqlite.compactor import Compactor
from holdfast.journal.sqlite.store import DiskFullError, Store

Batch = tuple[int, int, bytes]  # The first and the last number of a batch, and its bytes.
Rows = Sequence[tuple[int, bytes | None, int]]  # First number, bytes (None: no match) and size, newest first.
LargeBatch = tuple[int, dict[str, int]]  # The last number of a large batch, and its bytes by principal.

SLICE_ROWS = 128  # Dropped per slice: a few milliseconds of the loop.
SLICE_BYTES = 256 * 1024  # Dropped or decoded per slice: SQLite puts each page of a large row on a list.
FEED_BYTES = 128 * 1024  # Read at once for the archive.
SEARCH_BYTES = 1024 * 1024  # Read from the tail per slice of a search.
SEARCH_ROWS = 512
SEARCHED_BYTES_MAX = 16 * 1024 * 1024  # Read per page of a search.
DECODED_BYTES_MAX = 1024 * 1024  # Decoded per page of a search: that costs most.
READ_RECORDS = 256  # Decoded at once.
LARGE_BYTES = 64 * 1024  # Batches that are larger are counted by principal.
FOREVER = 2**62
MIB = 2**20

log = logging.getLogger("holdfast.journal")


class Tail:
    def __init__(self, store: Store, upto: int, compactor: Compactor) -> None:
        self._store = store
        self._compactor = compactor
        self.upto = upto  # How far the archive reaches. Records up to it will be dropped.
        self._readers_after: list[int] = []  # Where readers begin: records after it must not be dropped.

    def some(self, after: int, upto: int) -> list[Batch]:
        return self._store.some_bytes("read_batches_upto", (after, upto), FEED_BYTES)

    def refuse_unless_durable(self, upto: int) -> None:
        """Raise unless a batch ends with this record."""
        if self._store.one("read_batch_end", (upto,)) != (upto,):
            raise JournalUnavailableError(f"archive: no durable batch ends with record {upto}")

    # Dropping.

    @contextlib.contextmanager
    def _retain_records(self) -> Iterator[None]:
        """Keep all records that are not archived now."""
        after = self.upto
        self._readers_after.append(after)
        try:
            yield
        finally:
            self._readers_after.remove(after)

    async def drop_archived(self) -> None:
        """Drop the archived batches, except those that a reader still needs until the next time.

        It is not synced: rows that are back after a power failure are dropped again. The next append syncs it.
        """
        failpoint("before_drop")
        upto = min([self.upto, *self._readers_after])
        is_first = True
        while rows := self._store.some("read_batch_sizes", (upto, SLICE_ROWS)):
            # As many rows as a slice may drop, at least one.
            sums = accumulate(size_bytes for _, size_bytes in rows)
            keys = [(key,) for (key, _), size_bytes in zip(rows, sums, strict=True) if size_bytes <= SLICE_BYTES]
            self._drop(keys or [(rows[0][0],)], [("archived", self.upto)] if is_first else [])
            is_first = False
            await asyncio.sleep(0)

    def _drop(self, keys: list[tuple[int]], scalars: list[tuple[str, int]]) -> None:
        def write() -> None:
            self._store.do("write_meta", scalars)
            self._store.do("drop_batch", keys)
            failpoint("mid_drop")

        try:
            with self._store.unsynced():
                self._store.commit("drop", write)
        except DiskFullError as error:
            where = self._store.path.parent
            raise JournalUnavailableError(f"archive: the disk under {where} is full: {error}") from error

    # Reading, together with the archive.

    async def history(self, query: HistoryQuery) -> HistoryPage:
        """Search the tail, then the history, newest first."""
        before = FOREVER if query.before_seq is None else query.before_seq
        return await search(query, before, (self._tail_before, self._history_before))

    async def _tail_before(self, query: HistoryQuery, before: int) -> Rows:
        slice_bytes = SEARCH_BYTES if Texts(query) else SLICE_BYTES
        rows = self._store.some_bytes("read_batches_backwards", (self.upto, before), slice_bytes)
        return [(first, body, len(body)) for first, body in rows]

    async def _history_before(self, query: HistoryQuery, before: int) -> Rows:
        since = -FOREVER if query.since_wall_ms is None else query.since_wall_ms
        until = FOREVER if query.until_wall_ms is None else query.until_wall_ms
        slice_bytes = SEARCH_BYTES if query.owner is not None or query.badly else SLICE_BYTES
        rows = self._compactor.reader.newest_first(query.name, self.upto, before, SEARCH_ROWS, slice_bytes)
        return [(seq, body if since <= wall_ms <= until else None, len(body)) for seq, wall_ms, body in rows]

    async def follow(self, after_seq: int, limit: int) -> Sequence[Record]:
        """Walk the history, then the tail. Each slice begins with the history, where a step may move records."""
        while True:
            found, reached = self._next_slice(after_seq, limit)
            if found or reached == after_seq:
                return found
            after_seq = reached
            await asyncio.sleep(0)

    def _next_slice(self, after_seq: int, limit: int) -> tuple[list[Record], int]:
        found: list[Record] = []
        size_bytes = 0
        for seq, body in self._compactor.reader.oldest_first(after_seq, self.upto, limit):
            found.extend(decode_batch(body))
            after_seq = seq
            size_bytes += len(body)
            if size_bytes >= SLICE_BYTES:
                break
        if found:
            return found, after_seq
        after_seq = max(after_seq, self.upto)
        while size_bytes < SLICE_BYTES and len(found) < limit:
            batch = next(self._store.run("read_batch_after", (after_seq,)), None)
            if batch is None:
                break
            last, body = batch
            found.extend(record for record in decode_batch(body) if record.seq > after_seq and is_history(record.event))
            after_seq = last
            size_bytes += len(body)
        return found[:limit], after_seq

    async def last_by(self, wall_ms: int) -> int:
        before = FOREVER
        with self._retain_records():
            while rows := self._store.some_bytes("read_batches_backwards", (self.upto, before), SLICE_BYTES):
                for first, body in rows:
                    before = first
                    if found := await last_by_in(body, wall_ms):
                        return found
                await asyncio.sleep(0)
            return self._compactor.reader.last_by(wall_ms, self.upto)

    async def held(self, query: HeldQuery, last_seq: int) -> HeldPage:
        """Follow the tail up to the record, then read the archive in a thread: there may be many names."""
        with self._retain_records(), self._compactor.another_reader() as reader:
            after = upto = reader.position().upto
            last_seq = min(query.seq, last_seq)
            latest: Latest = {}
            while after < last_seq and (rows := self.some(after, last_seq)):
                for _, last, body in rows:
                    await follow(body, last_seq, latest)
                    after = last
                await asyncio.sleep(0)
            return await asyncio.to_thread(_page_of, reader, query, upto, latest)

    @contextlib.asynccontextmanager
    async def snapshot(self, last_seq: int) -> AsyncIterator[SqliteSnapshot]:
        with contextlib.ExitStack() as retained, self._compactor.another_reader() as reader:
            retained.enter_context(self._retain_records())
            yield SqliteSnapshot(self, retained, reader, last_seq)


class SqliteSnapshot:
    def __init__(self, tail: Tail, retained: contextlib.ExitStack, reader: Reader, last_seq: int) -> None:
        """`retained` is closed after the tail was read."""
        self._tail = tail
        self._retain_records = retained
        self._reader = reader
        position = reader.position()
        self.upto, self.pruned = position.upto, position.pruned
        self.last_seq = last_seq

    async def tail(self) -> AsyncIterator[Sequence[Record]]:
        """Yield the records in parts: one batch may have thousands of expiries."""
        after = self.upto
        while rows := self._tail.some(after, self.last_seq):
            for _, last, body in rows:
                async for records in records_of(body):
                    yield records
                after = last
            await asyncio.sleep(0)
        self._retain_records.close()

    async def values(self) -> AsyncIterator[Values]:
        for values in self._reader.values():
            yield values
            await asyncio.sleep(0)

    async def history(self) -> AsyncIterator[Sequence[Record]]:
        for records in self._reader.records():
            yield records
            await asyncio.sleep(0)


class SearchBudget:
    """The cost of a search: in total, and in this slice."""

    def __init__(self) -> None:
        self._searched = self._decoded = 0
        self._slice_searched_max = self._slice_decoded_max = 0

    def begin_slice(self) -> None:
        self._slice_searched_max = self._searched + SEARCH_BYTES
        self._slice_decoded_max = self._decoded + SLICE_BYTES

    def add(self, size_bytes: int, *, is_decoded: bool) -> None:
        self._searched += size_bytes
        if is_decoded:
            self._decoded += size_bytes

    @property
    def ends_slice(self) -> bool:
        return self._searched >= self._slice_searched_max or self._decoded >= self._slice_decoded_max

    @property
    def is_over(self) -> bool:
        return self._searched >= SEARCHED_BYTES_MAX or self._decoded >= DECODED_BYTES_MAX


async def records_of(body: bytes, holding: Sequence[bytes] = ()) -> AsyncIterator[list[Record]]:
    """Yield the records of a batch in parts: many leases may expire at once."""
    records = decode_batch(body, holding)
    while some := list(islice(records, READ_RECORDS)):
        yield some
        if len(some) == READ_RECORDS:
            await asyncio.sleep(0)


async def search(
    query: HistoryQuery, before: int, sources: Iterable[Callable[[HistoryQuery, int], Awaitable[Rows]]]
) -> HistoryPage:
    """Search sources in turn, newest first, in slices. Only rows that may match are decoded."""
    budget, wanted = SearchBudget(), Texts(query)
    found: list[Record] = []
    for rows_before in sources:
        while True:
            reached = before
            budget.begin_slice()
            for reached, body, size_bytes in await rows_before(query, before):  # noqa: B007 - the last one counts
                is_decoded = False
                if body is not None and wanted.are_in(body):
                    is_decoded = True
                    some = [each async for part in records_of(body, wanted.all) for each in part]
                    found.extend(each for each in reversed(some) if is_history(each.event) and matches(query, each))
                budget.add(size_bytes, is_decoded=is_decoded)
                if budget.ends_slice or len(found) >= query.limit:
                    break
            if len(found) >= query.limit:
                return HistoryPage(found[: query.limit], found[query.limit - 1].seq)
            if reached == before:
                break
            before = reached
            if budget.is_over:
                return HistoryPage(found, before)
            await asyncio.sleep(0)
    return HistoryPage(found, None)


def _page_of(reader: Reader, query: HeldQuery, upto: int, latest: Latest) -> HeldPage:
    page = HeldPageBuilder(query)
    holds = all_held(held_names(latest, query), reader.holds(query, upto), latest)
    while (remaining := page.remaining) and (some := list(islice(holds, remaining))):
        grants = Grants(some)
        for seq in grants.missing:
            reader.read_grant(seq, grants)
        page.add(some, grants)
    return page.ended(is_all=next(holds, None) is None)


# What waits for the archive.


def large_batch_of(last: int, records: Iterable[Record], body: bytes) -> LargeBatch:
    sums: dict[str, int] = {}
    for record, size_bytes in zip(records, frame_sizes(body), strict=True):
        who = principal_of(record.event)
        sums[who] = sums.get(who, 0) + size_bytes
    # The server's own records and renewals have no principal: those are never refused.
    sums.pop("", None)
    return last, sums


class BacklogLimit:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self._large_batches: deque[LargeBatch] = deque()
        self._sums: dict[str, int] = {}
        self._refused: set[str] = set()  # Principals with more than half of the limit.
        self.failing: tuple[int, str] | None = None  # Since which wall time archiving fails, and why.

    @property
    def is_open(self) -> bool:
        return self.size_bytes <= self.bytes_max

    @property
    def is_open_to_all(self) -> bool:
        return self.is_open and not self._refused

    def begin(self, size_bytes: int, parts: Iterable[LargeBatch]) -> None:
        self.size_bytes = size_bytes
        self._large_batches.clear()
        self._sums.clear()
        for part in parts:
            self.add_batch(part)

    def add_batch(self, part: LargeBatch) -> None:
        self._large_batches.append(part)
        for who, size_bytes in part[1].items():
            self._sums[who] = self._sums.get(who, 0) + size_bytes
        self._update_refused()

    def drop(self, upto: int, size_bytes: int) -> None:
        """Subtract archived bytes, and the large batches up to a number."""
        self.size_bytes -= size_bytes
        while self._large_batches and self._large_batches[0][0] <= upto:
            for who, part_bytes in self._large_batches.popleft()[1].items():
                self._sums[who] -= part_bytes
                if not self._sums[who]:
                    del self._sums[who]
        self._update_refused()

    def _update_refused(self) -> None:
        most = self.bytes_max // 2
        refused = {who for who, size_bytes in self._sums.items() if size_bytes > most}
        for who in refused - self._refused:
            log.warning("%s", self._refusal_text(who))
        for who in self._refused - refused:
            log.warning("claims of %s are taken again", who)
        self._refused = refused

    def why_not(self, principal: str) -> str | None:
        return self._refusal_text(principal) if principal in self._refused else None

    def _refusal_text(self, who: str) -> str:
        size, most = _mib(self._sums[who]), _mib(self.bytes_max)
        return (
            f"of what the journal has to archive {size} are of {who}, more than half of tail_mib_max ({most}): "
            f"new claims of {who} are refused until that is archived. It opens again by itself"
        )

    def status_text(self) -> str:
        """Return "ok", or since when archiving fails, and the consequence."""
        if self.failing is None and self.is_open_to_all:
            return "ok"
        why = "the archive has fallen behind"
        if self.failing is not None:
            since = datetime.fromtimestamp(self.failing[0] / 1000, UTC).isoformat(timespec="seconds")
            why = f"nothing could be archived since {since}: {self.failing[1]}"
        text, most = f"{why}. The journal has {_mib(self.size_bytes)} to archive", _mib(self.bytes_max)
        if not self.is_open:
            return f"{text}, more than tail_mib_max ({most}): new claims are refused"
        if not self._refused:
            return f"{text}; beyond {most} (tail_mib_max) new claims would be refused"
        more = f"Whoever has more than half of tail_mib_max ({most}) of it is refused new claims"
        return f"{text}. {more}: {len(self._refused)} (the log says who)"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.0f} MiB"
