"""Looking at the seat, and taking it. Any node may look; one write makes a leader (N-2), and it names what was seen.

Only after that write has returned is anything read, on the connection that took the seat: nobody else can add anything
from then on. What is durable by then is there, for a takeover waits for whatever holds the row, and for replicas.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from holdfast.journal.base import JournalLockedError, JournalUnavailableError
from holdfast.journal.codec import FORMAT
from holdfast.journal.postgres.driver import RefusedError
from holdfast.journal.postgres.knowledge import RESTORED, Noted, went_back
from holdfast.journal.postgres.schema import Fresh, create, is_missing, refuse_unless_readable, seat_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.journal.base import JournalError, Peer, Seat
    from holdfast.journal.postgres.demands import Marks, Server
    from holdfast.journal.postgres.driver import Line, Row
    from holdfast.journal.postgres.knowledge import Knowledge
    from holdfast.journal.postgres.lines import Servers, Side

BLOCKED_SECONDS = 1.0
"""After so long a takeover ends whoever keeps it waiting (N-3)."""
NOBODY = -1
"""The beat of a seat that nobody may be deposed from."""

log = logging.getLogger("holdfast.journal")


class Taken(msgspec.Struct, frozen=True):
    """The seat is ours, and this is what the write found there."""

    line: Line
    server: Server
    epoch: int
    last_seq: int
    now_ms: int
    was_held: bool
    must_jump: bool
    why_jump: str = ""


class Watching:
    """Looks at the seat, as one node of several, and takes it."""

    def __init__(
        self,
        servers: Servers,
        side: Side,
        knowledge: Knowledge,
        *,
        may_lose: bool,
        fresh: Fresh | None,
        secret: bytes | None,
    ) -> None:
        """`may_lose`: after a loss of the store this node goes on, with a jump of the tokens (N-23).

        `fresh` is what an authority is made of where there is none; None: none is made.
        """
        self._servers = servers
        self._side = side
        self._knowledge = knowledge
        self._may_lose = may_lose
        self._fresh = fresh
        self._secret = secret

    async def look(self) -> Seat:
        """Return the seat. Raises as `SharedJournal.look` does."""
        row, loss = await self._look()
        return seat_of(row, is_behind=loss is not None)

    async def take(self, seen: Seat | None, me: Peer, tenure: str, wall_ms: int, seconds: float) -> Taken:
        """Take the seat: from nobody, or as it was seen. Raises `JournalLockedError` if another has it."""
        row, loss = await self._look()
        is_lost = loss is not None
        knowledge, may_lose = self._knowledge, self._may_lose or (is_lost and row["wants_jump"])
        epoch, before, beat = (row["epoch"], row["tenure"], NOBODY) if seen is None else _as_seen(seen)
        line, server = await self._servers.connect()
        self._side.must_be = server
        values = (
            *(epoch, before, tenure, beat),
            *(me.node, me.process, me.url, me.version, wall_ms, FORMAT),
            *(row["authority"], may_lose, knowledge.last_seq, *msgspec.structs.astuple(server.marks)),
        )
        try:
            rows = await self._write(line, values, seconds)
            if not rows:
                raise self._why_not(*await self._learned(), epoch, before, server.marks)
        except BaseException:
            line.drop()
            self._side.must_be = None
            raise
        found = rows[0]
        knowledge.epoch, knowledge.tenure, knowledge.last_seq = found["epoch"], tenure, found["last_seq"]
        knowledge.jumps = found["jumps"]
        return Taken(
            line,
            server,
            found["epoch"],
            found["last_seq"],
            found["now_ms"],
            found["was_held"],
            found["must_jump"] or is_lost,
            "" if is_lost else _why_jump(row, server.marks),
        )

    async def _write(self, line: Line, values: Sequence[object], seconds: float) -> Sequence[Row]:
        """Send the one write. A leader that was stopped with half a statement sent keeps the row: it is ended."""
        task = asyncio.create_task(line.ask("take", *values, seconds=seconds))
        try:
            while not task.done():
                await asyncio.wait((task,), timeout=BLOCKED_SECONDS)
                if not task.done():
                    await self._end_blockers(line.pid)
            return task.result()
        finally:
            if not task.done():
                # It closes the socket, and sends nothing.
                task.cancel()

    async def _end_blockers(self, pid: int) -> None:
        try:
            for blocker, is_ended in await self._side.rows("end_blockers", pid, seconds=BLOCKED_SECONDS):
                log.warning("a session that kept the seat was %s: %d", "ended" if is_ended else "not ended", blocker)
        except JournalUnavailableError as error:
            log.warning("who keeps the seat cannot be ended: %s", error)

    async def _look(self) -> tuple[Row, str | None]:
        """Return the seat's row, and what was lost if this node may go on all the same."""
        row, loss = await self._learned()
        if loss and not (self._may_lose or row["wants_jump"]):
            raise went_back(self._where, loss)
        return row, loss

    async def _learned(self) -> tuple[Row, str | None]:
        """Return the seat's row, and what was lost. What becomes known while it is read is no reason to doubt it."""
        noted = self._knowledge.noted()
        row = await self._read()
        seen = Noted(row["jumps"], row["epoch"], row["tenure"], row["last_seq"])
        return row, self._knowledge.learn(row["authority"], seen, noted)

    async def _read(self) -> Row:
        try:
            row = await self._side.one("read_seat")
        except RefusedError as error:
            if not is_missing(error):
                raise
            if self._knowledge.authority is not None:
                raise self._knowledge.none_is_there(self._where) from error
            if self._fresh is None:
                raise JournalUnavailableError(
                    f"{self._where} has no store of Holdfast", "Run: holdfast store init, or start a node with it"
                ) from error
            await self._create(self._fresh)
            row = await self._side.one("read_seat")
            self._say_who_made_it(self._fresh, refuse_unless_readable(self._where, row))
        return refuse_unless_readable(self._where, row)

    def _say_who_made_it(self, fresh: Fresh, row: Row) -> None:
        """Say which authority the store has now: of several nodes that start at once, one makes it."""
        whose = "it was made now" if row["authority"] == fresh.authority else "another node made it at the same time"
        log.warning("%s had no store of Holdfast: %s, as authority %s", self._where, whose, row["authority"])

    async def _create(self, fresh: Fresh) -> None:
        await self._side.alone()
        server = self._side.server
        if server is None:
            raise JournalUnavailableError("the connection to the store was lost again")
        await create(self._side, self._servers.schema, fresh, self._secret, server.marks)
        # The marks of the seat's own table are known only from here on.
        self._side.drop()

    def _why_not(self, row: Row, loss: str | None, epoch: int, tenure: str, marks: Marks) -> JournalError:
        """Say why the write that takes the seat found nothing."""
        now = seat_of(row)
        if (now.epoch, now.tenure) == (epoch, tenure):
            if loss is not None:
                return went_back(self._where, loss)
            its_marks = (row["system_id"], row["timeline"], row["database_oid"], row["table_oid"])
            if its_marks != msgspec.structs.astuple(marks):
                return went_back(
                    self._where,
                    "it is on another server or timeline, or was restored, and records that were answered may be gone",
                )
            if not now.is_held:
                return JournalLockedError(
                    f"open: a node that is still there cannot read format {FORMAT}, which this one would write",
                    "Upgrade every node first",
                )
        return JournalLockedError(f"open: {now.node or 'another node'} has the seat (epoch {now.epoch})")

    @property
    def _where(self) -> str:
        return f"the schema {self._servers.schema} at {self._servers.where}"


def _why_jump(row: Row, marks: Marks) -> str:
    """Say why tokens jump, if it is for something that need not have lost a record."""
    if row["wants_jump"]:
        return "an operator said that the store was restored from a backup"
    before = (row["system_id"], row["database_oid"], row["table_oid"])
    if row["has_standby"] and row["timeline"] != marks.timeline and before == _but_for_timeline(marks):
        return (
            f"the store was promoted (timeline {row['timeline']} to {marks.timeline}): tokens jump in case something"
            " was lost; if it was the synchronous standby that its last record waited for, nothing was"
        )
    return ""


def _but_for_timeline(marks: Marks) -> tuple[int, int, int]:
    return marks.system_id, marks.database_oid, marks.table_oid


def _as_seen(seat: Seat) -> tuple[int, str, int]:
    return seat.epoch, seat.tenure, seat.beat


__all__ = ["RESTORED", "Taken", "Watching"]
