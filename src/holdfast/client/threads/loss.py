"""Hearing of a loss in a thread: the event that is set, and the call of `on_lost`."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence

from holdfast.client import clock
from holdfast.client.holding.claim import log
from holdfast.client.values.term import Term


class Lost(threading.Event):
    """Set at the loss. Asks the clock as well, so that a thread which was stopped sees the loss before it acts."""

    def __init__(self, terms: Sequence[Term]) -> None:
        super().__init__()
        self._terms = tuple(terms)
        for term in self._terms:
            term.on_loss(self.set)

    def is_set(self) -> bool:
        """Is any of it lost?"""
        now = clock.now()
        return super().is_set() or any(term.is_lost(now) for term in self._terms)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the loss, for so many seconds at most; True if it is lost."""
        return self.is_set() or super().wait(timeout) or self.is_set()


def teller(whom: weakref.ref[object], on_lost: Callable[..., object]) -> Callable[[], None]:
    """Return what tells of a loss: in a thread of its own, because nobody knows how long it takes."""

    def tell() -> None:
        held = whom()
        if held is None:
            return
        try:
            threading.Thread(target=on_lost, args=(held,), name="holdfast-on-lost", daemon=True).start()
        except RuntimeError as error:
            # Whoever noticed the loss must not be hindered by it; `lost` is set all the same.
            log.error("on_lost was not called for %r: %s", held, error)

    return tell


def once(action: Callable[[], None]) -> Callable[[], None]:
    """Return what does this the first time it is called, and nothing after that."""
    lock = threading.Lock()

    def act() -> None:
        if lock.acquire(blocking=False):  # Never given back: once is once.
            action()

    return act
