"""Drives a flow in a thread: performs each effect it yields, and blocks where one has to wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, TypeVar

from holdfast.client.common.immediate import IMMEDIATE
from holdfast.client.flows.effects import Close, Effect, Flow, Open, Read, Rest, Send
from holdfast.client.threads.transport import Transport

T = TypeVar("T")


def drive(flow: Flow[T], transport: Transport) -> T:
    """Perform what a flow yields until it returns. What goes wrong, an interrupt too, is the flow's to clean up.

    What the flow is sent next is taken out as it is sent. An error in a variable of this frame would be a circle, since
    its traceback has the frame: all that the callers have, claims too, would live until the garbage collector comes.
    """
    step: Callable[[Any], Effect] = flow.send
    next_sent: list[Any] = [None]
    while True:
        try:
            while True:  # In here, because an interrupt may come wherever a loop turns round.
                effect = step(next_sent.pop())
                act = IMMEDIATE.get(type(effect))
                next_sent.append(_perform(effect, transport) if act is None else act())
                step = flow.send
        except StopIteration as returned:
            result: T = returned.value
            return result
        except BaseException as error:
            # What the flow itself raised has ended it; all else has to be told to it.
            if getgeneratorstate(flow) == GEN_CLOSED:
                raise
            step, next_sent[:] = flow.throw, [error]


def _perform(effect: Effect, transport: Transport) -> Any:  # noqa: ANN401 - each effect has a result of its own
    match effect:
        case Send():
            return transport.send(effect)
        case Rest(seconds=seconds):
            return time.sleep(seconds)
        case Open():
            return transport.stream(effect)
        case Read(stream=stream):
            return stream.read()
        case Close(stream=stream):
            return stream.close()
        case _:
            raise TypeError(f"{type(effect).__name__} needs no waiting")
