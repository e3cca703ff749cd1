"""Wall times for people, as RFC 3339. Formatted once and kept for a while."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache

CACHED_MAX = 2_048  # The texts of a second or two. Dropping them all takes well under a millisecond.


class _Texts(dict[int, str]):
    def __missing__(self, wall_ms: int) -> str:
        if len(self) >= CACHED_MAX:
            self.clear()
        seconds, ms = divmod(wall_ms, 1000)
        text = self[wall_ms] = f"{_second(seconds)}.{ms:03d}Z"
        return text


@lru_cache(maxsize=1_024)
def _second(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        # A wall clock that is out of its mind must not take the service down: it decides nothing.
        return "9999-12-31T23:59:59" if seconds > 0 else "0001-01-01T00:00:00"


rfc3339: Callable[[int], str] = _Texts().__getitem__  # Of milliseconds, in UTC. Two are in each reply: no wrapper.
