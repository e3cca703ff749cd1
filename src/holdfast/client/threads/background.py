"""Renews what threads have claimed: one thread for each process, which only ever waits for time.

While a flow waits for an answer it goes on in a thread of its own, so that a server that does not answer delays nobody
else, and a deadline least of all.
"""

from __future__ import annotations

import os
import threading
from functools import partial

from holdfast.client import clock
from holdfast.client.common.background import SLICE_MS, Background, BackgroundFlow, log
from holdfast.client.common.schedule import Schedule
from holdfast.client.flows.effects import Send
from holdfast.errors import Unreachable


class BackgroundThread(Background):
    """The thread and its schedule. Started when the first flow has to wait."""

    def __init__(self) -> None:
        self._schedule: Schedule[BackgroundFlow] = Schedule()
        # Reentrant: the garbage collector may drop a claim in the middle of anything, also of this.
        self._changed = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None

    def drop(self, running: BackgroundFlow) -> None:
        """Stop a flow."""
        with self._changed:
            running.stopped = True
            if running.entry is not None:
                self._schedule.cancel(running.entry)
                running.entry = None

    def _ask(self, running: BackgroundFlow, request: Send) -> None:
        def ask() -> None:
            try:
                step = partial(running.flow.send, running.send(request))
            except Exception as error:  # noqa: BLE001 - the flow knows what to make of it
                step = partial(running.flow.throw, error)
            self._advance(running, step)

        try:
            threading.Thread(target=ask, name="holdfast-renew", daemon=True).start()
        except RuntimeError as error:
            # There may be too many of them just now: a renewal that failed is tried again.
            self._advance(running, partial(running.flow.throw, Unreachable(request.path, str(error))))

    def _rest(self, running: BackgroundFlow, seconds: float) -> None:
        with self._changed:
            if running.stopped:
                return
            due_ms = clock.boot_ms() + max(0, round(seconds * 1_000))
            running.entry = self._schedule.add(due_ms, running)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="holdfast-keeper", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    # There may be too many of them just now. The next claim tries again, and deadlines need no thread.
                    log.error("nothing is renewed for now: %s", error)
                else:
                    self._thread = thread
            elif self._schedule.next_due_ms() == due_ms:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            for running in self._due():
                self._advance(running, partial(running.flow.send, None))

    def _due(self) -> list[BackgroundFlow]:
        """Wait for a while, and return what has to be resumed."""
        with self._changed:
            next_ms = self._schedule.next_due_ms()
            nap_ms = SLICE_MS if next_ms is None else min(max(next_ms - clock.boot_ms(), 0), SLICE_MS)
            if nap_ms:
                self._changed.wait(None if next_ms is None else nap_ms / 1_000)
            due = self._schedule.take(clock.boot_ms())
            for running in due:
                running.entry = None
            return due


_of_this_process = BackgroundThread()


def background_thread() -> BackgroundThread:
    """Return the background thread of this process."""
    return _of_this_process


def _forget() -> None:
    """Begin anew in a forked process: the thread is not there, and what was claimed belongs to the parent."""
    global _of_this_process  # noqa: PLW0603 - one for each process
    _of_this_process = BackgroundThread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
