"""The archive in PostgreSQL: it replaces the records that are dropped from the tail. Only the leader writes it.

A *step* brings the archive up to a record. It is sent in pieces that are *staged*, each by one statement, and one call
of a function then applies all of it in one transaction on the server:

    stage ─► stage ─► stage ─►  apply: gone, changed, new values; history; names;  do we still lead?  ─► commit
    each fenced by the term     takes seconds, and blocks no append                last, for a moment

- **The fence.** The function checks the leadership last, and locks it until its commit a moment later; if the
  leadership was taken meanwhile, all is rolled back. So a takeover waits for no more than a commit, and finds the
  archive as it was before the step or after it. The function never changes the leadership's row, so an append never
  waits.
- **A lost answer.** Whether a step was applied cannot be read: the server may run the call later. So it is *resolved*
  (`resolve_steps`): that waits for a running call, and removes what was staged, without which a late call is refused.
  Then the number up to which the archive reaches tells. The next caller resolves a cancelled step.
- **Dropped records** are named by the archive's own row, in the statement that drops them from the tail (N-5).
- **History that is too old or too much** is pruned afterwards, some records at a time (`RowPruning`). A step counts
  without that: the next one prunes the rest.

No transaction or lock is open between two messages. Every part takes a few milliseconds, and other tasks run between.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from holdfast.core.events import ends_of, grants_of, names_of, principal_of
from holdfast.journal.codec import decode_batch, history_in
from holdfast.journal.interface import HEAD, JournalDamagedError, JournalUnavailableError, OutcomeUnknownError, Values
from holdfast.journal.postgres.connection import LostError, RefusedError
from holdfast.journal.postgres.writer import TermClient, deposed, position
from holdfast.journal.sqlite.archive_writer import PRUNE_ROWS, STEP_MAX, choose
from holdfast.journal.sqlite.tail import FEED_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

    from holdfast.core.events import Event, Record
    from holdfast.journal.interface import Changes, Retention
    from holdfast.journal.postgres.connection import Row
    from holdfast.journal.postgres.writer import Ask
    from holdfast.journal.sqlite.tail import BacklogLimit

log = logging.getLogger("holdfast.journal")

RECORDS_AT_ONCE = 128  # Records of a batch handled before other tasks run: about two milliseconds.
PIECE_ROWS = 512  # Rows or names in a piece.
PIECE_BYTES = 128 * 1024
ENDS, GRANTS = 1, 2

Frames = list[tuple[bytes, "Record"]]


def checksum_of(table: str, key: bytes, value: bytes) -> int:
    return crc32(value, crc32(key, crc32(table.encode())))


class ValuesPiece(msgspec.Struct):
    """Some rows of one table, all of one kind: `gone`, `changed` or `new`."""

    table: str
    kind: str
    keys: list[bytes] = []
    values: list[bytes] = []
    checksums: list[int] = []
    size_bytes: int = 0

    def add(self, key: bytes, value: bytes) -> None:
        self.keys.append(key)
        self.values.append(value)
        self.checksums.append(checksum_of(self.table, key, value))
        self.size_bytes += len(key) + len(value)

    def staged(self) -> tuple[object, ...]:
        return self.table, self.kind, self.keys, self.values, self.checksums


def values_in_pieces(changes: Iterable[Changes]) -> Iterator[ValuesPiece | None]:
    """Yield changes in pieces, and None between two parts of the changes, where other tasks may run."""
    piece = ValuesPiece("", "")
    for each in changes:
        for kind, rows in (("gone", [(key, b"") for key in each.gone]), ("changed", each.changed), ("new", each.new)):
            for row in rows:
                if (piece.table, piece.kind) != (each.table, kind) or _is_full(len(piece.keys), piece.size_bytes):
                    if piece.keys:
                        yield piece
                    piece = ValuesPiece(each.table, kind)
                piece.add(*row)
        yield None
    if piece.keys:
        yield piece


def _is_full(rows: int, size_bytes: int) -> bool:
    return rows >= PIECE_ROWS or size_bytes >= PIECE_BYTES


class RecordsPiece(msgspec.Struct):
    """Some records with history value, and a row for each name of each."""

    seqs: list[int] = []
    walls_ms: list[int] = []
    principals: list[bytes] = []
    weights: list[int] = []
    bodies: list[bytes] = []
    names: list[bytes] = []
    name_seqs: list[int] = []
    effects: list[int] = []
    size_bytes: int = 0

    @property
    def is_full(self) -> bool:
        return _is_full(max(len(self.seqs), len(self.names)), self.size_bytes)

    def add(self, frames: Frames) -> None:
        for body, record in frames:
            seq, event = record.seq, record.event
            names = [name.encode() for name in names_of(event)]
            weight = len(body) + sum(map(len, names))
            self.seqs.append(seq)
            self.walls_ms.append(record.wall_ms)
            self.principals.append(principal_of(event).encode())
            self.weights.append(weight)
            self.bodies.append(body)
            self.size_bytes += weight
            if names:
                self._add_names(seq, event, names)

    def _add_names(self, seq: int, event: Event, names: list[bytes]) -> None:
        effects = dict.fromkeys(names, 0)
        for name in ends_of(event):
            effects[name.encode()] |= ENDS
        for name, _ in grants_of(event):
            effects[name.encode()] |= GRANTS
        self.names.extend(effects)
        self.effects.extend(effects.values())
        self.name_seqs.extend([seq] * len(effects))

    def staged(self) -> tuple[object, ...]:
        rows = (self.seqs, self.walls_ms, self.principals, self.weights, self.bodies)
        return (*rows, self.names, self.name_seqs, self.effects)


def records_in_pieces(frames: Iterable[Frames]) -> Iterator[RecordsPiece]:
    piece = RecordsPiece()
    for some in frames:
        piece.add(some)
        if piece.is_full:
            yield piece
            piece = RecordsPiece()
    if piece.seqs:
        yield piece


def history_in_slices(body: bytes) -> Iterator[Frames]:
    """Read a batch's records with history value, some at a time: many leases may expire at once."""
    frames = history_in(body)
    while some := list(islice(frames, RECORDS_AT_ONCE)):
        yield some


READ_ROWS = 1_024
READ_BYTES = 256 * 1024
READ_RECORDS = 256  # Records decoded before other tasks run.


async def read_values(ask: Ask, wanted: int) -> AsyncIterator[Values]:
    """Yield the state, some values at a time, the head first. Raises for a wrong checksum or number."""
    count = 0
    for key, value, checksum in await ask("read_head"):
        _check(HEAD, key, value, checksum)
        count += 1
        yield Values(HEAD, [(key, value)])
    table, ordinal = "", 0
    while rows := await ask("read_values", table, ordinal, READ_ROWS, READ_BYTES):
        for table, some in groupby(rows, itemgetter(0)):
            found = list(some)
            for _, _, key, value, checksum in found:
                _check(table, key, value, checksum)
            count += len(found)
            yield Values(table, [(key, value) for _, _, key, value, _ in found])
        ordinal = rows[-1][1]
        await asyncio.sleep(0)
    if count != wanted:
        raise JournalDamagedError(f"the store has {count} values of the state, and {wanted} were written")


def _check(table: str, key: bytes, value: bytes, checksum: int) -> None:
    if checksum_of(table, key, value) != checksum:
        raise JournalDamagedError(f"a value of the table {table} is not the one that was written, in the store")


async def read_batches(ask: Ask, after: int, upto: int) -> AsyncIterator[bytes]:
    """Yield the batches of the tail after a number and up to another. Raises if one is missing."""
    while after < upto:
        rows = await ask("read_batches", after, upto, READ_ROWS, READ_BYTES)
        if not rows or rows[0][0] != after + 1:
            raise JournalDamagedError(f"record {after + 1} is not in the tail, in the store")
        for _, last, body in rows:
            yield body
            after = last


async def read_history(ask: Ask, upto: int) -> AsyncIterator[Sequence[Record]]:
    """Yield the history up to a number, oldest first, some records at a time."""
    after = -(2**62)
    while rows := await ask("read_history_after", after, upto, READ_ROWS, READ_BYTES):
        for _, some in groupby(enumerate(rows), lambda each: each[0] // READ_RECORDS):
            yield [record for _, (_, body) in some for record in decode_batch(body)]
            await asyncio.sleep(0)
        after = rows[-1][0]


BLOCKS = 4  # Blocks of 1,024 numbers searched at once.
OLDEST_ROWS = 256  # Records of a principal read at once.
PRUNE_SECONDS = 120.0


class RowPruning:
    def __init__(self, client: TermClient, retention: Retention) -> None:
        self._client = client
        self._retention = retention
        self._left = 0
        self.pruned = 0  # The newest record that was ever pruned.

    async def prune(self, wall_ms: int) -> None:
        """Delete history that is too old or too much: at most `STEP_MAX` records, and the next time more."""
        self._left = STEP_MAX
        newest = await self._client.read("read_newest_wall")
        if newest:
            # Never the newest: it shows who held what since then.
            await self._drop_overdue(min(wall_ms - self._retention.wall_ms, newest[0][0]))
        await self._drop_excess("records", self._retention.records_max)
        await self._drop_excess("bytes", self._retention.bytes_max)

    async def _drop_overdue(self, overdue_ms: int) -> None:
        read = self._client.read
        while self._left > 0:
            blocks = [row[0] for row in await read("read_overdue_blocks", overdue_ms, BLOCKS)]
            if not blocks:
                return
            seqs = [row[0] for row in await read("read_overdue", overdue_ms, blocks)]
            await self._forget(seqs, blocks)

    async def _drop_excess(self, unit: str, most: int) -> None:
        while self._left > 0:
            usages = await self._client.read("read_shares")
            excess = sum(row[unit] for row in usages) - most
            seqs = await self._chosen(usages, unit, excess) if excess > 0 else []
            if not seqs:
                return
            await self._forget(seqs, [])

    async def _chosen(self, usages: Sequence[Row], unit: str, excess: int) -> list[int]:
        """Return the oldest records of the principal with the largest share, one after another."""
        oldest: dict[bytes, AsyncIterator[tuple[int, int]]] = {}
        choosing = choose([(row["principal"], row[unit]) for row in usages], excess, min(PRUNE_ROWS, self._left))
        try:
            who = next(choosing)
            while True:
                if who not in oldest:
                    oldest[who] = _oldest_of(self._client, who)
                found = await anext(oldest[who], None)
                who = choosing.send(found and (found[0], 1 if unit == "records" else found[1]))
        except StopIteration as end:
            chosen: list[int] = end.value
            return chosen

    async def _forget(self, seqs: list[int], blocks: list[int]) -> None:
        rows = await self._client.write("prune", seqs, blocks, seconds=PRUNE_SECONDS)
        self.pruned = rows[0]["pruned"]
        self._left -= max(1, len(seqs))
        await asyncio.sleep(0)


async def _oldest_of(client: TermClient, who: bytes) -> AsyncIterator[tuple[int, int]]:
    """Yield the number and the weight of a principal's records, oldest first."""
    after = -(2**62)
    while rows := await client.read("read_oldest_of", who, after, OLDEST_ROWS):
        for row in rows:
            yield row[0], row[1]
        after = rows[-1][0]


FEED_ROWS = 1_024
DROP_ROWS = 512
PIECE_SECONDS = 30.0
APPLY_SECONDS = 600.0  # The time limit of a step: far more than one takes. Appends go on meanwhile.
RESOLVE_SECONDS = 120.0  # The time limit for resolving a step, which may have to wait for the step itself.
RETRY_SECONDS = 0.2


class Archive:
    def __init__(self, client: TermClient, backlog: BacklogLimit, retention: Retention) -> None:
        """`client` is for steps alone: one may keep it busy for seconds. `backlog` counts the tail."""
        self._client = client
        self._backlog = backlog
        self.pruning = RowPruning(self._client, retention)
        self._steps = 0  # The current step's number, unique in this term.
        self._pieces = 0
        self.is_resolved = True  # False: our last step may yet be applied.
        self.upto = 0

    async def begin(self, ask: Ask) -> Iterator[Values]:
        """Read the state after the last step was resolved: the head first. Each part is freed once it was taken."""
        row = await position(ask, self._client.term)
        self.upto, self.pruning.pruned = row["upto"], row["pruned"]
        found = deque([each async for each in read_values(ask, row["state_rows"])])
        return (found.popleft() for _ in range(len(found)))

    # Steps.

    async def archive(self, upto: int, head: bytes, changes: Iterable[Changes], wall_ms: int) -> None:
        """Archive the records up to a number, drop them from the tail, and prune the history."""
        is_step = upto > self.upto
        if is_step:
            await self._step(upto, head, changes)
        try:
            await self._drop_archived()
            await self.pruning.prune(wall_ms)
        except JournalUnavailableError as error:
            if not is_step:
                raise
            # The step was applied: the caller must not repeat it.
            log.warning("%s; the rest is dropped the next time", error)

    async def resolve_steps(self) -> int:
        """Make sure that no step of ours is on its way, and return how far the archive reaches."""
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                while True:
                    try:
                        rows = await self._client.write("resolve_steps", seconds=RESOLVE_SECONDS)
                    except JournalUnavailableError as error:
                        log.warning("%s; asking again what became of the archive", error)
                        await asyncio.sleep(RETRY_SECONDS)
                    else:
                        self.is_resolved = True
                        return int(rows[0]["upto"])
        except TimeoutError as error:
            raise OutcomeUnknownError("archive: the store cannot be asked whether the last step counts") from error

    async def _step(self, upto: int, head: bytes, changes: Iterable[Changes]) -> None:
        found = await self._client.read("read_batch_end", upto)
        if not found or found[0]["last_seq"] != upto:
            raise JournalUnavailableError(f"archive: no durable batch ends with record {upto}")
        # This removes what is left of a failed step and of other terms.
        if await self.resolve_steps() != self.upto:
            raise JournalUnavailableError("archive: it has changed since the journal was opened; open it again")
        self._steps += 1
        self._pieces = 0
        size_bytes = await self._stage_records(upto)
        for piece in values_in_pieces(changes):
            if piece is None:
                await asyncio.sleep(0)
            else:
                await self._stage("stage_values", piece)
        self.is_resolved = False
        try:
            checksum = checksum_of(HEAD, HEAD.encode(), head)
            values = (self._steps, self._pieces, upto, head, checksum)
            await self._client.write("apply_step", *values, seconds=APPLY_SECONDS)
            self.is_resolved = True
        except (LostError, RefusedError) as error:
            if await self.resolve_steps() != upto:
                raise JournalUnavailableError(f"archive: {error.problem}") from error
        self.upto = upto
        self._backlog.drop(upto, size_bytes)

    async def _stage(self, statement: str, piece: ValuesPiece | RecordsPiece) -> None:
        rows = await self._client.write(statement, self._steps, self._pieces, *piece.staged(), seconds=PIECE_SECONDS)
        if not rows:
            raise deposed("archive", self._client.term)
        self._pieces += 1

    async def _stage_records(self, upto: int) -> int:
        piece, size_bytes, after = RecordsPiece(), 0, self.upto
        while after < upto:
            rows = await self._client.read("read_batches", after, upto, FEED_ROWS, FEED_BYTES)
            if not rows or rows[0]["first_seq"] != after + 1:
                raise JournalUnavailableError(f"archive: record {after + 1} is not in the tail")
            for _, last, body in rows:
                for frames in history_in_slices(body):
                    piece.add(frames)
                    if piece.is_full:
                        await self._stage("stage_records", piece)
                        piece = RecordsPiece()
                    await asyncio.sleep(0)
                size_bytes += len(body)
                after = last
        if piece.seqs:
            await self._stage("stage_records", piece)
        return size_bytes

    async def _drop_archived(self) -> None:
        """Drop archived records from the tail. Snapshots of before still see them."""
        dropped = DROP_ROWS
        while dropped == DROP_ROWS:
            dropped = len(await self._client.write("drop_batches", DROP_ROWS, seconds=PIECE_SECONDS))
