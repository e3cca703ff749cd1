"""Wall times for people, as RFC 3339. Formatted once and kept for a while."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache


@lru_cache(maxsize=8_192)
def rfc3339(wall_ms: int) -> str:
    """Return a wall time as text, in UTC with milliseconds. Most replies of one turn share theirs."""
    seconds, ms = divmod(wall_ms, 1000)
    return f"{_second(seconds)}.{ms:03d}Z"


@lru_cache(maxsize=1_024)
def _second(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        # A wall clock that is out of its mind must not take the service down: it decides nothing.
        return "9999-12-31T23:59:59" if seconds > 0 else "0001-01-01T00:00:00"
