"""Looks back: the history, who held what, and all there is at one instant. The tail and the archive together.

A record is read from the tail or from the archive: the tail begins after `upto`, the archive ends there. Looks take
turns with the loop, and meanwhile a step may be over and records gone from the tail: the archive has them then.
"""

from __future__ import annotations

import asyncio
import contextlib
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.events import Record
from holdfast.journal.base import HistoryPage
from holdfast.journal.codec import decode_batch
from holdfast.journal.matching import Texts, matches
from holdfast.journal.tail.batches import SLICE_BYTES, Spent
from holdfast.journal.tail.holds import Grants, Names, PageOfHeld, all_held

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from holdfast.journal.archive.archivist import Archivist
    from holdfast.journal.archive.reader import Reader
    from holdfast.journal.base import HeldPage, HeldQuery, HistoryQuery, Values
    from holdfast.journal.tail.batches import Tail
    from holdfast.journal.tail.holds import TailHolds

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
