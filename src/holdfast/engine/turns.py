"""Turns: one time for all that is decided in one, and the timer that lets time pass although nobody asks.

    a round of the event loop
    ├── turn ──┼── turn ──┼── turn ──┤  the writer takes what was decided
    0          1          2        2.4 ms

**A turn is over when the millisecond is over in which it began.** A round of the loop is no measure of time: uvloop
asks the sockets again within one round as long as they give much. With a thousand busy connections a request can arrive
80 ms after the round began. If it had the time of the round's beginning, its lease would end before its client stops
believing in it (T1a, I4). So every decision first asks whether the turn is over, and that must cost next to nothing:
one call of Python's own clock and a comparison.

Times are whole milliseconds, rounded down. So what is decided in a turn has the very time that it would have if each
decision read the clock: it is less than a millisecond older than the truth, and the client's margin covers that.

**A round that takes long** is told in the log, however many turns it had (`budget`): nobody else is served meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.core.values import Moment
from holdfast.engine.budget import BUDGET_MS, Budget
from holdfast.engine.clock import TICK_MS, AuthorityTime
from holdfast.engine.measures import Measures

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.core.events import Record
    from holdfast.engine.clock import Clock
    from holdfast.engine.replies import OwedAnswer

TURN_MS = 1
_LONG_SECONDS = (BUDGET_MS - 1) / 1000


class Turns:
    """The turns of one engine. What falls due in one is the engine's to settle."""

    def __init__(self, clock: Clock, tick: Callable[[], None], measures: Measures | None = None) -> None:
        """`tick` is called when the timer rings. How long the rounds take is noted in `measures`."""
        self.read_seconds = clock.monotonic_seconds
        self.now = Moment(0, 0)
        """The time of the turn, while `read_seconds() < over_seconds`."""
        self.over_seconds = 0.0
        """When the turn is over by itself; 0 if none has begun."""
        self.began_ms = 0
        """When the last turn began, by the monotonic clock."""
        self.settling_ms = 0
        """How long it took, in all turns together, to end what was due before anything was decided in them."""
        self.round_began_ms: int | None = None
        """When the first turn began of a round that is not ended yet."""
        self.round_began_seconds = 0.0
        """The same to the microsecond, for whoever measures."""
        self.owing_since_seconds = 0.0
        """When the first round began whose answers are not taken by the writer yet; 0 if there is none."""
        self.timer: asyncio.TimerHandle | None = None
        self._clock = clock
        self._tick = tick
        self._time = AuthorityTime(clock.monotonic_ms(), 0)
        self._budget = Budget(clock)
        self._spread = (measures or Measures()).turns

    @property
    def now_ms(self) -> int:
        """Authority time, as of the last turn."""
        return self._time.now_ms

    def resume(self, now_ms: int) -> None:
        """Let time go on from where the journal stopped."""
        self._time = AuthorityTime(self._clock.monotonic_ms(), now_ms)

    def begin(self) -> Moment:
        """Stamp a turn."""
        read_ms = self._clock.monotonic_ms()
        self.began_ms = read_ms
        # Exact: both are the nearest numbers to what they stand for, so neither is ever on the wrong side of the other.
        self.over_seconds = (read_ms + TURN_MS) / 1000
        if self.round_began_ms is None:
            self.round_began_ms = read_ms
            self.round_began_seconds = began_seconds = self.read_seconds()
            self.owing_since_seconds = self.owing_since_seconds or began_seconds
        self.now = Moment(self._time.advance(read_ms), self._clock.wall_ms())
        return self.now

    def settled(self) -> None:
        """Know that all that was due in the turn has ended."""
        self.settling_ms += self._clock.monotonic_ms() - self.began_ms

    def end_round(self, batch: Sequence[Record], answers: Sequence[OwedAnswer]) -> None:
        """End the round and its turn. `batch` and `answers` are what it left behind."""
        began_ms = self.round_began_ms
        if began_ms is not None:
            took_seconds = self.read_seconds() - self.round_began_seconds
            self._spread.note(took_seconds)
            if took_seconds > _LONG_SECONDS and self._clock.monotonic_ms() > began_ms + BUDGET_MS:
                self._budget.tell(began_ms, batch, answers)
        self.over_seconds, self.round_began_ms = 0.0, None

    def take_owing(self) -> float:
        """Return since when answers are owed, and know that the writer has all that were."""
        since_seconds, self.owing_since_seconds = self.owing_since_seconds, 0.0
        return since_seconds

    def drop(self) -> None:
        """End the round and its turn, and say nothing of it."""
        self.over_seconds, self.round_began_ms, self.owing_since_seconds = 0.0, None, 0.0

    # The timer.

    def set_timer(self, alarm_ms: int | None) -> None:
        """Let the timer ring at a time, or at the next tick if that is sooner."""
        self.cancel_timer()
        wait_ms = TICK_MS if alarm_ms is None else min(TICK_MS, max(1, alarm_ms - self._time.now_ms))
        self.timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._ring)

    def cancel_timer(self) -> None:
        """Let it not ring."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _ring(self) -> None:
        self.timer = None
        self._tick()
