"""Looks back, in PostgreSQL: the history, and who held what. The tail and the archive together.

A record is in the tail or in the archive, and each statement sees one instant: the tail begins after `upto`, the
archive ends there. Numbers lead from one statement to the next, so a step meanwhile loses nothing. Every statement
shows that the seat is still ours, and none reads further than what this tenure knows to be durable (N-32).

A look has a budget in bytes, as the other journals have it (`Spent`): a page may end early and say where to go on.
"""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_right
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from holdfast.core.events import Record, grants_of, is_history
from holdfast.journal.base import Held, HeldPage, HistoryPage, JournalDamagedError, matches
from holdfast.journal.codec import decode_batch
from holdfast.journal.postgres.archive_ground import LOOK_SECONDS, Ground
from holdfast.journal.postgres.archive_reading import READ_BYTES, read_batches, records_of
from holdfast.journal.tail.batches import SEARCH_BYTES, SLICE_BYTES, Spent, TailHolds, texts_of
from holdfast.journal.tail.looking import FOREVER, SEARCH_ROWS, all_held, is_wanted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from holdfast.core.values import Lease
    from holdfast.journal.archive.reader import Hold
    from holdfast.journal.base import HeldQuery, HistoryQuery
    from holdfast.journal.postgres.archive_reading import Ask
    from holdfast.journal.postgres.lines import Side
    from holdfast.journal.postgres.seat import Mine

NAMES_AT_ONCE = 2_000
"""How many names are put in order before others have their turn."""
BEHIND_ALL = b"\xff"
"""It stands behind every name: no byte of UTF-8 is this."""


class Looking:
    """Looks at one journal."""

    def __init__(self, side: Side, mine: Mine) -> None:
        """Look at the server of `side`, on connections of our own: a look may take seconds."""
        self._side = side
        self._mine = mine
        self._reading = Ground(side.another(), mine)
        self._instant = side.another()
        """The connection for looks that need one instant."""
        self._lock = asyncio.Lock()

    @property
    def _ground(self) -> Ground:
        self._reading.side.must_be = self._side.must_be
        return self._reading

    # History.

    async def history(self, query: HistoryQuery) -> HistoryPage:
        """Search the tail, then the history, newest first."""
        spent = Spent()
        found: list[Record] = []
        before = min(FOREVER if query.before_seq is None else query.before_seq, self._mine.last_seq + 1)
        for search in (self._search_tail, self._search_history):
            while True:
                records, reached = await search(query, before, spent)
                found.extend(records)
                if len(found) >= query.limit:
                    return HistoryPage(found[: query.limit], found[query.limit - 1].seq)
                if reached == before:
                    break
                before = reached
                if spent.is_over:
                    return HistoryPage(found, before)
        return HistoryPage(found, None)

    async def _search_tail(self, query: HistoryQuery, before: int, spent: Spent) -> tuple[list[Record], int]:
        """Search a slice as bytes, and decode only what may match; return the number it reached down to."""
        found: list[Record] = []
        wanted = texts_of(query)
        spent.begin_slice()
        for first, body in await self._ground.look("search_tail", before, SEARCH_ROWS, _slice_bytes(wanted)):
            before = first
            is_decoded = all(text in body for text in wanted)
            if is_decoded:
                records = [each async for some in records_of(body, wanted) for each in some if is_history(each.event)]
                found.extend(record for record in reversed(records) if matches(query, record))
            spent.add(len(body), is_decoded=is_decoded)
            if spent.ends_slice or len(found) >= query.limit:
                break
        return found, before

    async def _search_history(self, query: HistoryQuery, before: int, spent: Spent) -> tuple[list[Record], int]:
        """Search a slice; return the number it reached down to."""
        since = -FOREVER if query.since_wall_ms is None else query.since_wall_ms
        until = FOREVER if query.until_wall_ms is None else query.until_wall_ms
        found: list[Record] = []
        wanted = texts_of(query)
        slice_bytes = _slice_bytes([] if query.owner is None else wanted)
        values: tuple[object, ...] = (before, SEARCH_ROWS, slice_bytes, since, until)
        name = "search_history"
        if query.name is not None:
            name, values = "search_history_of_name", (*values, query.name.encode())
        spent.begin_slice()
        for seq, body, size_bytes in await self._ground.look(name, *values):
            before = seq
            is_decoded = body is not None and all(text in body for text in wanted)
            if is_decoded:
                found.extend(record for record in decode_batch(body) if matches(query, record))
            spent.add(size_bytes, is_decoded=is_decoded)
            if spent.ends_slice or len(found) >= query.limit:
                break
        return found, before

    async def follow(self, after_seq: int, limit: int) -> Sequence[Record]:
        """Walk the history, then the tail, oldest first, a slice at a time."""
        found: list[Record] = []
        while not found:
            values = (after_seq, self._mine.last_seq, min(limit, SEARCH_ROWS), SLICE_BYTES)
            rows = await self._ground.look("follow", *values)
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
        """Look in the tail first, then in the history."""
        before = self._mine.last_seq + 1
        while rows := await self._ground.look("search_tail", before, SEARCH_ROWS, SLICE_BYTES):
            for first, body in rows:
                before = first
                seqs = [
                    each.seq
                    async for some in records_of(body)
                    for each in some
                    if each.wall_ms <= wall_ms and is_history(each.event)
                ]
                if seqs:
                    return seqs[-1]
                await asyncio.sleep(0)
        rows = await self._ground.look("last_by", wall_ms)
        return rows[0][0] if rows else 0

    # Who held what.

    async def held(self, query: HeldQuery) -> HeldPage:
        """Follow the tail on top of the archive, as of one instant."""
        async with self._lock:
            side = self._instant
            side.must_be = self._side.must_be
            try:
                await side.rows("begin_instant")
                page = await self._held(query, side)
                await side.rows("commit")
            except BaseException:
                side.drop()
                raise
        return page

    async def _held(self, query: HeldQuery, side: Side) -> HeldPage:
        position = await Ground(side, self._mine).position()
        ask = partial(side.rows, seconds=LOOK_SECONDS)
        last_seq = min(position["last_seq"], self._mine.last_seq)
        tail = await _tail_holds(ask, position["upto"], last_seq)
        page: list[Held | Hold] = []
        async for found in _all_held(ask, query, position["upto"], tail):
            if len(page) == query.limit:
                last = page[-1] if page else None
                name = query.after if last is None else last.name if isinstance(last, Held) else last[0]
                return HeldPage(await _with_leases(ask, page), name)
            page.append(found)
        return HeldPage(await _with_leases(ask, page), None)

    async def close(self) -> None:
        """Close the connections that only these looks have."""
        await self._reading.close()
        await self._instant.close()


def _slice_bytes(wanted: list[bytes]) -> int:
    """Return how many bytes one slice is given: more if most of them are only searched through."""
    return SEARCH_BYTES if wanted else SLICE_BYTES


async def _tail_holds(ask: Ask, after: int, upto: int) -> TailHolds:
    """Return who was given what by the records after a number and up to another, and what was taken."""
    holds = TailHolds()
    async for body in read_batches(ask, after, upto):
        async for records in records_of(body):
            for record in records:
                holds.add(record)
        await asyncio.sleep(0)
    return holds


async def _all_held(ask: Ask, query: HeldQuery, upto: int, tail: TailHolds) -> AsyncIterator[Held | Hold]:
    """Yield who held what by the archive and by the tail, by name. The archive is asked for some names at a time."""
    limit = min(query.limit + 1, SEARCH_ROWS)
    first, behind = query.prefix.encode(), _behind(query.prefix.encode())
    if query.after is not None:
        first = max(first, query.after.encode() + b"\0")
    names, after, is_over = await _names_in_order(query, tail), "", False
    while not is_over:
        rows = await ask("read_holds", first, behind, min(query.seq, upto), limit)
        holds = [(name.decode(), seq, until) for name, seq, until in rows]
        is_over = len(holds) < limit
        last = None if is_over else holds[-1][0]
        for found in all_held(query, names.between(after, last), holds, tail):
            yield found
        if last is not None:
            first, after = last.encode() + b"\0", last


async def _names_in_order(query: HeldQuery, tail: TailHolds) -> _Names:
    """Put the names that the tail has in order, some at a time: they may be many, and others have their turn."""
    runs = []
    names = iter(tail.spans)
    while some := list(islice(names, NAMES_AT_ONCE)):
        runs.append(sorted(name for name in some if is_wanted(query, name)))
        await asyncio.sleep(0)
    return _Names(runs)


class _Names:
    """Names in order, as several lists that are."""

    def __init__(self, runs: list[list[str]]) -> None:
        self._runs = runs

    def between(self, after: str, last: str | None) -> Iterator[str]:
        """Yield the names after one, up to another or to the end."""
        return heapq.merge(*(_part(run, after, last) for run in self._runs))


def _part(run: list[str], after: str, last: str | None) -> Iterator[str]:
    return islice(run, bisect_right(run, after), len(run) if last is None else bisect_right(run, last))


async def _with_leases(ask: Ask, page: list[Held | Hold]) -> list[Held]:
    """Return a page with the lease of each hold of the archive."""
    names: dict[int, set[str]] = {}
    for hold in page:
        if not isinstance(hold, Held):
            names.setdefault(hold[1], set()).add(hold[0])
    leases: dict[tuple[int, str], Lease] = {}
    left = sorted(names)
    while left:
        rows = await ask("read_grants", left[:SEARCH_ROWS], READ_BYTES)
        if not rows:
            raise JournalDamagedError(f"the grant of record {left[0]} is missing, in the store")
        for seq, body in rows:
            (record,) = decode_batch(body)
            leases.update(((seq, name), lease) for name, lease in grants_of(record.event) if name in names[seq])
        left = [seq for seq in left if seq > rows[-1][0]]
        await asyncio.sleep(0)
    return [hold if isinstance(hold, Held) else _held_by(hold, leases) for hold in page]


def _held_by(hold: Hold, leases: dict[tuple[int, str], Lease]) -> Held:
    name, seq, ended = hold
    if (seq, name) not in leases:
        raise JournalDamagedError(f"record {seq} did not grant {name}, or is missing, in the store")
    # A grant that was made up has no number that a record has.
    return Held(name, leases[seq, name], max(seq, 0), ended)


def _behind(prefix: bytes) -> bytes:
    """Return what stands behind everything that begins so."""
    kept = prefix.rstrip(BEHIND_ALL)
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else BEHIND_ALL
