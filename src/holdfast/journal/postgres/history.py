"""Reads the past, in PostgreSQL: the history, and who held what. The tail and the archive together.

Each statement sees one instant: the archive ends with `upto`, and the tail begins after it. It goes on from the number
at which the last one ended, so a step of the archive meanwhile loses nothing. Every statement proves that the
leadership is still ours, and none reads further than what this term knows to be durable (N-32). A read has a budget in
bytes (`tail.SearchBudget`): a page may end early and say where to go on.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

from holdfast.core.events import Record, is_history
from holdfast.journal.interface import JournalDamagedError
from holdfast.journal.postgres.archive import READ_BYTES, READ_ROWS, read_batches, read_history, read_values
from holdfast.journal.postgres.connection import PgClient, Servers
from holdfast.journal.postgres.writer import QUERY_SECONDS, TermClient, position
from holdfast.journal.search import Grants, HeldPageBuilder, Texts, all_held, follow, held_names, last_by_in
from holdfast.journal.sqlite.tail import FEED_BYTES, FOREVER, SEARCH_BYTES, SEARCH_ROWS, SLICE_BYTES, records_of, search

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from holdfast.core.events import Record
    from holdfast.journal.interface import HeldPage, HeldQuery, HistoryPage, HistoryQuery, Values
    from holdfast.journal.postgres.connection import Row
    from holdfast.journal.postgres.leadership import WriterTerm
    from holdfast.journal.postgres.writer import Ask
    from holdfast.journal.search import Hold, Latest

SKIMMED_ROWS = 4_096  # Batches read at once where only the front of each record is decoded; bytes are bounded too.
AFTER_ALL_NAMES = b"\xff"  # Greater than every name: no byte of UTF-8 is this.


class HistoryReader:
    """Reads the past of one journal, on connections of its own: it may take seconds."""

    def __init__(self, servers: Servers, term: WriterTerm) -> None:
        self._term = term
        self._client = TermClient(servers, term)
        self._snapshot_client = PgClient(servers)  # For reads that need one instant.
        self._lock = asyncio.Lock()

    # History.

    async def history(self, query: HistoryQuery) -> HistoryPage:
        before = min(FOREVER if query.before_seq is None else query.before_seq, self._term.last_seq + 1)
        return await search(query, before, (self._tail_before, self._history_before))

    async def _tail_before(self, query: HistoryQuery, before: int) -> Sequence[Row]:
        """Return the first number, the bytes and the size of some batches, newest first."""
        slice_bytes = SEARCH_BYTES if Texts(query) else SLICE_BYTES
        rows = await self._client.read_fenced("search_tail", before, SEARCH_ROWS, slice_bytes)
        return [(first, body, len(body)) for first, body in rows]

    async def _history_before(self, query: HistoryQuery, before: int) -> Sequence[Row]:
        """The same of archived records, without the bytes of those that cannot match."""
        since = -FOREVER if query.since_wall_ms is None else query.since_wall_ms
        until = FOREVER if query.until_wall_ms is None else query.until_wall_ms
        # More bytes if most of them are only searched.
        slice_bytes = SEARCH_BYTES if query.owner is not None or query.badly else SLICE_BYTES
        values = (before, SEARCH_ROWS, slice_bytes, since, until)
        if query.name is not None:
            return await self._client.read_fenced("search_history_of_name", *values, query.name.encode())
        return await self._client.read_fenced("search_history", *values)

    async def follow(self, after_seq: int, limit: int) -> Sequence[Record]:
        """Walk the history, then the tail, oldest first, a slice at a time."""
        found: list[Record] = []
        while not found:
            values = (after_seq, self._term.last_seq, min(limit, SEARCH_ROWS), SLICE_BYTES)
            rows = await self._client.read_fenced("follow", *values)
            if not rows:
                break
            for _, last, body in rows:
                async for records in records_of(body):
                    found.extend(each for each in records if each.seq > after_seq and is_history(each.event))
                after_seq = last
                if len(found) >= limit:
                    break
        return found[:limit]

    async def last_by(self, wall_ms: int) -> int:
        before = self._term.last_seq + 1
        while rows := await self._client.read_fenced("search_tail", before, SKIMMED_ROWS, SLICE_BYTES):
            for first, body in rows:
                before = first
                if found := await last_by_in(body, wall_ms):
                    return found
            await asyncio.sleep(0)
        rows = await self._client.read_fenced("last_by", wall_ms)
        return rows[0][0] if rows else 0

    # Who held what.

    async def held(self, query: HeldQuery) -> HeldPage:
        """Apply the tail to the archive, as of one instant."""
        async with self._lock, self._snapshot_client.instant() as connection:
            ask = partial(connection.ask, seconds=QUERY_SECONDS)
            upto, last_seq = itemgetter("upto", "last_seq")(await position(ask, self._term))
            latest = await _tail_holds(ask, upto, min(query.seq, last_seq, self._term.last_seq))
            page = HeldPageBuilder(query)
            holds = _all_held(ask, query, upto, latest)
            is_all = False
            while (remaining := page.remaining) and not is_all:
                some = await _first_of(holds, remaining)
                is_all = len(some) < remaining
                page.add(some, await _grants_of(ask, some))
            return page.ended(is_all=is_all or not await _first_of(holds, 1))

    async def close(self) -> None:
        await self._client.close()
        await self._snapshot_client.close()


async def _tail_holds(ask: Ask, after: int, upto: int) -> Latest:
    latest: Latest = {}
    read_bytes = 0
    async for body in read_batches(ask, after, upto):
        await follow(body, upto, latest)
        read_bytes += len(body)
        if read_bytes >= FEED_BYTES:
            read_bytes = 0
            await asyncio.sleep(0)
    return latest


async def _all_held(ask: Ask, query: HeldQuery, upto: int, latest: Latest) -> AsyncIterator[Hold]:
    """Yield who held what by the archive and by the tail, by name. The archive is read some names at a time."""
    limit = min(query.limit + 1, READ_ROWS)
    first, end = query.prefix.encode(), _prefix_end(query.prefix.encode())
    if query.after is not None:
        first = max(first, query.after.encode() + b"\0")
    runs, after, is_over = [], "", False
    for run in held_names(latest, query):
        runs.append(run)
        await asyncio.sleep(0)
    while not is_over:
        rows = await ask("read_holds", first, end, min(query.seq, upto), limit)
        holds: list[Hold] = [(name.decode(), seq, None) for name, seq in rows]
        is_over = len(holds) < limit
        last = None if is_over else holds[-1][0]
        for found in all_held(runs, holds, latest, after, last):
            yield found
        if last is not None:
            first, after = last.encode() + b"\0", last


async def _first_of(holds: AsyncIterator[Hold], count: int) -> list[Hold]:
    some: list[Hold] = []
    while len(some) < count and (hold := await anext(holds, None)) is not None:
        some.append(hold)
    return some


async def _grants_of(ask: Ask, holds: list[Hold]) -> Grants:
    grants = Grants(holds)
    left = grants.missing
    while left:
        rows = await ask("read_grants", left[:SEARCH_ROWS], READ_BYTES)
        if not rows or rows[0][0] != left[0]:
            raise JournalDamagedError(f"the grant of record {left[0]} is missing, in the store")
        for (seq, body), wanted in zip(rows, left, strict=False):
            problem = grants.take(seq, body) if seq == wanted else f"the grant of record {wanted} is missing"
            if problem is not None:
                raise JournalDamagedError(f"{problem}, in the store")
        left = left[len(rows) :]
        await asyncio.sleep(0)
    return grants


def _prefix_end(prefix: bytes) -> bytes:
    """Return the least value greater than everything with this prefix."""
    stem = prefix.rstrip(AFTER_ALL_NAMES)
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else AFTER_ALL_NAMES


@asynccontextmanager
async def snapshot(servers: Servers, term: WriterTerm) -> AsyncIterator[PostgresSnapshot]:
    client = PgClient(servers)
    async with client.instant() as connection:
        ask = partial(connection.ask, seconds=QUERY_SECONDS)
        await ask("stay_at_instant")
        yield PostgresSnapshot(ask, await position(ask, term))
    await client.close()


class PostgresSnapshot:
    def __init__(self, ask: Ask, found: Row) -> None:
        self._ask = ask
        self.upto: int = found["upto"]
        self.pruned: int = found["pruned"]
        self._state_rows: int = found["state_rows"]
        self.last_seq: int = found["last_seq"]

    async def tail(self) -> AsyncIterator[Sequence[Record]]:
        async for body in read_batches(self._ask, self.upto, self.last_seq):
            async for records in records_of(body):
                yield records

    def values(self) -> AsyncIterator[Values]:
        return read_values(self._ask, self._state_rows)

    def history(self) -> AsyncIterator[Sequence[Record]]:
        return read_history(self._ask, self.upto)
