"""Signals as they are at a terminal, whatever the process that started the tests did with them.

What is ignored or blocked stays so in every child. `nohup`, a shell's `&` and some services ignore SIGHUP or SIGINT for
all that they start, and a test that sends one of those to a command would then wait in vain.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

IGNORED_BY_PYTHON = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
"""Python ignores them for itself, and `subprocess` gives every child the default back."""


def reset() -> None:
    """Take what was inherited off every signal. Call it in the main thread, before anything is started."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - IGNORED_BY_PYTHON:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _own(number))


def _own(number: int) -> signal.Handlers | Callable[[int, FrameType | None], None]:
    if number == signal.SIGINT:
        return signal.default_int_handler
    if number == signal.SIGHUP:
        return _stay  # A handler, because exec takes it off a child: under `nohup` the tests outlive the terminal.
    return signal.SIG_DFL


def _stay(_number: int, _frame: FrameType | None) -> None:
    """Do nothing."""
