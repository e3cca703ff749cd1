"""Stores that do not answer: a thread that watches the disk, and the silence of a store that nodes share.

**The disk.** A call that hangs blocks the event loop, so a thread reports it and ends the process. The journal
announces each call before and after: a commit, a slice of a snapshot, a row of the history, the watermark file. Several
may be under way, nested or in other threads; the thread looks at the oldest. Ending is safe: no answer of the hanging
batch was given, and recovery finds out what became of it.

**A shared store (N-19).** Other nodes may reach it while this one does not. When a write is unanswered for a second,
the engine refuses new requests and cuts its streams, so that clients go to another node. What was decided before keeps
waiting, since only the answer tells what became of it. Safety does not depend on this: the fence keeps an old leader
from answering.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.clock import Clock

EXIT_DISK_HANGS = 75
LOOK_EVERY_SECONDS = 0.25

log = logging.getLogger("holdfast.engine")


class Watchdog:
    """Reports calls to the disk that take long, and ends the process when one takes too long."""

    def __init__(self, clock: Clock, *, warn_ms: int = 1_000, end_ms: int = 30_000) -> None:
        self._clock = clock
        self._warn_ms = warn_ms
        self._end_ms = end_ms
        self._numbers = count(1)
        self._on_their_way: dict[int, tuple[int, str]] = {}
        """Start time and description by number, oldest first."""
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
        """Note that a call to the disk begins; return its number."""
        number = next(self._numbers)
        self._on_their_way[number] = (self._clock.monotonic_ms(), what)
        return number

    def leave(self, number: int) -> None:
        """Note that it is over."""
        self._on_their_way.pop(number, None)

    def _watch(self) -> None:
        while not self._stopped.wait(LOOK_EVERY_SECONDS):
            self.look()

    def look(self) -> None:
        """Check once. The process ends only at the second check in a row, since a pause looks like a hanging disk."""
        # Copied in one step: other threads enter and leave meanwhile.
        on_their_way = list(self._on_their_way.items())
        if not on_their_way:
            return
        number, (since_ms, what) = on_their_way[0]
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
        # Lines may be written by a thread of their own, and this is the last that anybody does here.
        for handler in logging.getLogger().handlers:
            handler.flush()
        os._exit(EXIT_DISK_HANGS)


UNANSWERED_MS_MAX = 1_000


class Silence:
    """Follows the questions to one store, one at a time."""

    def __init__(self, clock: Clock, begin: Callable[[], None], end: Callable[[bool], None]) -> None:
        """Call `begin` when a question is late, and `end` when that is over, with whether it was answered."""
        self.is_on = False
        self._clock = clock
        self._begin = begin
        self._end = end
        self._asked_ms = 0
        self._proven_ms: int | None = None
        """When the last successful question was asked."""
        self._timer: asyncio.TimerHandle | None = None

    def ask(self) -> None:
        """Note that a question is under way."""
        self._asked_ms = self._clock.monotonic_ms()
        self._timer = asyncio.get_running_loop().call_later(UNANSWERED_MS_MAX / 1000, self._be_late)

    def hear(self, *, is_proof: bool, is_answer: bool) -> None:
        """Note that it was answered or given up. `is_proof`: the seat was ours when it was asked."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if is_proof:
            self._proven_ms = self._asked_ms
        if self.is_on:
            self.is_on = False
            self._end(is_answer)

    def proven_ms_ago(self) -> int | None:
        """Return how long ago the seat was surely ours; None if it was never asked."""
        return None if self._proven_ms is None else self._clock.monotonic_ms() - self._proven_ms

    def _be_late(self) -> None:
        self._timer = None
        self.is_on = True
        self._begin()
