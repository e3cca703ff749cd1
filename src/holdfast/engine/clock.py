"""Time. The one place in the program that reads a clock, and the authority time kept from it (T1, T2).

Authority time may run slow and never fast: a turn moves it by what really passed, at most 250 ms. So a
process that was stopped, a machine that was suspended or a server that was down ends nothing early.
"""

from __future__ import annotations

import time
from typing import Protocol

TURN_MS_MAX = 250
TICK_MS = 100
"""How often time moves while anything has a deadline, at least: well under a turn's 250 ms, so that it keeps pace."""
SILENCE_MS_MAX = 5_000
"""How long authority time may pass without a record: what a crash can give back (T2)."""


class Clock(Protocol):
    """What a clock can tell."""

    def monotonic_seconds(self) -> float:
        """Return seconds that only rise; they mean nothing outside this process."""
        ...

    def monotonic_ms(self) -> int:
        """Return the same in whole milliseconds, rounded down."""
        ...

    def wall_ms(self) -> int:
        """Return milliseconds since 1970, for people only: nothing is decided by them but the expiry of tokens."""
        ...


class SystemClock:
    """The machine's clocks."""

    monotonic_seconds = staticmethod(time.monotonic)
    """Python's own function, with none of ours around it: each request asks for it several times."""

    def monotonic_ms(self) -> int:
        """Read the monotonic clock."""
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        """Read the wall clock."""
        return time.time_ns() // 1_000_000


class AuthorityTime:
    """Authority time: resumes where the journal stopped and moves with the monotonic clock."""

    def __init__(self, read_ms: int, resumed_ms: int) -> None:
        """`read_ms` is what the monotonic clock shows now."""
        self._last_ms = read_ms
        self.now_ms = resumed_ms

    def advance(self, read_ms: int) -> int:
        """Move on by what passed since the last call, at most one turn's worth, and return the time."""
        passed_ms = read_ms - self._last_ms
        if passed_ms > 0:
            self._last_ms = read_ms
            self.now_ms += min(passed_ms, TURN_MS_MAX)
        return self.now_ms
