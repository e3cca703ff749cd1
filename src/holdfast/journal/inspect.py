"""A look at a data directory while no server has it open. Nothing is changed: not a byte, not a file, not the seat.

SQLite writes files beside the database even if it only reads. So it gets a file system of ours (a VFS): every file is
opened for reading. The lock taken is the shared one, which a running server refuses, and which keeps one from starting
meanwhile. What a server that died left in the WAL is read from there.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import apsw
import msgspec

from holdfast.core.events import Record, Restored, names_of
from holdfast.journal import mark
from holdfast.journal.archive import Archive
from holdfast.journal.base import (
    RESTORE,
    JournalDamagedError,
    JournalError,
    JournalLockedError,
    JournalLostError,
    Keeping,
)
from holdfast.journal.codec import decode_batch, event_row
from holdfast.journal.shares import UNCOUNTED
from holdfast.journal.sqlite import APPLICATION_ID, FILE, NEWER_VERSION, OWN_DIRECTORY, SCHEMA, SCHEMAS, mark_of
from holdfast.journal.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

PROBLEMS_MAX = 100

_SHARED = apsw.SQLITE_LOCK_SHARED
_VFS_NAME = "holdfast-inspect"


class Restoration(msgspec.Struct, frozen=True, kw_only=True):
    """That a directory was made from a backup: when, of when, and after which fencing token it went on."""

    wall_ms: int
    backup_wall_ms: int
    last_token: int


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """What a data directory holds, and what is wrong with it."""

    path: str
    integrity: str
    """`ok`, or what SQLite says of the file."""
    schema: int = 0
    epoch: int = 0
    snapshot_upto: int = 0
    records: int = 0
    """How many there are: those that will be replayed and those kept as history."""
    last_seq: int = 0
    first_wall_ms: int | None = None
    last_wall_ms: int | None = None
    restored: Restoration | None = None
    """The last time that the directory was made from a backup."""
    problems: tuple[str, ...] = ()
    """At most 100, in words. None means that a server can start on it."""
    ways: tuple[str, ...] = ()
    """What can be done about the first of them, if its own words do not say it."""


def inspect(directory: Path, witnesses: Sequence[str] = ()) -> Inspection:
    """Read everything and check it. Raises `JournalLockedError` while a server runs, `JournalError` for no journal.

    `witnesses` are names of files in the directory that are only there after a journal.
    """
    if not (directory / FILE).exists():
        mark.check(directory / FILE, None, witnesses)
    try:
        with _reading(directory) as store:
            return _Look(store, directory / FILE, witnesses).everything()
    except JournalDamagedError as error:
        path = str(directory / FILE)
        return Inspection(path=path, integrity=error.problem, problems=(error.problem,), ways=error.ways)


def dump(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield every record that is kept, in order, as what JSON can say. Raises as `inspect` does, and for any damage."""
    with _reading(directory) as store:
        for record in _records(store):
            yield as_json(record)


@contextlib.contextmanager
def reading(directory: Path) -> Iterator[tuple[list[bytes], Iterator[Record], Iterator[Record]]]:
    """Give the snapshot, the records after it, and all that is kept, in order. Raises as `dump` does."""
    with _reading(directory) as store:
        upto = store.meta("upto")
        tail = (each for _, _, body in store.run("read_batches", (upto,)) for each in decode_batch(body))
        yield Archive(store, Keeping()).read_snapshot(), tail, _records(store)


def as_json(record: Record) -> dict[str, Any]:
    """Return a record as plain dictionaries, its event's kind under `event`."""
    return {
        "seq": record.seq,
        "at_ms": record.at_ms,
        "wall_ms": record.wall_ms,
        "event": str(record.event.__struct_config__.tag),
        **_by_name(event_row(record.event)),
    }


def _by_name(struct: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a struct, and of those in it, by name: the journal keeps them by place."""
    return {field: _plain(getattr(struct, field)) for field in struct.__struct_fields__}


def _plain(value: object) -> object:
    if isinstance(value, msgspec.Struct):
        return _by_name(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _records(store: Store) -> Iterator[Record]:
    upto = store.meta("upto")
    for _, _, body in store.run("read_all_history", (upto,)):
        yield from decode_batch(body)
    for _, _, body in store.run("read_batches", (upto,)):
        yield from decode_batch(body)


class _Look:
    """One inspection: goes on after a problem, so that all are found."""

    def __init__(self, store: Store, path: Path, witnesses: Sequence[str]) -> None:
        self._store = store
        self._path = path
        self._witnesses = witnesses
        self._problems: list[str] = []
        self._ways: tuple[str, ...] = ()
        self._records = 0
        self._walls_ms: list[int] = []
        self._restored: Restoration | None = None
        self._last = 0

    def everything(self) -> Inspection:
        """Look at all there is."""
        found = Inspection(path=str(self._path), integrity="not checked")
        try:
            integrity = "; ".join(str(line) for (line,) in self._store.run("check_integrity"))
            found = msgspec.structs.replace(found, integrity=integrity)
            if integrity != "ok":
                self._problem(f"SQLite finds the file damaged: {integrity}")
            if self._is_ours():
                found = self._contents(found)
        except JournalError as error:
            self._problem(error.problem, error.ways)
        except apsw.Error as error:
            self._problem(str(error))
        return msgspec.structs.replace(found, problems=tuple(self._problems[:PROBLEMS_MAX]), ways=self._ways)

    def _is_ours(self) -> bool:
        db = self._store.db
        if db.execute("PRAGMA schema_version").get == 0:
            mark.check(self._path, None, self._witnesses)
            self._problem("the journal is empty: no server has finished its first start here", ("Start the server",))
            return False
        if db.execute("PRAGMA application_id").get != APPLICATION_ID:
            self._problem("the file is a database of another program", (OWN_DIRECTORY,))
            return False
        return True

    def _contents(self, found: Inspection) -> Inspection:
        schema, epoch, upto = (self._store.meta(key) for key in ("schema", "epoch", "upto"))
        found = msgspec.structs.replace(found, schema=schema, epoch=epoch, snapshot_upto=upto)
        if schema not in SCHEMAS:
            self._problem(f"the journal has schema {schema}; this version knows {SCHEMA}", (NEWER_VERSION,))
            return found
        with self._noting():
            Archive(self._store, Keeping()).read_snapshot()
        self._history(upto)
        self._tail(upto)
        with self._noting():
            mark.check(self._path, mark_of(self._store, self._last), self._witnesses)
        return msgspec.structs.replace(
            found,
            records=self._records,
            last_seq=self._last,
            first_wall_ms=min(self._walls_ms, default=None),
            last_wall_ms=max(self._walls_ms, default=None),
            restored=self._restored,
        )

    def _history(self, upto: int) -> None:
        counted = 0
        for seq, wall_ms, body in self._store.run("read_all_history", (2**62,)):
            counted += 1
            with self._noting(f"history record {seq}: "):
                (record,) = decode_batch(body)
                if (record.seq, record.wall_ms) != (seq, wall_ms):
                    self._problem(f"history record {seq} says that it is record {record.seq}")
                self._names(record)
                if seq <= upto:
                    self._saw(record)
        if counted != self._store.meta("history"):
            self._problem(f"the history has {counted} records and should have {self._store.meta('history')}")
        self._shares(counted)
        self._last = upto

    def _shares(self, counted: int) -> None:
        """Compare what is counted against each with what is there, unless a file of before is still being counted."""
        if self._store.meta("schema") < SCHEMA or self._store.meta(UNCOUNTED):
            return
        records, bytes_, right = next(self._store.run("read_share_totals"))
        if (records, bytes_) != (counted, self._store.meta("history_bytes")) or not right:
            self._problem("the history is not counted against those who left it")

    def _names(self, record: Record) -> None:
        listed = {name for (name,) in self._store.run("read_history_names", (record.seq,))}
        if listed != set(names_of(record.event)):
            self._problem(f"history record {record.seq} is not listed under its names")

    def _tail(self, upto: int) -> None:
        wanted = upto + 1
        for first, last, body in self._store.run("read_batches", (upto,)):
            with self._noting(f"the batch of records {first} to {last}: "):
                for record in decode_batch(body):
                    if record.seq != wanted:
                        self._problem(f"record {record.seq} stands where {wanted} should")
                    wanted = record.seq + 1
                    self._saw(record)
            if wanted != last + 1:
                self._problem(f"the batch of records {first} to {last} does not end with record {last}")
                wanted = last + 1
            self._last = last

    def _saw(self, record: Record) -> None:
        self._records += 1
        if isinstance(event := record.event, Restored):
            self._restored = Restoration(
                wall_ms=record.wall_ms, backup_wall_ms=event.backup_wall_ms, last_token=event.last_token
            )
        self._walls_ms = [min([record.wall_ms, *self._walls_ms]), max([record.wall_ms, *self._walls_ms])]

    @contextlib.contextmanager
    def _noting(self, where: str = "") -> Iterator[None]:
        try:
            yield
        except (JournalDamagedError, JournalLostError) as error:
            self._problem(f"{where}{error.problem}", error.ways or (RESTORE,))
        except ValueError as error:
            self._problem(f"{where}{error}")

    def _problem(self, text: str, ways: tuple[str, ...] = (RESTORE,)) -> None:
        if not self._problems:
            self._ways = ways
        self._problems.append(text)


# The read-only file system that SQLite looks through.


@contextlib.contextmanager
def _reading(directory: Path) -> Iterator[Store]:
    path = directory / FILE
    if not path.is_file():
        problem = f"{directory} holds no journal: there is no {FILE} in it"
        raise JournalError(problem, "Check that the server was started with this directory")
    glasses = _Glasses()
    try:
        # Resolved, because apsw takes SQLite's word that a path has a symbolic link in it for an error.
        db = apsw.Connection(str(path.resolve()), flags=apsw.SQLITE_OPEN_READONLY, vfs=_VFS_NAME)
        try:
            # With the whole file locked SQLite keeps its index of the WAL in memory instead of in a file beside it.
            db.execute("PRAGMA locking_mode=exclusive").fetchall()
            db.execute("PRAGMA query_only=1")
            _touch(db, path)
            yield Store(db, path)
        finally:
            db.close()
    finally:
        glasses.unregister()


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


class _Glasses(apsw.VFS):
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
        return _Glass(file, flags)


class _Glass(apsw.VFSFile):
    def __init__(self, file: str | None, flags: list[int]) -> None:
        super().__init__("", file, flags)

    def xLock(self, level: int) -> None:  # noqa: N802
        """Take the shared lock and say that it is whichever was asked for."""
        super().xLock(min(level, _SHARED))

    def xUnlock(self, level: int) -> None:  # noqa: N802
        super().xUnlock(min(level, _SHARED))
