"""Flows that are kept going in the background, whoever runs them: a thread or an event loop."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.client import chance, clock
from holdfast.client.common.schedule import Entry
from holdfast.client.flows.effects import Effect, Flow, NewKey, Now, Rest, Send, Share

SLICE_MS = 1_000
"""The longest nap: a timer stands still while the machine sleeps, so the clock is looked at again and again."""

log = logging.getLogger("holdfast.client")


class Kept:
    """A flow that is kept going, and what it waits for."""

    __slots__ = ("entry", "flow", "send", "stopped")

    def __init__(self, flow: Flow[None], send: Callable[[Send], Any]) -> None:
        self.flow = flow
        self.send = send
        self.entry: Entry[Kept] | None = None
        self.stopped = False


class Keeping(ABC):
    """Advances flows up to where they have to wait; how one waits is left to those who know."""

    def add(self, flow: Flow[None], send: Callable[[Send], Any]) -> Kept:
        """Keep a flow going until it ends or is dropped."""
        kept = Kept(flow, send)
        self._advance(kept, partial(flow.send, None))
        return kept

    @abstractmethod
    def drop(self, kept: Kept) -> None:
        """Let a flow be: it is not resumed any more. What it has just asked is not waited for."""

    @abstractmethod
    def _rest(self, kept: Kept, seconds: float) -> None:
        """Resume it after a while."""

    @abstractmethod
    def _ask(self, kept: Kept, request: Send) -> None:
        """Resume it with the answer to a request."""

    def _advance(self, kept: Kept, step: Callable[[], Effect]) -> None:
        """Go on with a flow. Only one at a time has it."""
        try:
            while not kept.stopped:
                effect = step()
                match effect:
                    case Rest(seconds=seconds):
                        self._rest(kept, seconds)
                        return
                    case Send():
                        self._ask(kept, effect)
                        return
                    case _:
                        step = partial(kept.flow.send, look(effect))
            kept.flow.close()
        except StopIteration:
            return
        except Exception:
            # The others must be kept all the same; the deadline of this one is watched by another flow.
            log.exception("a bug while renewing; the claim ends when its time is over")


def look(effect: Effect) -> Any:  # noqa: ANN401 - each effect has a result of its own
    """Perform an effect that needs no waiting."""
    match effect:
        case Now():
            return clock.now()
        case NewKey():
            return chance.new_key()
        case Share():
            return chance.share()
        case _:
            raise TypeError(f"{type(effect).__name__} has to be waited for")
