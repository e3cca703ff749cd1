"""The clock of the guard: for the keeper, which renews in time, and for the lines of the log."""

from __future__ import annotations

import time


def now() -> float:
    """Return seconds that only rise."""
    return time.monotonic()


def written() -> str:
    """Return the time as people write it, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
