"""Space held back on the disk, so that releases and renewals still work once it is full.

It is written to and removed, so it must be a file of ours that is nothing else: a link planted in its place would make
another file grow, and removing it would free nothing.
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


log = logging.getLogger("holdfast.journal")

MIB = 2**20


class Ballast:
    """One file that is only there to be removed. Says once that it is gone, and once that it is back."""

    def __init__(self, path: Path, size_bytes: int, watch: Watch | None = None) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._watch = watch or NOBODY
        self._is_missed = False

    def free_bytes(self) -> int | None:
        """Return how much is left on its disk, or None if that cannot be seen."""
        try:
            return shutil.disk_usage(self._path.parent).free
        except OSError:
            return None

    def lay(self) -> bool:
        """Reserve the space; tell whether it is there. As much again must stay free, else it would come and go.

        Raises `NotOursError` for what is not a ballast of ours.
        """
        with watched(self._watch, "lay the reserve"):
            is_there = self._size_bytes == 0 or self._is_whole() or self._make()
        if is_there and self._is_missed:
            log.warning("there is room under %s again: the reserve is back, and claims are taken", self._path.parent)
        elif not is_there and not self._is_missed:
            self._tell("there is no room for the reserve")
        self._is_missed = not is_there
        return is_there

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

    def give_up(self) -> bool:
        """Free the space; tell whether there was any."""
        if not self._remove():
            return False
        self._is_missed = True
        self._tell("the reserve was given up for what keeps and ends leases")
        return True

    def _tell(self, what: str) -> None:
        log.error(
            "the disk under %s is full: %s. Claims are refused until %.0f MiB are free",
            self._path.parent,
            what,
            2 * self._size_bytes / MIB,
        )

    def _remove(self) -> bool:
        try:
            with watched(self._watch, "give up the reserve"):
                self._path.unlink()
        except OSError:
            return False
        return True

    def _is_whole(self) -> bool:
        """A crash while it was laid down leaves less than its size, and that would be missed when it is needed."""
        try:
            file = open_ours(self._path, one_name=True)
        except OSError:
            return False
        try:
            return os.fstat(file).st_size >= self._size_bytes
        finally:
            os.close(file)
