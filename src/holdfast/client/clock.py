"""The one place in the client that reads a clock."""

from __future__ import annotations

import sys
import time
from typing import NamedTuple

# The clock that also counts while the machine sleeps. On macOS that is CLOCK_MONOTONIC; Python's own monotonic clock
# stands still there while the machine sleeps.
_BOOT: int | None = getattr(time, "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME", None)


class Instant(NamedTuple):
    """A moment, by both clocks that only rise. Compare two of them with `elapsed_ms`."""

    monotonic_ms: int
    boot_ms: int


def now() -> Instant:
    """Return this moment."""
    monotonic = time.monotonic_ns() // 1_000_000
    boot = monotonic if _BOOT is None else time.clock_gettime_ns(_BOOT) // 1_000_000
    return tuple.__new__(Instant, (monotonic, boot))  # The class would make a call of Python of it.


def elapsed_ms(since: Instant, until: Instant) -> int:
    """Return the time between two moments by whichever clock saw more of it pass, so that no sleep goes unnoticed."""
    return max(until.monotonic_ms - since.monotonic_ms, until.boot_ms - since.boot_ms)


def wall_ms() -> int:
    """Return milliseconds since 1970, as this machine believes."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return milliseconds that only rise."""
    return time.monotonic_ns() // 1_000_000


def boot_ms() -> int:
    """Return milliseconds that only rise and count on while the machine sleeps, where there is such a clock."""
    return monotonic_ms() if _BOOT is None else time.clock_gettime_ns(_BOOT) // 1_000_000
