"""One SQLite connection with named statements. It raises the journal's errors, never SQLite's.

A failure before COMMIT is certain. From COMMIT on the outcome is unknown: SQLite can report an fsync error, show the
row gone, and have it back after a crash. So after that the store refuses all reads and writes.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

import apsw

from holdfast.journal.interface import (
    NO_WATCH,
    RESTORE,
    JournalDamagedError,
    JournalError,
    JournalUnavailableError,
    OutcomeUnknownError,
    Watch,
    watched,
)
from holdfast.journal.sql import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    Row = tuple[apsw.SQLiteValue, ...]

T = TypeVar("T")

SQL = load("sqlite.sql")
UNSYNCED = "unsynced"  # This file exists from a failed sync until the bytes are written again.
# They read every page of a table, so the watch is not notified: they may take long on a sound disk too.
SLOW = frozenset({"check_meta", "check_batch", "check_integrity"})
CHUNK_BYTES = 64 * 1024  # SQLite's file layer writes less than 128 KiB at once, and mistakes more for a full disk.


class DiskFullError(Exception):
    """The disk is full. `was_sent`: COMMIT was sent, so the rows may exist nevertheless."""

    def __init__(self, error: Exception, *, was_sent: bool) -> None:
        super().__init__(str(error))
        self.was_sent = was_sent


class Store:
    def __init__(
        self,
        db: apsw.Connection,
        path: Path,
        watch: Watch | None = None,
        *,
        sql: Mapping[str, str] = SQL,
        unsynced: str = UNSYNCED,
    ) -> None:
        """`unsynced` is the name of the file that marks a failed sync."""
        self.db = db
        self.path = path
        self._watch = watch or NO_WATCH
        self._sql = sql
        self._unsynced = path.with_name(unsynced)
        self._unknown: str | None = None

    def run(self, name: str, values: Row = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a named statement. Each row is watched by itself: the caller may be slow."""
        rows = self._ask(name, lambda: iter(self.db.execute(self._sql[name], values)))
        while (row := self._ask(name, lambda: next(rows, None))) is not None:
            yield row

    def some(self, name: str, values: Row = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a named statement that bounds them."""
        return self._ask(name, lambda: self.db.execute(self._sql[name], values).fetchall())

    def some_bytes(self, name: str, values: Row, bytes_max: int) -> list[tuple[Any, ...]]:
        """Return the rows up to the one whose last column brings them to so many bytes."""

        def read() -> list[tuple[Any, ...]]:
            rows: list[tuple[Any, ...]] = []
            left = bytes_max
            for row in self.db.execute(self._sql[name], values):
                rows.append(row)
                left -= len(row[-1])
                if left <= 0:
                    break
            return rows

        return self._ask(name, read)

    def one(self, name: str, values: Row = ()) -> tuple[Any, ...] | None:
        rows = self.some(name, values)
        return rows[0] if rows else None

    def _ask(self, name: str, read: Callable[[], T]) -> T:
        self._refuse_if_unknown()
        watch = NO_WATCH if name in SLOW else self._watch
        number = watch.enter(name)
        try:
            return read()
        except (apsw.Error, UnicodeDecodeError) as error:
            raise self._unreadable(name, error) from error
        finally:
            watch.leave(number)

    def _unreadable(self, name: str, error: Exception) -> JournalError:
        match error:
            case apsw.CorruptError() | apsw.NotADBError():
                return self.damaged(f"{name}: {error}")
            case UnicodeDecodeError():
                return self.damaged(f"{name}: a text cannot be read: {error}")
            case _:
                return JournalUnavailableError(f"{name}: {self.path} cannot be read: {error}")

    def meta(self, key: str) -> int:
        """Return a scalar, 0 by default."""
        (value,) = self.one("read_meta", (key,)) or (0,)
        if not isinstance(value, int):
            raise self.damaged(f"the scalar {key!r} is no number")
        return value

    def do(self, name: str, rows: Iterable[Row]) -> None:
        """Run a named statement for each row, inside a transaction."""
        self.db.executemany(self._sql[name], rows)

    def commit(self, operation: str, work: Callable[[], object]) -> None:
        """Do the work in one transaction. Raises as `append` does, and `DiskFullError`."""
        self._refuse_if_unknown()
        number = self._watch.enter(operation)
        try:
            try:
                self.db.execute("BEGIN IMMEDIATE")
                work()
            except Exception as error:
                raise self._rolled_back(operation, error) from error
            self._send(operation)
        finally:
            self._watch.leave(number)

    @contextlib.contextmanager
    def unsynced(self) -> Iterator[None]:
        """Leave the sync of the commits in the block to the next commit: losing them does no harm.

        Nor checkpoint: that would sync the WAL, and SQLite does not report if that fails.
        """
        synchronous = self.db.execute("PRAGMA synchronous").get
        pages = self.db.execute("PRAGMA wal_autocheckpoint").get
        self.db.execute("PRAGMA synchronous=NORMAL").fetchall()
        self.db.execute("PRAGMA wal_autocheckpoint=0").fetchall()
        try:
            yield
        finally:
            self.db.execute(f"PRAGMA wal_autocheckpoint={pages}").fetchall()
            self.db.execute(f"PRAGMA synchronous={synchronous}").fetchall()

    # A transaction in parts, for a connection that nothing else uses meanwhile.

    def begin(self, operation: str) -> None:
        self._refuse_if_unknown()
        with self.changing(operation):
            self.db.execute("BEGIN IMMEDIATE")

    @contextlib.contextmanager
    def changing(self, operation: str) -> Iterator[None]:
        """Do a part of a transaction. If it fails, roll back the transaction."""
        try:
            with watched(self._watch, operation):
                yield
        except Exception as error:
            raise self._rolled_back(operation, error) from error

    def end(self, operation: str) -> None:
        """Commit the transaction. Raises as `commit` does."""
        with watched(self._watch, operation):
            self._send(operation)

    def _send(self, operation: str) -> None:
        try:
            self.db.execute("COMMIT")
        except apsw.FullError as error:
            self.roll_back()
            raise DiskFullError(error, was_sent=True) from error
        except Exception as error:
            text = f"{operation}: the commit to {self.path} failed: {error}"
            raise self.outcome_unknown(text) from error

    def _rolled_back(self, operation: str, error: Exception) -> Exception:
        """Roll back, and return what to raise."""
        self.roll_back()
        match error:
            case JournalError():
                return error
            case apsw.FullError():
                return DiskFullError(error, was_sent=False)
            case apsw.CorruptError() | apsw.NotADBError():
                return self.damaged(f"{operation}: {error}")
            case _:
                return JournalUnavailableError(f"{operation}: {self.path} refused it: {error}")

    def roll_back(self) -> None:
        with contextlib.suppress(apsw.Error):
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")

    def damaged(self, text: str) -> JournalDamagedError:
        return JournalDamagedError(f"{self.path} is damaged: {text}", RESTORE)

    def outcome_unknown(self, text: str) -> OutcomeUnknownError:
        """Return the error, and refuse all further use: answers could be wrong."""
        self._unknown = f"{text}; whether it is on the disk only a restart can tell"
        with contextlib.suppress(OSError):
            self._unsynced.touch(0o600)
        return OutcomeUnknownError(self._unknown)

    def close(self) -> None:
        """Unlock the file. If the WAL cannot be emptied now, the next start does it.

        After a failed sync keep the WAL: it may not be on the disk, and the file would then not match it.
        """
        if self._unknown is not None:
            with contextlib.suppress(apsw.Error):
                self.db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        with contextlib.suppress(apsw.Error), watched(self._watch, "close"):
            self.db.close()

    def close_untouched(self) -> None:
        """Unlock the file and leave every byte as it is."""
        with contextlib.suppress(apsw.Error):
            self.db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self.roll_back()
        self.close()

    def _refuse_if_unknown(self) -> None:
        if self._unknown is not None:
            raise OutcomeUnknownError(self._unknown)


def set_pragmas(store: Store, *, locking_mode: str, synchronous: str, checkpoint_pages: int, **more: int) -> None:
    """Set the pragmas of durability, and read each back: SQLite can ignore one silently."""
    for pragma, value in {
        "locking_mode": locking_mode,
        "journal_mode": "wal",
        "synchronous": {"FULL": 2, "NORMAL": 1}[synchronous],
        "fullfsync": 1,
        "checkpoint_fullfsync": 1,
        "wal_autocheckpoint": checkpoint_pages,
        **more,
    }.items():
        try:
            store.db.execute(f"PRAGMA {pragma}={value}").fetchall()
            got = store.db.execute(f"PRAGMA {pragma}").get
        except (apsw.CorruptError, apsw.NotADBError) as error:
            raise store.damaged(str(error)) from error
        if got != value:
            raise JournalError(f"SQLite did not take {pragma}={value} for {store.path}: it says {got}")


def rewrite_file(db: apsw.Connection, path: str) -> None:
    """Rewrite a file byte for byte, and sync it.

    A failed sync can leave bytes in the page cache, marked clean, that are not on the disk. The next sync would skip
    them, and a power cut would lose all that builds on them. The marker file needs no sync: a power cut removes it
    together with those bytes.
    """
    file = apsw.VFSFile(db.open_vfs, path, [apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_READWRITE, 0])
    try:
        size_bytes = file.xFileSize()
        for offset in range(0, size_bytes, CHUNK_BYTES):
            file.xWrite(file.xRead(min(CHUNK_BYTES, size_bytes - offset), offset), offset)
        file.xSync(apsw.SQLITE_SYNC_FULL)
    finally:
        file.xClose()
