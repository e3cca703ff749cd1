"""Opens the two files of a journal: lock, look, and only then change anything. What is refused stays as it was.

    lock journal.sqlite3   another server has it: refused
    lock archive.lock      the child of a server that was killed still writes: its end is waited for
    look                   every byte that will be replayed, and that the archive is the one that the journal counts on
    begin a tenure         count the start; from now on the journal is ours

The archive is never ahead of the journal, and never behind what the journal has dropped: `archived` says how far that
is. An archive that is missing, older or another's would lose leases that were acknowledged, so the start is refused.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

import apsw

from holdfast.journal import mark
from holdfast.journal.archive import file as archive_file
from holdfast.journal.archive.file import Position
from holdfast.journal.archive.reader import Reader
from holdfast.journal.base import (
    RESTORE,
    JournalDamagedError,
    JournalError,
    JournalLockedError,
    JournalLostError,
    JournalTooNewError,
    watched,
)
from holdfast.journal.codec import count_records, decode_batch
from holdfast.journal.store import SQL, UNSYNCED, Store, write_again
from holdfast.journal.tail.room import LARGE_BYTES, part_of
from holdfast.privatefiles import WRITE_FOR_OTHERS, check_file, check_folder, check_may_use, reason_of, sync_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from holdfast.journal.archive.archivist import Archivist
    from holdfast.journal.base import Values, Watch
    from holdfast.journal.tail.room import Part

FILE = "journal.sqlite3"
BALLAST = "ballast"
SCHEMA = 1
APPLICATION_ID = 0x486F6C64
"""`Hold`: marks the file as ours, for us and for whoever asks what kind of file it is."""
OWN_DIRECTORY = "Give the server its own directory"
NEWER_VERSION = "Use the newer version"
SQLITE_MIN = (3, 51, 3)
LOCK_TRIES = 3
PUT_BACK = f"Put {archive_file.FILE} back, with its -wal, or restore a backup"

_CREATE = [statement for name, statement in SQL.items() if name.startswith("create_")]


class Opening:
    """One try to open a journal, and what it found. `store` and `lock` belong to whoever asked for it."""

    def __init__(
        self,
        directory: Path,
        *,
        synchronous: str,
        checkpoint_pages: int,
        identity: int,
        witnesses: Sequence[str],
        watch: Watch,
        archivist: Archivist,
        connect: Callable[[str], apsw.Connection],
    ) -> None:
        self._directory = directory
        self._path = directory / FILE
        self._archive = directory / archive_file.FILE
        self._synchronous = synchronous
        self._checkpoint_pages = checkpoint_pages
        self._witnesses = witnesses
        self._watch = watch
        self._archivist = archivist
        self._connect = connect
        self.identity = identity
        self.epoch = 0

    def run(self) -> tuple[Store, archive_file.Lock, Found]:
        """Open both files, and try again if they are locked: of two that start together each can be in the other's way.

        Each waits for its own time, so that they do not meet again. A server that runs keeps its lock through it all.
        """
        for _ in range(1, LOCK_TRIES):
            try:
                return self._open()
            except apsw.BusyError:
                time.sleep(0.02 * (1 + os.getpid() % 8))
        return self._open()

    def _open(self) -> tuple[Store, archive_file.Lock, Found]:
        if not self._path.exists():
            mark.check(self._path, None, self._witnesses)
        with contextlib.ExitStack() as undo:
            store = Store(self._connect(str(self._path)), self._path, self._watch)
            undo.callback(store.close_untouched)
            is_new = self._lock(store.db)
            if is_new:
                mark.check(self._path, None, self._witnesses)
                self._refuse_lone_archive()
            self._set_pragmas(store.db)
            lock = archive_file.Lock(self._directory)
            undo.callback(lock.release)
            if is_new:
                store.commit("open", lambda: _create(store.db))
            self.identity = store.meta("identity") or self.identity
            found = self._look(store)
            self._make_sure(store)
            if not store.meta("epoch"):
                self._make_archive()
            self._begin_tenure(store)
            undo.pop_all()
        return store, lock, found

    def _lock(self, db: apsw.Connection) -> bool:
        """Lock the file before its first byte is read, refuse one that is not ours, and tell whether it is new."""
        db.execute("PRAGMA locking_mode=exclusive").fetchall()
        db.execute("BEGIN EXCLUSIVE")
        is_new: bool = db.execute("PRAGMA schema_version").get == 0
        if not is_new:
            if db.execute("PRAGMA application_id").get != APPLICATION_ID:
                raise JournalError(f"{self._path} is a database of another program", OWN_DIRECTORY)
            schema = db.execute(SQL["read_meta"], ("schema",)).get
            if schema != SCHEMA:
                raise JournalError(f"{self._path} has schema {schema}; this version knows {SCHEMA}", NEWER_VERSION)
        db.execute("ROLLBACK")
        return is_new

    def _set_pragmas(self, db: apsw.Connection) -> None:
        """Set what durability rests on and ask each back: SQLite does not always take a pragma, and never says so."""
        for pragma, value, answer in (
            ("locking_mode", "exclusive", "exclusive"),
            ("journal_mode", "wal", "wal"),
            ("synchronous", self._synchronous, {"FULL": 2, "NORMAL": 1}[self._synchronous]),
            ("fullfsync", "1", 1),
            ("checkpoint_fullfsync", "1", 1),
            ("wal_autocheckpoint", self._checkpoint_pages, self._checkpoint_pages),
        ):
            db.execute(f"PRAGMA {pragma}={value}").fetchall()
            got = db.execute(f"PRAGMA {pragma}").get
            if got != answer:
                raise JournalError(f"SQLite did not take {pragma}={value} for {self._path}: it says {got}")

    # Looking.

    def _look(self, store: Store) -> Found:
        """Check all that will be replayed. Nobody counts on an archive before the first start is over.

        The mark is asked first: if the journal is the wrong one, nobody is told to look for another archive.
        """
        check_sound(store)
        mark.check(self._path, mark_of(store, last_seq_of(store)), self._witnesses)
        if not store.meta("epoch"):
            return look_at_tail(store, Position(self.identity, 0, 0), [])
        if not self._archive.exists():
            raise lost_archive(store, self._archive)
        archive = self._archivist.look_at(self._archive, self._watch)
        try:
            reader = Reader(archive)
            check_archive(store, archive.path, reader.position())
            return look_at_tail(store, reader.position(), list(reader.values()))
        finally:
            archive.close_untouched()

    # Changing.

    def _refuse_lone_archive(self) -> None:
        """Raise if there is an archive that stands for records: the journal that went with it is lost."""
        upto = 0
        with contextlib.suppress(JournalError, apsw.Error):
            # What cannot be read may be what a first start left that was killed.
            if self._archive.exists():
                archive = self._archivist.look_at(self._archive, self._watch)
                try:
                    upto = Reader(archive).position().upto
                finally:
                    archive.close_untouched()
        if upto:
            problem = f"{self._path} is missing, but {self._archive.name} is there, with all up to record {upto}"
            raise JournalLostError(problem, mark.PUT_BACK, mark.all_is_new(self._archive.name))

    def _make_archive(self) -> None:
        """Make an empty archive. One that a first start left which broke off counts for nothing."""
        archive_file.throw_away(self._archive)
        archive = self._archivist.open_for_writing(self._archive, self.identity, self._watch)
        try:
            archive.commit("open", lambda: archive.do("write_meta", [("identity", self.identity)]))
        finally:
            archive.close()
        sync_folder(self._directory)

    def _make_sure(self, store: Store) -> None:
        """Empty the WAL into the file, so that no new write shares a sector with the last ones before a crash."""
        unsynced = self._directory / UNSYNCED
        is_unsynced = unsynced.exists()
        with watched(self._watch, "empty the WAL"):
            if is_unsynced:
                write_again(store.db, f"{self._path}-wal")
            busy, _, _ = next(store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)"))
        if busy:
            raise JournalError(f"{self._path}: the WAL cannot be emptied. Stop whatever else has the file open")
        if is_unsynced:
            unsynced.unlink()

    def _begin_tenure(self, store: Store) -> None:
        self.epoch = store.meta("epoch") + 1
        scalars = [("epoch", self.epoch), ("identity", self.identity)]
        store.commit("open", lambda: store.do("write_meta", scalars))

    def explained(self, error: Exception) -> JournalError:
        """Return what an error of SQLite or of the system means for whoever starts a server."""
        if isinstance(error, apsw.BusyError):
            return JournalLockedError(f"another server has {self._directory} open", "Stop it first")
        if isinstance(error, apsw.CorruptError | apsw.NotADBError):
            return JournalDamagedError(f"{self._path} is damaged: {error}", RESTORE)
        way = "Check that the directory is writable and has room"
        return JournalError(f"{self._path} cannot be opened: {reason_of(error)}", way)


class Found:
    """What will be replayed: the archived values, and how far the archive and the tail reach."""

    def __init__(self, upto: int, values: list[Values]) -> None:
        self.upto = upto
        self.values = values
        self.last_seq = upto
        self.tail_bytes = 0
        self.parts: list[Part] = []
        """Whose the large batches are."""


def look_at_tail(store: Store, position: Position, values: list[Values]) -> Found:
    """Check that the tail follows the archive without a gap, and each of its batches. Raises for one that does not."""
    found = Found(position.upto, values)
    for first, last, body in store.run("read_batches", (position.upto,)):
        if first != found.last_seq + 1:
            raise store.damaged(f"record {first} stands where {found.last_seq + 1} should")
        try:
            count = count_records(body)
        except JournalTooNewError:
            raise
        except JournalDamagedError as error:
            raise store.damaged(f"in the batch that begins with record {first}, {error}") from error
        if last != first + count - 1:
            raise store.damaged(f"the batch of records {first} to {last} has {count}")
        found.last_seq = last
        found.tail_bytes += len(body)
        if len(body) > LARGE_BYTES:
            found.parts.append(part_of(last, decode_batch(body), body))
    return found


def check_sound(store: Store) -> None:
    """Raise if SQLite finds damage in what is needed to start."""
    for check in ("check_meta", "check_batch"):
        for (text,) in store.run(check):
            if text != "ok":
                raise store.damaged(str(text))


def last_seq_of(store: Store) -> int:
    """Return the number of the last record of a journal: of its tail, or of what was dropped from it."""
    return max(store.meta("archived"), next(store.run("read_last_batch"))[0] or 0)


def lost_archive(store: Store, path: Path) -> JournalLostError:
    """Return the refusal of a journal whose archive is not there."""
    problem = f"{path} is missing, and it has all that {store.path.name} knew up to record {store.meta('archived')}"
    return JournalLostError(problem, PUT_BACK)


def check_archive(store: Store, path: Path, position: Position) -> None:
    """Raise `JournalLostError` unless this is the archive that a journal counts on."""
    if position.identity != store.meta("identity"):
        raise JournalLostError(f"{path} is the archive of another journal than {store.path.name}", PUT_BACK)
    archived = store.meta("archived")
    if position.upto < archived:
        problem = (
            f"{path} has gone back in time: it ends with record {position.upto}, and {store.path.name} has dropped"
        )
        raise JournalLostError(f"{problem} all up to record {archived}", PUT_BACK)
    last = last_seq_of(store)
    if position.upto > last:
        problem = (
            f"{store.path} has gone back in time: it ends with record {last}, and {path.name} with {position.upto}"
        )
        raise JournalLostError(problem, f"Put the newest {FILE} back, with its -wal, or restore a backup")


def check_files(directory: Path) -> None:
    """Raise `NotOursError` for a directory or a file in it that others could have made or changed, or that root keeps.

    SQLite opens files by their names; so the directory is looked at first, where nobody else may put any. Those who may
    only read the journal learn no token from it: the copy that somebody put back may be readable.
    """
    check_folder(directory)
    names = [name + suffix for name in (FILE, archive_file.FILE) for suffix in archive_file.SUFFIXES]
    for name in (*names, archive_file.LOCK):
        path = directory / name
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat()
            check_file(path, found, closed=WRITE_FOR_OTHERS)
            check_may_use(path, found)
    ballast = directory / BALLAST
    with contextlib.suppress(FileNotFoundError):
        check_file(ballast, ballast.lstat(), one_name=True)


def mark_of(store: Store, last_seq: int) -> mark.Mark | None:
    """Return how far a journal has come; None if no server has finished its first start on it."""
    epoch = store.meta("epoch")
    return mark.Mark(store.meta("identity"), epoch, last_seq) if epoch else None


def _create(db: apsw.Connection) -> None:
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")
    for statement in _CREATE:
        db.execute(statement)
    db.execute(SQL["write_meta"], ("schema", SCHEMA))
