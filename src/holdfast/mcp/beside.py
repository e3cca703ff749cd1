"""What goes on when the call that began it is over: hosts cancel calls, and what is under way must come to its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from holdfast.errors import HoldfastError, Unreachable

AGAIN_SECONDS = 1.0

T = TypeVar("T")


class Beside:
    """The work of one process that no call has to wait for."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def do(self, work: Coroutine[object, object, T]) -> asyncio.Task[T]:
        """Begin something. Whoever waits for it shields it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_look_at)
        return task

    def give_back(self, giving_back: Awaitable[object]) -> None:
        """Give something back while nobody waits for it; what cannot be given back ends by itself."""

        async def give() -> None:
            with contextlib.suppress(HoldfastError):
                await giving_back

        self.do(give())

    def insist(self, release: Callable[[], Awaitable[object]], is_needed: Callable[[], bool]) -> None:
        """Give something back until the server has answered, for as long as it is needed."""

        async def give() -> None:
            while is_needed():
                try:
                    await release()
                except Unreachable:
                    await asyncio.sleep(AGAIN_SECONDS)
                else:
                    return

        self.give_back(give())

    @property
    def unfinished(self) -> set[asyncio.Task[Any]]:
        """What is still under way."""
        return set(self._tasks)


def _look_at(task: asyncio.Task[Any]) -> None:
    """Take note of how something ended: whoever waited for it may have been cancelled."""
    if not task.cancelled():
        task.exception()
