"""The client's clocks and randomness: no other module of it reads either."""

from __future__ import annotations

import os
import random
import sys
import time
from typing import NamedTuple

# The clock that counts while the machine sleeps. On macOS that is CLOCK_MONOTONIC, unlike Python's own monotonic clock.
_BOOT: int | None = getattr(time, "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME", None)


class Instant(NamedTuple):
    """An instant on both monotonic clocks. Compare two of them with `elapsed_ms`."""

    monotonic_ms: int
    boot_ms: int


def now() -> Instant:
    monotonic = time.monotonic_ns() // 1_000_000
    boot = monotonic if _BOOT is None else time.clock_gettime_ns(_BOOT) // 1_000_000
    return tuple.__new__(Instant, (monotonic, boot))  # Faster than the class, whose `__new__` is Python code.


def elapsed_ms(since: Instant, until: Instant) -> int:
    """Return the larger elapsed time of both clocks, so that no sleep goes unnoticed."""
    return max(until.monotonic_ms - since.monotonic_ms, until.boot_ms - since.boot_ms)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def boot_ms() -> int:
    """Return monotonic milliseconds that also count while the machine sleeps, if there is such a clock."""
    return monotonic_ms() if _BOOT is None else time.clock_gettime_ns(_BOOT) // 1_000_000


def new_key() -> str:
    return os.urandom(16).hex()


def random_fraction() -> float:
    """Return a random number from 0 up to 1, for jitter."""
    return random.random()  # noqa: S311 - it only spreads load
