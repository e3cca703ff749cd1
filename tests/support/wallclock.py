"""The wall clock of a server, set by a test. See `wallshift`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.support import wallshift


class WallClock:
    """The wall clock of a server, to be set by a test."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.offset_seconds = 0.0
        self.step(0)

    @property
    def wrapper(self) -> list[str]:
        """What to put before the server's command. `-P`: the script's folder has an `http.py` that is not Python's."""
        return [sys.executable, "-P", wallshift.__file__, str(self._file)]

    def step(self, seconds: float) -> None:
        """Set it forward, or back."""
        self.offset_seconds += seconds
        written = self._file.with_suffix(".new")
        written.write_text(str(self.offset_seconds), encoding="ascii")
        # The server may read it at this moment: it finds the old one, or the new one.
        written.replace(self._file)

    def set(self, offset_seconds: float) -> None:
        """Let it be so far from the real one."""
        self.step(offset_seconds - self.offset_seconds)

    def now(self) -> datetime:
        """What it shows."""
        return datetime.now(UTC) + timedelta(seconds=self.offset_seconds)
