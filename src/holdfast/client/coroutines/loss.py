"""Hearing of a loss in a coroutine: the event that is set, the block that is cancelled, and the call of `on_lost`."""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.client import clock
from holdfast.client.values.term import Term

_telling: set[asyncio.Task[Any]] = set()


class AsyncLost(asyncio.Event):
    """Set at the loss. Asks the clock as well, so that a task which was held up sees the loss before it acts."""

    def __init__(self, terms: Sequence[Term]) -> None:
        super().__init__()
        self._terms = tuple(terms)
        tell_loss(self._terms, self.set)

    def is_set(self) -> bool:
        """Is any of it lost?"""
        now = clock.now()
        return super().is_set() or any(term.is_lost(now) for term in self._terms)


class Block:
    """The block of an `async with`: cancelled at a loss, as by a timeout."""

    def __init__(self, terms: Sequence[Term]) -> None:
        self._terms = tuple(terms)
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        self._before = 0

    def enter(self) -> None:
        """Begin."""
        self._task = asyncio.current_task()
        self._before = 0 if self._task is None else self._task.cancelling()
        tell_loss(self._terms, self._cancel)

    def leave(self, kind: type[BaseException] | None) -> bool:
        """End; True if it was our doing that the block was cancelled."""
        task, self._task = self._task, None
        if not self._cancelled or task is None:
            return False
        return task.uncancel() <= self._before and kind is asyncio.CancelledError

    def _cancel(self) -> None:
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()


def tell_loss(terms: Sequence[Term], action: Callable[[], object]) -> None:
    """Call this on the event loop at the first loss, whichever thread notices it; once."""
    loop = asyncio.get_running_loop()
    left = [action]

    def act() -> None:
        if left:
            left.pop()()

    def hear() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(act)

    for term in terms:
        term.on_loss(hear)


def teller(whom: weakref.ref[Any], on_lost: Callable[..., object]) -> Callable[[], None]:
    """Return what tells of a loss; a coroutine goes on in a task of its own."""

    def tell() -> None:
        held = whom()
        told = None if held is None else on_lost(held)
        if inspect.iscoroutine(told):
            task = asyncio.get_running_loop().create_task(told)
            _telling.add(task)
            task.add_done_callback(_telling.discard)

    return tell
