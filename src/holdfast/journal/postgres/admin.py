"""What operators do with a store, without a node: facts, `init`, `restored`, and the writer of `move`.

**Restored.** An operator who replaced the store by a backup says so (`restored`). One write takes the leadership and
gives it back, so no leader goes on over it, and the next term begins with the record `Restored` (N-22). A held
leadership is watched first, for as long as a follower would: a live leader is not deposed.

**Filling** an empty store is one transaction, from the tables to the last record. A node that would make the tables
waits for it, and so does another move (`lock_creation`). Values and history are staged in pieces and applied, as in a
step of the archive. A live lease older than the directory's history gets a made-up grant, with a number below all
others. A grant whose end is missing has ended by the time that the history begins.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.events import Granted, Record, grants_of
from holdfast.core.state import StateScalars
from holdfast.core.values import Slot
from holdfast.journal.codec import decode_batch, encode_batch
from holdfast.journal.interface import (
    HEAD,
    Changes,
    HistoryPart,
    JournalDamagedError,
    JournalLockedError,
    JournalLostError,
    JournalUnavailableError,
    Leadership,
    OutcomeUnknownError,
    Peer,
    TailPart,
    Values,
)
from holdfast.journal.postgres.archive import checksum_of, records_in_pieces, values_in_pieces
from holdfast.journal.postgres.connection import LostError, PgClient, RefusedError, Servers, addresses, identity_of
from holdfast.journal.postgres.history import PostgresSnapshot, snapshot
from holdfast.journal.postgres.leadership import (
    NewAuthority,
    WriterTerm,
    create,
    create_tables,
    leadership_of,
    read_leadership,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from holdfast.core.values import Lease
    from holdfast.journal.interface import Snapshot, SnapshotPart
    from holdfast.journal.postgres.connection import PgConnection, Row, Server, ServerIdentity

APPLICATION = "holdfast operator"
WATCH_READS = 8  # How often a held leadership is read while it is watched.
TRIED_BYTES = 256 * 1024  # More than deleted rows can have free by chance.
NO_SEQ = -1  # No record has this number.
MAY_NOT = "42501"
INIT = "Make one: holdfast store init --store URL, or start a node on it"


class Replica(msgspec.Struct, frozen=True):
    name: str
    state: str  # Empty if this role may not see it.
    sync_state: str


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    server: Server
    leadership: Leadership
    identity: ServerIdentity  # In the leadership: of the server that wrote the last records.
    has_standby: bool  # Whether the last record waited for a synchronous standby.
    wants_token_gap: bool
    token_gaps: int
    schema_version: int
    has_heartbeat: bool  # Whether a leader wrote while we watched.
    peers: Sequence[Peer]
    replicas: Sequence[Replica]
    size_bytes: int
    tail_records: int
    tail_bytes: int
    refusal: str | None = None  # Why a trial write failed.
    may_write: bool = True  # False: this role may not write, so no write was tried.


class Contents(msgspec.Struct, frozen=True):
    records: int  # In the history and in the tail.
    last_seq: int
    archived_upto: int
    problem: str | None = None


class StoreAdmin:
    def __init__(self, url: str, schema: str) -> None:
        """Raises `ValueError` for an address or a name that cannot be one."""
        self._servers = Servers(url, schema, APPLICATION)
        self._client = PgClient(self._servers)
        self.schema = schema
        self.where = ", ".join(address.where for address in addresses(url))

    async def close(self) -> None:
        await self._client.close()

    async def roster(self) -> tuple[Leadership, Sequence[Peer]]:
        return leadership_of(await self._leadership()), await self._peers()

    async def ping(self, times: int) -> None:
        for _ in range(times):
            await self._client.rows("ping")

    async def facts(self, watch_seconds: float) -> Facts:
        """A held leadership is watched until its heartbeat rises, at most for so long. Raises `JournalError`."""
        row = await self._leadership()
        has_heartbeat = row["held"] and await self._watch(row, watch_seconds) is None
        size = await self._client.rows("read_size", self.schema)
        tail = await self._client.rows("read_tail_size")
        return Facts(
            server=self._client.server,
            leadership=leadership_of(await self._leadership()),
            identity=identity_of(row),
            has_standby=row["has_standby"],
            wants_token_gap=row["wants_jump"],
            token_gaps=row["jumps"],
            schema_version=row["schema_version"],
            has_heartbeat=has_heartbeat,
            peers=await self._peers(),
            replicas=[Replica(*each) for each in await self._client.rows("read_replicas")],
            size_bytes=size[0]["size_bytes"],
            tail_records=tail[0]["records"],
            tail_bytes=tail[0]["bytes"],
            **await self._try_write(),
        )

    async def read(self, report_progress: Callable[[int], None]) -> Contents:
        """Read and check all that there is at one instant; `report_progress` gets the count. Blocks nothing.

        Raises `JournalError`, also if the leadership is taken at that moment.
        """
        row = await self._leadership()
        term = WriterTerm(row["tenure"], row["epoch"])
        records = 0
        async with snapshot(self._servers, term) as found:
            try:
                async for _ in found.values():
                    pass
                for part in (found.history(), found.tail()):
                    async for some in part:
                        records += len(some)
                        report_progress(records)
            except (JournalDamagedError, ValueError) as error:
                problem = error.problem if isinstance(error, JournalDamagedError) else str(error)
                return Contents(records, found.last_seq, found.upto, problem)
        return Contents(records, found.last_seq, found.upto)

    async def _try_write(self) -> dict[str, Any]:
        """Try to write a batch that is no authority's, and roll it back. A full disk answers reads, but no writes."""
        client = PgClient(self._servers)
        try:
            await client.rows("begin")
            await client.rows("fill_tail", NO_SEQ, NO_SEQ, 0, bytes(TRIED_BYTES))
        except RefusedError as error:
            return {"may_write": False} if error.sqlstate == MAY_NOT else {"refusal": error.problem}
        except JournalUnavailableError as error:
            return {"refusal": error.problem}
        finally:
            # Closing the socket rolls it back.
            client.drop()
        return {}

    async def init(self, new_authority: NewAuthority, secret: bytes | None) -> Leadership | None:
        """Make the tables and the authority. Return the leadership if there was one already. Raises `JournalError`."""
        before = await read_leadership(self._client, self.where)
        if before is not None:
            return leadership_of(before)
        await create(self._client, self.schema, new_authority, secret)
        made = leadership_of(await self._leadership())
        return None if made.authority == new_authority.authority else made

    async def restored(self, term_id: str, watch_seconds: float) -> int:
        """Let the next term begin with `Restored`; return its epoch. Raises `JournalLockedError` if a leader lives."""
        row = await self._leadership()
        if row["held"]:
            still = await self._watch(row, watch_seconds)
            if still is None:
                raise self._led(row)
            row = still
        done = await self._client.rows("mark_restored", row["epoch"], row["tenure"], row["beat"], term_id)
        if not done:
            raise self._led(await self._leadership())
        return int(done[0]["epoch"]) + 1

    async def _watch(self, row: Row, seconds: float) -> Row | None:
        """Watch a leadership that is held. Return it if it stood still all the time, None once its heartbeat rises."""
        for _ in range(WATCH_READS):
            await asyncio.sleep(seconds / WATCH_READS)
            now = await self._leadership()
            if (now["epoch"], now["tenure"], now["beat"]) != (row["epoch"], row["tenure"], row["beat"]):
                return None
        return row

    def _led(self, row: Row) -> JournalLockedError:
        problem = f"{row['node']} at {row['url']} leads (epoch {row['epoch']})"
        return JournalLockedError(problem, "Stop all nodes of this store first, as with: systemctl stop holdfast")

    async def _leadership(self) -> Row:
        row = await read_leadership(self._client, self.where)
        if row is None:
            raise JournalLostError(f"{self.where} has no authority in the schema {self.schema}", INIT)
        return row

    async def _peers(self) -> list[Peer]:
        return [Peer(**dict(row)) for row in await self._client.rows("read_peers")]


MOVE_APPLICATION = "holdfast move"
SLOTS = "slots"  # The table of leases.
PIECES_MAX = 64  # Pieces staged before they are applied.
SOME = 1_024
GRANTS = 64  # Grants read at once, each of up to a thousand names.
COMMIT_SECONDS = 60.0

_head_of = msgspec.msgpack.Decoder(StateScalars).decode
_slot_of = msgspec.msgpack.Decoder(Slot).decode


@asynccontextmanager
async def open_writer(
    url: str, schema: str, secret: bytes | None, term_id: str, wall_ms: int
) -> AsyncIterator[PostgresWriter]:
    """Give a store to fill. Without `commit` nothing of it happens. Raises `JournalError`."""
    servers = Servers(url, schema, MOVE_APPLICATION)
    connection, server = await servers.connect()
    try:
        store = PostgresWriter(connection, schema, secret, identity=server.identity, term_id=term_id, wall_ms=wall_ms)
        await store.begin_transaction()
        yield store
    finally:
        # Closing the socket ends the transaction.
        connection.drop()


class PostgresWriter:
    def __init__(
        self,
        connection: PgConnection,
        schema: str,
        secret: bytes | None,
        *,
        identity: ServerIdentity,
        term_id: str,
        wall_ms: int,
    ) -> None:
        self._connection = connection
        self._schema = schema
        self._secret = secret
        self._term_id = term_id
        self._wall_ms = wall_ms
        self._identity = identity
        self._epoch = 0
        self._step = self._pieces = self._rows = 0
        self._head = b""
        self._leases: dict[str, Lease] = {}
        self._now_ms = 0
        self.authority: str | None = None

    async def _ask(self, name: str, *values: object) -> Sequence[Any]:
        return await self._connection.ask(name, *values, seconds=None)

    async def begin_transaction(self) -> None:
        """Begin, and read what is there, after all others that make or fill it are done."""
        await self._ask("begin")
        await self._ask("fill_without_timeouts")
        await self._ask("lock_creation")
        if (await self._ask("has_leadership", self._schema))[0][0]:
            rows = await self._ask("read_leadership")
            self.authority = rows[0]["authority"] if rows else ""

    async def begin(self, authority: str, key: bytes, epoch: int) -> None:
        """Make the tables, the authority, and a leadership that is ours while we fill."""
        await create_tables(
            self._connection, self._schema, NewAuthority(authority, key, self._wall_ms), self._secret, self._identity
        )
        self._epoch = epoch
        await self._ask("fill_acquire_leadership", epoch, self._term_id)

    async def put(self, part: SnapshotPart) -> None:
        match part:
            case TailPart(records) if records:
                self._now_ms = max(self._now_ms, records[-1].at_ms)
                await self._ask("fill_tail", records[0].seq, records[-1].seq, self._epoch, encode_batch(records))
            case Values():
                await self._put_values(part)
            case HistoryPart(records):
                for piece in records_in_pieces([(encode_batch((record,)), record)] for record in records):
                    await self._stage("stage_records", piece.staged())

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

    async def _stage(self, name: str, values: tuple[object, ...]) -> None:
        await self._ask(name, self._epoch, self._term_id, self._step, self._pieces, *values)
        self._pieces += 1
        if self._pieces >= PIECES_MAX:
            await self._apply()

    async def _apply(self) -> None:
        self._rows += (await self._ask("fill_values", self._term_id, self._step))[0]["grown"]
        await self._ask("fill_records", self._term_id, self._step)
        await self._ask("fill_drop_staged")
        self._step, self._pieces = self._step + 1, 0

    async def end(self, source: Snapshot) -> None:
        """Free the leadership, and correct who held what."""
        await self._apply()
        if source.upto:
            head = (0, source.upto, self._head, checksum_of(HEAD, HEAD.encode(), self._head))
            await self._ask("apply_step", self._epoch, self._term_id, self._step, *head)
        await self._ask("fill_archive", source.pruned, self._rows)
        await self._end_grants(source.pruned)
        await self._add_grants()
        await self._ask("fill_leadership", self._epoch, self._term_id, source.last_seq, self._now_ms)

    async def _end_grants(self, pruned: int) -> None:
        """End what the history says is held, and the state does not."""
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
                await self._ask("fill_end_grants", *map(list, zip(*ended, strict=True)))
        if held:
            raise JournalDamagedError(f"the grant that is record {min(held)} is missing in the history")

    def _is_known(self, name: str, granted: Lease) -> bool:
        """Tell whether a lease is the one in the state, and note that it needs no other grant."""
        lease = self._leases.get(name)
        if lease is None or lease.lease_id != granted.lease_id:
            return False
        del self._leases[name]
        return True

    async def _add_grants(self) -> None:
        """Make up a grant for each lease that is older than the history."""
        made_up = [
            (name.encode(), -number, encode_batch((Record(-number, 0, lease.granted_wall_ms, Granted(name, lease)),)))
            for number, (name, lease) in enumerate(self._leases.items(), start=1)
        ]
        for start in range(0, len(made_up), SOME):
            await self._ask("fill_add_grants", *map(list, zip(*made_up[start : start + SOME], strict=True)))

    async def snapshot(self) -> PostgresSnapshot:
        position = (await self._ask("read_position", self._epoch, self._term_id))[0]
        return PostgresSnapshot(self._ask, position)

    async def commit(self) -> None:
        try:
            await self._connection.ask("commit", seconds=COMMIT_SECONDS)
        except LostError as error:
            raise OutcomeUnknownError(
                f"whether the store counts is not known: {error.problem}", "Move it again: that finds out"
            ) from error
