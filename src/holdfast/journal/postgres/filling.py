"""Filling an empty store with what a data directory holds: one transaction, from the tables to the last record.

Nobody sees anything of it before its commit. Interrupted, there is nothing; so no store is ever half filled. Whoever
else would make the tables waits for it, and so does another move: they see what became of it (`lock_creation`).

Values and history go the way of a step of the archive, staged in pieces and applied, but some at a time. The history of
a directory begins somewhere: a lease that is alive may be older than it. Then a grant is made up for it from the lease
as it stands, with a number below all others; and a grant whose end is missing has ended by the time that the history
begins.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.events import Granted, Record, grants_of
from holdfast.core.state import Head
from holdfast.core.values import Slot
from holdfast.journal.base import HEAD, Changes, History, JournalDamagedError, OutcomeUnknownError, Tail, Values
from holdfast.journal.codec import FORMAT, decode_batch, encode_batch
from holdfast.journal.postgres.archive_pieces import RecordsPiece, checksum_of, values_in_pieces
from holdfast.journal.postgres.driver import LostError
from holdfast.journal.postgres.lines import Servers
from holdfast.journal.postgres.schema import SCHEMA_VERSION
from holdfast.journal.postgres.sealing import seal
from holdfast.journal.postgres.snapshot import PostgresSnapshot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from holdfast.core.values import Lease
    from holdfast.journal.base import Part, Snapshot
    from holdfast.journal.postgres.demands import Marks
    from holdfast.journal.postgres.driver import Line

APPLICATION = "holdfast move"
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
    servers = Servers(url, schema, APPLICATION)
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
