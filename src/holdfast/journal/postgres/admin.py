"""What operators ask of a store and do to it, without a node: facts, `init`, `restored`, and the writer of `move`.

**Restored.** An operator who put a backup in the place of the store says so (`restored`). It takes the seat and gives
it back in one write, so no leader can go on over it, and the next term begins with the record `Restored` (N-22). A
leader that lives is not deposed: a seat that is held is watched for as long as a follower would watch it.

**Filling** an empty store is one transaction, from the tables to the last record. Nobody sees anything of it before its
commit; interrupted, there is nothing. Another node that would make the tables waits for it, and so does another move
(`lock_creation`). Values and history go the way of a step of the archive, staged in pieces and applied, some at a time.
The history of a directory begins somewhere: for a live lease that is older than it, a grant is made up from the lease
as it is, with a number below all others. A grant whose end is missing has ended by the time that the history begins.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.events import Granted, Record, grants_of
from holdfast.core.state import Head
from holdfast.core.values import Slot
from holdfast.journal.base import (
    HEAD,
    Changes,
    History,
    JournalDamagedError,
    JournalError,
    JournalLockedError,
    JournalLostError,
    JournalUnavailableError,
    OutcomeUnknownError,
    Peer,
    Seat,
    Tail,
    Values,
)
from holdfast.journal.codec import FORMAT, decode_batch, encode_batch
from holdfast.journal.postgres.archive import RecordsPiece, checksum_of, values_in_pieces
from holdfast.journal.postgres.connection import LostError, RefusedError, Servers, Side, addresses
from holdfast.journal.postgres.history import PostgresSnapshot, snapshot
from holdfast.journal.postgres.leadership import (
    SCHEMA_VERSION,
    Fresh,
    create,
    is_missing,
    refuse_unless_readable,
    seal,
    seat_of,
)
from holdfast.journal.postgres.writer import Mine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from holdfast.core.values import Lease
    from holdfast.journal.base import Part, Snapshot
    from holdfast.journal.postgres.connection import Line, Marks, Row, Server

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
        return seat_of(await self._seat()), await self._peers()

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
            seat=seat_of(await self._seat()),
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

    async def init(self, fresh: Fresh, secret: bytes | None) -> Seat | None:
        """Make the tables and the authority. Return the seat if there was one already. Raises `JournalError`."""
        before = await self._seat_or_none()
        if before is not None:
            return seat_of(before)
        if self._side.server is None:
            raise JournalError("the connection to the store was lost", "Try again")
        await create(self._side, self.schema, fresh, secret, self._side.server.marks)
        made = seat_of(await self._seat())
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
            if is_missing(error):
                return None
            raise
        return refuse_unless_readable(self.where, row)

    async def _peers(self) -> list[Peer]:
        rows = await self._rows("read_peers")
        return [Peer(**dict(row)) for row in rows]

    async def _rows(self, name: str, *values: object) -> Sequence[Row]:
        return await self._side.rows(name, *values)


MOVE_APPLICATION = "holdfast move"
SLOTS = "slots"
"""The table of the state that has the leases."""
PIECES = 64
"""How many pieces are staged before they are applied."""
SOME = 1_024
GRANTS = 64
"""How many records are read at once that may each have granted a thousand names."""
COMMIT_SECONDS = 60.0

_head_of = msgspec.msgpack.Decoder(Head).decode
_slot_of = msgspec.msgpack.Decoder(Slot).decode


@asynccontextmanager
async def filling(
    url: str, schema: str, secret: bytes | None, tenure: str, wall_ms: int
) -> AsyncIterator[PostgresWriter]:
    """Give a store to fill. Without `commit` nothing of it happens. Raises `JournalError`."""
    servers = Servers(url, schema, MOVE_APPLICATION)
    line, server = await servers.connect()
    try:
        store = PostgresWriter(line, schema, secret, marks=server.marks, tenure=tenure, wall_ms=wall_ms)
        await store.look()
        yield store
    finally:
        # Closing the socket ends the transaction.
        line.drop()


class PostgresWriter:
    """The transaction."""

    def __init__(
        self, line: Line, schema: str, secret: bytes | None, *, marks: Marks, tenure: str, wall_ms: int
    ) -> None:
        self._line = line
        self._schema = schema
        self._secret = secret
        self._tenure = tenure
        self._wall_ms = wall_ms
        self._marks = marks
        self._epoch = 0
        self._step = self._pieces = self._rows = 0
        self._head = b""
        self._leases: dict[str, Lease] = {}
        self._now_ms = 0
        self.authority: str | None = None
        """The authority that is there already."""

    async def _ask(self, name: str, *values: object) -> Sequence[Any]:
        return await self._line.ask(name, *values, seconds=None)

    async def look(self) -> None:
        """Begin, and find out what is there: after whoever else makes or fills it is done."""
        await self._ask("begin")
        await self._ask("fill_in_peace")
        await self._ask("lock_creation")
        if (await self._ask("has_seat", self._schema))[0][0]:
            rows = await self._ask("read_seat")
            self.authority = rows[0]["authority"] if rows else ""

    async def begin(self, authority: str, key: bytes, epoch: int) -> None:
        """Make the tables, the authority, and a seat that is ours while we fill."""
        if not (await self._ask("has_schema", self._schema))[0][0]:
            await self._ask("create_schema")
        await self._line.script("create")
        await self._line.script("create_archive")
        await self._ask("write_authority", authority, seal(key, self._secret), self._wall_ms, SCHEMA_VERSION)
        marks = (self._marks.system_id, self._marks.timeline, self._marks.database_oid)
        await self._ask("write_seat", authority, FORMAT, *marks, f"{self._schema}.seat")
        self._epoch = epoch
        await self._ask("fill_take", epoch, self._tenure)

    async def put(self, part: Part) -> None:
        """Put a part of the tail in place, or stage one of the archive."""
        match part:
            case Tail(records) if records:
                self._now_ms = max(self._now_ms, records[-1].at_ms)
                await self._ask("fill_tail", records[0].seq, records[-1].seq, self._epoch, encode_batch(records))
            case Values():
                await self._put_values(part)
            case History(records):
                await self._put_history(records)

    async def _put_values(self, values: Values) -> None:
        if values.table == HEAD:
            self._head = values.rows[0][1]
            self._now_ms = max(self._now_ms, _head_of(self._head).now_ms)
            return
        if values.table == SLOTS:
            for key, value in values.rows:
                if (lease := _slot_of(value).lease) is not None:
                    self._leases[key.decode()] = lease
        for piece in values_in_pieces((Changes(values.table, new=values.rows),)):
            if piece is not None:
                await self._stage("stage_values", piece.staged())

    async def _put_history(self, records: Sequence[Record]) -> None:
        piece = RecordsPiece()
        for record in records:
            piece.add([(encode_batch((record,)), record)])
            if piece.is_full:
                await self._stage("stage_records", piece.staged())
                piece = RecordsPiece()
        if piece.seqs:
            await self._stage("stage_records", piece.staged())

    async def _stage(self, name: str, values: tuple[object, ...]) -> None:
        await self._ask(name, self._epoch, self._tenure, self._step, self._pieces, *values)
        self._pieces += 1
        if self._pieces >= PIECES:
            await self._apply()

    async def _apply(self) -> None:
        """Put in place what is staged."""
        self._rows += (await self._ask("fill_values", self._tenure, self._step))[0]["grown"]
        await self._ask("fill_records", self._tenure, self._step)
        await self._ask("fill_drop_staged")
        self._step, self._pieces = self._step + 1, 0

    async def end(self, source: Snapshot) -> None:
        """Let nobody have the seat, and let who held what be right."""
        await self._apply()
        if source.upto:
            head = (0, source.upto, self._head, checksum_of(HEAD, HEAD.encode(), self._head))
            await self._ask("apply_step", self._epoch, self._tenure, self._step, *head)
        await self._ask("fill_archive", source.pruned, self._rows)
        await self._let_go(source.pruned)
        await self._hold()
        await self._ask("fill_seat", self._epoch, self._tenure, source.last_seq, self._now_ms)

    async def _let_go(self, pruned: int) -> None:
        """Compare who holds what by the history with who does by the state, and let the state be right."""
        held: dict[int, list[bytes]] = {}
        after = b""
        while rows := await self._ask("fill_read_living", after, SOME):
            after = rows[-1]["name"]
            for name, seq in rows:
                held.setdefault(seq, []).append(name)
        # Each record is read once, however many names it granted.
        seqs = sorted(held)
        for start in range(0, len(seqs), GRANTS):
            ended: list[tuple[bytes, int, int]] = []
            for seq, body in await self._ask("fill_read_grants", seqs[start : start + GRANTS]):
                (record,) = decode_batch(body)
                leases = dict(grants_of(record.event))
                ended += [
                    (name, seq, max(pruned, seq + 1))
                    for name in held.pop(seq)
                    if not self._is_known(name.decode(), leases[name.decode()])
                ]
            if ended:
                await self._ask("fill_let_go", *map(list, zip(*ended, strict=True)))
        if held:
            raise JournalDamagedError(f"the grant that is record {min(held)} is missing in the history")

    def _is_known(self, name: str, granted: Lease) -> bool:
        """Tell whether a lease is the one that the state has, and remember that it needs no other grant."""
        lease = self._leases.get(name)
        if lease is None or lease.lease_id != granted.lease_id:
            return False
        del self._leases[name]
        return True

    async def _hold(self) -> None:
        """Make up a grant for each lease that is older than the history."""
        made_up = [
            (name.encode(), -number, encode_batch((Record(-number, 0, lease.granted_wall_ms, Granted(name, lease)),)))
            for number, (name, lease) in enumerate(self._leases.items(), start=1)
        ]
        for start in range(0, len(made_up), SOME):
            await self._ask("fill_hold", *map(list, zip(*made_up[start : start + SOME], strict=True)))

    async def snapshot(self) -> PostgresSnapshot:
        """Return all that was put, to be read back."""
        position = (await self._ask("read_position", self._epoch, self._tenure))[0]
        return PostgresSnapshot(self._ask, position)

    async def commit(self) -> None:
        """Let it count."""
        try:
            await self._line.ask("commit", seconds=COMMIT_SECONDS)
        except LostError as error:
            raise OutcomeUnknownError(
                f"whether the store counts is not known: {error.problem}", "Move it again: that finds out"
            ) from error
