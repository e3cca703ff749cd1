"""Runs a server on a disk that is full while a file exists, but for what giving up the reserve frees.

Put before the command of a server: `python -P fulldisk.py FLAG RESERVE python -m holdfast serve …`. SQLite writes
through a file system of ours that has no room while FLAG exists and the file RESERVE does too; nor can the reserve be
laid down again then. A stand-in for a small real disk, which not every machine lets a test make.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import apsw

REAL = apsw.vfs_names()[0]
"""The usual file system: by its name, for ours becomes the default."""


class FullDisk(apsw.VFS):
    """The usual file system, with a question before every write."""

    def __init__(self, flag: Path, reserve: Path) -> None:
        super().__init__("full-disk", REAL, makedefault=True)
        self._flag = flag
        self._reserve = reserve

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's word
        return FullDiskFile(name, flags, self)

    def has_space(self) -> bool:
        return not (self._flag.exists() and self._reserve.exists())


class FullDiskFile(apsw.VFSFile):
    """One file on it."""

    def __init__(self, name: str | apsw.URIFilename | None, flags: list[int], disk: FullDisk) -> None:
        super().__init__(REAL, name, flags)
        self._disk = disk

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite's word
        if not self._disk.has_space():
            raise apsw.FullError("the disk is full")
        super().xWrite(data, offset)


def refuse_reserve(flag: Path) -> None:
    """Let no space be set aside while the disk is full."""
    real = os.posix_fallocate

    def posix_fallocate(file: int, offset: int, length: int, /) -> None:
        if flag.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file, offset, length)

    os.posix_fallocate = posix_fallocate


if __name__ == "__main__":
    disk = FullDisk(Path(sys.argv[1]), Path(sys.argv[2]))
    refuse_reserve(Path(sys.argv[1]))
    from holdfast.cli.main import main

    sys.argv = ["holdfast", *sys.argv[sys.argv.index("serve") :]]
    main()
