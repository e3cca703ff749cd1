"""The one write path: expire, decide, evolve in memory, make durable, publish, answer. In this order, for everything.

Commands are decided one after another on one event loop. There are no locks.

    submit, read, timer            each in a tick: one time, and what is due has ended first
        ▼  decide, evolve          in memory, immediately
    _batch, _answers               records and outcomes gather until the writer is free
        ▼  the writer takes both
    append ──► publish ──► answer  during a slow append, the next batch gathers

**A tick** has one time for all that is decided in it. It ends with the millisecond in which it began (`clock` says
why), and at the latest when the writer takes the batch; if the writer is busy, with this iteration of the event loop.

**The writer** is called at the end of the iteration in which the first request came. It takes all records and answers
since the last time: one batch, one append, one sync. So an answer is given after the records that it made, and after
those of all earlier requests. An append that waits has a task; one that is done in the call (`SyncAppend`) needs none.

**Nothing is answered early.** A refusal or a read may rest on a record that is not durable yet: "held by ana" would be
untrue if the power failed before ana's grant was on the disk. So all answers wait in `_answers`.

**When the journal fails**, it says whether the batch may have happened:

- It did not (`JournalUnavailableError`): the batch, and all that was decided on top of it, is answered `Unavailable`.
  The engine reads the state again from the journal and goes on; waiters whose tickets are in it keep them.
- It did not, and another node leads (`DeposedError`): all are answered `NotLeader`, and the engine is over.
- It cannot say (`OutcomeUnknownError`, and anything else): all are answered `Unknown`, and the engine is over.

An engine that is over sets `ended`. With a journal in a directory the process ends then, and the next start reads what
is durable. With a shared one it was one term: the node drops the engine, and follows.

**A journal that nodes share** may have another leader without our knowing, and then a read shows an old state. So
answers without a record need a proof too: `confirm` takes the place of the append, after the last of the answers was
decided (N-15). When a write is unanswered for a second, the engine refuses new requests and ends its streams, so that
clients go to another node (N-19); decided requests wait for the outcome. Safety does not depend on this: the fence
keeps an old leader from answering.

**A bug in the core**: if `decide` raises, nothing was changed, and only that request fails. If anything after it
raises, memory cannot be trusted: nothing of it is written, and the process ends as after an unknown outcome.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from holdfast.core.commands import NEEDS_DISK_SPACE, Command, claimant_of
from holdfast.core.decide import DECISIONS, next_due, next_grant
from holdfast.core.events import Ended, Event, Granted, GrantedMany, Record, TimePassed, ends_of
from holdfast.core.evolve import evolve
from holdfast.core.outcomes import MustWait
from holdfast.core.state import State
from holdfast.core.values import Instant, Limits
from holdfast.engine.archiver import ArchivePolicy, Archiver
from holdfast.engine.clock import TICK_MS_MAX, TIMER_MS, UNRECORDED_MS_MAX, Clock, Ticks
from holdfast.engine.feed import Feed
from holdfast.engine.metrics import ENDING, EngineMetrics
from holdfast.engine.recovery import recover
from holdfast.engine.waiters import (
    NotLeader,
    Unavailable,
    Unknown,
    Waited,
    Waiter,
    Waiters,
    answer_all,
    outcome_or_raise,
    replies_after_rollback,
    resolve_future,
)
from holdfast.engine.watchdog import Watchdog
from holdfast.journal.failpoints import failpoint
from holdfast.journal.interface import DeposedError, Journal, JournalError, JournalUnavailableError, SyncAppend

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from holdfast.core.decision import Due, Notice
    from holdfast.engine.waiters import PendingReply, Reply
    from holdfast.journal.interface import HistoryPage, HistoryQuery, SharedJournal

LAST_ANSWERS_SECONDS = 3.0
UNANSWERED_MS_MAX = 1_000
REASONS_LOGGED_MAX = 16

T = TypeVar("T")

log = logging.getLogger("holdfast.engine")


class Batch(NamedTuple):
    """The records and answers of one append, with measurements as of when the writer took them."""

    records: list[Record]
    answers: list[PendingReply]
    pending_since_seconds: float  # when the first iteration began whose answers are in it; 0 if none is
    taken_seconds: float
    holds_ms: list[int]  # of the leases that it ends
    waits_ms: list[int]  # of the tickets that it grants something to


class Engine:
    def __init__(
        self,
        journal: Journal,
        limits: Limits,
        *,
        clock: Clock,
        version: str,
        archive_policy: ArchivePolicy | None = None,
        watchdog: Watchdog | None = None,
        metrics: EngineMetrics | None = None,  # They outlive the engine.
    ) -> None:
        self.journal = journal
        self.limits = limits
        self.clock = clock
        self.metrics = metrics or EngineMetrics()
        self.feed = Feed(self.metrics.tally)
        self.state = State()
        self.ticks = Ticks(clock, self._on_timer, self.metrics)
        self.key: bytes | None = None
        self.failed: str | None = None  # why the engine can never answer again, once it cannot
        self.ended = asyncio.Event()  # The engine is over: the process must end, or on a shared journal the term.
        self._shared = cast("SharedJournal", journal) if journal.is_shared else None
        self._version = version
        self._archiver = Archiver(journal, archive_policy or ArchivePolicy(), clock, self._wake_writer, self._fail)
        self._watchdog = watchdog
        self._waiters = Waiters()
        self._may_wait = True  # whether a command may wait in the queue: not while the server stops
        self._batch: list[Record] = []
        self._answers: list[PendingReply] = []
        self._holds_ms: list[int] = []
        self._waits_ms: list[int] = []
        self._serving = self._stopping = False
        # The call at the end of this iteration, or the append under way. None: nothing to do.
        self._writer: asyncio.Handle | asyncio.Future[None] | None = None
        self._refused_writes = 0
        self._reasons_logged: set[str] = set()  # A full disk may be reported for either file, again and again.
        # A shared store answers one question at a time.
        self._asked_ms = 0
        self._confirmed_ms: int | None = None  # when the last successful question was asked
        self._store_timer: asyncio.TimerHandle | None = None
        self._is_store_late = False

    # Start and stop.

    async def start(self) -> None:
        """Open the journal, recover, prove that it takes writes, and serve. If it raises, nothing runs."""
        self._stopping, self._may_wait = False, True
        if self._watchdog is not None:
            self._watchdog.start()
        try:
            await self._load()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Answer what was asked, stop the clock, close the journal. Idempotent.

        Answers that an unreachable shared store does not confirm within a few seconds are reported as unknown, and the
        next leader has their records or does not.
        """
        self.end_waits()
        if self._shared is not None:
            self._shared.hurry(LAST_ANSWERS_SECONDS)
        self._stopping = True
        self._serving = False
        self.ticks.cancel_timer()
        while self._writer is not None:
            # Never cancelled: the outcome of a cancelled append would be unknown.
            await (asyncio.wait({self._writer}) if isinstance(self._writer, asyncio.Future) else asyncio.sleep(0))
        if len(self._waiters):
            self._answer_all_pending((), self.rejection())
        await self._archiver.end()
        self.feed.close()
        if self._watchdog is not None:
            self._watchdog.stop()
        await self.journal.close()

    def end_waits(self) -> None:
        """Answer all waiters with their tickets and accept none from now on: the server is about to stop (W2)."""
        self._may_wait = False
        if len(self._waiters) and self.tick() is not None:
            self._end_waits(self._waiters.take_all(), for_good=True)

    # Commands and reads.

    def tick(self) -> Instant | None:
        """Return the time of the tick, after beginning another if its millisecond is over (T1a). None: not serving."""
        if not self._serving:
            return None
        ticks = self.ticks
        read_seconds = ticks.read_seconds
        return ticks.now if read_seconds() < ticks.over_seconds else self._begin_tick()

    @property
    def is_serving(self) -> bool:
        return self._serving

    def why_not_serving(self) -> str:
        """Explain why requests are refused. Public, so it has no errors and addresses of a shared store."""
        if self.failed is None and self._is_store_late:
            return "the store does not answer"
        if self.failed is not None and self._shared is not None:
            return "this node does not lead any more: its log says why"
        return self.failed or "the server is stopping or not yet ready"

    def rejection(self) -> Unavailable | NotLeader:
        why = self.why_not_serving()
        return Unavailable(why) if self._shared is None else NotLeader(why)

    @property
    def is_refused(self) -> bool:
        return self._shared is not None and self._refused_writes > 0

    def heartbeat(self) -> None:
        """Prove leadership of a shared store by an empty read (N-14).

        While the store refuses records, one is tried if no deadline does so anyway, since only an accepted record shows
        that records are accepted again.
        """
        if (now := self.tick()) is not None and self.is_refused and not self.state.has_deadlines():
            self._apply(TimePassed(), now)
        self.read(lambda _state, _now: None, lambda _outcome, _now: None)

    def confirmed_ms_ago(self) -> int | None:
        """Return how long ago this node surely led; None if that is not known."""
        if not self._serving or self._confirmed_ms is None:
            return None
        return self.clock.monotonic_ms() - self._confirmed_ms

    def submit(self, command: Command, reply: Reply) -> Waiter | None:
        """Decide a command now; `reply(outcome, instant)` is called once everything the outcome rests on is durable.

        A waiter is returned, for `stop_waiting`, if the command has to wait in the queue. A bug in deciding is raised
        here and `reply` is never called: nothing of the command happened. A bug after that ends the engine.
        """
        if not self._serving:
            self._reject(reply)
            return None
        # As `tick`, and `decide` below, without a call: every request comes here.
        ticks = self.ticks
        read_seconds = ticks.read_seconds
        now = ticks.now if read_seconds() < ticks.over_seconds else self._begin_tick()
        if not self.journal.takes_claims and isinstance(command, NEEDS_DISK_SPACE):
            why = self.journal.why_no_claims(claimant_of(command))
            if why is not None:
                self._answers.append((reply, Unavailable(why), now))
                return None
        state = self.state
        decision = DECISIONS[type(command)](state, command, now, self.limits)
        for event in decision.events:
            self._apply(event, now)
        waiter: Waiter | None = None
        try:
            answer = decision.answer
            if type(answer) is MustWait:
                waiter = self._wait(answer, reply, now, will_retry=getattr(command, "will_retry", False))
            else:
                self._answers.append((reply, answer, now))
            if decision.interest is not None:
                state.connected.add_interest(*decision.interest)
            if decision.notices:
                self._notify(decision.notices)
            timers = state.timers
            if timers.candidates or timers.names_with_new_holder:
                self._apply_due(next_grant, now)  # Grant to the waiters that this command made room for (W1).
            if waiter is not None and waiter.deadline_ms <= now.ms:
                self._end_waits(self._waiters.overdue(now.ms))
        except Exception as error:  # noqa: BLE001 - Whatever it is, memory cannot be trusted any more.
            # This answers `Unknown` to all, the caller too, so it must not raise as well.
            self._fail(error)
            return None
        return waiter

    def stop_waiting(self, waiter: Waiter) -> None:
        if self._waiters.drop(waiter):
            self.state.detach(waiter.ticket_id, self.ticks.now_ms)

    def read(self, view: Callable[[State, Instant], T], reply: Reply) -> None:
        if (now := self.tick()) is None:
            self._reject(reply)
            return
        self._answers.append((reply, view(self.state, now), now))

    async def ask(self, command: Command) -> tuple[Any, Instant]:
        answered: asyncio.Future[tuple[Any, Instant]] = asyncio.get_running_loop().create_future()
        self.submit(command, lambda outcome, now: resolve_future(answered, (outcome, now)))
        return await answered

    async def query(self, view: Callable[[State, Instant], T]) -> T:
        """Read and wait for the answer. Raises `JournalUnavailableError` if there is none."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.read(view, lambda outcome, _: resolve_future(answered, outcome))
        return outcome_or_raise(await answered)  # type: ignore[no-any-return]

    async def history(self, query: HistoryQuery) -> HistoryPage:
        await self.query(lambda _state, _now: None)
        return await self.journal.history(query)

    def _reject(self, reply: Reply) -> None:
        reply(self.rejection(), Instant(self.ticks.now_ms, self.clock.wall_ms()))

    # Ticks: one time for all that is decided in one.

    def _begin_tick(self) -> Instant:
        """Stamp the tick and end everything due before anything is decided in it (T1, T3)."""
        is_first = self.ticks.iteration_began_ms is None
        now = self.ticks.begin()
        try:
            self._apply_due(next_due, now)
            self.ticks.add_expiry_time()
            if self._waiters.deadlines and self._waiters.deadlines[0][0] <= now.ms:
                self._end_waits(self._waiters.overdue(now.ms))
            if self._waiters.reconnecting:
                self._waiters.detach_overdue(self.state, now.ms)
        except Exception as error:
            self._fail(error)
            raise
        self._wake_writer()
        if is_first and isinstance(self._writer, asyncio.Future):
            # The writer is busy. Its next batch may gather over many rounds of the loop.
            asyncio.get_running_loop().call_soon(self._end_iteration)
        return now

    def _end_iteration(self) -> None:
        """Let later decisions have a later time, and start the timer if anything waits for time to pass."""
        self.ticks.end_iteration(len(self._batch), len(self._answers))
        if self.ticks.timer is None:
            self._set_timer()

    def _apply_due(self, find_due: Callable[[State, Instant, Limits], Due | None], now: Instant) -> None:
        while (due := find_due(self.state, now, self.limits)) is not None:
            event = due.event
            if type(event) is Granted or type(event) is GrantedMany:
                ticket = self.state.tickets.get(event.ticket_id or "")
                if ticket is not None and ticket.joined_wall_ms:
                    self._waits_ms.append(now.wall_ms - ticket.joined_wall_ms)
            self._apply(event, now)
            self._notify(due.notices)

    def _apply(self, event: Event, now: Instant) -> None:
        record = Record(self.state.seq + 1, now.ms, now.wall_ms, event)
        if type(event) in ENDING:
            # By the wall clock: a lease keeps no other time of its beginning.
            for name in (event.name,) if type(event) is Ended else ends_of(event):
                if (slot := self.state.slots.get(name)) is not None and slot.lease is not None:
                    self._holds_ms.append(now.wall_ms - slot.lease.granted_wall_ms)
        try:
            evolve(self.state, record)
        except Exception as error:
            self._fail(error)
            raise
        self._batch.append(record)

    # Waiting in the queue.

    def _wait(self, must_wait: MustWait, reply: Reply, now: Instant, *, will_retry: bool) -> Waiter:
        deadline_ms = now.ms + must_wait.wait_ms if self._may_wait else now.ms
        waiter = Waiter(must_wait.ticket_id, reply, received_ms=self.ticks.began_ms, deadline_ms=deadline_ms)
        waiter.will_retry = will_retry and self._may_wait
        self._answers.extend(self._waiters.wait(waiter, self.state, self.ticks))
        if must_wait.wait_ms < TIMER_MS:
            self.ticks.cancel_timer()  # It may fire too late: the end of the iteration sets another one.
        return waiter

    def _notify(self, notices: Iterable[Notice]) -> None:
        self._answers.extend(self._waiters.notify(notices, self.state, self.ticks))

    def _end_waits(self, waiters: Iterable[Waiter], *, for_good: bool = False) -> None:
        self._answers.extend(self._waiters.end_waits(waiters, self.state, self.ticks, for_good=for_good))

    # Recovery and archiving.

    async def _load(self) -> None:
        reached_ms = 0 if self._shared is None else self.ticks.now_ms
        found = await recover(
            self.journal, clock=self.clock, version=self._version, append=self._append, reached_ms=reached_ms
        )
        self.state, self.key = found.state, found.key
        self._holds_ms, self._waits_ms = [], []
        self._archiver.restart(found.state.seq, found.replayed)
        self.ticks.resume(found.now_ms)
        self._serving = not self._stopping
        self._set_timer()

    async def archive(self) -> None:
        if self._serving:
            await self._archiver.archive()

    # The timer: time passes without requests.

    def _set_timer(self) -> None:
        if not self._serving or not self.state.has_deadlines():
            self.ticks.cancel_timer()
            return
        deadlines = (self.state.next_deadline_ms(), self._waiters.next_deadline_ms())
        self.ticks.set_timer(min((deadline for deadline in deadlines if deadline is not None), default=None))

    def _on_timer(self) -> None:
        """Let time pass without requests: end what is due, and record the time now and then (T2)."""
        if (now := self.tick()) is None:
            return
        # One tick early: the timer may be as much as a tick late.
        if now.ms - self.state.now_ms >= UNRECORDED_MS_MAX - TICK_MS_MAX:
            self._apply(TimePassed(), now)
            if not self.journal.takes_claims:
                self.journal.health()

    # Batch after batch.

    def _wake_writer(self) -> None:
        if self._writer is None:
            self._writer = asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        """Append the batch: in this call, or in a task while the next batch gathers."""
        self._writer = None
        try:
            if (wanted := self._archiver.wanted) is not None:
                self._answers.append(self._archiver.take(wanted, self.state, self.ticks.now_ms))
            self._end_iteration()
            appending = self._append(self._batch) if self._batch else None
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
            return
        ticks = self.ticks
        batch = Batch(
            self._batch, self._answers, ticks.take_pending_since(), ticks.read_seconds(), self._holds_ms, self._waits_ms
        )
        self._batch, self._answers = [], []
        if self._holds_ms or self._waits_ms:
            self._holds_ms, self._waits_ms = [], []
        if appending is None:
            if self._shared is None or not batch.answers:
                self._answer(batch)
                return
            appending = self._shared.confirm(self.ticks.now_ms)
        if isinstance(appending, SyncAppend):
            self._conclude(appending.now, batch)
            return
        self._writer = asyncio.ensure_future(appending)
        self._start_store_timer()
        self._writer.add_done_callback(lambda appended: self._on_appended(appended, batch))

    def _append(self, batch: list[Record]) -> Awaitable[None]:
        failpoint("before_append")
        return self.journal.append(batch)

    def _on_appended(self, appended: asyncio.Future[None], batch: Batch) -> None:
        self._writer = None
        is_well = not appended.cancelled() and appended.exception() is None
        self._on_store_answer(is_answer=is_well, confirms_leadership=is_well)
        self._conclude(appended.result, batch)
        self._wake_writer()

    def _conclude(self, append: Callable[[], None], batch: Batch) -> None:
        """Append, publish, answer, in this order. `append` returns when the batch is durable, or raises why not."""
        metrics, records = self.metrics, batch.records
        try:
            append()
            failpoint("after_append_before_publish")
            metrics.commits.note(self.ticks.read_seconds() - batch.taken_seconds)
            if records:
                metrics.batches.note(len(records))
            self.feed.publish(records)
            if batch.holds_ms:
                metrics.holds.observe_all_ms(batch.holds_ms)
            if batch.waits_ms:
                metrics.waits.observe_all_ms(batch.waits_ms)
            failpoint("after_publish_before_answer")
        except JournalUnavailableError as error:
            self._writer = asyncio.create_task(self._roll_back(batch.answers, Unavailable(str(error))))
        except DeposedError as error:
            self._step_down(error, batch.answers)
        except BaseException as error:
            self._fail(error, batch.answers)
            if not isinstance(error, Exception):
                raise
        else:
            self._answer(batch)
            if records and self._refused_writes:
                # Only a record counts: a full disk may take a proof of leadership, which changes a row in place.
                self._note_accepted(len(records))
            if self.failed is None:
                self._archiver.count(len(records))

    def _answer(self, batch: Batch) -> None:
        answer_all(batch.answers)
        if batch.pending_since_seconds and batch.answers:
            seconds = self.ticks.read_seconds() - batch.pending_since_seconds
            self.metrics.answers.note(seconds, len(batch.answers))

    # When the journal fails.

    async def _roll_back(self, answers: list[PendingReply], refused: Unavailable) -> None:
        """Nothing of the batch happened, nor of what was decided on top of it: answer that and read the state again.

        Waiters are answered after that, since only the state read again shows whether a ticket was in an earlier batch:
        `waiting` with the ticket, as after a restart (W2), or that nothing happened. All this is one task: if reading
        does not block, the clients are served when they retry.
        """
        is_read = False
        try:
            self._start_store_timer()
            self._note_refused(refused.text)
            self._serving = False
            pending = self._take_all_pending(answers)
            self._answers = [answer for answer in pending if isinstance(answer[1], Waited)]
            answer_all((reply, refused, now) for reply, outcome, now in pending if not isinstance(outcome, Waited))
            # What is being archived is durable, but a journal does not read and archive at the same time.
            await self._archiver.end()
            if self._stopping or self.failed is not None:
                self._answer_all_pending((), Unknown(refused.text))
            else:
                await self._load()
                is_read = True
                answer_all(replies_after_rollback(self._take_all_pending(()), self.state, refused))
        except DeposedError as error:
            self._step_down(error)
        except BaseException as error:
            # Cancelled from outside, or the state cannot be read: no request could be answered again.
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._on_store_answer(is_answer=is_read, confirms_leadership=False)
        self._writer = None
        self._wake_writer()

    def _note_refused(self, why: str) -> None:
        self._refused_writes += 1
        if why not in self._reasons_logged and len(self._reasons_logged) < REASONS_LOGGED_MAX:
            self._reasons_logged.add(why)
            log.error("%s; nothing of it happened, and the state is read anew", why)

    def _note_accepted(self, records: int) -> None:
        log.warning(
            "writes work again: %d records are on the disk; %d writes had failed", records, self._refused_writes
        )
        self._reasons_logged.clear()
        self._refused_writes = 0

    def _fail(self, error: BaseException, answers: Iterable[PendingReply] = ()) -> None:
        """End, because the durable state is unknown or memory cannot be trusted.

        Decisions on top of an unknown batch are unknown too: one may be the retry of a request in that batch.
        """
        if self.failed is None:
            is_bug = not isinstance(error, JournalError)
            self.failed = f"internal error: {type(error).__name__}: {error}" if is_bug else str(error)
            if self._shared is None:
                log.critical("%s; the server ends: start it again", self.failed, exc_info=error)
            else:
                log.error("%s; this tenure is over", self.failed, exc_info=error if is_bug else None)
        self._shut_down(answers, Unknown(self.failed))

    def _step_down(self, error: DeposedError, answers: Iterable[PendingReply] = ()) -> None:
        """Another node leads. Nothing of the batch happened, nor of what was decided on top of it (N-12)."""
        if self.failed is None:
            self.failed = str(error)
            log.warning("%s; this tenure is over", self.failed)
        self._shut_down(answers, NotLeader(self.failed))

    def _shut_down(self, answers: Iterable[PendingReply], outcome: Unknown | NotLeader) -> None:
        self._serving = False
        self.ticks.cancel_timer()
        self._archiver.cancel()
        self._answer_all_pending(answers, outcome)
        self.feed.close()
        self.ended.set()

    @property
    def unarchived(self) -> tuple[int, bool]:
        return self._archiver.unarchived_records, self._archiver.is_refused

    def _answer_all_pending(self, answers: Iterable[PendingReply], outcome: Unknown | NotLeader | Unavailable) -> None:
        answer_all((reply, outcome, now) for reply, _, now in self._take_all_pending(answers))

    def _take_all_pending(self, answers: Iterable[PendingReply]) -> list[PendingReply]:
        waiting = (waiter.answered(None, self.ticks) for waiter in self._waiters.take_all())
        pending = [*answers, *self._answers, *waiting]
        self._batch, self._answers = [], []
        self.ticks.drop()
        return pending

    # When a journal that nodes share is silent (N-19).

    def _start_store_timer(self) -> None:
        if self._shared is not None:
            self._asked_ms = self.clock.monotonic_ms()
            loop = asyncio.get_running_loop()
            self._store_timer = loop.call_later(UNANSWERED_MS_MAX / 1000, self._on_store_timeout)

    def _on_store_answer(self, *, is_answer: bool, confirms_leadership: bool) -> None:
        """Note that the question was answered or given up. `confirms_leadership`: this node led when it was asked."""
        if self._shared is None:
            return
        if self._store_timer is not None:
            self._store_timer.cancel()
            self._store_timer = None
        if confirms_leadership:
            self._confirmed_ms = self._asked_ms
        if self._is_store_late:
            self._is_store_late = False
            if self.failed is None and not self._stopping:
                # A question that was given up says nothing about the store, so another one follows.
                if is_answer:
                    log.warning("the store answers again")
                self._serving = True
                self._set_timer()

    def _on_store_timeout(self) -> None:
        self._store_timer = None
        self._is_store_late = True
        log.warning("the store has not answered for a second: nobody is let in until it does")
        self._serving = False
        self.ticks.cancel_timer()
        self.feed.close()
