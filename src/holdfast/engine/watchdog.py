"""A thread that watches the disk: a commit that hangs blocks the loop, so somebody else must say so and end the server.

Ending is safe: nothing of the hanging batch was answered, and recovery tells what became of it. Going on is not:
clients would wait, time out and retry against a server that cannot answer.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.clock import Clock

EXIT_DISK_HANGS = 75
LOOK_EVERY_SECONDS = 0.25

log = logging.getLogger("holdfast.engine")


class Watchdog:
    """Reports a commit that takes long and ends the process when one takes too long."""

    def __init__(self, clock: Clock, *, warn_ms: int = 1_000, end_ms: int = 30_000) -> None:
        """Prepare; `start` makes the thread."""
        self._clock = clock
        self._warn_ms = warn_ms
        self._end_ms = end_ms
        self._since_ms: int | None = None
        """When the commit began that is on its way. The two below name a commit by this."""
        self._warned_of: int | None = None
        self._overdue: int | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._stopped.clear()
        self._thread = threading.Thread(target=self._watch, name="holdfast-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def enter(self) -> None:
        """Say that a commit begins."""
        self._since_ms = self._clock.monotonic_ms()

    def leave(self) -> None:
        """Say that it is over."""
        self._since_ms = None

    def _watch(self) -> None:
        while not self._stopped.wait(LOOK_EVERY_SECONDS):
            self.look()

    def look(self) -> None:
        """Look once. A pause of the whole process looks like a hanging disk, so two looks must agree before it ends."""
        since_ms = self._since_ms
        if since_ms is None:
            return
        passed_ms = self._clock.monotonic_ms() - since_ms
        if passed_ms >= self._warn_ms and self._warned_of != since_ms:
            self._warned_of = since_ms
            log.warning("a commit has taken %d ms: the disk is slow or hangs", passed_ms)
        if passed_ms < self._end_ms:
            return
        if self._overdue != since_ms:
            self._overdue = since_ms
            return
        log.critical("a commit has hung for %d ms: ending the process; a restart tells what is durable", passed_ms)
        os._exit(EXIT_DISK_HANGS)
