"""The journal's tail: the batches that the archive does not stand for yet, as they were appended.

Each is one row. They are looked at a slice at a time, and dropped a slice at a time, so that the loop serves between:
the numbers of records lead on, and what was archived meanwhile is found in the archive.

Looks back read the tail and the archive together. A record is read from the tail or from the archive: the tail begins
after `upto`, the archive ends there. Looks take turns with the loop, and meanwhile a step may be over and records gone
from the tail: the archive has them then.
"""

from __future__ import annotations

import asyncio
import contextlib
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.events import Record, is_history
from holdfast.journal.base import HistoryPage, JournalUnavailableError
from holdfast.journal.codec import decode_batch
from holdfast.journal.failpoints import failpoint
from holdfast.journal.search import Texts, follow, last_by_in, matches
from holdfast.journal.store import DiskFullError
from holdfast.journal.tail.holds import Grants, Names, PageOfHeld, TailHolds, all_held

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from holdfast.journal.archive.archivist import Archivist
    from holdfast.journal.archive.reader import Reader
    from holdfast.journal.base import HeldPage, HeldQuery, HistoryQuery, Values
    from holdfast.journal.store import Store

    Batch = tuple[int, int, bytes]
    """The first and the last number of a batch, and its bytes."""

SLICE_ROWS = 128
"""How many rows one slice drops: a few milliseconds of the loop."""
SLICE_BYTES = 256 * 1024
"""How many bytes one slice drops or decodes: large rows have many pages, and each is put on a list."""
FEED_BYTES = 128 * 1024
"""How many bytes are read at once for the archive."""
SEARCH_BYTES = 1024 * 1024
"""How many bytes of the tail one slice of a search looks at."""
SEARCHED_BYTES_MAX = 16 * 1024 * 1024
"""How many bytes one search looks at before it answers with what it found and where to go on."""
DECODED_BYTES_MAX = 1024 * 1024
"""How many of them it makes records of: that costs most."""


class Tail:
    """The batches of one journal."""

    def __init__(self, store: Store, upto: int) -> None:
        self._store = store
        self.upto = upto
        """How far the archive reaches: what is not after it is dropped, sooner or later."""
        self._kept_after: list[int] = []
        """Where those begin who still read what may be archived meanwhile."""

    def some(self, after: int, upto: int) -> list[Batch]:
        """Return some batches after a number and up to another: for the archive."""
        return self._store.some_bytes("read_batches_upto", (after, upto), FEED_BYTES)

    async def batches(self, after: int, upto: int) -> AsyncIterator[Batch]:
        """Yield the batches after a number and up to another. Others have their turn in between."""
        while rows := self.some(after, upto):
            for row in rows:
                yield row
                await asyncio.sleep(0)
            after = rows[-1][1]

    def refuse_unless_durable(self, upto: int) -> None:
        """Raise unless a batch ends with this record."""
        last = next((last for (last,) in self._store.run("read_batch_end", (upto,))), 0)
        if last != upto:
            raise JournalUnavailableError(f"archive: no durable batch ends with record {upto}")

    # Dropping.

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Let nothing be dropped that is not archived now."""
        after = self.upto
        self._kept_after.append(after)
        try:
            yield
        finally:
            self._kept_after.remove(after)

    async def drop_archived(self) -> None:
        """Drop what the archive stands for, but for what somebody still reads. That goes the next time.

        It is not synced: if the power fails the rows are there again, and are dropped again. Whatever is appended next
        is synced, and what stands before it in the WAL with it.
        """
        failpoint("before_drop")
        upto = min([self.upto, *self._kept_after])
        is_first = True
        while rows := self._store.some("read_batch_sizes", (upto, SLICE_ROWS)):
            scalars = [("archived", self.upto)] if is_first else []
            self._drop(list(_first_rows(rows)), scalars)
            is_first = False
            await asyncio.sleep(0)

    def _drop(self, rows: list[tuple[int]], scalars: list[tuple[str, int]]) -> None:
        def write() -> None:
            self._store.do("write_meta", scalars)
            self._store.do("drop_batch", rows)
            failpoint("mid_drop")

        try:
            with self._store.unsynced():
                self._store.commit("drop", write)
        except DiskFullError as error:
            where = self._store.path.parent
            raise JournalUnavailableError(f"archive: the disk under {where} is full: {error}") from error

    # Looking.

    def search(self, query: HistoryQuery, before: int, spent: Spent) -> tuple[list[Record], int]:
        """Search a slice as bytes, and decode only what may match; return the number it reached down to."""
        found: list[Record] = []
        wanted = Texts(query)
        spent.begin_slice()
        for first, body in self._store.run("read_batches_backwards", (self.upto, before)):
            before = first
            is_decoded = wanted.are_in(body)
            if is_decoded:
                records = [record for record in decode_batch(body, wanted.all) if is_history(record.event)]
                found.extend(record for record in reversed(records) if matches(query, record))
            spent.add(len(body), is_decoded=is_decoded)
            if spent.ends_slice or len(found) >= query.limit:
                break
        return found, before

    def after(self, seq: int, limit: int) -> tuple[list[Record], int]:
        """Return the records with history value of a slice after a number, and the number it reached."""
        found: list[Record] = []
        looked_at = 0
        while looked_at < SLICE_BYTES and len(found) < limit:
            batch = next(self._store.run("read_batch_after", (seq,)), None)
            if batch is None:
                break
            last, body = batch
            found.extend(record for record in decode_batch(body) if record.seq > seq and is_history(record.event))
            seq = last
            looked_at += len(body)
        return found[:limit], seq

    async def last_by(self, wall_ms: int) -> int:
        """Return the number of the last record with history value whose wall time is not later; 0 if there is none."""
        before = 2**62
        while rows := self._store.some_bytes("read_batches_backwards", (self.upto, before), SLICE_BYTES):
            for first, body in rows:
                before = first
                if found := await last_by_in(body, wall_ms):
                    return found
            await asyncio.sleep(0)
        return 0

    async def holds(self, after: int, upto: int) -> TailHolds:
        """Return who was given what by the records after a number and up to another, and what was taken."""
        holds = TailHolds()
        while after < upto and (rows := self.some(after, upto)):
            for _, last, body in rows:
                await follow(body, upto, holds.latest)
                after = last
            await asyncio.sleep(0)
        return holds


class Spent:
    """What a search has cost: in all, and in this slice."""

    def __init__(self) -> None:
        self._searched = self._decoded = 0
        self._slice_searched_max = self._slice_decoded_max = 0

    def begin_slice(self) -> None:
        """Let a new slice begin."""
        self._slice_searched_max = self._searched + SEARCH_BYTES
        self._slice_decoded_max = self._decoded + SLICE_BYTES

    def add(self, size_bytes: int, *, is_decoded: bool) -> None:
        """Count what was looked at."""
        self._searched += size_bytes
        if is_decoded:
            self._decoded += size_bytes

    @property
    def ends_slice(self) -> bool:
        """Whether it is time for others."""
        return self._searched >= self._slice_searched_max or self._decoded >= self._slice_decoded_max

    @property
    def is_over(self) -> bool:
        """Whether the search has cost as much as it may."""
        return self._searched >= SEARCHED_BYTES_MAX or self._decoded >= DECODED_BYTES_MAX


def _first_rows(rows: list[tuple[int, ...]]) -> Iterator[tuple[int]]:
    """Yield the keys of as many rows as a slice may drop, at least one. A row is a key and its size in bytes."""
    size_bytes = 0
    for key, row_bytes in rows:
        if size_bytes and size_bytes + row_bytes > SLICE_BYTES:
            return
        size_bytes += row_bytes
        yield (key,)


SEARCH_ROWS = 512
WHOLE_RECORDS = 256
"""How many records of the tail are made at once for a look at all there is."""
FOREVER = 2**62


class Looking:
    """Looks at one journal."""

    def __init__(self, tail: Tail, archivist: Archivist) -> None:
        self._tail = tail
        self._archivist = archivist

    async def history(self, query: HistoryQuery) -> HistoryPage:
        """Search the tail, then the history, newest first. Numbers lead on, so a step meanwhile loses nothing."""
        spent = Spent()
        found: list[Record] = []
        before = FOREVER if query.before_seq is None else query.before_seq
        for search in (self._tail.search, self._search_archive):
            while True:
                records, reached = search(query, before, spent)
                found.extend(records)
                if len(found) >= query.limit:
                    return HistoryPage(found[: query.limit], found[query.limit - 1].seq)
                if reached == before:
                    break
                before = reached
                if spent.is_over:
                    return HistoryPage(found, before)
                await asyncio.sleep(0)
        return HistoryPage(found, None)

    def _search_archive(self, query: HistoryQuery, before: int, spent: Spent) -> tuple[list[Record], int]:
        """Search a slice; return the number it reached down to."""
        since = -FOREVER if query.since_wall_ms is None else query.since_wall_ms
        until = FOREVER if query.until_wall_ms is None else query.until_wall_ms
        found: list[Record] = []
        wanted = Texts(query)
        spent.begin_slice()
        for seq, wall_ms, body in self._archivist.reader.newest_first(query.name, self._tail.upto, before, SEARCH_ROWS):
            before = seq
            is_decoded = since <= wall_ms <= until and wanted.are_in(body)
            if is_decoded:
                found.extend(record for record in decode_batch(body) if matches(query, record))
            spent.add(len(body), is_decoded=is_decoded)
            if spent.ends_slice or len(found) >= query.limit:
                break
        return found, before

    async def follow(self, after_seq: int, limit: int) -> Sequence[Record]:
        """Walk the history, then the tail, oldest first, a slice at a time.

        Numbers lead on, and each slice begins with the history, so a step between two of them loses nothing.
        """
        while True:
            found, reached = self._next_slice(after_seq, limit)
            if found or reached == after_seq:
                return found
            after_seq = reached
            await asyncio.sleep(0)

    def _next_slice(self, after_seq: int, limit: int) -> tuple[list[Record], int]:
        """Return what a slice holds, and the number it reached."""
        found: list[Record] = []
        looked_at = 0
        for seq, body in self._archivist.reader.oldest_first(after_seq, self._tail.upto, limit):
            found.extend(decode_batch(body))
            after_seq = seq
            looked_at += len(body)
            if looked_at >= SLICE_BYTES:
                break
        return (found, after_seq) if found else self._tail.after(max(after_seq, self._tail.upto), limit)

    async def last_by(self, wall_ms: int) -> int:
        """Look in the tail first, then in the history."""
        with self._tail.kept():
            return await self._tail.last_by(wall_ms) or self._archivist.reader.last_by(wall_ms, self._tail.upto)

    async def held(self, query: HeldQuery, last_seq: int) -> HeldPage:
        """Follow the tail up to the record, then look in the archive: in a thread, for it may look at many names."""
        with self._tail.kept(), self._archivist.another_reader() as reader:
            upto = reader.position().upto
            tail = await self._tail.holds(upto, min(query.seq, last_seq))
            return await asyncio.to_thread(_page_of, reader, query, upto, tail)

    @contextlib.asynccontextmanager
    async def snapshot(self, last_seq: int) -> AsyncIterator[SqliteSnapshot]:
        """Give all that there is at this instant."""
        with contextlib.ExitStack() as stack:
            kept = stack.enter_context(contextlib.ExitStack())
            kept.enter_context(self._tail.kept())
            reader = stack.enter_context(self._archivist.another_reader())
            yield SqliteSnapshot(self._tail, kept, reader, last_seq)


class SqliteSnapshot:
    """All that a journal holds at one instant."""

    def __init__(self, tail: Tail, kept: contextlib.ExitStack, reader: Reader, last_seq: int) -> None:
        """`kept` is closed once nothing of the tail is needed any more."""
        self._tail = tail
        self._kept = kept
        self._reader = reader
        _, self.upto, self.pruned = msgspec.structs.astuple(reader.position())
        self.last_seq = last_seq

    async def tail(self) -> AsyncIterator[Sequence[Record]]:
        """Yield every record that is not archived, some at a time: a batch may have all that fell due at once."""
        async for _, _, body in self._tail.batches(self.upto, self.last_seq):
            records = decode_batch(body)
            while some := list(islice(records, WHOLE_RECORDS)):
                yield some
                await asyncio.sleep(0)
        self._kept.close()

    async def values(self) -> AsyncIterator[Values]:
        """Yield the archived state."""
        for values in self._reader.values():
            yield values
            await asyncio.sleep(0)

    async def history(self) -> AsyncIterator[Sequence[Record]]:
        """Yield the archived records with history value, oldest first."""
        for records in self._reader.records():
            yield records
            await asyncio.sleep(0)


def _page_of(reader: Reader, query: HeldQuery, upto: int, tail: TailHolds) -> HeldPage:
    """Return the names that were held, in their order, and where to go on."""
    page = PageOfHeld(query)
    names = Names(tail.runs(query)).between("", None)
    holds = all_held(names, reader.holds(query, upto), tail)
    while (room := page.room) and (some := list(islice(holds, room))):
        grants = Grants(some)
        for seq in grants.missing:
            reader.read_grant(seq, grants)
        page.add(some, grants)
    return page.ended(is_all=next(holds, None) is None)
