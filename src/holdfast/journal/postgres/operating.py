"""What operators ask of a store and do to it, beside its nodes: for the commands. Nobody here needs a tenure.

**Restored.** Whoever put a backup in the place of the store says so (`restored`). It takes the seat and gives it back
in one write, so no leader can go on over it, and the next tenure begins with the record `Restored` (N-22). A leader
that lives is not deposed: a seat that is held is watched for as long as a follower would watch it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.journal.base import (
    JournalDamagedError,
    JournalError,
    JournalLockedError,
    JournalLostError,
    JournalUnavailableError,
    Peer,
    Seat,
)
from holdfast.journal.postgres import schema as tables
from holdfast.journal.postgres.addresses import addresses
from holdfast.journal.postgres.driver import RefusedError
from holdfast.journal.postgres.lines import Servers, Side
from holdfast.journal.postgres.seat import Mine
from holdfast.journal.postgres.snapshot import snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.journal.postgres.demands import Marks, Server
    from holdfast.journal.postgres.driver import Row

APPLICATION = "holdfast operator"
LOOKS = 8
"""How often a seat is looked at while it is watched."""
TRIED_BYTES = 256 * 1024
"""More than there is room for by chance, in what was deleted."""
NO_SEQ = -1
"""No record has this number."""
MAY_NOT = "42501"
INIT = "Make one: holdfast store init --store URL, or start a node on it"


class Replica(msgspec.Struct, frozen=True):
    """A standby of the server. Its state is empty if this role may not see it."""

    name: str
    state: str
    sync_state: str


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a store shows to whoever may look."""

    where: str
    server: Server
    seat: Seat
    marks: Marks
    """Those in the seat: of the server that the last records were written on."""
    has_standby: bool
    """Whether the last record waited for a synchronous standby."""
    wants_jump: bool
    jumps: int
    schema_version: int
    is_beating: bool
    """Whether somebody wrote under the seat while we looked."""
    peers: Sequence[Peer]
    replicas: Sequence[Replica]
    size_bytes: int
    tail_records: int
    tail_bytes: int
    refusal: str | None = None
    """Why the store takes no write, as one that was tried found out; None if it does."""
    may_write: bool = True
    """Whether this role may write: else none was tried."""


class Contents(msgspec.Struct, frozen=True):
    """What all of a store came to, when it was read from one end to the other."""

    records: int
    """In the history and in the tail."""
    last_seq: int
    archived_upto: int
    problem: str | None = None
    """What is not as it was written; None if all is."""


class Operating:
    """One store, for as long as a command needs it."""

    def __init__(self, url: str, schema: str) -> None:
        """Raises `ValueError` for an address or a name that cannot be one."""
        self._servers = Servers(url, schema, APPLICATION)
        self._side = Side(self._servers)
        self.schema = schema
        self.where = ", ".join(address.where for address in addresses(url))
        """The servers, for people."""

    async def close(self) -> None:
        """Take leave."""
        await self._side.close()

    async def roster(self) -> tuple[Seat, Sequence[Peer]]:
        """Return who has the seat, and who told of themselves. Raises `JournalError`."""
        return tables.seat_of(await self._seat()), await self._peers()

    async def ask_nothing(self, times: int) -> None:
        """Ask the server so many times for nothing, one after another: whoever calls this knows how long it took."""
        for _ in range(times):
            await self._rows("ask_nothing")

    async def facts(self, watch_seconds: float) -> Facts:
        """Return all that can be seen. A seat that is held is watched until it beats, for so long at most.

        Raises `JournalError`.
        """
        row = await self._seat()
        is_beating = row["held"] and await self._watched(row, watch_seconds) is None
        size = await self._rows("read_size", self.schema)
        tail = await self._rows("read_tail_size")
        server = self._side.server
        if server is None:
            raise JournalError("the connection to the store was lost", "Try again")
        return Facts(
            where=self.where,
            server=server,
            seat=tables.seat_of(await self._seat()),
            marks=type(server.marks)(row["system_id"], row["timeline"], row["database_oid"], row["table_oid"]),
            has_standby=row["has_standby"],
            wants_jump=row["wants_jump"],
            jumps=row["jumps"],
            schema_version=row["schema_version"],
            is_beating=is_beating,
            peers=await self._peers(),
            replicas=[Replica(*each) for each in await self._rows("read_replicas")],
            size_bytes=size[0]["size_bytes"],
            tail_records=tail[0]["records"],
            tail_bytes=tail[0]["bytes"],
            **await self._tried(),
        )

    async def read(self, tell: Callable[[int], None]) -> Contents:
        """Read all that there is at one instant, some at a time, and check it. `tell` hears how many records it was.

        Nobody is held up by it. Raises `JournalError`, also if the seat is taken in the moment of the look.
        """
        row = await self._seat()
        mine = Mine(row["tenure"])
        mine.epoch = row["epoch"]
        records = 0
        async with snapshot(self._side, mine) as found:
            try:
                async for _ in found.values():
                    pass
                for part in (found.history(), found.tail()):
                    async for some in part:
                        records += len(some)
                        tell(records)
            except (JournalDamagedError, ValueError) as error:
                problem = error.problem if isinstance(error, JournalDamagedError) else str(error)
                return Contents(records, found.last_seq, found.upto, problem)
        return Contents(records, found.last_seq, found.upto)

    async def _tried(self) -> dict[str, Any]:
        """Try to write a batch that is no authority's, and take it back. A full disk answers, and takes none."""
        side = self._side.another()
        try:
            await side.rows("begin")
            await side.rows("fill_tail", NO_SEQ, NO_SEQ, 0, bytes(TRIED_BYTES))
        except RefusedError as error:
            return {"may_write": False} if error.sqlstate == MAY_NOT else {"refusal": error.problem}
        except JournalUnavailableError as error:
            return {"refusal": error.problem}
        finally:
            # Without a word: so nothing of it is ever committed.
            side.drop()
        return {}

    async def init(self, fresh: tables.Fresh, secret: bytes | None) -> Seat | None:
        """Make the tables and the authority. Return the seat if there was one already. Raises `JournalError`."""
        before = await self._seat_or_none()
        if before is not None:
            return tables.seat_of(before)
        if self._side.server is None:
            raise JournalError("the connection to the store was lost", "Try again")
        await tables.create(self._side, self.schema, fresh, secret, self._side.server.marks)
        made = tables.seat_of(await self._seat())
        return None if made.authority == fresh.authority else made

    async def restored(self, tenure: str, watch_seconds: float) -> int:
        """Let the next tenure begin with `Restored`; return its epoch. Raises `JournalLockedError` while one leads."""
        row = await self._seat()
        if row["held"]:
            still = await self._watched(row, watch_seconds)
            if still is None:
                raise self._led(row)
            row = still
        done = await self._rows("mark_restored", row["epoch"], row["tenure"], row["beat"], tenure)
        if not done:
            raise self._led(await self._seat())
        return int(done[0]["epoch"]) + 1

    async def _watched(self, row: Row, seconds: float) -> Row | None:
        """Watch a seat that is held. Return it as it is if it stood still all the time, None as soon as it beats."""
        for _ in range(LOOKS):
            await asyncio.sleep(seconds / LOOKS)
            now = await self._seat()
            if (now["epoch"], now["tenure"], now["beat"]) != (row["epoch"], row["tenure"], row["beat"]):
                return None
        return row

    def _led(self, row: Row) -> JournalLockedError:
        problem = f"{row['node']} at {row['url']} leads (epoch {row['epoch']})"
        return JournalLockedError(problem, "Stop all nodes of this store first, as with: systemctl stop holdfast")

    async def _seat(self) -> Row:
        row = await self._seat_or_none()
        if row is None:
            raise JournalLostError(f"{self.where} has no authority in the schema {self.schema}", INIT)
        return row

    async def _seat_or_none(self) -> Row | None:
        try:
            row = await self._side.one("read_seat")
        except RefusedError as error:
            if tables.is_missing(error):
                return None
            raise
        return tables.refuse_unless_readable(self.where, row)

    async def _peers(self) -> list[Peer]:
        rows = await self._rows("read_peers")
        return [Peer(**dict(row)) for row in rows]

    async def _rows(self, name: str, *values: object) -> Sequence[Row]:
        return await self._side.rows(name, *values)
