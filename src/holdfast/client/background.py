"""Background work for what is held: renewal, deadline, and notification of its end.

    claimed ──► nothing for a moment: a claim released by then costs only an entry in a heap
                  │ half a second, or less if a renewal is due earlier
                  ▼
                watch_deadline     waits for time only
                keep_renewed       separate: a hanging renewal must not hide the deadline
                Ends.attend        the server reports its end immediately (L9)

`Kept` starts this for one claim or session, and it runs only while something refers to that. So a claim that was
dropped, or that an interrupt kept from its caller, is not renewed. `Background` advances the flows up to where they
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
from holdfast.client.operations.effects import IMMEDIATE, Effect, Flow, Send, Sleep
from holdfast.client.operations.leases import MOMENT_MS, Renewal, keep_renewed, watch_deadline
from holdfast.client.operations.loss_stream import Ends

SLICE_MS = 1_000  # The longest sleep: timers stop while the machine sleeps, so the clock is polled.
_BUG = "a bug while renewing; the claim ends when its time is over"

log = logging.getLogger("holdfast.client")


class Resting:
    """A flow to resume later, or a call of the owner's `begin`. Dropping the owner, a weak reference, stops it."""

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

    def begin(self) -> None:
        kept: Any = None if self._owner is None else self._owner()
        if kept is not None:
            kept.begin()


class Schedule:
    """A heap of resting flows by due time. Stopped ones are removed lazily: when they are due, or once a second."""

    def __init__(self) -> None:
        # Two leading integers, so that comparisons run no Python code, in which a garbage collection or a signal
        # handler could change the heap.
        self._heap: list[tuple[int, int, Resting]] = []
        self._numbers = count()
        self._cleans_ms = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due_ms: int, resting: Resting) -> None:
        heappush(self._heap, (due_ms, next(self._numbers), resting))

    def take(self, now_ms: int) -> list[Resting]:
        if now_ms >= self._cleans_ms:
            self._cleans_ms = now_ms + SLICE_MS
            self._heap = [each for each in self._heap if not each[2].stopped]
            heapify(self._heap)
        taken: list[Resting] = []
        while self._heap and (self._heap[0][0] <= now_ms or self._heap[0][2].stopped):
            resting = heappop(self._heap)[2]
            if not resting.stopped:
                taken.append(resting)
        return taken

    def clear(self) -> list[Resting]:
        taken, self._heap = [each[2] for each in self._heap], []
        return taken

    def next_due_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None


class Background(ABC):
    """Advances each flow up to where it waits."""

    def add(self, flow: Flow[None], send: Callable[[Send], Any], owner: object = None) -> Resting:
        """Run a flow until it ends or is stopped, or its owner is dead."""
        running = Resting(owner, flow, send)
        self._advance(running, partial(flow.send, None))
        return running

    def begin_at(self, begins_ms: int, kept: object) -> Resting:
        """Call `kept.begin()` at a time of the boot clock."""
        beginning = Resting(kept)
        self._rest(beginning, begins_ms)
        return beginning

    @abstractmethod
    def _rest(self, resting: Resting, due_ms: int) -> None:
        """Resume it at that time of the boot clock."""

    @abstractmethod
    def _ask(self, running: Resting, request: Send) -> None:
        """Resume it with the answer to a request."""

    def _resume(self, resting: Resting) -> None:
        if resting.flow is not None:
            self._advance(resting, partial(resting.flow.send, None))
        elif not resting.is_over:
            try:
                resting.begin()
            except Exception:
                log.exception(_BUG)  # The others must continue.

    def _advance(self, running: Resting, step: Callable[[], Effect]) -> None:
        """Advance a flow. Only one thread at a time does so."""
        try:
            while not running.is_over:
                effect = step()
                match effect:
                    case Sleep(seconds=seconds):
                        self._rest(running, clock.boot_ms() + max(0, round(seconds * 1_000)))
                        return
                    case Send():
                        self._ask(running, effect)
                        return
                    case _:
                        step = partial(running.flow.send, IMMEDIATE[type(effect)]())
            running.flow.close()
        except StopIteration:
            return
        except Exception:
            log.exception(_BUG)  # The others must continue; another flow watches the deadline of this one.


class Kept:
    """The background work for one term, until that ends or nothing refers to this object."""

    __slots__ = ("__weakref__", "_background", "_deadline", "_ends", "_going_on", "_renewal", "_send", "stopped")

    def __init__(
        self,
        background: Background,
        deadline: LeaseDeadline,
        renewal: Renewal,
        *,
        send: Callable[[Send], Any],
        ends: Ends,
    ) -> None:
        self.stopped = False
        self._background = background
        self._deadline = deadline
        self._renewal = renewal
        self._send = send
        self._ends = ends
        self._going_on: list[Resting] = []
        # Last: if the answer took long, the time is past, and another thread may call `begin` immediately.
        self._going_on.append(background.begin_at(deadline.renewal_starts_ms(MOMENT_MS), self))

    def begin(self) -> None:
        """Start watching and renewing the term. Called in the background; does not block."""
        if self._deadline.ended:
            return
        renewal = self._renewal
        renewing = keep_renewed(self._deadline, renewal.request, self._ends.policy, renewal.look)
        for flow in (watch_deadline(self._deadline), renewing):
            running = self._background.add(flow, self._send, self)
            self._going_on.append(running)
            if self.stopped:
                running.stopped = True  # Checked after the append: a later `stop` sees this flow.
        self._ends.attend(self._deadline, self._renewal)

    def stop(self) -> None:
        """Stop all of it; idempotent. Safe in any thread, and in the garbage collector."""
        self.stopped = True
        for each in self._going_on:
            each.stopped = True
