"""The requests that wait in a queue, by ticket and by deadline. Not durable: a ticket outlives its request (W2).

Only this module attaches and detaches tickets. It returns the answers to waiters, and the engine gives them with the
batch.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any, TypeAlias

import msgspec

from holdfast.core.decision import Notice
from holdfast.core.outcomes import Waiting
from holdfast.core.state import State
from holdfast.core.values import Instant
from holdfast.engine.clock import Ticks
from holdfast.journal.interface import DeposedError, JournalUnavailableError

RECONNECT_MS_MAX = 2_000  # how long a ticket stays present between two requests of a client that comes back
STALE_DEADLINES_MAX = 1_000  # deadlines of answered requests that may be kept: each keeps its request alive


class Waited(msgspec.Struct, frozen=True):
    """An outcome after a wait, and the duration of that wait, by the monotonic clock (W4)."""

    outcome: Any
    waited_ms: int
    ticket_id: str


def after_wait(outcome: object) -> tuple[object, int]:
    return (outcome.outcome, outcome.waited_ms) if isinstance(outcome, Waited) else (outcome, 0)


def replies_after_rollback(waiting: list[PendingReply], state: State, refused: object) -> list[PendingReply]:
    """Return the answers to waiters when a batch was rolled back: their tickets, or that it was refused.

    `state` was read again, so all are detached in it; a position counts those who were attached until now.
    """
    attached = [ticket_id for _, waited, _ in waiting if (ticket_id := waited.ticket_id) in state.tickets]
    for ticket_id in attached:
        state.attach(ticket_id)
    positions = {ticket_id: Waiting(ticket_id, state.position_of(ticket_id)) for ticket_id in attached}
    state.detach_all()
    return [
        (reply, Waited(positions[at], waited.waited_ms, at) if (at := waited.ticket_id) in positions else refused, now)
        for reply, waited, now in waiting
    ]


class Waiter(msgspec.Struct, eq=False):
    ticket_id: str
    reply: Reply
    received_ms: int
    deadline_ms: int
    will_retry: bool = False

    def answered(self, outcome: object, ticks: Ticks) -> PendingReply:
        # As of the tick, like the lease's own time, and rounded down: a client's deadline must never be late (I4).
        waited_ms = max(0, ticks.began_ms - self.received_ms - 1)
        return self.reply, Waited(outcome, waited_ms, self.ticket_id), ticks.now


class Waiters:
    def __init__(self) -> None:
        self._by_ticket: dict[str, Waiter] = {}
        self.deadlines: list[tuple[int, int, Waiter]] = []  # a heap; a request may have stopped waiting already
        self.reconnecting: OrderedDict[str, int] = OrderedDict()  # tickets, and until when they are present; in order
        self._number = count()

    def __len__(self) -> int:
        return len(self._by_ticket)

    def wait(self, waiter: Waiter, state: State, ticks: Ticks) -> Iterator[PendingReply]:
        """Let a request wait with its ticket; the one that waited with it before is answered (W3)."""
        before = self.put(waiter)
        state.attach(waiter.ticket_id)
        if before is not None:
            yield before.answered(Waiting(waiter.ticket_id, state.position_of(waiter.ticket_id)), ticks)

    def notify(self, notices: Iterable[Notice], state: State, ticks: Ticks) -> Iterator[PendingReply]:
        for ticket_id, outcome in notices:
            if (waiter := self.take(ticket_id)) is not None:
                yield waiter.answered(outcome, ticks)
                state.detach(ticket_id, ticks.now.ms)  # Most have no ticket any more; the others wait no more.
            elif self.reconnecting.pop(ticket_id, None) is not None:
                state.detach(ticket_id, ticks.now.ms)  # The client's next request finds the lease by its key.

    def end_waits(
        self, waiters: Iterable[Waiter], state: State, ticks: Ticks, *, for_good: bool
    ) -> Iterator[PendingReply]:
        """Answer requests that stop waiting, usually because their time is over; they keep their tickets (W2).

        A client that comes back stays present for a moment, or it would be overtaken whenever a request ends. After
        `for_good` no client can come back here.
        """
        for waiter in waiters:
            position = state.position_of(waiter.ticket_id)
            if waiter.will_retry and not for_good:
                self.reconnecting[waiter.ticket_id] = ticks.now.ms + RECONNECT_MS_MAX
            else:
                state.detach(waiter.ticket_id, ticks.now.ms)
            yield waiter.answered(Waiting(waiter.ticket_id, position), ticks)

    def put(self, waiter: Waiter) -> Waiter | None:
        before = self._by_ticket.get(waiter.ticket_id)
        self.reconnecting.pop(waiter.ticket_id, None)
        self._by_ticket[waiter.ticket_id] = waiter
        if len(self.deadlines) > 2 * len(self._by_ticket) + STALE_DEADLINES_MAX:
            self.deadlines = [entry for entry in self.deadlines if self._waits(entry[2])]
            heapq.heapify(self.deadlines)
        heapq.heappush(self.deadlines, (waiter.deadline_ms, next(self._number), waiter))
        return before

    def take(self, ticket_id: str) -> Waiter | None:
        return self._by_ticket.pop(ticket_id, None)

    def drop(self, waiter: Waiter) -> bool:
        if not self._waits(waiter):
            return False
        del self._by_ticket[waiter.ticket_id]
        return True

    def _waits(self, waiter: Waiter) -> bool:
        return self._by_ticket.get(waiter.ticket_id) is waiter

    def take_all(self) -> list[Waiter]:
        waiters = list(self._by_ticket.values())
        self._by_ticket.clear()
        self.deadlines.clear()
        self.reconnecting.clear()
        return waiters

    def next_deadline_ms(self) -> int | None:
        soonest = [next(iter(self.reconnecting.values()))] if self.reconnecting else []
        if self.deadlines:
            soonest.append(self.deadlines[0][0])
        return min(soonest, default=None)

    def detach_overdue(self, state: State, now_ms: int) -> None:
        """Mark as absent the clients that announced another request and did not send it."""
        while self.reconnecting and next(iter(self.reconnecting.values())) <= now_ms:
            ticket_id, _ = self.reconnecting.popitem(last=False)
            state.detach(ticket_id, now_ms)

    def overdue(self, now_ms: int) -> Iterator[Waiter]:
        while self.deadlines and self.deadlines[0][0] <= now_ms:
            waiter = heapq.heappop(self.deadlines)[2]
            if self.drop(waiter):
                yield waiter


log = logging.getLogger("holdfast.engine")


class Unavailable(msgspec.Struct, frozen=True):
    """The journal cannot take it: it did not happen and will not."""

    text: str


class Unknown(msgspec.Struct, frozen=True):
    """The journal may have taken it: only a retry with the same idempotency key can tell."""

    text: str


class NotLeader(msgspec.Struct, frozen=True):
    """Another node leads, or may lead: it did not happen here and will not (N-12)."""

    text: str


Reply: TypeAlias = "Callable[[Any, Instant], None]"
PendingReply: TypeAlias = "tuple[Reply, Any, Instant]"


def answer_all(answers: Iterable[PendingReply]) -> None:
    for reply, outcome, now in answers:
        try:
            reply(outcome, now)
        except Exception:
            log.exception("a reply could not be delivered")


def outcome_or_raise(outcome: Any) -> Any:  # noqa: ANN401 - It is whatever was asked for.
    """Return the outcome, or raise `JournalUnavailableError` or `DeposedError` if the journal is why there is none."""
    if isinstance(outcome, Unavailable | Unknown):
        raise JournalUnavailableError(outcome.text)
    if isinstance(outcome, NotLeader):
        raise DeposedError(outcome.text)
    return outcome


def resolve_future(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)
