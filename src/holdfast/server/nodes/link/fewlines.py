"""Lines of the log that strangers can bring about: a few in a minute, and then how many more there were."""

from __future__ import annotations

import logging

WINDOW_MS = 60_000
LINES_MAX = 20
TEXT_CHARS_MAX = 160
"""Of one line. What a stranger said is in it, and is cut before: this bounds what was overlooked."""

log = logging.getLogger("holdfast.server.nodes")


class FewLines:
    """Writes the lines, and counts what it leaves out. The count is told by the first line or look after the minute."""

    def __init__(self) -> None:
        self._window_ends_ms: int | None = None
        """None while nothing was written: a window begins with a line."""
        self._lines = self._left_out = 0

    def warn(self, text: str, now_ms: int, bug: Exception | None = None) -> None:
        """Write a line, with the way to a bug if it is one; or count it if there were enough."""
        self.look(now_ms)
        if self._window_ends_ms is None:
            self._window_ends_ms = now_ms + WINDOW_MS
        if self._lines < LINES_MAX:
            self._lines += 1
            shown = text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}..."
            log.warning("%s", shown, exc_info=bug)
        else:
            self._left_out += 1

    def look(self, now_ms: int) -> None:
        """End the minute if it is over, and tell what was left out."""
        if self._window_ends_ms is None or now_ms < self._window_ends_ms:
            return
        left_out, self._window_ends_ms = self._left_out, None
        self._lines = self._left_out = 0
        if left_out:
            log.warning("%d more connections that said that they are links were refused in the last minute", left_out)
