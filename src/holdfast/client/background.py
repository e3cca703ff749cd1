"""Background work for what is held: renewal, deadline, and notification of its end.

    claimed ──► nothing for a moment: a claim released by then costs only an entry in a heap
                  │ half a second, or less if a renewal is due earlier
                  ▼
                watch_deadline     waits for time only
                keep_renewed       separate: a hanging renewal must not hide the deadline
                LossStream.watch   the server reports its end immediately (L9)

`RenewalHandle` starts this for one claim or session, and it runs only while something refers to that. So a claim that
was dropped, or that an interrupt kept from its caller, is not renewed. `Background` advances the flows up to where they
wait; `sync` and `aio` implement waiting, in a thread and on an event loop.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any
from weakref import ref

from holdfast.client import clock
from holdfast.client.deadline import LeaseDeadline
from holdfast.client.effects import IMMEDIATE, Effect, Flow, Send, Sleep
from holdfast.client.lease_flows import RENEWAL_DELAY_MS, Renewal, keep_renewed, watch_deadline
from holdfast.client.loss_stream import LossStream

SLICE_MS = 1_000  # The longest sleep: timers stop while the machine sleeps, so the clock is polled.
_BUG = "a bug while renewing; the claim ends when its time is over"

log = logging.getLogger("holdfast.client")


class ScheduledFlow:
    """A flow to resume later, or a call of the owner's `start`. Dropping the owner, a weak reference, stops it."""

    __slots__ = ("_owner", "flow", "send", "stopped")

    def __init__(
        self, owner: object, flow: Flow[None] | None = None, send: Callable[[Send], Any] | None = None
    ) -> None:
        self.stopped = False  # Set to stop it: it is not resumed, and an answer to its request is ignored.
        self.flow: Any = flow
        self.send: Any = send
        self._owner = None if owner is None else ref(owner)

    @property
    def is_over(self) -> bool:
        """Whether it was stopped or its owner is dead: an interrupt may have kept that from its caller."""
        return self.stopped or (self._owner is not None and self._owner() is None)

    def start(self) -> None:
        owner: Any = None if self._owner is None else self._owner()
        if owner is not None:
            owner.start()


class Schedule:
    """A heap of scheduled flows by due time. Stopped ones are removed lazily: when they are due, or once a second."""

    def __init__(self) -> None:
        # Two leading integers, so that comparisons run no Python code, in which a garbage collection or a signal
        # handler could change the heap.
        self._heap: list[tuple[int, int, ScheduledFlow]] = []
        self._numbers = count()
        self._cleans_ms = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due_ms: int, scheduled: ScheduledFlow) -> None:
        heappush(self._heap, (due_ms, next(self._numbers), scheduled))

    def take(self, now_ms: int) -> list[ScheduledFlow]:
        if now_ms >= self._cleans_ms:
            self._cleans_ms = now_ms + SLICE_MS
            self._heap = [each for each in self._heap if not each[2].stopped]
            heapify(self._heap)
        taken: list[ScheduledFlow] = []
        while self._heap and (self._heap[0][0] <= now_ms or self._heap[0][2].stopped):
            scheduled = heappop(self._heap)[2]
            if not scheduled.stopped:
                taken.append(scheduled)
        return taken

    def clear(self) -> list[ScheduledFlow]:
        taken, self._heap = [each[2] for each in self._heap], []
        return taken

    def next_due_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None


class Background(ABC):
    """Advances each flow up to where it waits."""

    def add(self, flow: Flow[None], send: Callable[[Send], Any], owner: object = None) -> ScheduledFlow:
        """Run a flow until it ends or is stopped, or its owner is dead."""
        scheduled = ScheduledFlow(owner, flow, send)
        self._advance(scheduled, partial(flow.send, None))
        return scheduled

    def start_at(self, starts_ms: int, owner: object) -> ScheduledFlow:
        """Call `owner.start()` at a time of the boot clock."""
        scheduled = ScheduledFlow(owner)
        self._resume_at(scheduled, starts_ms)
        return scheduled

    @abstractmethod
    def _resume_at(self, scheduled: ScheduledFlow, due_ms: int) -> None:
        """Resume it at that time of the boot clock."""

    @abstractmethod
    def _ask(self, scheduled: ScheduledFlow, request: Send) -> None:
        """Resume it with the answer to a request."""

    def _resume(self, scheduled: ScheduledFlow) -> None:
        if scheduled.flow is not None:
            self._advance(scheduled, partial(scheduled.flow.send, None))
        elif not scheduled.is_over:
            try:
                scheduled.start()
            except Exception:
                log.exception(_BUG)  # The others must continue.

    def _advance(self, scheduled: ScheduledFlow, step: Callable[[], Effect]) -> None:
        """Advance a flow. Only one thread at a time does so."""
        try:
            while not scheduled.is_over:
                effect = step()
                match effect:
                    case Sleep(seconds=seconds):
                        self._resume_at(scheduled, clock.boot_ms() + max(0, round(seconds * 1_000)))
                        return
                    case Send():
                        self._ask(scheduled, effect)
                        return
                    case _:
                        step = partial(scheduled.flow.send, IMMEDIATE[type(effect)]())
            scheduled.flow.close()
        except StopIteration:
            return
        except Exception:
            log.exception(_BUG)  # The others must continue; another flow watches the deadline of this one.


class RenewalHandle:
    """The background work for one deadline, until that ends or nothing refers to this object."""

    __slots__ = ("__weakref__", "_background", "_deadline", "_flows", "_loss_stream", "_renewal", "_send", "stopped")

    def __init__(
        self,
        background: Background,
        deadline: LeaseDeadline,
        renewal: Renewal,
        *,
        send: Callable[[Send], Any],
        loss_stream: LossStream,
    ) -> None:
        self.stopped = False
        self._background = background
        self._deadline = deadline
        self._renewal = renewal
        self._send = send
        self._loss_stream = loss_stream
        self._flows: list[ScheduledFlow] = []
        # Last: if the answer took long, the time is past, and another thread may call `start` immediately.
        self._flows.append(background.start_at(deadline.renewal_starts_ms(RENEWAL_DELAY_MS), self))

    def start(self) -> None:
        """Start watching the deadline and renewing. Called in the background; does not block."""
        if self._deadline.ended:
            return
        renewal = self._renewal
        renewing = keep_renewed(self._deadline, renewal.request, self._loss_stream.policy, renewal.ended_check)
        for flow in (watch_deadline(self._deadline), renewing):
            scheduled = self._background.add(flow, self._send, self)
            self._flows.append(scheduled)
            if self.stopped:
                scheduled.stopped = True  # Checked after the append: a later `stop` sees this flow.
        self._loss_stream.watch(self._deadline, self._renewal)

    def stop(self) -> None:
        """Stop all of it; idempotent. Safe in any thread, and in the garbage collector."""
        self.stopped = True
        for each in self._flows:
            each.stopped = True
