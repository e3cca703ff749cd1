"""The one place in the client that reads a clock."""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Return milliseconds since 1970, as this machine believes."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return milliseconds that only rise."""
    return time.monotonic_ns() // 1_000_000
