"""The journal in PostgreSQL: it implements `journal/interface.py`. One object has one leader term at most.

LeadershipTable   reads the leadership, and acquires it            a connection of its own
FencedWriter      writes as the leader, and resolves lost answers  the connection that acquired it
Archive           moves the tail into the archive                  a connection of its own
HistoryReader     history, and who held what                       two of its own: such a read may take seconds
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from holdfast.core.events import Restored
from holdfast.journal.codec import count_records, decode_batch, encode_batch
from holdfast.journal.interface import (
    Health,
    JournalDamagedError,
    JournalError,
    JournalLockedError,
    JournalUnavailableError,
    Leadership,
    Peer,
    Recovered,
    Retention,
)
from holdfast.journal.postgres.archive import Archive
from holdfast.journal.postgres.connection import PgClient, Servers
from holdfast.journal.postgres.history import HistoryReader, snapshot
from holdfast.journal.postgres.leadership import LeadershipTable, NewAuthority, RollbackDetector, WriterTerm, unseal
from holdfast.journal.postgres.writer import NO_ANSWER, Ask, Batch, FencedWriter, LeaderHeartbeat, TermClient
from holdfast.journal.sqlite.tail import LARGE_BYTES, BacklogLimit, large_batch_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from holdfast.core.events import Record
    from holdfast.journal.interface import Changes, HeldPage, HeldQuery, HistoryPage, HistoryQuery, Snapshot
    from holdfast.journal.postgres.connection import PgConnection
    from holdfast.journal.sqlite.tail import LargeBatch

MIB = 2**20
TAIL_ROWS, TAIL_BYTES = 256, 256 * 1024  # Read at once: even over a slow network within the takeover time.
SEQ_MAX = 2**63 - 1
VACATE_SECONDS = 2.0

log = logging.getLogger("holdfast.journal")


class PostgresJournal:
    is_shared = True

    def __init__(
        self,
        url: str,
        peer: Peer,
        *,
        term_id: str,
        wall_ms: int = 0,
        schema: str = "holdfast",
        retention: Retention | None = None,
        rollback_detector: RollbackDetector | None = None,
        new_authority: NewAuthority | None = None,
        secret: bytes | None = None,
        allow_data_loss: bool = False,
        append_ms: int = 2_000,
        resolve_ms: int = 10_000,
        tail_bytes_max: int = 4096 * MIB,
    ) -> None:
        """Nothing is sent before `read_leadership` or `open`.

        `term_id` names the leader term that this journal may begin: 32 random hexadecimal digits. `rollback_detector`
        outlives the journal. `new_authority` is for making an authority where there is none; None: none is made.
        `secret` seals the authority's key. `allow_data_loss` lets it go on after the store lost records
        (`after_data_loss = "continue"`).
        """
        try:
            self._servers = Servers(url, schema, f"holdfast {peer.node}")
        except ValueError as error:
            raise JournalError(f"the store cannot be used: {error}") from None
        self._peer = peer
        self._wall_ms = wall_ms
        self._secret = secret
        self._resolve_seconds = resolve_ms / 1000
        self._rollback_detector = rollback_detector or RollbackDetector()
        self._term = WriterTerm(term_id)
        self._backlog = BacklogLimit(tail_bytes_max)
        self._client = PgClient(self._servers)
        self._archive_client = TermClient(self._servers, self._term)
        self._leadership_table = LeadershipTable(
            self._servers,
            self._client,
            self._rollback_detector,
            allow_data_loss=allow_data_loss,
            new_authority=new_authority,
            secret=secret,
        )
        self._archive = Archive(self._archive_client, self._backlog, retention or Retention())
        self._history_reader = HistoryReader(self._servers, self._term)
        self._writer = FencedWriter(
            self._servers,
            self._term,
            self._rollback_detector,
            append_seconds=append_ms / 1000,
            resolve_seconds=self._resolve_seconds,
        )
        self._seen: Leadership | None = None
        self._may_lead = False
        self._is_open = False
        self._has_reported = False
        self._size_bytes = 0
        self.takes_claims = True

    # For any node.

    async def read_leadership(self) -> Leadership:
        return await self._leadership_table.read()

    async def key(self) -> bytes:
        await self._leadership_table.read()
        return self._unsealed(await self._client.one("read_key"))

    async def report(self, peer: Peer) -> None:
        values = (peer.node, peer.process, peer.url, peer.version, peer.format_max, peer.tokens)
        await self._client.rows("report", *values)
        self._has_reported = True

    async def peers(self) -> Sequence[Peer]:
        return [Peer(**dict(row)) for row in await self._client.rows("read_peers")]

    def depose(self, leadership: Leadership) -> None:
        self._seen = leadership

    # For the node that has the leadership.

    async def open(self) -> Recovered:
        connection, was_held = (await self._writer.connection(), False) if self._is_open else await self._acquire()
        try:
            return await self._recover(connection, was_closed=not was_held)
        except JournalDamagedError:
            # A deposed node may read half of what there was. Damage counts only as the leader (N-2).
            await self._writer.confirm(0)
            raise

    async def append(self, batch: Sequence[Record]) -> None:
        if not batch:
            return
        self._require_open("append")
        term = self._term
        first, last = batch[0], batch[-1]
        if first.seq != term.last_seq + 1:
            raise JournalUnavailableError(f"append: record {first.seq} does not follow {term.last_seq} in the store")
        if term.needs_token_gap and not isinstance(first.event, Restored):
            raise JournalUnavailableError("append: the store lost records, and the first one now has to say so")
        body = encode_batch(batch)
        await self._writer.append(Batch(first.seq, last.seq, body, last.at_ms))
        backlog, size_bytes = self._backlog, len(body)
        backlog.size_bytes += size_bytes
        if size_bytes > LARGE_BYTES:
            backlog.add_batch(large_batch_of(last.seq, batch, body))
            self._update_takes_claims()
        elif backlog.size_bytes > backlog.bytes_max:
            self._update_takes_claims()

    async def confirm(self, now_ms: int) -> None:
        self._require_open("confirm")
        await self._writer.confirm(now_ms)

    def hurry(self, seconds: float) -> None:
        self._writer.hurry(seconds)

    async def archive(self, upto: int, head: bytes, changes: Iterable[Changes], wall_ms: int) -> None:
        self._require_open("archive")
        try:
            await self._archive.archive(upto, head, changes, wall_ms)
        except JournalUnavailableError as error:
            since_ms = wall_ms if self._backlog.failing is None else self._backlog.failing[0]
            self._backlog.failing = since_ms, error.problem
            raise
        self._backlog.failing = None
        self._update_takes_claims()
        await self._measure()

    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        self._require_open("snapshot")
        return snapshot(self._servers, self._term)

    async def history(self, query: HistoryQuery) -> HistoryPage:
        self._require_open("history")
        return await self._history_reader.history(query)

    async def follow(self, after_seq: int, limit: int) -> Sequence[Record]:
        self._require_open("follow")
        return await self._history_reader.follow(after_seq, limit)

    async def last_by(self, wall_ms: int) -> int:
        self._require_open("last_by")
        return await self._history_reader.last_by(wall_ms)

    async def held(self, query: HeldQuery) -> HeldPage:
        self._require_open("held")
        return await self._history_reader.held(query)

    @property
    def tail_bytes(self) -> int:
        return self._backlog.size_bytes

    @property
    def history_begins_after(self) -> int:
        return self._archive.pruning.pruned

    def health(self) -> Health:
        return Health(
            takes_claims=self._backlog.is_open,
            size_bytes=self._size_bytes,
            storage="postgresql",
            text=self._backlog.status_text(),
        )

    def why_no_claims(self, principal: str) -> str | None:
        return self._backlog.why_not(principal) if self._backlog.is_open else self._backlog.status_text()

    async def close(self) -> None:
        """Give the leadership back, if it is or may be ours, and disconnect."""
        self._is_open = False
        if self._may_lead:
            self._may_lead = False
            await self._writer.vacate(self._writer.seconds_left(VACATE_SECONDS))
            self._term.end()
        if self._has_reported:
            await self._leave()
        await self._history_reader.close()
        await self._archive_client.close()
        await self._client.close()
        self._servers.must_be = None

    async def _leave(self) -> None:
        self._has_reported = False
        try:
            async with asyncio.timeout(self._writer.seconds_left(VACATE_SECONDS)):
                await self._client.rows("leave", self._peer.node, self._peer.process)
        except (JournalUnavailableError, TimeoutError) as error:
            why = str(error) or NO_ANSWER
            log.warning("the other nodes cannot be told that this one ends: %s", why)
            self._client.drop()

    # Taking the leadership, and reading.

    async def _acquire(self) -> tuple[PgConnection, bool]:
        # From here on the leadership may be ours, even without an answer.
        self._may_lead = True
        try:
            taken = await self._leadership_table.acquire(
                self._seen, self._peer, self._term, self._wall_ms, self._resolve_seconds
            )
        except JournalLockedError:
            self._may_lead = False
            await self._client.close()
            raise
        connection, server, was_held = taken
        self._writer.begin(connection, server)
        self._is_open = True
        return connection, was_held

    async def _recover(self, connection: PgConnection, *, was_closed: bool) -> Recovered:
        with LeaderHeartbeat(self._writer, connection) as heartbeat:
            if not self._archive.is_resolved:
                await heartbeat.run_alongside(self._archive.resolve_steps())
            key = self._unsealed(next(iter(await heartbeat.ask("read_key")), None))
            values = await self._archive.begin(heartbeat.ask)
            bodies, parts = await self._read_tail(heartbeat.ask)
            self._backlog.begin(sum(map(len, bodies)), parts)
            self._update_takes_claims()
            await heartbeat.run_alongside(self._measure())
        return Recovered(
            self._term.epoch,
            values,
            _records(bodies, self._archive.upto),
            was_closed,
            now_ms=self._term.now_ms,
            needs_token_gap=self._term.needs_token_gap,
            token_gap_reason=self._term.token_gap_reason,
            key=key,
        )

    async def _read_tail(self, ask: Ask) -> tuple[list[bytes], list[LargeBatch]]:
        bodies: list[bytes] = []
        parts: list[LargeBatch] = []
        done, last_seq = self._archive.upto, self._term.last_seq
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
                    parts.append(large_batch_of(last, decode_batch(body), body))
                bodies.append(body)
                done = last
        if done != last_seq:
            raise JournalDamagedError(f"the store ends with record {done}, and its seat says {last_seq}")
        return bodies, parts

    async def _measure(self) -> None:
        try:
            row = await self._client.one("read_size", self._servers.schema)
        except JournalUnavailableError as error:
            log.warning("how large the store is cannot be asked: %s", error)
            return
        if row is not None:
            self._size_bytes = row["size_bytes"]

    def _unsealed(self, row: Sequence[bytes] | None) -> bytes:
        if row is None:
            raise JournalDamagedError("the store has no key of its authority")
        return unseal(row[0], self._secret)

    def _update_takes_claims(self) -> None:
        self.takes_claims = self._backlog.is_open_to_all

    def _require_open(self, operation: str) -> None:
        if not self._is_open:
            raise JournalUnavailableError(f"{operation}: the journal is not open; open it first")


def _records(bodies: list[bytes], upto: int) -> Iterator[Record]:
    """Yield the records of batches, and free each batch: they are many."""
    wanted = upto + 1
    bodies.reverse()
    while bodies:
        for record in decode_batch(bodies.pop()):
            if record.seq != wanted:
                raise JournalDamagedError(f"record {record.seq} stands where {wanted} should, in the store")
            wanted += 1
            yield record
