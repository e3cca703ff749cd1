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

_BUG = "a bug while renewing; the claim ends when its time is over"

log = logging.getLogger("holdfast.client")


class Resting:
    """What the background resumes at a moment, if that is still wanted."""

    __slots__ = ("_owner", "entry", "stopped")

    def __init__(self, owner: object) -> None:
        self.entry: Entry[Resting] | None = None
        self.stopped = False
        self._owner = None if owner is None else ref(owner)

    @property
    def is_over(self) -> bool:
        """Whether it was dropped, or nobody has its owner: an interrupt may have come before that reached anybody."""
        return self.stopped or (self._owner is not None and self._owner() is None)


class BackgroundFlow(Resting):
    """A flow that goes on in the background, and what it waits for."""

    __slots__ = ("flow", "send")

    def __init__(self, flow: Flow[None], send: Callable[[Send], Any], owner: object = None) -> None:
        super().__init__(owner)
        self.flow = flow
        self.send = send


class Beginner(ABC):
    """Something that begins after a while, if anybody has it then."""

    __slots__ = ()

    @abstractmethod
    def begin(self) -> None:
        """Begin. Called in the background; it waits for nothing."""


class _Beginning(Resting):
    """Keeps nothing of what begins later: whoever drops that has dropped all of it."""

    __slots__ = ()

    def begin(self) -> None:
        beginner = None if self._owner is None else self._owner()
        if isinstance(beginner, Beginner):
            beginner.begin()


class Background(ABC):
    """Advances each flow up to where it has to wait. How to wait is known to the thread and to the event loop."""

    def add(self, flow: Flow[None], send: Callable[[Send], Any], owner: object = None) -> BackgroundFlow:
        """Keep a flow going until it ends or is dropped, or nobody has its owner any more."""
        running = BackgroundFlow(flow, send, owner)
        self._advance(running, partial(flow.send, None))
        return running

    def begin_at(self, begins_ms: int, beginner: Beginner) -> Resting:
        """Let something begin at a moment of the clock that counts on while the machine sleeps."""
        beginning = _Beginning(beginner)
        self._rest(beginning, begins_ms)
        return beginning

    @abstractmethod
    def drop(self, resting: Resting) -> None:
        """Stop it: it is not resumed any more, and nobody waits for the answer to what a flow has asked."""

    @abstractmethod
    def _rest(self, resting: Resting, due_ms: int) -> None:
        """Resume it at that moment."""

    @abstractmethod
    def _ask(self, running: BackgroundFlow, request: Send) -> None:
        """Resume it with the answer to a request."""

    def _resume(self, resting: Resting) -> None:
        """Go on with what has rested."""
        if isinstance(resting, BackgroundFlow):
            self._advance(resting, partial(resting.flow.send, None))
        elif isinstance(resting, _Beginning) and not resting.is_over:
            try:
                resting.begin()
            except Exception:
                log.exception(_BUG)  # The others must go on all the same.

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
            log.exception(_BUG)
