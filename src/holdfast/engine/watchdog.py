"""A thread that reports slow calls to the disk, and ends the process when one hangs.

A call that hangs blocks the event loop. The journal announces each call before and after: a commit, a slice of a
snapshot, a row of the history, the watermark file. Several may be under way, nested or in other threads; the thread
checks the oldest. Ending is safe: no answer of the hanging batch was given, and recovery finds out what became of it.
"""

from __future__ import annotations

import logging
import os
import threading
from itertools import count

from holdfast.engine.clock import Clock

EXIT_DISK_HANGS = 75
CHECK_EVERY_SECONDS = 0.25

log = logging.getLogger("holdfast.engine")


class Watchdog:
    def __init__(self, clock: Clock, *, warn_ms: int = 1_000, end_ms: int = 30_000) -> None:
        self._clock = clock
        self._warn_ms = warn_ms
        self._end_ms = end_ms
        self._numbers = count(1)
        self._in_flight: dict[int, tuple[int, str]] = {}
        self._warned_of: int | None = None
        self._overdue: int | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._stopped.clear()
        self._thread = threading.Thread(target=self._watch, name="holdfast-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def enter(self, what: str) -> int:
        number = next(self._numbers)
        self._in_flight[number] = (self._clock.monotonic_ms(), what)
        return number

    def leave(self, number: int) -> None:
        self._in_flight.pop(number, None)

    def _watch(self) -> None:
        while not self._stopped.wait(CHECK_EVERY_SECONDS):
            self.check()

    def check(self) -> None:
        """Check once. The process ends only at the second check in a row, since a pause looks like a hanging disk."""
        # Copied in one step: other threads enter and leave meanwhile.
        in_flight = list(self._in_flight.items())
        if not in_flight:
            return
        number, (since_ms, what) = in_flight[0]
        passed_ms = self._clock.monotonic_ms() - since_ms
        if passed_ms >= self._warn_ms and self._warned_of != number:
            self._warned_of = number
            log.warning("a call to the disk has taken %d ms (%s): the disk is slow or hangs", passed_ms, what)
        if passed_ms < self._end_ms:
            return
        if self._overdue != number:
            self._overdue = number
            return
        log.critical(
            "a call to the disk has hung for %d ms (%s): ending the process; a restart tells what is durable",
            passed_ms,
            what,
        )
        # A thread may write the lines, and this is the last chance to.
        for handler in logging.getLogger().handlers:
            handler.flush()
        os._exit(EXIT_DISK_HANGS)
