"""A way to look at SQLite files that changes nothing: not a byte, not a file, not the seat.

SQLite writes files beside the database even if it only reads. So it gets a file system of ours (a VFS): every file is
opened for reading. The lock taken is the shared one, which a running server refuses, and which keeps one from starting
meanwhile. What a process that died left in the WAL is read from there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING, Self

import apsw

from holdfast.journal.base import RESTORE, JournalDamagedError, JournalError, JournalLockedError

if TYPE_CHECKING:
    from pathlib import Path

LOCK_TRIES, LOCK_SECONDS = 100, 0.05
"""How often, and how long each time, a look waits for the archivist of a server that died: it is about to end."""

_SHARED = apsw.SQLITE_LOCK_SHARED
_VFS_NAME = "holdfast-glasses"


class Glasses:
    """Opens files to look at them. To be used as a context: at its end all are closed."""

    def __init__(self) -> None:
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Self:
        vfs = _ReadOnly()
        self._closing.callback(vfs.unregister)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def open(self, path: Path) -> apsw.Connection:
        """Open a file and lock it against those who write. Raises `JournalError` for one that cannot be looked at."""
        # Resolved, because apsw takes SQLite's word that a path has a symbolic link in it for an error.
        db = apsw.Connection(str(path.resolve()), flags=apsw.SQLITE_OPEN_READONLY, vfs=_VFS_NAME)
        self._closing.callback(db.close)
        # With the whole file locked SQLite keeps its index of the WAL in memory instead of in a file beside it.
        db.execute("PRAGMA locking_mode=exclusive").fetchall()
        db.execute("PRAGMA query_only=1")
        _touch(db, path)
        return db

    def hold(self, lock: Path) -> None:
        """Wait until nobody holds a lock file, and keep others from it. Raises `JournalLockedError` after a while."""
        try:
            descriptor = os.open(lock, os.O_RDONLY)
        except FileNotFoundError:
            return
        self._closing.callback(os.close, descriptor)
        for _ in range(LOCK_TRIES):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            time.sleep(LOCK_SECONDS)
        problem = f"the archivist of a server still writes in {lock.parent}"
        raise JournalLockedError(problem, "Wait until it has ended, and look again")


def _touch(db: apsw.Connection, path: Path) -> None:
    """Take the lock with the first read."""
    try:
        db.execute("PRAGMA schema_version").fetchall()
    except apsw.BusyError as error:
        raise JournalLockedError(f"a server has {path.parent} open: ask it over HTTP, or stop it first") from error
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise JournalDamagedError(f"{path} is damaged: {error}", RESTORE) from error
    except apsw.Error as error:
        raise JournalError(f"{path} cannot be read: {error}", "Start a server on it once, then look again") from error


class _ReadOnly(apsw.VFS):
    def __init__(self) -> None:
        super().__init__(_VFS_NAME, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        """Open for reading whatever is asked for. A WAL that is not there is an empty one."""
        file = name.filename() if isinstance(name, apsw.URIFilename) else name
        wanted = flags[0]
        if not wanted & apsw.SQLITE_OPEN_MAIN_DB and not (file and os.path.exists(file)):  # noqa: PTH110
            file = os.devnull
        writing = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_DELETEONCLOSE
        flags[0] = wanted & ~writing | apsw.SQLITE_OPEN_READONLY
        return _ReadOnlyFile(file, flags)


class _ReadOnlyFile(apsw.VFSFile):
    def __init__(self, file: str | None, flags: list[int]) -> None:
        super().__init__("", file, flags)

    def xLock(self, level: int) -> None:  # noqa: N802
        """Take the shared lock and say that it is whichever was asked for."""
        super().xLock(min(level, _SHARED))

    def xUnlock(self, level: int) -> None:  # noqa: N802
        super().xUnlock(min(level, _SHARED))
