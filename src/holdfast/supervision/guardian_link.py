"""Our end of the line to the guardian: it always knows the newest times, and when it dies there is another.

It is told when the times moved, and answers what it did.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from holdfast.supervision import guardian
from holdfast.supervision.guardian import BothClocks, Order
from holdfast.supervision.plan import Plan

SCRIPT = Path(guardian.__file__).absolute()
MOVED_MS_MIN = 20
"""A deadline that moved by less is the same, read a little later."""
TERM_LATE_MS = 300
"""Ours to send; the guardian only when we did not. Some programs take a second SIGTERM for impatience."""
END_SECONDS_MAX = 2
FIRST_WORD = "watching"


class GuardianLink:
    """A guardian for one group."""

    def __init__(self, group: int) -> None:
        """Start one. Raises `OSError` if that cannot be done."""
        self._group = group
        self._last: Order | None = None
        self._unread = b""
        self._process = _start()

    @property
    def is_alive(self) -> bool:
        """Is there somebody at the other end?"""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def fileno(self) -> int:
        """It is readable when the guardian has said something, or has died."""
        return _file(self._process.stdout)

    def tell(self, now: BothClocks, plan: Plan, *, is_told: bool) -> None:
        """Say how long the group has, counted from `now`, unless that is known. `is_told`: it has had its SIGTERM."""
        if self._last is not None:
            was_told = self._last.term_ms < 0
            moved_ms = plan.kill_ms + self._last.age_ms(*now) - self._last.kill_ms
            if was_told == is_told and abs(moved_ms) < MOVED_MS_MIN:
                return
        term_ms = -1 if is_told else min(plan.term_ms + TERM_LATE_MS, plan.kill_ms)
        self._last = Order(self._group, *now, term_ms, plan.kill_ms, plan.grace_ms)
        self._repeat()

    def replace(self) -> None:
        """Start another in place of one that died. Raises `OSError` if that cannot be done."""
        self._forget()
        self._process = _start()
        self._unread = b""
        self._repeat()

    def reports(self) -> list[str]:
        """Take what it has said."""
        try:
            *lines, self._unread = (self._unread + os.read(self.fileno(), 4_096)).split(b"\n")
        except BlockingIOError:
            return []
        return [line.decode() for line in lines]

    def end(self) -> list[str]:
        """Say goodbye, and see it gone: from here on it can signal nobody. Returns its last words."""
        with contextlib.suppress(OSError):
            os.write(_file(self._process.stdin), b"bye\n")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS_MAX)
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        last_words = self.reports()
        self._forget()
        return last_words

    def _repeat(self) -> None:
        if self._last is None:
            return
        try:
            os.write(_file(self._process.stdin), (" ".join(map(str, self._last)) + "\n").encode())
        except BlockingIOError:
            # It has not listened for a thousand lines. The next one will.
            self._process.kill()
        except BrokenPipeError:
            pass

    def _forget(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _start() -> subprocess.Popen[bytes]:
    process = subprocess.Popen(  # noqa: S603 - our own script
        [sys.executable, "-I", "-S", str(SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd="/",
        start_new_session=True,
    )
    for pipe in (process.stdin, process.stdout):
        os.set_blocking(_file(pipe), False)
    return process


def _file(pipe: object) -> int:
    return pipe.fileno()  # type: ignore[attr-defined,no-any-return]
