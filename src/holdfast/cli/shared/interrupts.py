"""How signals end a command that waits, or holds something: in order, as Ctrl-C does."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

import click

_STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Stopped(BaseException):
    """A signal asked us to end while no command ran. Not an `Exception`: whatever cleans up does so as for Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def orderly_end() -> Iterator[None]:
    """Let TERM, HUP and QUIT end what is under way as Ctrl-C does: a wait leaves the line, a claim is given back."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise Stopped(number)

    # What is ignored stays ignored: that is how nohup works.
    numbers = [number for number in _STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    except Stopped as stopped:
        raise click.exceptions.Exit(128 + stopped.number) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
