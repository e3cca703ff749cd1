"""The terminal belongs to one process group at a time. It is lent to the command, and comes back.

A terminal that is gone answers every question with an error, which here means: not ours, nothing to do.
"""

from __future__ import annotations

import contextlib
import os
import stat
from types import TracebackType
from typing import Self


class Terminal:
    """The terminal that controls us, if there is one. Whoever changes its owner ignores SIGTTOU meanwhile."""

    def __init__(self) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def owner(self) -> int | None:
        """Tell which process group reads from it."""
        if self._file is None:
            return None
        try:
            return os.tcgetpgrp(self._file)
        except OSError:
            return None

    def is_ours(self) -> bool:
        """Is our own process group the one that reads from it?"""
        return self.owner() == os.getpgrp()

    def lend(self, group: int) -> None:
        """Give it to a group, if it is ours to give."""
        if self.is_ours():
            self._set(group)

    def take_back(self, group: int) -> None:
        """Take it from the group it was lent to, or from one that is no more. Anybody else keeps it."""
        owner = self.owner()
        if owner is not None and owner != os.getpgrp() and (owner == group or not _exists(owner)):
            self._set(os.getpgrp())

    def _set(self, group: int) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.tcsetpgrp(self._file, group)


def reads_keyboard() -> bool:
    """Is our input the terminal, and our output not the input of another, which may be a pager that wants the keys?"""
    try:
        return os.isatty(0) and not stat.S_ISFIFO(os.fstat(1).st_mode)
    except OSError:
        return False


def _exists(group: int) -> bool:
    if group <= 0:
        return False
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
