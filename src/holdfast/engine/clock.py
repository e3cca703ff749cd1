"""Time: the machine's clocks, authority time (T1, T2), and the ticks in which commands are decided.

Only this module reads a clock on the server.

    an iteration of the event loop
    ├── tick ──┼── tick ──┼── tick ──┤  the writer takes the batch
    0          1          2        2.4 ms

**A tick ends with the millisecond in which it began.** An iteration does not bound its age: under load uvloop polls the
sockets again within one iteration, and with a thousand busy connections a request can arrive 80 ms after the iteration
began. Its lease would end before its client stops trusting it (T1a, I4). So every decision first checks whether the
tick is over, at the cost of one clock call and a comparison. Times are whole milliseconds, rounded down: a decision is
less than a millisecond older than the truth, which the client's margin covers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from holdfast.core.values import Instant
from holdfast.engine.metrics import EngineMetrics

TICK_MS = 1
TICK_MS_MAX = 250  # how far one tick moves authority time at most: bounds how much can be due in one
TIMER_MS = 100  # Authority time moves as often while anything has a deadline: well within a tick's 250 ms.
UNRECORDED_MS_MAX = 5_000  # how long authority time may pass without a record: what a crash can give back (T2)
BUDGET_MS = 50  # A longer iteration is logged: no other request is served meanwhile.
_BUDGET_SECONDS = (BUDGET_MS - 1) / 1000
LOG_EVERY_MS = 10_000

log = logging.getLogger("holdfast.engine")


class Clock(Protocol):
    def monotonic_seconds(self) -> float: ...

    def monotonic_ms(self) -> int: ...

    def wall_ms(self) -> int: ...  # since 1970: for people, and for the expiry of access tokens


class SystemClock:
    monotonic_seconds = staticmethod(time.monotonic)  # without a wrapper: each request calls it several times

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class AuthorityTime:
    """Authority time: resumes where the journal stopped and follows the monotonic clock.

    It may run slow and never fast: a tick moves it by what really passed, at most 250 ms. So nothing ends early because
    a process was stopped, a machine suspended or a server down.
    """

    def __init__(self, read_ms: int, resumed_ms: int) -> None:
        self._last_ms = read_ms
        self.now_ms = resumed_ms

    def advance(self, read_ms: int) -> int:
        passed_ms = read_ms - self._last_ms
        if passed_ms > 0:
            self._last_ms = read_ms
            self.now_ms += min(passed_ms, TICK_MS_MAX)
        return self.now_ms


class Ticks:
    """The ticks of one engine, and the timer that lets time pass without requests."""

    def __init__(self, clock: Clock, on_timer: Callable[[], None], metrics: EngineMetrics | None = None) -> None:
        self.read_seconds = clock.monotonic_seconds
        self.now = Instant(0, 0)  # the time of the tick, while `read_seconds() < over_seconds`
        self.over_seconds = 0.0  # when the tick is over; 0 if none has begun
        self.began_ms = 0
        self.expiry_ms = 0
        self.iteration_began_ms: int | None = None
        self.iteration_began_seconds = 0.0
        self.pending_since_seconds = 0.0  # when the first iteration with answers still pending began; 0 for none
        self.timer: asyncio.TimerHandle | None = None
        self._clock = clock
        self._on_timer = on_timer
        self._time = AuthorityTime(clock.monotonic_ms(), 0)
        self._durations = (metrics or EngineMetrics()).ticks
        self._logs_from_ms = 0
        self._unlogged = 0

    @property
    def now_ms(self) -> int:
        return self._time.now_ms

    def resume(self, now_ms: int) -> None:
        self._time = AuthorityTime(self._clock.monotonic_ms(), now_ms)

    def begin(self) -> Instant:
        read_ms = self._clock.monotonic_ms()
        self.began_ms = read_ms
        # Exact: both are the floats nearest to what they represent, so they compare as the real numbers do.
        self.over_seconds = (read_ms + TICK_MS) / 1000
        if self.iteration_began_ms is None:
            self.iteration_began_ms = read_ms
            self.iteration_began_seconds = began_seconds = self.read_seconds()
            self.pending_since_seconds = self.pending_since_seconds or began_seconds
        self.now = Instant(self._time.advance(read_ms), self._clock.wall_ms())
        return self.now

    def add_expiry_time(self) -> None:
        self.expiry_ms += self._clock.monotonic_ms() - self.began_ms

    def end_iteration(self, records: int, answers: int) -> None:
        if (began_ms := self.iteration_began_ms) is not None:
            took_seconds = self.read_seconds() - self.iteration_began_seconds
            self._durations.note(took_seconds)
            if took_seconds > _BUDGET_SECONDS and (now_ms := self._clock.monotonic_ms()) > began_ms + BUDGET_MS:
                self._log_slow(now_ms, now_ms - began_ms, records, answers)
        self.over_seconds, self.iteration_began_ms = 0.0, None

    def _log_slow(self, now_ms: int, took_ms: int, records: int, answers: int) -> None:
        if now_ms < self._logs_from_ms:
            self._unlogged += 1
            return
        log.warning(
            "slow turn: %d ms (budget %d ms), %d records, %d answers; %d slow turns not logged before it",
            took_ms,
            BUDGET_MS,
            records,
            answers,
            self._unlogged,
        )
        self._unlogged, self._logs_from_ms = 0, now_ms + LOG_EVERY_MS

    def take_pending_since(self) -> float:
        since_seconds, self.pending_since_seconds = self.pending_since_seconds, 0.0
        return since_seconds

    def drop(self) -> None:
        self.over_seconds, self.iteration_began_ms, self.pending_since_seconds = 0.0, None, 0.0

    def set_timer(self, deadline_ms: int | None) -> None:
        self.cancel_timer()
        wait_ms = TIMER_MS if deadline_ms is None else min(TIMER_MS, max(1, deadline_ms - self._time.now_ms))
        self.timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._fire)

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _fire(self) -> None:
        self.timer = None
        self._on_timer()
