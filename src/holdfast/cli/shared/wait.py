"""Progress of a wait on standard error, and the signals that end it."""

from __future__ import annotations

import contextlib
import math
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from holdfast.cli.shared import output

if TYPE_CHECKING:
    from types import FrameType

    from holdfast import QueuePosition

_STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Stopped(BaseException):
    """A signal asked us to end. Not an `Exception`, so that cleanup runs as it does for Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def end_on_signals() -> Iterator[None]:
    """Let TERM, HUP and QUIT act like Ctrl-C: a wait leaves the queue, and a claim is released."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise Stopped(number)

    # Ignored signals stay ignored: that is how nohup works.
    numbers = [number for number in _STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    except Stopped as stopped:
        raise click.exceptions.Exit(128 + stopped.number) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def waiting(wait: float | None, *, quiet: bool = False) -> Iterator[Callable[[QueuePosition], None] | None]:
    """Yield the `on_wait` for a claim that waits so long."""
    if quiet:
        yield None
        return
    progress = _Progress(wait or 0.0)
    yield progress
    progress.note_presence()


class _Progress:
    """Writes a line whenever the position or the owner changes, and when the server is away or back."""

    def __init__(self, wait: float) -> None:
        self._wait = wait
        self._is_away = False
        self._rejoined = 0
        self._last: tuple[int, str | None] | None = None

    def __call__(self, update: QueuePosition) -> None:
        if update.away is not None:
            return self._note_absence(update, update.away)
        self.note_presence()
        if update.rejoined > self._rejoined:
            self._rejoined = update.rejoined
            output.complain("your place in the line was gone; you have joined it anew, at its end")
        shown = (update.position, update.owner.owner if update.owner else None)
        if shown != self._last:
            self._last = shown
            output.hint(words(update))
        return None

    def note_presence(self) -> None:
        if self._is_away:
            self._is_away, self._last = False, None
            output.complain("the server is back")

    def _note_absence(self, update: QueuePosition, why: str) -> None:
        if self._is_away:
            return
        self._is_away = True
        until = "until it is back"
        if self._wait < math.inf:
            now = output.now()
            until = f"until {output.clock(now + timedelta(seconds=max(0.0, self._wait - update.waited)), now)}"
        output.complain(f"the server is away ({why}); trying {until}")


def words(update: QueuePosition) -> str:
    """Describe a position: `3rd in line, held by agent-2 for 4 min`."""
    if not update.position:
        return "none of the jobs is free yet"
    text = f"{ordinal(update.position)} in line"
    if (owner := update.owner) is not None:
        held = output.span((output.answered_at(owner) - owner.claimed_at).total_seconds())
        text += f", held by {owner.shown_as} for {held}"
    return text


def ordinal(number: int) -> str:
    """Return 1st, 2nd, 3rd, 4th, 11th."""
    teens = 10 < number % 100 < 20  # noqa: PLR2004 - eleventh to nineteenth
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
