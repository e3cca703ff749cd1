"""While this is entered, signals are data: they are read from a file descriptor, in order, and interrupt nothing.

A signal that was ignored when we came stays ignored, for us and for what we start: that is how `nohup` works.
"""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any, Self

OUR_OWN = frozenset(
    getattr(signal, name)
    for name in (
        *("SIGKILL", "SIGSTOP"),  # Nobody can catch them.
        *("SIGCHLD", "SIGTTIN", "SIGTTOU", "SIGPIPE"),  # They are about us.
        *("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGEMT", "SIGSTKFLT"),  # Our bugs.
        *("SIGXCPU", "SIGXFSZ", "SIGVTALRM", "SIGPROF"),  # Our limits.
    )
    if hasattr(signal, name)
)


class Signals:
    """Every signal that can be passed on, and SIGCHLD."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._read, self._write = os.pipe()
        self._wakeup_before = -1

    def __enter__(self) -> Self:
        for file in (self._read, self._write):
            os.set_blocking(file, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGCONT):
            self._set(number, _note)
        for number in signal.valid_signals() - OUR_OWN:
            if signal.getsignal(number) not in {signal.SIG_IGN, None}:
                self._set(number, _note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._read)
        os.close(self._write)

    def fileno(self) -> int:
        """It is readable when signals have arrived."""
        return self._read

    def arrived(self) -> list[int]:
        """Take those that have arrived and are there to be passed on."""
        try:
            return [number for number in os.read(self._read, 4_096) if number not in OUR_OWN]
        except BlockingIOError:
            return []

    def ignore_terminal_output(self) -> None:
        """Let us write to a terminal, and change its owner, while it is somebody else's. Not for what we start."""
        self._set(signal.SIGTTOU, signal.SIG_IGN)

    def stop_ourselves(self) -> None:
        """Stop with our whole process group, as Ctrl-Z would have done. Comes back when we are continued.

        Comes back at once where nobody could continue us: the system then drops the signal.
        """
        if signal.getsignal(signal.SIGTSTP) is signal.SIG_IGN:
            return
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        try:
            os.killpg(os.getpgrp(), signal.SIGTSTP)
        finally:
            signal.signal(signal.SIGTSTP, handler)

    def _set(self, number: int, handler: Any) -> None:  # noqa: ANN401 - whatever `signal.signal` takes
        before = signal.signal(number, handler)
        self._before.setdefault(number, before if before is not None else signal.SIG_DFL)


def _note(number: int, frame: FrameType | None) -> None:
    """Python has written it to the file descriptor already."""
