"""Drives a flow in a coroutine: performs each effect it yields, and awaits where one has to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from holdfast.client.common.immediate import perform_immediate
from holdfast.client.coroutines.transport import AsyncTransport
from holdfast.client.flows.effects import Close, Effect, Flow, Open, Read, Rest, Send

T = TypeVar("T")
WAITS = (Send, Rest, Open, Read, Close)


async def drive(flow: Flow[T], transport: AsyncTransport, step: Callable[[Any], Effect], next_sent: list[Any]) -> T:
    """Perform what a flow yields until it returns. What goes wrong is the flow's to clean up.

    `next_sent` has what the flow is sent next. It is taken out as it is sent: an error in a variable of this frame
    would be a circle, and all that the callers have would live until the garbage collector comes.

    A cancelled flow is finished by a task of its own: what it cleans up is cleaned up however often it is cancelled.
    """
    try:
        while True:
            effect = step(next_sent.pop())
            try:
                waits = isinstance(effect, WAITS)
                next_sent.append(await _perform(effect, transport) if waits else perform_immediate(effect))
                step = flow.send
            except asyncio.CancelledError as error:
                return await shielded(drive(flow, transport, flow.throw, [error]), transport)
            except BaseException as error:  # noqa: BLE001 - it is thrown on, into the flow
                step, next_sent[:] = flow.throw, [error]
    except StopIteration as returned:
        result: T = returned.value
        return result


async def shielded(work: Coroutine[Any, Any, T], transport: AsyncTransport) -> T:
    """Do something to its end, even if we are cancelled meanwhile; the way to the server stays open for so long."""
    task = asyncio.get_running_loop().create_task(work)
    transport.finishing.add(task)
    task.add_done_callback(transport.finishing.discard)
    task.add_done_callback(_seen)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
    finally:
        del task  # It has the error that is raised here: a circle.


def _seen(task: asyncio.Task[Any]) -> None:
    """Look at how it ended: where the caller was cancelled, nobody else does."""
    if not task.cancelled():
        task.exception()


async def _perform(effect: Effect, transport: AsyncTransport) -> Any:  # noqa: ANN401 - each has a result of its own
    match effect:
        case Send():
            return await transport.send(effect)
        case Rest(seconds=seconds):
            return await asyncio.sleep(seconds)
        case Open():
            return await transport.stream(effect)
        case Read(stream=stream):
            return await stream.read()
        case Close(stream=stream):
            return stream.close()
        case _:
            raise TypeError(f"{type(effect).__name__} needs no waiting")
