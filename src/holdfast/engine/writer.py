"""The writer: makes batch after batch durable, then publishes, then answers. And what follows when the journal fails.

It is the lower half of the engine (`engine` says what a turn and a batch are): what was decided is put into `_batch`
and `_answers`, and from there on it is the writer's. It decides nothing.

**When the journal fails**, it says whether the batch may have happened:

- It did not (`JournalUnavailableError`): the batch, and all that was decided on top of it, is answered `Unavailable`.
  The state is read anew from the journal, and the engine serves on. Those whose places in line are in it hear that.
- It did not, and another node has the writer's seat (`DeposedError`): everybody is answered `NotLeader`, those who wait
  too, and the engine is over.
- Nobody knows (`OutcomeUnknownError`, and all else): everybody is answered `Unknown`, and the engine is over.

An engine that is over says so by `ended`. On a journal in a directory the process ends then, and the next start reads
what is durable. On one that nodes share it was one tenure: the node throws the engine away, and follows.

**A journal that nodes share** may have given the seat to another without our knowing, and then a read shows what was.
So an answer without a record needs a proof too: `confirm` takes the place of the append, after the last of the answers
was decided (N-15). While such a journal is silent for too long, nobody new is let in (`watchdog`).
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple, cast

from holdfast.core.state import State
from holdfast.engine.feed import Feed
from holdfast.engine.measures import Measures, Spans
from holdfast.engine.recovery import Trouble
from holdfast.engine.replies import NotLeader, Unavailable, Unknown, answer_all
from holdfast.engine.waiters import Waited, Waiters, places_after
from holdfast.engine.watchdog import Silence
from holdfast.journal.base import AtOnce, DeposedError, Journal, JournalError, JournalUnavailableError
from holdfast.journal.failpoints import failpoint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from holdfast.core.events import Record
    from holdfast.engine.archiving import Archiver
    from holdfast.engine.clock import Clock, Turns
    from holdfast.engine.replies import OwedAnswer
    from holdfast.journal.base import SharedJournal

log = logging.getLogger("holdfast.engine")


class Taken(NamedTuple):
    """Measurements of a batch, as of when the writer took it."""

    owing_since_seconds: float
    """When the first round began whose answers are in it; 0 if none is."""
    at_seconds: float
    holds_ms: list[int]
    waits_ms: list[int]


class Writer(ABC):
    """Everything from a decision to its answer."""

    def __init__(
        self, journal: Journal, archiver: Archiver, turns: Turns, clock: Clock, measures: Measures | None = None
    ) -> None:
        self.journal = journal
        self._shared = cast("SharedJournal", journal) if journal.is_shared else None
        self._silence = Silence(clock, self._fall_silent, self._serve_again)
        self.measures = measures or Measures()
        self._spans = Spans()
        self.feed = Feed(self.measures.tally)
        self.state = State()
        self.turns = turns
        self.failed: str | None = None
        """Why the engine can never answer again, once it cannot."""
        self.ended = asyncio.Event()
        """Set when the engine is over: the process must end, or on a shared journal the term."""
        self._trouble = Trouble()
        self._batch: list[Record] = []
        self._answers: list[OwedAnswer] = []
        self._serving = self._stopping = False
        self._writer: asyncio.Handle | asyncio.Future[None] | None = None
        """The call at the end of this round, or the append under way. None: nothing to do."""
        self._waiters = Waiters()
        self._archiver = archiver

    @property
    def unarchived(self) -> tuple[int, bool]:
        """How many durable records are not archived, and whether the last attempt failed."""
        return self._archiver.owed_records, self._archiver.is_refused

    @abstractmethod
    def _end_round(self) -> None:
        pass

    @abstractmethod
    def _set_timer(self) -> None:
        pass

    @abstractmethod
    async def _load(self) -> None:
        pass

    # Batch after batch.

    def _wake_writer(self) -> None:
        """Run the writer at the end of this round, unless it will run or is busy. Its batch has all of the round."""
        if self._writer is None:
            self._writer = asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        """Take what gathered and append it: in this call, or in a task while the next batch gathers."""
        self._writer = None
        try:
            if (wanted := self._archiver.wanted) is not None:
                self._answers.append(self._archiver.take(wanted, self.state, self.turns.now_ms))
            self._end_round()
            appending = self._append(self._batch) if self._batch else None
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
            return
        batch, answers = self._batch, self._answers
        self._batch, self._answers = [], []
        taken = Taken(self.turns.take_owing(), self.turns.read_seconds(), *self._spans.take())
        if appending is None:
            if self._shared is None or not answers:
                self._answer(answers, taken.owing_since_seconds)
                return
            appending = self._shared.confirm(self.turns.now_ms)
        if isinstance(appending, AtOnce):
            self._conclude(appending.now, batch, answers, taken)
            return
        self._writer = asyncio.ensure_future(appending)
        if self._shared is not None:
            self._silence.ask()
        self._writer.add_done_callback(lambda appended: self._go_on(appended, batch, answers, taken))

    def _append(self, batch: list[Record]) -> Awaitable[None]:
        failpoint("before_append")
        return self.journal.append(batch)

    def _go_on(
        self, appended: asyncio.Future[None], batch: list[Record], answers: list[OwedAnswer], taken: Taken
    ) -> None:
        """Conclude an append that took its time, and write what gathered meanwhile."""
        self._writer = None
        if self._shared is not None:
            is_well = not appended.cancelled() and appended.exception() is None
            self._silence.hear(is_proof=is_well, is_answer=is_well)
        self._conclude(appended.result, batch, answers, taken)
        self._wake_writer()

    def _conclude(
        self, append: Callable[[], None], batch: list[Record], answers: list[OwedAnswer], taken: Taken
    ) -> None:
        """Append, publish, answer. In this order. `append` returns when the batch is durable, or raises why not."""
        try:
            append()
            failpoint("after_append_before_publish")
            self.measures.committed(self.turns.read_seconds() - taken.at_seconds, len(batch))
            self.feed.publish(batch)
            self.measures.ended(taken.holds_ms, taken.waits_ms)
            failpoint("after_publish_before_answer")
        except JournalUnavailableError as error:
            self._writer = asyncio.create_task(self._take_back(answers, Unavailable(str(error))))
        except DeposedError as error:
            self._step_down(error, answers)
        except BaseException as error:
            self._fail(error, answers)
            if not isinstance(error, Exception):
                raise
        else:
            self._answer(answers, taken.owing_since_seconds)
            if batch and self._trouble.is_on:
                # A proof of the seat changes a row in its place: a full disk may take that, and no record.
                self._trouble.ended(len(batch))
            if self.failed is None:
                self._archiver.count(len(batch))

    def _answer(self, answers: list[OwedAnswer], since_seconds: float) -> None:
        """Give the answers of a batch, and note how long the first took: the others took no longer."""
        answer_all(answers)
        if since_seconds and answers:
            self.measures.answers.note(self.turns.read_seconds() - since_seconds, len(answers))

    # When the journal fails.

    async def _take_back(self, answers: list[OwedAnswer], refused: Unavailable) -> None:
        """Nothing of the batch happened, nor of what was decided on top of it: answer that and read the state again.

        A waiter may have its place from an earlier batch. Only the state read again shows that, so it is answered
        afterwards: `waiting` with its ticket, as after a restart (W2), or that nothing happened. All this is one task:
        if reading does not block, the clients are served when they retry.
        """
        is_read = False
        try:
            if self._shared is not None:
                self._silence.ask()
            self._trouble.began(refused.text)
            self._serving = False
            owed = self._take_all_owed(answers)
            self._answers = [answer for answer in owed if isinstance(answer[1], Waited)]
            answer_all((reply, refused, now) for reply, outcome, now in owed if not isinstance(outcome, Waited))
            # What is being archived is durable; but a journal is not asked to read and to archive at once.
            await self._archiver.end()
            if self._stopping or self.failed is not None:
                self._answer_everybody((), Unknown(refused.text))
            else:
                await self._load()
                is_read = True
                answer_all(places_after(self._take_all_owed(()), self.state, refused))
        except DeposedError as error:
            self._step_down(error)
        except BaseException as error:
            # Cancelled from outside, or the state cannot be read. Without it nobody could be answered again.
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            if self._shared is not None:
                self._silence.hear(is_proof=False, is_answer=is_read)
        self._writer = None
        self._wake_writer()

    def _fail(self, error: BaseException, answers: Iterable[OwedAnswer] = ()) -> None:
        """The durable state cannot be known here, or memory cannot be trusted: answer nothing more and end.

        Decisions on top of an unknown batch are unknown too: one may be the retry of a request in that batch.
        """
        if self.failed is None:
            is_bug = not isinstance(error, JournalError)
            self.failed = f"internal error: {type(error).__name__}: {error}" if is_bug else str(error)
            if self._shared is None:
                log.critical("%s; the server ends: start it again", self.failed, exc_info=error)
            else:
                log.error("%s; this tenure is over", self.failed, exc_info=error if is_bug else None)
        self._be_over(answers, Unknown(self.failed))

    def _step_down(self, error: DeposedError, answers: Iterable[OwedAnswer] = ()) -> None:
        """Another node has the seat. Nothing of the batch happened, nor of what was decided on top of it (N-12)."""
        if self.failed is None:
            self.failed = str(error)
            log.warning("%s; this tenure is over", self.failed)
        self._be_over(answers, NotLeader(self.failed))

    def _be_over(self, answers: Iterable[OwedAnswer], outcome: Unknown | NotLeader) -> None:
        self._serving = False
        self.turns.cancel_timer()
        self._archiver.cancel()
        self._answer_everybody(answers, outcome)
        self.feed.close()
        self.ended.set()

    def _answer_everybody(self, answers: Iterable[OwedAnswer], outcome: Unknown | NotLeader | Unavailable) -> None:
        """Give the same outcome to a failed batch, to all that was decided on top of it, and to all waiters."""
        answer_all((reply, outcome, now) for reply, _, now in self._take_all_owed(answers))

    def _take_all_owed(self, answers: Iterable[OwedAnswer]) -> list[OwedAnswer]:
        waiting = (waiter.answered(None, self.turns) for waiter in self._waiters.take_all())
        owed = [*answers, *self._answers, *waiting]
        self._batch, self._answers = [], []
        self.turns.drop()
        return owed

    # When a journal that nodes share is silent (N-19).

    def _fall_silent(self) -> None:
        """Refuse new requests and end the streams: clients may reach another node."""
        log.warning("the store has not answered for a second: nobody is let in until it does")
        self._serving = False
        self.turns.cancel_timer()
        self.feed.close()

    def _serve_again(self, is_answered: bool) -> None:  # noqa: FBT001 - it has one question, and this is the answer
        """Serve again. A question that was given up tells nothing about the store, so another one follows at once."""
        if self.failed is None and not self._stopping:
            if is_answered:
                log.warning("the store answers again")
            self._serving = True
            self._set_timer()
