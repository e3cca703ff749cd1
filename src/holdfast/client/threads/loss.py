"""Hearing of a loss in a thread: the event that is set, and the call of `on_lost`."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from holdfast.client import clock
from holdfast.client.holding.claim import log
from holdfast.client.threads.background import start_thread
from holdfast.client.values.term import Term


class Lost(threading.Event):
    """Set at the loss. Asks the clock as well, so that a thread which was stopped sees the loss before it acts.

    It waits in another way than its kind does. There, an interrupt in `wait` can leave a lock locked that `set` needs,
    and it is the keeper of all claims that calls `set`. Here each that waits has a lock of its own, which `set` opens.
    """

    def __init__(self, terms: Sequence[Term]) -> None:
        # All that its kind has is a lock, which is not needed here, and it is another one for every claim.
        self._terms = tuple(terms)
        self._was_set = False
        self._waiting: deque[threading.Lock] = deque()
        self._hears = False
        """Whether the terms tell of their loss. The first who waits asks them to, and for most claims nobody waits."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'set' if self.is_set() else 'unset'}>"

    def set(self) -> None:
        """Say that it is lost, and wake whoever waits for that."""
        self._was_set = True
        with suppress(IndexError):
            while True:
                self._waiting.pop().release()

    def is_set(self) -> bool:
        """Is any of it lost?"""
        now = clock.now()
        return self._was_set or any(term.is_lost(now) for term in self._terms)

    def clear(self) -> None:
        """Forget that somebody has set it. What is lost stays lost."""
        self._was_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the loss, for so many seconds at most; True if it is lost."""
        if self.is_set():
            return True
        gate = threading.Lock()
        gate.acquire()
        self._waiting.append(gate)
        self._hear()
        try:
            # Looked at again, now that `set` would open the gate.
            if not self._was_set:
                gate.acquire(timeout=-1 if timeout is None else max(timeout, 0))
        finally:
            with suppress(ValueError):
                self._waiting.remove(gate)
        return self.is_set()

    def _hear(self) -> None:
        if self._hears:
            return
        for term in self._terms:
            term.on_loss(self.set)
        self._hears = True  # Said last: an interrupt before this lets it be asked for twice, which does no harm.


def teller(whom: weakref.ref[object], on_lost: Callable[..., object]) -> Callable[[], None]:
    """Return what tells of a loss: in a thread of its own, because nobody knows how long it takes."""

    def tell() -> None:
        held = whom()
        if held is None:
            return
        # Whoever noticed the loss must not be hindered by a thread that cannot be had; `lost` is set all the same.
        start_thread(
            "holdfast-on-lost",
            lambda: on_lost(held),
            lambda why: log.error("on_lost was not called for %r: %s", held, why),
        )

    return tell


def once(action: Callable[[], None]) -> Callable[[], None]:
    """Return what does this the first time it is called, and nothing after that."""
    lock = threading.Lock()

    def act() -> None:
        if lock.acquire(blocking=False):  # Never given back: once is once.
            action()

    return act
