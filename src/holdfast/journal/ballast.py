"""The reserve file: disk space held back, so that releases and renewals still work once the disk is full.

It must be a regular file of ours with one name: through a link another file would grow, and removing it free nothing.
"""

from __future__ import annotations

import logging
import os
import shutil
from typing import TYPE_CHECKING

from holdfast.journal.base import NOBODY, watched
from holdfast.privatefiles import open_ours

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.journal.base import Watch

MIB = 2**20

log = logging.getLogger("holdfast.journal")


class Ballast:
    """Makes and removes the file, and logs each change once."""

    def __init__(self, path: Path, size_bytes: int, watch: Watch = NOBODY) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._watch = watch
        self._is_missed = False

    def free_bytes(self) -> int | None:
        """Return the free space of its disk, or None if that cannot be read."""
        try:
            return shutil.disk_usage(self._path.parent).free
        except OSError:
            return None

    def lay(self) -> bool:
        """Reserve the space; tell whether it is there. As much again must stay free, else it would come and go.

        Raises `NotOursError` for a file that is not ours.
        """
        with watched(self._watch, "lay the reserve"):
            is_there = self._size_bytes == 0 or self._is_complete() or self._make()
        if is_there and self._is_missed:
            log.warning("there is room under %s again: the reserve is back, and claims are taken", self._path.parent)
        elif not is_there and not self._is_missed:
            self._log_full("there is no room for the reserve")
        self._is_missed = not is_there
        return is_there

    def give_up(self) -> bool:
        """Free the space; tell whether there was any."""
        if not self._remove():
            return False
        self._is_missed = True
        self._log_full("the reserve was given up for what keeps and ends leases")
        return True

    def _make(self) -> bool:
        if shutil.disk_usage(self._path.parent).free < 2 * self._size_bytes:
            return False
        try:
            file = open_ours(self._path, os.O_WRONLY | os.O_CREAT, one_name=True)
            try:
                os.posix_fallocate(file, 0, self._size_bytes)
            finally:
                os.close(file)
        except OSError:
            self._remove()
            return False
        return True

    def _remove(self) -> bool:
        try:
            with watched(self._watch, "give up the reserve"):
                self._path.unlink()
        except OSError:
            return False
        return True

    def _is_complete(self) -> bool:
        """A crash in `_make` leaves a smaller file, which would not help when it is needed."""
        try:
            file = open_ours(self._path, one_name=True)
        except OSError:
            return False
        with os.fdopen(file):
            return os.fstat(file).st_size >= self._size_bytes

    def _log_full(self, what: str) -> None:
        size = f"{2 * self._size_bytes / MIB:.0f} MiB"
        log.error("the disk under %s is full: %s. Claims are refused until %s are free", self._path.parent, what, size)
