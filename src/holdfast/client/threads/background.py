"""Keeps what threads have claimed: one thread for each process, which only ever waits for time.

While a flow waits for an answer it goes on in a thread of its own, so that a server that does not answer delays nobody
else, and a deadline least of all.
"""

from __future__ import annotations

import os
import threading
from functools import partial

from holdfast.client import clock
from holdfast.client.common.background import SLICE_MS, Keeping, Kept, log
from holdfast.client.common.schedule import Agenda
from holdfast.client.flows.effects import Send
from holdfast.errors import Unreachable


class Keeper(Keeping):
    """The thread and its agenda. Started when the first flow has to wait."""

    def __init__(self) -> None:
        self._agenda: Agenda[Kept] = Agenda()
        # Reentrant: the garbage collector may drop a claim in the middle of anything, also of this.
        self._changed = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None

    def drop(self, kept: Kept) -> None:
        """Let a flow be."""
        with self._changed:
            kept.stopped = True
            if kept.entry is not None:
                self._agenda.cancel(kept.entry)
                kept.entry = None

    def _ask(self, kept: Kept, request: Send) -> None:
        def ask() -> None:
            try:
                step = partial(kept.flow.send, kept.send(request))
            except Exception as error:  # noqa: BLE001 - the flow knows what to make of it
                step = partial(kept.flow.throw, error)
            self._advance(kept, step)

        try:
            threading.Thread(target=ask, name="holdfast-renew", daemon=True).start()
        except RuntimeError as error:
            # There may be too many of them just now: a renewal that failed is tried again.
            self._advance(kept, partial(kept.flow.throw, Unreachable(request.path, str(error))))

    def _rest(self, kept: Kept, seconds: float) -> None:
        with self._changed:
            if kept.stopped:
                return
            due_ms = clock.boot_ms() + max(0, round(seconds * 1_000))
            kept.entry = self._agenda.add(due_ms, kept)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="holdfast-keeper", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    # There may be too many of them just now. The next claim tries again, and deadlines need no thread.
                    log.error("nothing is renewed for now: %s", error)
                else:
                    self._thread = thread
            elif self._agenda.next_due_ms() == due_ms:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            for kept in self._due():
                self._advance(kept, partial(kept.flow.send, None))

    def _due(self) -> list[Kept]:
        """Wait for a while, and return what has to be resumed."""
        with self._changed:
            next_ms = self._agenda.next_due_ms()
            nap_ms = SLICE_MS if next_ms is None else min(max(next_ms - clock.boot_ms(), 0), SLICE_MS)
            if nap_ms:
                self._changed.wait(None if next_ms is None else nap_ms / 1_000)
            due = self._agenda.take(clock.boot_ms())
            for kept in due:
                kept.entry = None
            return due


_keeper = Keeper()


def keeper() -> Keeper:
    """Return the keeper of this process."""
    return _keeper


def _forget() -> None:
    """Begin anew in a forked process: the thread is not there, and what was claimed belongs to the parent."""
    global _keeper  # noqa: PLW0603 - one for each process
    _keeper = Keeper()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
