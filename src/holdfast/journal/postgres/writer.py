"""Every write as the leader, and how the outcome of a write is resolved whose answer was lost.

**The fence.** The leadership is one row. It has an epoch, which rises with every leader term, and a term id: 128 random
bits. Every write names both, in the very statement that locks the row and adds the batch. So of an append and a
takeover one waits for the other and then evaluates its condition again: a deposed leader changes nothing, whenever its
bytes arrive. (A store that goes back in time can repeat an epoch, and never a term id.)

**A lost answer.** An append was sent, and the connection broke, or nothing came for `append_seconds`. It may have been
applied, or not, or *yet be applied*: its bytes can lie in the socket of a server process that has not read them. So
reading proves nothing: "not there" can be wrong half a second later, also under a lock. Instead:

    close the socket        never a cancel request: a cancelled commit is committed, and replicas may not have it
    connect                 to a server with the same identity: otherwise the term is over, and the outcome unknown
    ask by a write          `confirm`: it waits for replicas, so what it shows is as durable as an append
        last_seq = last     it was applied
        last_seq = first-1  send the *same* batch again. At most one of all copies can be applied, for each moves
                            `last_seq`; a later one finds no row. So "no row" means: ask again
        no row              another node has the leadership
        anything else       the store went back in time

An unanswered batch is made to be there, or unknown. "It did not happen" is said only if no copy is unanswered: nothing
was sent; PostgreSQL refused the only copy with an error of `NOTHING_HAPPENED` (after any other it counts as lost); or
the only copy found no row, and then the question found that another node has the leadership.

After `DeposedError`, `OutcomeUnknownError` or `JournalLostError` every further call of the journal raises the same.

**Heartbeats.** Others depose a leader whose leadership stands still (N-13). So a node that took the leadership, and
reads for longer than they wait, proves it between two slices, on the same connection (`LeaderHeartbeat`).
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import msgspec

from holdfast.journal.interface import (
    DeposedError,
    JournalError,
    JournalLostError,
    JournalUnavailableError,
    OutcomeUnknownError,
)
from holdfast.journal.postgres.connection import CannotConnectError, LostError, PgClient, RefusedError
from holdfast.journal.postgres.leadership import WriterTerm, rollback_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Sequence
    from typing import Self

    from holdfast.journal.postgres.connection import PgConnection, Row, Server, Servers
    from holdfast.journal.postgres.leadership import RollbackDetector

log = logging.getLogger("holdfast.journal")

NOTHING_HAPPENED = frozenset({"22", "25", "42", "53", "54"})
"""Classes of errors raised before a commit: bad data, read-only server, no right or table, full disk, limit (N-8)."""
NO_ANSWER = "PostgreSQL did not answer in time"
LAST_TRY_SECONDS = 1.0  # The least time for giving the leadership back and for leaving.
AGAIN_SECONDS = 0.05  # Between two attempts to connect.


class Batch(NamedTuple):
    first: int
    last: int
    body: bytes
    at_ms: int


class FencedWriter:
    """Writes as the leader, one statement at a time."""

    def __init__(
        self,
        servers: Servers,
        term: WriterTerm,
        rollback_detector: RollbackDetector,
        *,
        append_seconds: float,
        resolve_seconds: float,
    ) -> None:
        self._servers = servers
        self._term = term
        self._rollback_detector = rollback_detector
        self._append_seconds = append_seconds
        self._resolve_seconds = resolve_seconds
        self._connection: PgConnection | None = None
        self._server: Server | None = None
        self._end: JournalError | None = None
        self._is_unanswered = False  # Whether a sent copy of the current batch is unanswered.
        self._lock = asyncio.Lock()
        self._resolve_timeout: asyncio.Timeout | None = None
        self._hurry: asyncio.TimerHandle | None = None
        self._is_late = False  # The node is about to end: nothing is resolved any more.

    def hurry(self, seconds: float) -> None:
        """Resolve no write for longer than so many seconds from now."""
        if self._hurry is not None:
            self._hurry.cancel()
        self._hurry = asyncio.get_running_loop().call_later(seconds, self._be_late)
        if seconds <= 0:
            self._be_late()

    def _be_late(self) -> None:
        self._is_late = True
        if self._resolve_timeout is not None:
            self._resolve_timeout.reschedule(0)

    def seconds_left(self, seconds: float) -> float:
        """Return the time limit of a last statement."""
        return min(seconds, LAST_TRY_SECONDS) if self._is_late else seconds

    @asynccontextmanager
    async def _resolving(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(0 if self._is_late else self._resolve_seconds) as self._resolve_timeout:
                yield
        except TimeoutError:
            self._drop()
            raise
        finally:
            self._resolve_timeout = None

    def _could_not_ask(self) -> str:
        if self._is_late:
            return "PostgreSQL could not be asked before this node ended"
        return f"PostgreSQL could not be asked for {self._resolve_seconds:g} s"

    def begin(self, connection: PgConnection, server: Server) -> None:
        self._connection, self._server, self._end, self._is_late = connection, server, None, False
        if self._hurry is not None:
            self._hurry.cancel()
            self._hurry = None
        self._servers.move(server)

    async def append(self, batch: Batch) -> None:
        """Make a batch durable. Raises as `Journal.append` does."""
        async with self._lock:
            self._refuse_if_over()
            self._is_unanswered = False
            try:
                await self._append(batch)
            except asyncio.CancelledError:
                # A copy may be on its way. The socket is closed.
                self._drop()
                self._over(OutcomeUnknownError("append: it was given up before its answer came"))
                raise
            term = self._term
            term.last_seq = self._rollback_detector.last_seq = batch.last
            if term.needs_token_gap:
                term.needs_token_gap = False
                self._rollback_detector.token_gaps += 1

    async def confirm(self, now_ms: int) -> None:
        """Prove the leadership by a write, and that what is durable still is. Raises as `SharedJournal.confirm`."""
        async with self._lock:
            self._refuse_if_over()
            self._is_unanswered = False
            connection, last_seq = self._connection, None
            if connection is not None and connection.is_open:
                try:
                    last_seq = await self._ask(connection, now_ms)
                except JournalUnavailableError as error:
                    self._refuse_if_nothing_happened(error)
                    log.warning("%s; it is asked again", error.problem)
                    self._drop()
            if last_seq is None:
                try:
                    async with self._resolving():
                        last_seq = await self._ask_again(now_ms)
                except TimeoutError as error:
                    raise JournalUnavailableError(f"confirm: {self._could_not_ask()}") from error
            if last_seq != self._term.last_seq:
                raise self._over(self._rollback_error(last_seq))

    async def connection(self) -> PgConnection:
        """Return the connection of the leader, after proving the leadership on it."""
        await self.confirm(0)
        if self._connection is None:
            raise CannotConnectError("the connection to the store was lost again")
        return self._connection

    async def _append(self, batch: Batch) -> None:
        connection = self._connection
        if connection is not None and connection.is_open:
            try:
                if await self._send(connection, batch):
                    return
            except (LostError, RefusedError) as error:
                self._refuse_if_nothing_happened(error)
                log.warning("%s; what became of it is asked", error.problem)
                self._drop()
        try:
            async with self._resolving():
                await self._resolve(batch)
        except TimeoutError as error:
            limit = self._could_not_ask()
            if self._is_unanswered:
                raise self._over(OutcomeUnknownError(f"append: its answer was lost, and {limit}")) from error
            raise JournalUnavailableError(f"append: {limit}; nothing of it was sent") from error

    async def _resolve(self, batch: Batch) -> None:
        """Find out whether a batch was applied, and send it again for as long as it was not."""
        while True:
            last_seq = await self._ask_again(batch.at_ms)
            if last_seq == batch.last and self._is_unanswered:
                log.warning("append: records %d to %d are there", batch.first, batch.last)
                return
            if last_seq != batch.first - 1:
                raise self._over(self._rollback_error(last_seq))
            try:
                if self._connection is not None and await self._send(self._connection, batch):
                    return
            except (LostError, RefusedError) as error:
                if not self._is_unanswered:
                    self._refuse_if_nothing_happened(error)
                await self._pause()

    async def _send(self, connection: PgConnection, batch: Batch) -> bool:
        """Send one copy. Return whether it was applied: if not, only the question tells why."""
        term, name = self._term, "append"
        values: tuple[object, ...] = (term.epoch, batch.first, batch.last, batch.body, term.term_id, batch.at_ms)
        if term.needs_token_gap:
            identity = msgspec.structs.astuple(self._server.identity) if self._server is not None else ()
            name, values = "append_restored", (*values, *identity)
        # From here on a copy is on its way, whatever ends the waiting: an error, a time limit, a cancellation.
        was_unanswered, self._is_unanswered = self._is_unanswered, True
        try:
            rows = await connection.ask(name, *values, seconds=self._append_seconds)
        except RefusedError as error:
            if _did_nothing(error):
                self._is_unanswered = was_unanswered
            raise
        self._is_unanswered = was_unanswered
        return bool(rows)

    async def _ask(self, connection: PgConnection, now_ms: int) -> int:
        """Ask by a write for the last number under our leadership. Raises the end of the term, if it is over."""
        term = self._term
        values = (term.epoch, term.term_id, now_ms, term.needs_token_gap)
        rows = await connection.ask("confirm", *values, seconds=self._append_seconds)
        if not rows:
            raise self._over(self._deposed("another node has the seat now"))
        last_seq, term.now_ms = rows[0]
        return int(last_seq)

    async def _ask_again(self, now_ms: int) -> int:
        """Ask until there is an answer, on new connections."""
        while True:
            try:
                return await self._ask(await self._connected(), now_ms)
            except JournalUnavailableError as error:
                if not self._is_unanswered:
                    self._refuse_if_nothing_happened(error)
                await self._pause()

    async def _connected(self) -> PgConnection:
        """Return a connection to the term's server. Raises the end of the term if it is another server."""
        connection = self._connection
        if connection is not None and connection.is_open:
            return connection
        self._drop()
        connection, server = await self._servers.connect()
        if self._server is not None and server.identity != self._server.identity:
            connection.drop()
            raise self._over(
                self._deposed(f"{connection.where} is another server, or another copy of the store, than before")
            )
        self._connection, self._server = connection, server
        self._servers.move(server)
        return connection

    async def _pause(self) -> None:
        self._drop()
        await asyncio.sleep(AGAIN_SECONDS)

    # The end of a term.

    def _refuse_if_nothing_happened(self, error: JournalError) -> None:
        if _did_nothing(error):
            raise JournalUnavailableError(error.problem) from error

    def _deposed(self, why: str) -> JournalError:
        if self._is_unanswered:
            return OutcomeUnknownError(f"the answer of the store was lost, and then the seat: {why}")
        return DeposedError(f"epoch {self._term.epoch} is over: {why}")

    def _rollback_error(self, last_seq: int) -> JournalLostError:
        return rollback_error("the store", f"its last record is {last_seq}, and {self._term.last_seq} was durable")

    def _over(self, error: JournalError) -> JournalError:
        self._drop()
        self._end = error
        return error

    def _refuse_if_over(self) -> None:
        if self._end is not None:
            raise type(self._end)(self._end.problem, *self._end.remedies)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.drop()
            self._connection = None

    async def vacate(self, seconds: float) -> None:
        """Give the leadership back, if that can be done in so many seconds."""
        async with self._lock:
            try:
                async with asyncio.timeout(seconds):
                    connection = self._connection
                    if connection is None or not connection.is_open:
                        connection, _ = await self._servers.connect()
                        self._connection = connection
                    await connection.ask("vacate", self._term.term_id, seconds=seconds)
            except (JournalError, TimeoutError) as error:
                why = str(error) or NO_ANSWER
                log.warning("the seat could not be given back: %s; others take it when they see no sign of us", why)
                self._drop()
            connection, self._connection = self._connection, None
            if connection is not None:
                await connection.close()


def _did_nothing(error: JournalError) -> bool:
    return isinstance(error, RefusedError) and error.sqlstate[:2] in NOTHING_HAPPENED


QUERY_SECONDS = 30.0  # The time limit of a read on the server.
NOT_OURS = "HF001"  # The error of our functions if the leadership is not ours.


class Ask(Protocol):
    async def __call__(self, name: str, *values: object) -> Sequence[Row]: ...


async def position(ask: Ask, term: WriterTerm) -> Row:
    """Return how far the archive and the journal reach. Raises `DeposedError` if the leadership is not ours."""
    rows = await ask("read_position", term.epoch, term.term_id)
    if not rows:
        raise deposed("read", term)
    return rows[0]


def deposed(operation: str, term: WriterTerm) -> DeposedError:
    return DeposedError(f"{operation}: another node has the seat; tenure {term.epoch} is over")


class TermClient(PgClient):
    """A connection for statements that name our term."""

    def __init__(self, servers: Servers, term: WriterTerm) -> None:
        super().__init__(servers)
        self.term = term
        self._fair_lock = asyncio.Lock()

    async def write(self, name: str, *values: object, seconds: float) -> Sequence[Row]:
        """Run a statement that changes the archive. Raises `DeposedError` if the term is over."""
        try:
            return await self.rows(name, self.term.epoch, self.term.term_id, *values, seconds=seconds)
        except RefusedError as error:
            if error.sqlstate == NOT_OURS:
                raise deposed("archive", self.term) from error
            raise

    async def read(self, name: str, *values: object) -> Sequence[Row]:
        """Run a statement that does not name our term: what rests on it is proved by another."""
        return await self.rows(name, *values, seconds=QUERY_SECONDS)

    async def read_fenced(self, name: str, *values: object) -> Sequence[Row]:
        """Run a statement that finds something only in our term. Raises `DeposedError` if it is over."""
        rows = await self._shielded(name, self.term.epoch, self.term.term_id, *values)
        if not rows:
            await position(self._shielded, self.term)
        return rows

    async def _shielded(self, name: str, *values: object) -> Sequence[Row]:
        """Run a statement to its end, though its caller is cancelled: otherwise the connection would be closed.

        The next waits for that end, so at most one goes on for cancelled callers.
        """
        await self._fair_lock.acquire()
        task = asyncio.ensure_future(self.read(name, *values))
        task.add_done_callback(self._release)
        return await asyncio.shield(task)

    def _release(self, task: asyncio.Future[Sequence[Row]]) -> None:
        self._fair_lock.release()
        if not task.cancelled():
            # A cancelled caller does not retrieve its error.
            task.exception()

    async def close(self) -> None:
        if self._fair_lock.locked():
            # Not after a statement of a cancelled caller.
            self.drop()
        await super().close()


HEARTBEAT_SECONDS = 0.4
READ_SECONDS = 30.0

T = TypeVar("T")


class LeaderHeartbeat:
    """Reads on the leader's connection, and proves the leadership now and then, for as long as the block lasts."""

    def __init__(self, writer: FencedWriter, connection: PgConnection) -> None:
        self._writer = writer
        self._connection = connection
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._restart()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def ask(self, name: str, *values: object) -> Sequence[Row]:
        if self._is_due:
            await self._send_heartbeat()
        return await self._connection.ask(name, *values, seconds=READ_SECONDS)

    async def run_alongside(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for work on another connection. It is cancelled if the leadership is lost meanwhile."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait((task,), timeout=HEARTBEAT_SECONDS)
                if not task.done():
                    await self._send_heartbeat()
        except BaseException:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        return task.result()

    async def _send_heartbeat(self) -> None:
        await self._writer.confirm(0)
        self._restart()

    def _restart(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._is_due = False
        self._timer = asyncio.get_running_loop().call_later(HEARTBEAT_SECONDS, self._fall_due)

    def _fall_due(self) -> None:
        self._is_due = True
