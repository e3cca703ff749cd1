"""Renews what threads have claimed: one thread for each process, which only ever waits for time.

While a flow waits for an answer it goes on in a thread of its own, so that a server that does not answer delays nobody
else, and a deadline least of all.

An interrupt may stop a thread of the user's between any two steps, so none of those shares a lock with the keeper. The
schedule is the keeper's alone. The others hand over in one step, and ring only if the keeper would sleep for too long:

    a thread of the user's                            the keeper
    ──────────────────────                            ──────────
    put (when, flow) into the inbox                   take in what is in the inbox
    is that before it wakes? ── then ring ──►         say when it will wake
                                                      is the inbox still empty? ── then sleep, till then or the bell
"""

from __future__ import annotations

import _thread
import contextlib
import math
import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue

from holdfast.client import clock
from holdfast.client.common.background import SLICE_MS, Background, BackgroundFlow, Resting, log
from holdfast.client.common.schedule import Schedule
from holdfast.client.flows.effects import Send
from holdfast.errors import Unreachable


def start_thread(name: str, target: Callable[[], object], refused: Callable[[str], object]) -> None:
    """Start a thread from wherever an interrupt may come; `refused` hears why there is none to be had.

    `Thread.start` waits until the thread runs, and an interrupt in that wait can keep it from ever running. So it is
    called in a thread that no interrupt reaches, and to start that one is a single step.
    """

    def start() -> None:
        try:
            threading.Thread(target=target, name=name, daemon=True).start()
        except RuntimeError as error:
            refused(str(error))

    try:
        _thread.start_new_thread(start, ())
    except RuntimeError as error:
        refused(str(error))


class BackgroundThread(Background):
    """The thread and its schedule. Started when the first flow has to wait."""

    def __init__(self) -> None:
        self._schedule: Schedule[Resting] = Schedule()
        """The keeper's alone."""
        self._inbox: deque[tuple[int | None, Resting]] = deque()
        """What rests, and until when; with None, what was dropped."""
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._wakes_ms = 0.0
        """Until when the keeper sleeps; 0 while it is awake, and will look into the inbox before it sleeps."""
        self._runs = False
        self._keeper = threading.Lock()
        """Taken by the keeper for ever, so that there is one."""

    def drop(self, resting: Resting) -> None:
        """Stop it."""
        resting.stopped = True
        # It is enough to say so. If it stands in the schedule, the keeper takes it out before its time comes; if it is
        # in the inbox yet, it never gets there.
        if resting.entry is not None:
            self._inbox.append((None, resting))

    def _ask(self, running: BackgroundFlow, request: Send) -> None:
        def ask() -> None:
            try:
                step = partial(running.flow.send, running.send(request))
            except Exception as error:  # noqa: BLE001 - the flow knows what to make of it
                step = partial(running.flow.throw, error)
            self._advance(running, step)

        def refused(why: str) -> None:
            # There may be too many of them just now: a renewal that failed is tried again.
            self._advance(running, partial(running.flow.throw, Unreachable(request.path, why)))

        try:
            threading.Thread(target=ask, name="holdfast-renew", daemon=True).start()
        except RuntimeError as error:
            refused(str(error))

    def _rest(self, resting: Resting, due_ms: int) -> None:
        self._inbox.append((due_ms, resting))
        if not self._runs:
            start_thread("holdfast-keeper", self._run, _nothing_is_renewed)
        elif due_ms < self._wakes_ms:
            self._bell.put(None)

    def _run(self) -> None:
        if not self._keeper.acquire(blocking=False):
            return  # Two threads had something to be kept at once, and each has started one.
        self._runs = True
        while True:
            self._take_in()
            due = self._schedule.take(clock.boot_ms())
            for resting in due:
                resting.entry = None
                self._resume(resting)
            if not due:
                self._sleep()

    def _take_in(self) -> None:
        """Put what others have handed over into the schedule, and take out what they have dropped."""
        while self._inbox:
            due_ms, resting = self._inbox.popleft()
            if due_ms is not None and not resting.is_over:
                resting.entry = self._schedule.add(due_ms, resting)
            # Looked at after the entry was there: whoever drops it from now on sees that.
            if resting.stopped and resting.entry is not None:
                self._schedule.cancel(resting.entry)
                resting.entry = None

    def _sleep(self) -> None:
        """Wait for the next moment, or the bell."""
        next_ms, now_ms = self._schedule.next_due_ms(), clock.boot_ms()
        self._wakes_ms = math.inf if next_ms is None else min(next_ms, now_ms + SLICE_MS)
        # Looked at again after that was said: whoever hands over from now on knows whether to ring.
        if not self._inbox and self._wakes_ms > now_ms:
            with contextlib.suppress(Empty):
                self._bell.get(timeout=None if next_ms is None else (self._wakes_ms - now_ms) / 1_000)
        self._wakes_ms = 0.0


def _nothing_is_renewed(why: str) -> None:
    # There may be too many threads just now. The next claim tries again, and deadlines need no thread.
    log.error("nothing is renewed for now: %s", why)


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
