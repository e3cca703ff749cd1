"""Turns: one time for all that is decided in one, and the timer that lets time pass although nobody asks.

    begin ──► `now`, for everything until ──► end ──► the timer is set for what comes next

A turn that took too long is told in the log (`budget`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.core.values import Moment
from holdfast.engine.budget import BUDGET_MS, Budget
from holdfast.engine.clock import TICK_MS, AuthorityTime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.core.events import Record
    from holdfast.engine.clock import Clock
    from holdfast.engine.replies import OwedAnswer


class Turns:
    """The turns of one engine. What falls due in one is the engine's to settle."""

    def __init__(self, clock: Clock, tick: Callable[[], None]) -> None:
        """`tick` is called when the timer rings."""
        self.now: Moment | None = None
        """The time of the turn that has begun; None between two turns."""
        self.began_ms = 0
        """When the last turn began, by the monotonic clock."""
        self._clock = clock
        self._tick = tick
        self._time = AuthorityTime(clock, 0)
        self._budget = Budget(clock)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def now_ms(self) -> int:
        """Authority time, as of the last turn."""
        return self._time.now_ms

    @property
    def has_timer(self) -> bool:
        """Whether time passes by itself."""
        return self._timer is not None

    def resume(self, now_ms: int) -> None:
        """Let time go on from where the journal stopped."""
        self._time = AuthorityTime(self._clock, now_ms)

    def begin(self) -> Moment:
        """Stamp a turn."""
        self.began_ms = self._clock.monotonic_ms()
        self.now = Moment(self._time.advance(), self._clock.wall_ms())
        return self.now

    def end(self, batch: Sequence[Record], answers: Sequence[OwedAnswer]) -> None:
        """What comes next is decided at a later time. `batch` and `answers` are what the turn left behind."""
        if self._clock.monotonic_ms() > self.began_ms + BUDGET_MS and self.now is not None:
            self._budget.tell(self.began_ms, batch, answers)
        self.now = None

    def set_timer(self, alarm_ms: int | None) -> None:
        """Let the timer ring at a time, or at the next tick if that is sooner."""
        self.cancel_timer()
        wait_ms = TICK_MS if alarm_ms is None else min(TICK_MS, max(1, alarm_ms - self._time.now_ms))
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._ring)

    def cancel_timer(self) -> None:
        """Let it not ring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        self._tick()
