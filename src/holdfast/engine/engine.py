"""The one write path: settle, decide, evolve in memory, make durable, publish, answer. In this order, for everything.

Everything runs on one event loop: commands are decided one after another, and there are no locks.

    submit, read, tick             each in a turn: one time, and what is due has ended first
        ▼  decide, evolve          in memory, at once
    _batch, _answers               records and outcomes gather until the writer is free
        ▼  the writer takes both
    append ──► publish ──► answer  while a slow append is on its way, the next batch gathers

**A turn** begins with the first thing that is asked, and has one time for all that is decided in it. It ends with the
millisecond in which it began (`clock` says why), and at the latest when the writer takes the batch; if the writer is
busy, with this round of the event loop.

**A batch** is every record since the writer last came by. One batch is one append and one sync: alone, an answer waits
for one sync; under load one sync serves hundreds.

**The writer** is called by the loop when the round in which something was asked is over. It takes records and answers
together. So an answer is given after the records that it made, and after those of everybody who asked before. An append
that waits has a task, one that is done at once (`AtOnce`) needs none. Both end in `Writer._conclude`: there the rules
stand.

**Why nothing is answered early.** A refusal or a read may rest on a record that is not durable yet: "held by ana" would
be untrue if the power failed before ana's grant was on the disk. So they wait in `_answers` like all others.

**When the journal fails**, it says whether the batch may have happened: `writer` has what follows from it.

**When the core has a bug**: if `decide` raises, nothing was changed, and only the one who asked is hurt. If anything
behind it raises (`evolve`, `settle`), memory cannot be trusted. Nothing of it is written, and the process ends as if
nobody knew.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.core.answers import MustWait
from holdfast.core.commands import NEEDS_ROOM, Command, claimant_of
from holdfast.core.decide import DECISIONS, settle, settle_line
from holdfast.core.events import Event, Record, TimePassed
from holdfast.core.evolve import evolve
from holdfast.core.state import State
from holdfast.core.values import Limits, Moment
from holdfast.engine.archiving import Archiver, Archiving
from holdfast.engine.clock import SILENCE_MS_MAX, TICK_MS, TURN_MS_MAX, Clock, Turns
from holdfast.engine.measures import ENDING, Measures
from holdfast.engine.recovery import recover
from holdfast.engine.replies import NotLeader, Unavailable, outcome_or_raise, settle_future
from holdfast.engine.waiters import Waiter
from holdfast.engine.watchdog import Watchdog
from holdfast.engine.writer import Writer
from holdfast.journal.base import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.core.decision import Due, Notice
    from holdfast.engine.replies import Reply
    from holdfast.journal.base import HistoryPage, HistoryQuery

LAST_ANSWERS_SECONDS = 3.0
"""How long the engine waits at its end for the last answers of a shared store."""

T = TypeVar("T")


class Engine(Writer):
    """One authority over one journal."""

    def __init__(
        self,
        journal: Journal,
        limits: Limits,
        *,
        clock: Clock,
        version: str,
        archiving: Archiving | None = None,
        watchdog: Watchdog | None = None,
        measures: Measures | None = None,
    ) -> None:
        """Prepare; `start` takes the seat. `measures` outlive the engine, if they are given."""
        measures = measures or Measures()
        turns = Turns(clock, self._tick, measures)
        archiver = Archiver(journal, archiving or Archiving(), clock, self._wake_writer, self._fail)
        super().__init__(journal, archiver, turns, clock, measures)
        self.limits = limits
        self.clock = clock
        self._version = version
        self._watchdog = watchdog
        self._may_wait = True
        """Whether a command may wait in the queue: not while the server stops."""
        self.key: bytes | None = None
        """The authority's key, if the journal keeps it."""

    # Start and stop.

    async def start(self) -> None:
        """Take the seat, recover, prove that the journal takes writes, and serve. If it raises, nothing runs."""
        self._stopping, self._may_wait = False, True
        if self._watchdog is not None:
            self._watchdog.start()
        try:
            await self._load()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Answer what was asked, stop the clock, give the seat back. Idempotent.

        For an unreachable shared store it waits less than while serving: answers that are unknown after a few seconds
        are reported as such, and the next leader has the records or does not.
        """
        self.end_waits()
        if self._shared is not None:
            self._shared.hurry(LAST_ANSWERS_SECONDS)
        self._stopping = True
        self._serving = False
        self.turns.cancel_timer()
        while self._writer is not None:
            # Waited for and never cancelled: a cancelled append would be one whose outcome nobody knows.
            await (asyncio.wait({self._writer}) if isinstance(self._writer, asyncio.Future) else asyncio.sleep(0))
        if len(self._waiters):
            self._answer_everybody((), self.turned_away())
        await self._archiver.end()
        self.feed.close()
        if self._watchdog is not None:
            self._watchdog.stop()
        await self.journal.close()

    def end_waits(self) -> None:
        """Answer all waiters with their places, and let nobody wait from now on: the server is about to stop (W2)."""
        self._may_wait = False
        if len(self._waiters) and self.turn() is not None:
            self._send_away(self._waiters.take_all(), for_good=True)

    # Commands and reads.

    def turn(self) -> Moment | None:
        """Return the time of the turn, after beginning another if its millisecond is over (T1a). None: not serving."""
        if not self._serving:
            return None
        turns = self.turns
        read_seconds = turns.read_seconds
        return turns.now if read_seconds() < turns.over_seconds else self._begin_turn()

    @property
    def serves(self) -> bool:
        return self._serving

    def why_not_serving(self) -> str:
        """Explain why nothing can be asked. Anybody may read it: it has no error and no address of a shared store."""
        if self.failed is None and self._silence.is_on:
            return "the store does not answer"
        if self.failed is not None and self._shared is not None:
            return "this node does not lead any more: its log says why"
        return self.failed or "the server is stopping or not yet ready"

    def turned_away(self) -> Unavailable | NotLeader:
        """Return the answer to every request while not serving. With a shared journal another node may answer."""
        why = self.why_not_serving()
        return Unavailable(why) if self._shared is None else NotLeader(why)

    @property
    def is_refused(self) -> bool:
        """Whether a shared store refused the last records."""
        return self._shared is not None and self._trouble.is_on

    def beat(self) -> None:
        """Ask for nothing, by the one write path: for a shared store it becomes a proof of the seat (N-14).

        While the store refuses records, one is tried if no deadline does so anyway, since only an accepted record shows
        that records are accepted again.
        """
        now = self.turn()
        if now is not None and self.is_refused and not self.state.has_deadlines():
            self._apply(TimePassed(), now)
        self.read(lambda _state, _now: None, lambda _outcome, _now: None)

    def proven_ms_ago(self) -> int | None:
        """Return how long ago the seat of a shared journal was surely ours; None if that is not known."""
        return self._silence.proven_ms_ago() if self._serving else None

    def submit(self, command: Command, reply: Reply) -> Waiter | None:
        """Decide a command now; `reply(outcome, moment)` is called once everything the outcome rests on is durable.

        If the command has to wait in the queue, its waiter is returned, for `step_away`. A bug in deciding is raised
        here and `reply` is never called: nothing of the command happened. A bug in what follows from it ends the
        engine.
        """
        if not self._serving:
            self._turn_away(reply)
            return None
        # As `turn`, and `decide` below, without a call: every request comes here.
        turns = self.turns
        read_seconds = turns.read_seconds
        now = turns.now if read_seconds() < turns.over_seconds else self._begin_turn()
        if not self.journal.takes_claims and isinstance(command, NEEDS_ROOM):
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
                waiter = self._wait(answer, reply, now, comes_back=getattr(command, "comes_back", False))
            else:
                self._answers.append((reply, answer, now))
            if decision.interest is not None:
                state.presence.take_interest(*decision.interest)
            if decision.notices:
                self._notify(decision.notices)
            agenda = state.agenda
            if agenda.candidates or agenda.names_with_new_holder:
                self._settle(settle_line, now)  # Those have their turn whom this command made room for (W1).
            if waiter is not None and waiter.deadline_ms <= now.ms:
                self._send_away(self._waiters.overdue(now.ms))
        except Exception as error:  # noqa: BLE001 - Whatever it is, memory cannot be trusted any more.
            # Everybody is told that nobody knows, the one who asked too: it must not hear of it a second time.
            self._fail(error)
            return None
        return waiter

    def step_away(self, waiter: Waiter) -> None:
        """Note that a waiter's client is gone: its place keeps its order for a while and blocks nobody (W2)."""
        if self._waiters.drop(waiter):
            self.state.depart(waiter.ticket_id, self.turns.now_ms)

    def read(self, view: Callable[[State, Moment], T], reply: Reply) -> None:
        """Read the state now; the answer waits for whatever it may rest on, like every other."""
        now = self.turn()
        if now is None:
            self._turn_away(reply)
            return
        self._answers.append((reply, view(self.state, now), now))

    async def ask(self, command: Command) -> tuple[Any, Moment]:
        """Submit a command and wait for the outcome."""
        answered: asyncio.Future[tuple[Any, Moment]] = asyncio.get_running_loop().create_future()
        self.submit(command, lambda outcome, now: settle_future(answered, (outcome, now)))
        return await answered

    async def look(self, view: Callable[[State, Moment], T]) -> T:
        """Read and wait for the answer. Raises `JournalUnavailableError` when there can be none."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.read(view, lambda outcome, _: settle_future(answered, outcome))
        return outcome_or_raise(await answered)  # type: ignore[no-any-return]

    async def history(self, query: HistoryQuery) -> HistoryPage:
        """Return events, newest first; all that is decided by now is durable and part of it."""
        await self.look(lambda _state, _now: None)
        return await self.journal.history(query)

    def _turn_away(self, reply: Reply) -> None:
        reply(self.turned_away(), Moment(self.turns.now_ms, self.clock.wall_ms()))

    # Turns: one time for all that is decided in one.

    def _begin_turn(self) -> Moment:
        """Stamp the turn and end everything due before anything is decided in it (T1, T3).

        A turn moves time by at most 250 ms, which bounds how much can be due.
        """
        is_first = self.turns.round_began_ms is None
        now = self.turns.begin()
        try:
            self._settle(settle, now)
            self.turns.settled()
            if self._waiters.deadlines and self._waiters.deadlines[0][0] <= now.ms:
                self._send_away(self._waiters.overdue(now.ms))
            if self._waiters.between:
                self._waiters.give_up_on_those_between(self.state, now.ms)
        except Exception as error:
            self._fail(error)
            raise
        self._wake_writer()
        if is_first and isinstance(self._writer, asyncio.Future):
            # The writer is busy. Its next batch may gather over many rounds of the loop.
            asyncio.get_running_loop().call_soon(self._end_round)
        return now

    def _end_round(self) -> None:
        """Let later decisions have a later time, and start the timer if anything waits for time to pass."""
        self.turns.end_round(len(self._batch), len(self._answers))
        if self.turns.timer is None:
            self._set_timer()

    def _settle(self, next_due: Callable[[State, Moment, Limits], Due | None], now: Moment) -> None:
        """Apply everything that is due, one thing after another, before anything else is decided (T3, W1)."""
        while (due := next_due(self.state, now, self.limits)) is not None:
            self._spans.grant(due.event, self.state, now.wall_ms)
            self._apply(due.event, now)
            self._notify(due.notices)

    def _apply(self, event: Event, now: Moment) -> None:
        """Apply an event in memory, and put its record into the batch."""
        record = Record(self.state.seq + 1, now.ms, now.wall_ms, event)
        if type(event) in ENDING:
            self._spans.end(event, self.state, now.wall_ms)
        try:
            evolve(self.state, record)
        except Exception as error:
            self._fail(error)
            raise
        self._batch.append(record)

    # Waiting in line.

    def _wait(self, told: MustWait, reply: Reply, now: Moment, *, comes_back: bool) -> Waiter:
        deadline_ms = now.ms + told.wait_ms if self._may_wait else now.ms
        waiter = Waiter(told.ticket_id, reply, received_ms=self.turns.began_ms, deadline_ms=deadline_ms)
        waiter.comes_back = comes_back and self._may_wait
        self._answers.extend(self._waiters.wait(waiter, self.state, self.turns))
        if told.wait_ms < TICK_MS:
            # Sooner than the next tick may come: the timer is set anew when the round ends.
            self.turns.cancel_timer()
        return waiter

    def _notify(self, notices: Iterable[Notice]) -> None:
        self._answers.extend(self._waiters.tell(notices, self.state, self.turns))

    def _send_away(self, waiters: Iterable[Waiter], *, for_good: bool = False) -> None:
        self._answers.extend(self._waiters.send_away(waiters, self.state, self.turns, for_good=for_good))

    # Recovery and archiving.

    async def _load(self) -> None:
        """Read the state from the journal and serve from it."""
        reached_ms = 0 if self._shared is None else self.turns.now_ms
        found = await recover(
            self.journal, clock=self.clock, version=self._version, append=self._append, reached_ms=reached_ms
        )
        self.state, self.key = found.state, found.key
        self._spans.forget()
        self._archiver.begin_anew(found.state.seq, found.replayed)
        self.turns.resume(found.now_ms)
        self._serving = not self._stopping
        self._set_timer()

    async def archive(self) -> None:
        """Archive all that is durable, and wait until it is; if that is under way already, wait for it."""
        if self._serving:
            await self._archiver.archive()

    # The timer: time passes although nobody asks.

    def _set_timer(self) -> None:
        if not self._serving or not self.state.has_deadlines():
            self.turns.cancel_timer()
            return
        alarms = (self.state.next_alarm_ms(), self._waiters.next_deadline_ms())
        self.turns.set_timer(min((alarm for alarm in alarms if alarm is not None), default=None))

    def _tick(self) -> None:
        """Let time pass without requests: end what is due, and record the time now and then (T2)."""
        now = self.turn()
        if now is None:
            return
        # One turn early: the next one may be as much as a turn later.
        if now.ms - self.state.now_ms >= SILENCE_MS_MAX - TURN_MS_MAX:
            self._apply(TimePassed(), now)
            if not self.journal.takes_claims:
                self.journal.health()
