"""Keeps what coroutines have claimed: on their own event loop, with one timer for all of them."""

from __future__ import annotations

import asyncio
import sys
from functools import partial

from holdfast.client import clock
from holdfast.client.common.background import SLICE_MS, Keeping, Kept
from holdfast.client.common.schedule import Agenda
from holdfast.client.flows.effects import Send


class LoopKeeper(Keeping):
    """The agenda of one event loop."""

    def __init__(self) -> None:
        self._agenda: Agenda[Kept] = Agenda()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._asking: set[asyncio.Task[None]] = set()

    def drop(self, kept: Kept) -> None:
        """Let a flow be."""
        kept.stopped = True
        if kept.entry is not None:
            self._agenda.cancel(kept.entry)
            kept.entry = None

    def close(self) -> None:
        """Let all of them be."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for kept in self._agenda.take(sys.maxsize):
            kept.entry, kept.stopped = None, True
        for task in self._asking:
            task.cancel()

    def _ask(self, kept: Kept, request: Send) -> None:
        async def ask() -> None:
            try:
                step = partial(kept.flow.send, await kept.send(request))
            except Exception as error:  # noqa: BLE001 - the flow knows what to make of it
                step = partial(kept.flow.throw, error)
            self._advance(kept, step)

        task = asyncio.get_running_loop().create_task(ask())
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def _rest(self, kept: Kept, seconds: float) -> None:
        if kept.stopped:
            return
        due_ms = clock.boot_ms() + max(0, round(seconds * 1_000))
        kept.entry = self._agenda.add(due_ms, kept)
        if self._timer is None or due_ms < self._timer_ms:
            self._arm(due_ms)

    def _arm(self, due_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now_ms = clock.boot_ms()
        self._timer_ms = min(due_ms, now_ms + SLICE_MS)
        delay = max(self._timer_ms - now_ms, 0) / 1_000
        self._timer = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        self._timer = None
        for kept in self._agenda.take(clock.boot_ms()):
            kept.entry = None
            self._advance(kept, partial(kept.flow.send, None))
        due_ms = self._agenda.next_due_ms()
        if due_ms is not None:
            self._arm(due_ms)
