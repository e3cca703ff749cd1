"""Renews what coroutines have claimed: on their own event loop, with one timer for all of them."""

from __future__ import annotations

import asyncio
import sys
from functools import partial

from holdfast.client import clock
from holdfast.client.common.background import SLICE_MS, Background, BackgroundFlow, Resting
from holdfast.client.common.schedule import Schedule
from holdfast.client.flows.effects import Send


class BackgroundLoop(Background):
    """The schedule of one event loop."""

    def __init__(self) -> None:
        self._schedule: Schedule[Resting] = Schedule()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._asking: set[asyncio.Task[None]] = set()

    def drop(self, resting: Resting) -> None:
        """Stop it."""
        resting.stopped = True
        if resting.entry is not None:
            self._schedule.cancel(resting.entry)
            resting.entry = None

    def close(self) -> None:
        """Stop all of them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for resting in self._schedule.take(sys.maxsize):
            resting.entry, resting.stopped = None, True
        for task in self._asking:
            task.cancel()

    def _ask(self, running: BackgroundFlow, request: Send) -> None:
        async def ask() -> None:
            try:
                step = partial(running.flow.send, await running.send(request))
            except Exception as error:  # noqa: BLE001 - the flow knows what to make of it
                step = partial(running.flow.throw, error)
            self._advance(running, step)

        task = asyncio.get_running_loop().create_task(ask())
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def _rest(self, resting: Resting, due_ms: int) -> None:
        if resting.is_over:
            return
        resting.entry = self._schedule.add(due_ms, resting)
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
        for resting in self._schedule.take(clock.boot_ms()):
            resting.entry = None
            self._resume(resting)
        due_ms = self._schedule.next_due_ms()
        if due_ms is not None:
            self._arm(due_ms)
