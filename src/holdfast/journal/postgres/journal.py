"""The journal in PostgreSQL: it keeps the seam of `journal/base.py`. One object has one tenure at most.

Watching    looks at the seat, and takes it                     a connection beside the one that writes
Tenancy     writes under the seat, and asks for lost answers    the connection that took it
Archive     lets the archive stand for the tail                 a connection of its own
Looking     history, and who held what                          two of its own: such a look may take seconds
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from holdfast.core.events import Restored
from holdfast.journal.base import (
    Health,
    JournalDamagedError,
    JournalError,
    JournalLockedError,
    JournalUnavailableError,
    Keeping,
    Peer,
    Recovered,
    Seat,
)
from holdfast.journal.codec import count_records, decode_batch, encode_batch
from holdfast.journal.postgres.archive import Archive
from holdfast.journal.postgres.connection import Servers, Side
from holdfast.journal.postgres.history import Looking, snapshot
from holdfast.journal.postgres.leadership import Fresh, Knowledge, Taken, Watching, unseal
from holdfast.journal.postgres.writer import NO_ANSWER, Batch, Beating, Mine, Tenancy
from holdfast.journal.tail import LARGE_BYTES, Room, part_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from holdfast.core.events import Record
    from holdfast.journal.base import Changes, HeldPage, HeldQuery, HistoryPage, HistoryQuery, Snapshot
    from holdfast.journal.postgres.archive import Ask
    from holdfast.journal.postgres.connection import Line, Server
    from holdfast.journal.tail import Part

MIB = 2**20
TAIL_ROWS = 256
"""How many batches are read at once, at most,"""
TAIL_BYTES = 256 * 1024
"""and how many bytes, about: over a slow way this still takes less than others wait for a sign of life."""
SEQ_MAX = 2**63 - 1
VACATE_SECONDS = 2.0

log = logging.getLogger("holdfast.journal")


class PostgresJournal:
    """One node's journal in a store that several nodes share."""

    is_shared = True

    def __init__(
        self,
        url: str,
        peer: Peer,
        *,
        tenure: str,
        wall_ms: int = 0,
        schema: str = "holdfast",
        keeping: Keeping | None = None,
        knowledge: Knowledge | None = None,
        fresh: Fresh | None = None,
        secret: bytes | None = None,
        may_lose: bool = False,
        append_ms: int = 2_000,
        resolve_ms: int = 10_000,
        tail_bytes_max: int = 4096 * MIB,
    ) -> None:
        """Prepare; nothing is asked before `look` or `open`.

        `tenure` names the tenure that this journal may begin: 32 random hexadecimal digits, no two the same.
        `knowledge` is what this process knows of the store, and outlives the journal. `fresh` is what an authority is
        made of where there is none; without it none is made. `secret` seals the authority's key. `may_lose` lets it go
        on after the store lost records, as `after_loss = "continue"` says.
        """
        try:
            self._servers = Servers(url, schema, f"holdfast {peer.node}")
        except ValueError as error:
            raise JournalError(f"the store cannot be used: {error}") from None
        self._peer = peer
        self._wall_ms = wall_ms
        self._secret = secret
        self._resolve_seconds = resolve_ms / 1000
        self._knowledge = knowledge or Knowledge()
        self._mine = Mine(tenure)
        self._room = Room(tail_bytes_max)
        self._side = Side(self._servers)
        self._archiving = Side(self._servers)
        self._watching = Watching(
            self._servers, self._side, self._knowledge, may_lose=may_lose, fresh=fresh, secret=secret
        )
        self._archive = Archive(self._archiving, self._mine, self._room, keeping or Keeping())
        self._looking = Looking(self._side, self._mine)
        self._tenancy = Tenancy(
            self._servers,
            self._mine,
            self._knowledge,
            append_seconds=append_ms / 1000,
            resolve_seconds=self._resolve_seconds,
            moved=self._move,
        )
        self._seen: Seat | None = None
        self._may_have_seat = False
        self._is_open = False
        self._has_reported = False
        self._size_bytes = 0
        self.takes_claims = True

    # What any node may do.

    async def look(self) -> Seat:
        """Tell who has the seat."""
        return await self._watching.look()

    async def key(self) -> bytes:
        """Return the authority's key."""
        await self._watching.look()
        row = await self._side.one("read_key")
        return self._unsealed(row)

    async def report(self, peer: Peer) -> None:
        """Tell the others of this node."""
        values = (peer.node, peer.process, peer.url, peer.version, peer.format_max, peer.tokens)
        await self._side.rows("report", *values)
        self._has_reported = True

    async def peers(self) -> Sequence[Peer]:
        """Return the nodes that told of themselves."""
        return [Peer(**dict(row)) for row in await self._side.rows("read_peers")]

    def depose(self, seat: Seat) -> None:
        """Let `open` take this seat."""
        self._seen = seat

    # What the one does who has the seat.

    async def open(self) -> Recovered:
        """Take the seat if it is free, or as it was seen, and read what is there."""
        was_closed = True
        if not self._is_open:
            taken = await self._take()
            line, was_closed = taken.line, not taken.was_held
        else:
            line = await self._tenancy.line()
        try:
            return await self._recover(line, was_closed=was_closed)
        except JournalDamagedError:
            # What a deposed node reads may be half gone. Damage counts only under the seat (N-2).
            await self._tenancy.confirm(0)
            raise

    async def append(self, batch: Sequence[Record]) -> None:
        """Make a batch durable, by one statement."""
        if not batch:
            return
        self._seated("append")
        mine = self._mine
        first, last = batch[0], batch[-1]
        if first.seq != mine.last_seq + 1:
            raise JournalUnavailableError(f"append: record {first.seq} does not follow {mine.last_seq} in the store")
        if mine.must_jump and not isinstance(first.event, Restored):
            raise JournalUnavailableError("append: the store lost records, and the first one now has to say so")
        body = encode_batch(batch)
        await self._tenancy.append(Batch(first.seq, last.seq, body, last.at_ms))
        room, size_bytes = self._room, len(body)
        room.size_bytes += size_bytes
        if size_bytes > LARGE_BYTES:
            room.add_part(part_of(last.seq, batch, body))
            self._judge()
        elif room.size_bytes > room.bytes_max:
            self._judge()

    async def confirm(self, now_ms: int) -> None:
        """Prove by a write that the seat is ours, and all is there."""
        self._seated("confirm")
        await self._tenancy.confirm(now_ms)

    def hurry(self, seconds: float) -> None:
        """Ask about no write for longer than that."""
        self._tenancy.hurry(seconds)

    async def archive(self, upto: int, head: bytes, changes: Iterable[Changes], wall_ms: int) -> None:
        """Let the archive stand for the records up to a number."""
        self._seated("archive")
        try:
            await self._archive.archive(upto, head, changes, wall_ms)
        except JournalUnavailableError as error:
            since_ms = wall_ms if self._room.failing is None else self._room.failing[0]
            self._room.failing = since_ms, error.problem
            raise
        self._room.failing = None
        self._judge()
        await self._measure()

    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        """Give all that there is at this instant."""
        self._seated("snapshot")
        return snapshot(self._side, self._mine)

    async def history(self, query: HistoryQuery) -> HistoryPage:
        """Look in the tail first, then in the archive."""
        self._seated("history")
        return await self._looking.history(query)

    async def follow(self, after_seq: int, limit: int) -> Sequence[Record]:
        """Look in the archive first, then in the tail."""
        self._seated("follow")
        return await self._looking.follow(after_seq, limit)

    async def last_by(self, wall_ms: int) -> int:
        """Look in the tail first, then in the archive."""
        self._seated("last_by")
        return await self._looking.last_by(wall_ms)

    async def held(self, query: HeldQuery) -> HeldPage:
        """Follow the tail on top of the archive."""
        self._seated("held")
        return await self._looking.held(query)

    @property
    def tail_bytes(self) -> int:
        """What waits for the archive."""
        return self._room.size_bytes

    @property
    def history_begins_after(self) -> int:
        """The newest that was pruned."""
        return self._archive.pruned

    def health(self) -> Health:
        """Tell how the store is, as of the last time that it was measured."""
        return Health(
            takes_claims=self._room.is_open,
            size_bytes=self._size_bytes,
            storage="postgresql",
            text=self._room.words(),
        )

    def why_no_claims(self, principal: str) -> str | None:
        """Say why: nobody's are taken, or this principal has too much of what waits for the archive."""
        return self._room.why_not(principal) if self._room.is_open else self._room.words()

    async def close(self) -> None:
        """Give the seat back, if it is or may be ours, and take leave."""
        self._is_open = False
        if self._may_have_seat:
            self._may_have_seat = False
            await self._tenancy.vacate(self._tenancy.seconds_left(VACATE_SECONDS))
            self._mine.end()
        if self._has_reported:
            await self._leave()
        await self._looking.close()
        await self._archiving.close()
        await self._side.close()
        self._side.must_be = self._archiving.must_be = None

    async def _leave(self) -> None:
        self._has_reported = False
        try:
            async with asyncio.timeout(self._tenancy.seconds_left(VACATE_SECONDS)):
                await self._side.rows("leave", self._peer.node, self._peer.process)
        except (JournalUnavailableError, TimeoutError) as error:
            why = str(error) or NO_ANSWER
            log.warning("the other nodes cannot be told that this one ends: %s", why)
            self._side.drop()

    # Taking the seat, and reading.

    async def _take(self) -> Taken:
        mine = self._mine
        # From here on the seat may be ours though no answer says so.
        self._may_have_seat = True
        try:
            taken = await self._watching.take(self._seen, self._peer, mine.tenure, self._wall_ms, self._resolve_seconds)
        except JournalLockedError:
            self._may_have_seat = False
            await self._side.close()
            raise
        mine.epoch, mine.last_seq, mine.now_ms = taken.epoch, taken.last_seq, taken.now_ms
        mine.must_jump, mine.why_jump = taken.must_jump, taken.why_jump
        self._tenancy.begin(taken.line, taken.server)
        self._is_open = True
        return taken

    async def _recover(self, line: Line, *, was_closed: bool) -> Recovered:
        """Read all that is there, on the connection that has the seat."""
        with Beating(self._tenancy, line) as beating:
            await beating.beside(self._archive.be_settled())
            key = self._unsealed(next(iter(await beating.ask("read_key")), None))
            await self._archive.begin(beating.ask)
            values = await self._archive.values(beating.ask)
            bodies, parts = await self._read_tail(beating.ask)
            self._room.begin(sum(map(len, bodies)), parts)
            self._judge()
            await beating.beside(self._measure())
        return Recovered(
            self._mine.epoch,
            values,
            _records(bodies, self._archive.upto),
            was_closed,
            now_ms=self._mine.now_ms,
            must_jump=self._mine.must_jump,
            why_jump=self._mine.why_jump,
            key=key,
        )

    async def _read_tail(self, ask: Ask) -> tuple[list[bytes], list[Part]]:
        bodies: list[bytes] = []
        parts: list[Part] = []
        done, last_seq = self._archive.upto, self._mine.last_seq
        while done < last_seq:
            rows = await ask("read_batches", done, SEQ_MAX, TAIL_ROWS, TAIL_BYTES)
            if not rows:
                break
            for first, last, body in rows:
                if first != done + 1:
                    raise JournalDamagedError(f"record {first} stands where {done + 1} should, in the store")
                if count_records(body) != last - first + 1:
                    raise JournalDamagedError(f"the batch of the records {first} to {last} has another number of them")
                if len(body) > LARGE_BYTES:
                    parts.append(part_of(last, decode_batch(body), body))
                bodies.append(body)
                done = last
        if done != last_seq:
            raise JournalDamagedError(f"the store ends with record {done}, and its seat says {last_seq}")
        return bodies, parts

    async def _measure(self) -> None:
        """Ask how large the store is. Who cannot know it serves all the same."""
        try:
            row = await self._side.one("read_size", self._servers.schema)
        except JournalUnavailableError as error:
            log.warning("how large the store is cannot be asked: %s", error)
            return
        if row is not None:
            self._size_bytes = row["size_bytes"]

    def _unsealed(self, row: Sequence[bytes] | None) -> bytes:
        if row is None:
            raise JournalDamagedError("the store has no key of its authority")
        return unseal(row[0], self._secret)

    def _move(self, server: Server) -> None:
        """Let those beside the one that writes go where it goes."""
        for side in (self._side, self._archiving):
            if side.must_be is None or not side.must_be.is_same(server):
                side.must_be = server

    def _judge(self) -> None:
        """Let everybody's claims be taken, or not."""
        self.takes_claims = self._room.is_open_to_all

    def _seated(self, operation: str) -> None:
        if not self._is_open:
            raise JournalUnavailableError(f"{operation}: the journal is not open; open it first")


def _records(bodies: list[bytes], upto: int) -> Iterator[Record]:
    """Yield the records of batches, and let go of each: they are many."""
    wanted = upto + 1
    bodies.reverse()
    while bodies:
        for record in decode_batch(bodies.pop()):
            if record.seq != wanted:
                raise JournalDamagedError(f"record {record.seq} stands where {wanted} should, in the store")
            wanted += 1
            yield record
