"""A clock that a test moves by hand: ten minutes of a program's life take no time at all."""

from __future__ import annotations


class ManualClock:
    """Stands still until it is moved. Fits wherever the engine takes a clock."""

    def __init__(self, *, monotonic_ms: int = 0, wall_ms: int = 1_750_000_000_000) -> None:
        self._monotonic_ms = monotonic_ms
        self._wall_ms = wall_ms

    def monotonic_seconds(self) -> float:
        """Return the seconds on the monotonic clock."""
        return self._monotonic_ms / 1000

    def monotonic_ms(self) -> int:
        """Return the milliseconds on the monotonic clock."""
        return self._monotonic_ms

    def wall_ms(self) -> int:
        """Return milliseconds since 1970."""
        return self._wall_ms

    def advance(self, ms: int) -> None:
        """Let time pass, on both clocks. Raises `ValueError` for time that would run backwards."""
        if ms < 0:
            raise ValueError(f"time only passes: {ms} ms cannot; step_wall moves the wall clock back")
        self._monotonic_ms += ms
        self._wall_ms += ms

    def step_wall(self, ms: int) -> None:
        """Set the wall clock on or back, as an operator or a time server would. No time passes."""
        self._wall_ms += ms
