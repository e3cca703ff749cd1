"""Inspects a data directory that no server has open, and changes no byte and no file.

SQLite creates files next to a database even to read it, and `immutable=1` ignores the WAL. So a read-only VFS opens the
files, and reads the WAL of a killed process too. It takes the shared lock: a running server blocks it, and it blocks a
starting one.

An inspection continues after a problem, to find all:

    journal   every batch decodes, and its records follow each other
    archive   every record of the history is under its names, its time and the principal it counts against;
              every end knows its grant and every grant its end; the names held are those of the state
    both      SQLite finds both files sound; they belong together, by the checks of a starting server
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec

from holdfast.core.events import Record, Restored, ends_of, grants_of, names_of, principal_of
from holdfast.core.values import Slot
from holdfast.journal.codec import decode_batch, event_row
from holdfast.journal.interface import RESTORE, JournalDamagedError, JournalError, JournalLockedError, Values
from holdfast.journal.sqlite import watermark
from holdfast.journal.sqlite.archive import FILE as ARCHIVE
from holdfast.journal.sqlite.archive import LOCK, Reader, open_for_check, segment_of, wait_for_lock
from holdfast.journal.sqlite.archive_writer import weight_of
from holdfast.journal.sqlite.journal import (
    APPLICATION_ID,
    FILE,
    NEWER_VERSION,
    OWN_DIRECTORY,
    SCHEMA,
    check_archive,
    last_seq_of,
    lost_archive,
    watermark_of,
)
from holdfast.journal.sqlite.store import Store
from holdfast.privatefiles import NotOursError

PROBLEMS_MAX = 100

_VFS = "holdfast-read-only"
_slot_of = msgspec.msgpack.Decoder(Slot).decode


class Inspection(msgspec.Struct, kw_only=True):
    epoch: int = 0
    archived_upto: int = 0
    records: int = 0  # Of the tail and the history.
    last_seq: int = 0
    restored: Record | None = None  # The last record with a `Restored`.
    problems: list[str] = []  # At most `PROBLEMS_MAX`. None: a server can start.
    remedies: tuple[str, ...] = ()  # Remedies for the first problem, unless its text has them.


def inspect(directory: Path, witnesses: Sequence[str] = ()) -> Inspection:
    """Check everything. Raises `JournalLockedError` while a server runs, `JournalError` without a journal.

    `witnesses` are names of files in the directory that only exist after a journal.
    """
    if not (directory / FILE).exists():
        watermark.check(directory / FILE, None, witnesses)
    try:
        with _read_only() as closing:
            inspector = _Inspector(Files(directory, closing), witnesses)
            inspector.inspect()
            return inspector.found
    except JournalDamagedError as error:
        return Inspection(problems=[error.problem], remedies=error.remedies)


def dump(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield every record, in order, as JSON objects. Raises as `inspect` does, and for any damage."""
    with reading(directory) as files:
        for records in (files.history(), files.tail()):
            for some in records:
                yield from map(as_json, some)


@contextlib.contextmanager
def reading(directory: Path) -> Iterator[Files]:
    """Open the files of a directory. Raises as `dump` does."""
    with _read_only() as closing:
        files = Files(directory, closing)
        files.check()
        yield files


def as_json(record: Record) -> dict[str, Any]:
    return {
        "seq": record.seq,
        "at_ms": record.at_ms,
        "wall_ms": record.wall_ms,
        "event": str(record.event.__struct_config__.tag),
        **_plain(event_row(record.event)),
    }


def _plain(value: Any) -> Any:  # noqa: ANN401 - any value of an event
    """Convert structs to dictionaries: on the disk they are arrays."""
    if isinstance(value, msgspec.Struct):
        return {field: _plain(getattr(value, field)) for field in value.__struct_fields__}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


class Files:
    """The read-only files of a directory, with the parts of a `base.Snapshot`."""

    def __init__(self, directory: Path, closing: contextlib.ExitStack) -> None:
        """Open the journal, and wait for a compactor that still writes."""
        self.path = directory / FILE
        if not self.path.is_file():
            problem = f"{directory} holds no journal: there is no {FILE} in it"
            raise JournalError(problem, "Check that the server was started with this directory")
        self.journal = Store(_open(self.path, closing), self.path)
        _hold(directory / LOCK, closing)
        self._closing = closing

    @functools.cached_property
    def archive(self) -> Reader | None:
        """The archive; None before the first start."""
        if not self.journal.meta("epoch"):
            return None
        path = self.path.with_name(ARCHIVE)
        if not path.exists():
            raise lost_archive(self.journal, path)
        return Reader(open_for_check(path, lambda _: _open(path, self._closing)))

    @property
    def upto(self) -> int:
        return 0 if self.archive is None else self.archive.position().upto

    @property
    def pruned(self) -> int:
        return 0 if self.archive is None else self.archive.position().pruned

    @property
    def last_seq(self) -> int:
        return last_seq_of(self.journal)

    def check(self) -> None:
        """Raise as a start does for an unknown schema or another archive."""
        if (schema := self.journal.meta("schema")) != SCHEMA:
            raise JournalError(f"{self.path} has schema {schema}; this version knows {SCHEMA}", NEWER_VERSION)
        if self.archive is not None:
            check_archive(self.journal, self.archive.store.path, self.archive.position())

    def tail(self) -> Iterator[Sequence[Record]]:
        for _, _, body in self.journal.run("read_batches", (self.upto,)):
            yield list(decode_batch(body))

    def values(self) -> Iterator[Values]:
        return iter(()) if self.archive is None else self.archive.values()

    def history(self) -> Iterator[Sequence[Record]]:
        return iter(()) if self.archive is None else self.archive.records()


# Statements that find contradictory rows of the archive, and the problem to report for each row.
_MISFITS = (
    ("check_walls", "history record {} is not found by its time"),
    ("check_segments", "record {} of {} is where no search finds it"),
    ("check_untils", "record {} does not know that it ended the grant {} of {}"),
    ("check_begans", "the grant {} of {} does not know that record {} ended it"),
    ("check_living", "{} is said to be held by record {}, which does not say so"),
)


class _Inspector:
    """One inspection. It looks up each archive row where it must be, and counts all: none is missing or extra."""

    def __init__(self, files: Files, witnesses: Sequence[str]) -> None:
        self.found = Inspection()
        self._files = files
        self._store = files.journal
        self._witnesses = witnesses

    def inspect(self) -> None:
        with self._collect_problems(usual=()):
            self._check_integrity(self._store)
            if self._is_ours():
                self._check_contents()

    def _check_integrity(self, store: Store) -> None:
        integrity = "; ".join(str(line) for (line,) in store.run("check_integrity"))
        if integrity != "ok":
            self._problem(f"SQLite finds {store.path.name} damaged: {integrity}")

    def _is_ours(self) -> bool:
        db = self._store.db
        if db.execute("PRAGMA schema_version").get == 0:
            watermark.check(self._files.path, None, self._witnesses)
            self._problem("the journal is empty: no server has finished its first start here", ("Start the server",))
            return False
        if db.execute("PRAGMA application_id").get != APPLICATION_ID:
            self._problem("the file is a database of another program", (OWN_DIRECTORY,))
            return False
        self.found.epoch = self._store.meta("epoch")
        if (schema := self._store.meta("schema")) != SCHEMA:
            self._problem(f"the journal has schema {schema}; this version knows {SCHEMA}", (NEWER_VERSION,))
            return False
        return True

    def _check_contents(self) -> None:
        with self._collect_problems():
            watermark.check(self._files.path, watermark_of(self._store, self._files.last_seq), self._witnesses)
            self._files.check()
        with self._collect_problems():
            if (archive := self._files.archive) is not None:
                self._check_integrity(archive.store)
                held = None
                with self._collect_problems():
                    held = _held_in(archive.values())
                with self._collect_problems("the history: "):
                    self._check_history(archive.store)
                with self._collect_problems("the names: "):
                    for statement, text in _MISFITS:
                        for row in archive.store.run(statement):
                            self._problem(text.format(*row))
                with self._collect_problems("who holds what: "):
                    self._check_holders(archive.store, held)
        self._check_tail()

    def _check_tail(self) -> None:
        upto = self._store.meta("archived")
        with contextlib.suppress(JournalError):
            upto = self._files.upto
        self.found.archived_upto = self.found.last_seq = upto
        wanted = upto + 1
        for first, last, body in self._store.run("read_batches", (upto,)):
            with self._collect_problems(f"the batch of records {first} to {last}: "):
                for record in decode_batch(body):
                    if record.seq != wanted:
                        self._problem(f"record {record.seq} stands where {wanted} should")
                    wanted = record.seq + 1
                    self._saw(record)
            if wanted != last + 1:
                self._problem(f"the batch of records {first} to {last} does not end with record {last}")
                wanted = last + 1
            self.found.last_seq = last

    def _check_history(self, store: Store) -> None:
        who = {number: name for number, name, _, _ in store.run("read_who")}
        said = {number: (records, size_bytes) for number, _, records, size_bytes in store.run("read_who")}
        sums: dict[int, tuple[int, int]] = {}
        listed = 0
        for seq, wall_ms, by, body in store.run("read_all_history"):
            with self._collect_problems(f"history record {seq}: "):
                (record,) = decode_batch(body)
                if (record.seq, record.wall_ms) != (seq, wall_ms):
                    self._problem(f"history record {seq} says that it is record {record.seq}")
                if who.get(by) not in {principal_of(record.event), ""}:
                    self._problem(f"history record {seq} is not counted against whoever left it")
                records, size_bytes = sums.get(by, (0, 0))
                sums[by] = (records + 1, size_bytes + weight_of(record, body))
                listed += self._listed(store, record)
                self._saw(record)
        if said != sums:
            counted, there = (sum(records for records, _ in each.values()) for each in (said, sums))
            self._problem(f"the history has {there} records, and {counted} are counted against those who left them")
        ((rows, retained, wrong),) = store.run("count_names")
        if wrong or rows != listed + retained:
            self._problem(f"records are listed under {rows} names, and it should be {listed + retained}")

    def _listed(self, store: Store, record: Record) -> int:
        """Check a record's row under each of its names, and return how many these are."""
        names = dict.fromkeys(names_of(record.event))
        granted = {name for name, _ in grants_of(record.event)}
        ends = granted.union(ends_of(record.event))
        for name in names:
            row = store.one("read_name", (segment_of(record.seq), name, record.seq))
            if row is None:
                self._problem(f"history record {record.seq} is not listed under its names")
                break
            until, began = row
            if (until is not None) is not (name in granted) or (began is not None and name not in ends):
                self._problem(f"history record {record.seq} is listed under {name} as what it is not")
        return len(names)

    def _check_holders(self, store: Store, held: Mapping[str, int] | None) -> None:
        """Check that the held names and their grants are those of the state."""
        names: set[str] = set()
        for name, seq, body in store.run("read_living_grants"):
            names.add(name)
            records = () if body is None else decode_batch(body)
            token = next((lease.token for each in records for at, lease in grants_of(each.event) if at == name), None)
            if token is None:
                self._problem(f"{name} is said to be held by record {seq}, which does not say so")
            elif held is not None and held.get(name) != token:
                self._problem(f"{name} is said to be held with token {token}, and the state says {held.get(name)}")
        ((living,),) = store.run("count_living")
        if len(names) != living:
            self._problem(f"{len(names)} names are said to be held, and {living} grants to live")
        if held is not None and (unknown := held.keys() - names):
            self._problem(f"{min(unknown)} is held, and its grant is not known")

    def _saw(self, record: Record) -> None:
        self.found.records += 1
        if isinstance(record.event, Restored):
            self.found.restored = record

    @contextlib.contextmanager
    def _collect_problems(self, where: str = "", usual: tuple[str, ...] = (RESTORE,)) -> Iterator[None]:
        try:
            yield
        except JournalError as error:
            # A file that belongs to another user is undamaged, and the error has the remedy.
            remedies = () if isinstance(error.__cause__, NotOursError) else usual
            self._problem(f"{where}{error.problem}", error.remedies or remedies)
        except (ValueError, apsw.Error) as error:
            self._problem(f"{where}{error}")

    def _problem(self, text: str, remedies: tuple[str, ...] = (RESTORE,)) -> None:
        problems = self.found.problems
        if not problems:
            self.found.remedies = remedies
        if len(problems) < PROBLEMS_MAX and text not in problems:
            problems.append(text)


def _held_in(values: Iterable[Values]) -> dict[str, int]:
    """Return the fencing tokens of the names that the state holds."""
    return {
        key.decode(): lease.token
        for each in values
        if each.table == "slots"
        for key, value in each.rows
        if (lease := _slot_of(value).lease) is not None
    }


# Read-only files.


class _ReadOnlyVFS(apsw.VFS):
    """Opens files read-only. A missing WAL is an empty file."""

    def __init__(self) -> None:
        super().__init__(_VFS, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        file = name.filename() if isinstance(name, apsw.URIFilename) else name
        wanted = flags[0]
        if not wanted & apsw.SQLITE_OPEN_MAIN_DB and not (file and os.path.exists(file)):  # noqa: PTH110
            file = os.devnull
        writing = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_DELETEONCLOSE
        flags[0] = wanted & ~writing | apsw.SQLITE_OPEN_READONLY
        return _ReadOnlyFile("", file, flags)


class _ReadOnlyFile(apsw.VFSFile):
    def xLock(self, level: int) -> None:  # noqa: N802
        """Take the shared lock instead of a stronger one."""
        super().xLock(min(level, apsw.SQLITE_LOCK_SHARED))


@contextlib.contextmanager
def _read_only() -> Iterator[contextlib.ExitStack]:
    """Register the VFS, and close its files at the end."""
    with contextlib.ExitStack() as closing:
        closing.callback(_ReadOnlyVFS().unregister)
        yield closing


def _open(path: Path, closing: contextlib.ExitStack) -> apsw.Connection:
    """Open a database and lock it against writers. Raises `JournalError` for one that cannot be read."""
    # Resolved: apsw raises an error when SQLite reports a symbolic link in the path.
    db = apsw.Connection(str(path.resolve()), flags=apsw.SQLITE_OPEN_READONLY, vfs=_VFS)
    closing.callback(db.close)
    # With the whole file locked, SQLite keeps the WAL's index in memory instead of in a file.
    db.execute("PRAGMA locking_mode=exclusive").fetchall()
    db.execute("PRAGMA query_only=1")
    try:
        db.execute("PRAGMA schema_version").fetchall()  # The first read takes the lock.
    except apsw.BusyError as error:
        raise JournalLockedError(f"a server has {path.parent} open: ask it over HTTP, or stop it first") from error
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise JournalDamagedError(f"{path} is damaged: {error}", RESTORE) from error
    except apsw.Error as error:
        raise JournalError(f"{path} cannot be read: {error}", "Start a server on it once, then look again") from error
    return db


def _hold(lock: Path, closing: contextlib.ExitStack) -> None:
    """Hold a lock file, if it exists. Raises `JournalLockedError` after ten seconds."""
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except FileNotFoundError:
        return
    closing.callback(os.close, descriptor)
    if not wait_for_lock(descriptor, fcntl.LOCK_SH):
        problem = f"the archivist of a server still writes in {lock.parent}"
        raise JournalLockedError(problem, "Wait until it has ended, and look again")
