"""Drives a flow in a thread: performs each effect it yields, and blocks where one has to wait."""

from __future__ import annotations

import time
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, TypeVar

from holdfast.client.common.immediate import IMMEDIATE
from holdfast.client.flows.effects import Close, Effect, Flow, Open, Read, Rest, Send
from holdfast.client.threads.transport import Transport

T = TypeVar("T")


def drive(flow: Flow[T], transport: Transport) -> T:
    """Perform what a flow yields until it returns. What goes wrong, an interrupt too, is the flow's to clean up.

    An error that the flow is told is taken out as it is told. One in a variable of this frame would be a circle, since
    its traceback has the frame: all that the callers have, claims too, would live until the garbage collector comes.
    """
    result: Any = None
    thrown: list[BaseException] = []
    while True:
        try:
            while True:  # In here, because an interrupt may come wherever a loop turns round.
                effect = flow.throw(thrown.pop()) if thrown else flow.send(result)
                kind = type(effect)
                if kind is Send:
                    result = transport.send(effect)  # type: ignore[arg-type]
                elif kind in IMMEDIATE:
                    result = IMMEDIATE[kind]()
                else:
                    result = _perform(effect, transport)
        except StopIteration as returned:
            returns: T = returned.value
            return returns
        except BaseException as error:
            # What the flow itself raised has ended it; all else has to be told to it.
            if getgeneratorstate(flow) == GEN_CLOSED:
                raise
            thrown.append(error)


def _perform(effect: Effect, transport: Transport) -> Any:  # noqa: ANN401 - each effect has a result of its own
    match effect:
        case Rest(seconds=seconds):
            return time.sleep(seconds)
        case Open():
            return transport.stream(effect)
        case Read(stream=stream):
            return stream.read()
        case Close(stream=stream):
            return stream.close()
        case _:
            raise TypeError(f"{type(effect).__name__} is no effect that a thread waits for")
