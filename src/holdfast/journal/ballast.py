"""Space held back on the disk, so that releases and renewals still work once it is full.

It is written to and removed, so it must be a file of ours that is nothing else: a link planted in its place would make
another file grow, and removing it would free nothing.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from holdfast.privatefiles import open_ours

if TYPE_CHECKING:
    from pathlib import Path


class Ballast:
    """One file that is only there to be removed."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes

    def lay(self) -> bool:
        """Reserve the space; tell whether it is there. As much again must stay free, else it would come and go.

        Raises `NotOursError` for what is not a ballast of ours.
        """
        if self._size_bytes == 0 or self._is_whole():
            return True
        if shutil.disk_usage(self._path.parent).free < 2 * self._size_bytes:
            return False
        try:
            file = open_ours(self._path, os.O_WRONLY | os.O_CREAT, one_name=True)
            try:
                os.posix_fallocate(file, 0, self._size_bytes)
            finally:
                os.close(file)
        except OSError:
            self.give_up()
            return False
        return True

    def give_up(self) -> bool:
        """Free the space; tell whether there was any."""
        try:
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
