"""How late the loop is: a timer that rings ten times a second, and notes by how much too late it rang.

Whatever keeps the loop from serving shows here: a long turn, a slow disk, a collection of garbage, a busy machine.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.clock import Clock
    from holdfast.engine.measures import Spread

LOOK_SECONDS = 0.1


class Stalls:
    """Looks at the loop that it is started on."""

    def __init__(self, clock: Clock, lags: Spread) -> None:
        self._read_seconds = clock.monotonic_seconds
        self._lags = lags
        self._due_seconds = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._longest_seconds = 0.0

    def start(self) -> None:
        """Begin to look."""
        self._due_seconds = self._read_seconds() + LOOK_SECONDS
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._ring)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take_longest(self) -> float:
        """Return the longest lag since this was asked before."""
        longest_seconds, self._longest_seconds = self._longest_seconds, 0.0
        return longest_seconds

    def _ring(self) -> None:
        late_seconds = max(0.0, self._read_seconds() - self._due_seconds)
        self._lags.note(late_seconds)
        self._longest_seconds = max(self._longest_seconds, late_seconds)
        self.start()
