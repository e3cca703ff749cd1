"""Flows that go on in the background, whoever runs them: a thread or an event loop.

A flow is advanced up to where it has to wait. Where it rests, it stands in the schedule until it is due; where it asks,
it goes on with the answer.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

from holdfast.client import clock
from holdfast.client.common.immediate import perform_immediate
from holdfast.client.common.schedule import Entry
from holdfast.client.flows.effects import Effect, Flow, Rest, Send

SLICE_MS = 1_000
"""The longest nap: a timer stands still while the machine sleeps, so the clock is looked at again and again."""

log = logging.getLogger("holdfast.client")


class BackgroundFlow:
    """A flow that goes on in the background, and what it waits for."""

    __slots__ = ("_owner", "entry", "flow", "send", "stopped")

    def __init__(self, flow: Flow[None], send: Callable[[Send], Any], owner: object = None) -> None:
        self.flow = flow
        self.send = send
        self.entry: Entry[BackgroundFlow] | None = None
        self.stopped = False
        self._owner = None if owner is None else ref(owner)

    @property
    def is_over(self) -> bool:
        """Whether it was dropped, or nobody has its owner: an interrupt may have come before that reached anybody."""
        return self.stopped or (self._owner is not None and self._owner() is None)


class Background(ABC):
    """Advances each flow up to where it has to wait. How to wait is known to the thread and to the event loop."""

    def add(
        self, flow: Flow[None], send: Callable[[Send], Any], owner: object = None, *, begins_ms: int | None = None
    ) -> BackgroundFlow:
        """Keep a flow going until it ends or is dropped, or nobody has its owner any more.

        It begins now, or at a moment of the clock that counts on while the machine sleeps.
        """
        running = BackgroundFlow(flow, send, owner)
        if begins_ms is None:
            self._advance(running, partial(flow.send, None))
        else:
            self._rest(running, begins_ms)
        return running

    @abstractmethod
    def drop(self, running: BackgroundFlow) -> None:
        """Stop a flow: it is not resumed any more, and nobody waits for the answer to what it has asked."""

    @abstractmethod
    def _rest(self, running: BackgroundFlow, due_ms: int) -> None:
        """Resume it at that moment."""

    @abstractmethod
    def _ask(self, running: BackgroundFlow, request: Send) -> None:
        """Resume it with the answer to a request."""

    def _advance(self, running: BackgroundFlow, step: Callable[[], Effect]) -> None:
        """Go on with a flow. Only one at a time has it."""
        try:
            while not running.is_over:
                effect = step()
                match effect:
                    case Rest(seconds=seconds):
                        self._rest(running, clock.boot_ms() + max(0, round(seconds * 1_000)))
                        return
                    case Send():
                        self._ask(running, effect)
                        return
                    case _:
                        step = partial(running.flow.send, perform_immediate(effect))
            running.flow.close()
        except StopIteration:
            return
        except Exception:
            # The others must go on all the same; the deadline of this one is watched by another flow.
            log.exception("a bug while renewing; the claim ends when its time is over")
