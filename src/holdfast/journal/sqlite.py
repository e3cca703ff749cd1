"""The default journal: one SQLite file, one connection, the whole file locked, every commit synced.

- The seat is SQLite's own exclusive lock on the file: it ends with the process, however that ends.
- `append` runs on the event loop: one commit serves the whole turn, and a thread's hand-overs cost more than they save.
- The one failed COMMIT that does not end the process is a full disk: the same batch is tried once more after a ballast
  file was given up, for nobody has heard of it yet and the second try writes the same rows in the same place.
- One that is gone, or older than the directory knows, is refused and never begun anew (`journal/mark.py`).
- What cannot be read is refused before anything is changed. After a sync has failed, what can be read may be in the
  machine's memory only: the next process writes it again before it builds on it.
- SQLite must be 3.51.3 or later: before, a WAL could be reset at the wrong moment and the file damaged.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import TYPE_CHECKING

import apsw

from holdfast.journal import mark
from holdfast.journal.archive import Archive
from holdfast.journal.ballast import Ballast
from holdfast.journal.base import (
    RESTORE,
    Health,
    HistoryPage,
    HistoryQuery,
    JournalDamagedError,
    JournalError,
    JournalLockedError,
    JournalTooNewError,
    JournalUnavailableError,
    Keeping,
    Nobody,
    Recovered,
    Watch,
    at_once,
    watched,
)
from holdfast.journal.codec import count_records, decode_batch, encode_batch
from holdfast.journal.failpoints import failpoint
from holdfast.journal.shares import UNCOUNTED
from holdfast.journal.store import SQL, UNSYNCED, DiskFullError, Store, write_again
from holdfast.privatefiles import WRITE_FOR_OTHERS, NotOursError, check_file, check_folder, make_folder, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from holdfast.core.events import Record

FILE = "journal.sqlite3"
BALLAST = "ballast"
SCHEMA = 2
"""2 since history is counted against whoever left it; a file of schema 1 is brought up when it is opened."""
SCHEMAS = (1, SCHEMA)
APPLICATION_ID = 0x486F6C64
"""`Hold`: marks the file as ours, for us and for whoever asks what kind of file it is."""
OWN_DIRECTORY = "Give the server its own directory"
NEWER_VERSION = "Use the newer version"
SQLITE_MIN = (3, 51, 3)
LOCK_TRIES = 3
CHECKPOINT_PAGES = 500
"""After how many pages the WAL is moved into the file, by the commit that filled it: half of SQLite's 1000 halves the
time that one such commit takes, and costs nothing else."""

log = logging.getLogger("holdfast.journal")

_CREATE = [statement for name, statement in SQL.items() if name.startswith("create_")]


class SqliteJournal:
    """A journal in a directory."""

    def __init__(
        self,
        directory: Path,
        *,
        keeping: Keeping | None = None,
        synchronous: str = "FULL",
        ballast_bytes: int = 16 * 2**20,
        checkpoint_pages: int = CHECKPOINT_PAGES,
        identity: int = 0,
        witnesses: Sequence[str] = (),
        watch: Watch | None = None,
        connect: Callable[[str], apsw.Connection] = apsw.Connection,
    ) -> None:
        """Prepare; nothing is touched before `open`.

        `identity` is the number of a journal that has none yet. `witnesses` are names of files in the directory that
        are only there after a journal. `watch` hears of every call to the disk that can hang. `connect` lets a test put
        its own file system underneath.
        """
        self._directory = directory
        self._path = directory / FILE
        self._keeping = keeping or Keeping()
        self._synchronous = synchronous
        self._checkpoint_pages = checkpoint_pages
        self._identity = identity
        self._witnesses = witnesses
        self._watch = watch or Nobody()
        self._connect = connect
        self._ballast = Ballast(directory / BALLAST, ballast_bytes, self._watch)
        self._store: Store | None = None
        self._archive: Archive | None = None
        self._epoch = 0
        self._last = 0
        self.appended_bytes = 0
        self.takes_claims = True
        """Whether there is room for new claims; renewals and releases go on either way."""

    # What the seam promises (`journal/base.py`).

    async def open(self) -> Recovered:
        """Lock the file and tell what is in it."""
        # Whoever closes the file leaves no WAL behind.
        was_closed = self._store is not None or not _size_of(self._directory / f"{FILE}-wal")
        parts = self._take_seat() if self._store is None else self._look(self._store)
        return Recovered(self._epoch, parts, self._tail(), was_closed)

    @at_once
    def append(self, batch: Sequence[Record]) -> None:
        """Commit a batch: one row, one sync."""
        if not batch:
            return
        store = self._seated("append")
        if batch[0].seq != self._last + 1:
            raise JournalUnavailableError(f"append: record {batch[0].seq} does not follow {self._last} in {self._path}")
        row = (batch[0].seq, batch[-1].seq, encode_batch(batch))

        def write() -> None:
            store.db.execute(SQL["append_batch"], row)
            failpoint("before_commit")

        try:
            store.commit("append", write)
        except DiskFullError as full:
            self._append_without_ballast(store, write, full)
        self._last = row[1]
        self.appended_bytes += len(row[2])
        failpoint("after_commit")

    async def compact(self, upto: int, snapshot: Iterable[bytes], wall_ms: int) -> None:
        """Let a snapshot stand for the records up to a number, a slice at a time."""
        self._seated("compact")
        await self._archived("compact").compact(upto, snapshot, wall_ms)
        self._leave_mark()

    async def fill(
        self, upto: int, snapshot: Iterable[bytes], history: Iterable[Sequence[Record]], *, epoch: int
    ) -> None:
        """Fill a journal that nothing was ever appended to with what a backup holds. Appends go on after `upto`."""
        store = self._seated("fill")
        if self._last:
            raise JournalUnavailableError(f"fill: {self._path} is not empty")
        await self._archived("fill").fill(upto, snapshot, history)
        store.slice(lambda: store.do("write_meta", [("epoch", epoch)]))
        self._last, self._epoch = upto, epoch

    async def history(self, query: HistoryQuery) -> HistoryPage:
        """Look in the tail first, then in the history."""
        return await self._archived("history").history(query)

    async def follow(self, after_seq: int, limit: int) -> Sequence[Record]:
        """Look in the history first, then in the tail."""
        return await self._archived("follow").follow(after_seq, limit)

    @property
    def history_begins_after(self) -> int:
        """The newest that was pruned."""
        return self._archived("history").pruned

    def health(self) -> Health:
        """Tell how the store is. Once the ballast was given up, claims wait until it could be laid down again."""
        text = f"the disk under {self._directory} is full: free some space"
        if not self.takes_claims:
            try:
                self.takes_claims = self._ballast.lay()
            except NotOursError as error:
                text = str(error)
        if self.takes_claims:
            text = "ok"
        size_bytes = sum(_size_of(self._directory / (FILE + suffix)) for suffix in ("", "-wal"))
        free = self._ballast.free_bytes()
        return Health(takes_claims=self.takes_claims, size_bytes=size_bytes, storage="wal", text=text, free_bytes=free)

    async def close(self) -> None:
        """Unlock the file."""
        if self._store is not None:
            self._leave_mark()
        self._unlock()

    def _leave_mark(self) -> None:
        """Note how far the journal has come: only what is durable, and only while it is ours."""
        try:
            with watched(self._watch, "write the mark"):
                failpoint("before_mark")
                mark.write(self._directory, mark.Mark(self._identity, self._epoch, self._last))
        except OSError as error:
            # The one before goes on counting: it says less, and nothing that is untrue.
            why = reason_of(error)
            log.warning("%s cannot be written: %s; it is tried again later", self._directory / mark.FILE, why)

    def _unlock(self) -> None:
        if self._store is not None:
            store, self._store, self._archive = self._store, None, None
            store.close()

    # Appending.

    def _append_without_ballast(self, store: Store, write: Callable[[], None], full: DiskFullError) -> None:
        """Make room and try the same batch again. If that fails too, what is known is what the first try left open."""
        self.takes_claims = False
        text = f"append: the disk under {self._directory} is full and the reserve is used up ({full}): free some space"
        if not self._ballast.give_up():
            raise store.outcome_unknown(text) if full.was_sent else JournalUnavailableError(text)
        try:
            store.commit("append", write)
        except DiskFullError as again:
            is_unknown = full.was_sent or again.was_sent
            raise store.outcome_unknown(text) if is_unknown else JournalUnavailableError(text) from again
        except JournalUnavailableError as again:
            if full.was_sent:
                raise store.outcome_unknown(f"{text}; then {again}") from again
            raise

    def _seated(self, operation: str) -> Store:
        if self._store is None:
            raise JournalUnavailableError(f"{operation}: {self._path} is not open; open it first")
        return self._store

    def _archived(self, operation: str) -> Archive:
        if self._archive is None:
            raise JournalUnavailableError(f"{operation}: {self._path} is not open; open it first")
        return self._archive

    # Opening.

    def _take_seat(self) -> list[bytes]:
        """Open the file. On a full disk the ballast goes first: a server that cannot start cannot release anything."""
        if tuple(int(part) for part in apsw.sqlite_lib_version().split(".")) < SQLITE_MIN:
            raise JournalError(f"SQLite {apsw.sqlite_lib_version()} can damage a WAL: install apsw 3.51.3 or later")
        mask = os.umask(0o077)
        try:
            make_folder(self._directory)
            check_files(self._directory)
            try:
                parts = self._open_in_turn()
            except (apsw.FullError, DiskFullError):
                if not self._ballast.give_up():
                    raise
                parts = self._open_file()
            self._leave_mark()
            self.takes_claims = self._ballast.lay()
        except NotOursError as error:
            self._unlock()
            raise JournalError(str(error)) from error
        except (apsw.Error, DiskFullError, OSError) as error:
            raise self._explained(error) from error
        finally:
            os.umask(mask)
        failpoint("after_open")
        return parts

    def _explained(self, error: Exception) -> JournalError:
        if isinstance(error, apsw.BusyError):
            return JournalLockedError(
                f"another server has {self._directory} open: stop it, or give this one its own directory (--data)"
            )
        if isinstance(error, apsw.CorruptError | apsw.NotADBError):
            return JournalDamagedError(f"{self._path} is damaged: {error}", RESTORE)
        way = "Check that the directory is writable and has room"
        return JournalError(f"{self._path} cannot be opened: {reason_of(error)}", way)

    def _open_in_turn(self) -> list[bytes]:
        """Open the file, and try again if it is locked: of two that start together each can stand in the other's way.

        Each waits for its own time, so that they do not meet again. A server that runs keeps its lock through it all.
        """
        for _ in range(1, LOCK_TRIES):
            try:
                return self._open_file()
            except apsw.BusyError:
                time.sleep(0.02 * (1 + os.getpid() % 8))
        return self._open_file()

    def _open_file(self) -> list[bytes]:
        """Lock, look, and only then change anything: what is refused stays as it was, byte for byte."""
        if not self._path.exists():
            mark.check(self._path, None, self._witnesses)
        store = Store(self._connect(str(self._path)), self._path, self._watch)
        try:
            is_new = self._lock(store.db)
            if is_new:
                mark.check(self._path, None, self._witnesses)
            self._set_pragmas(store.db)
            if is_new:
                store.commit("open", lambda: _create(store.db))
            parts = self._look(store)
            mark.check(self._path, mark_of(store, self._last), self._witnesses)
            self._begin_tenure(store)
        except BaseException:
            store.close_untouched()
            self._archive = None
            raise
        self._store = store
        return parts

    def _lock(self, db: apsw.Connection) -> bool:
        """Lock the file before its first byte is read, refuse one that is not ours, and tell whether it is new."""
        db.execute("PRAGMA locking_mode=exclusive").fetchall()
        db.execute("BEGIN EXCLUSIVE")
        is_new: bool = db.execute("PRAGMA schema_version").get == 0
        if not is_new:
            if db.execute("PRAGMA application_id").get != APPLICATION_ID:
                raise JournalError(f"{self._path} is a database of another program", OWN_DIRECTORY)
            schema = db.execute(SQL["read_meta"], ("schema",)).get
            if schema not in SCHEMAS:
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

    def _look(self, store: Store) -> list[bytes]:
        """Check all that will be replayed, and return the snapshot."""
        for check in ("check_meta", "check_batch", "check_parts"):
            for (text,) in store.run(check):
                if text != "ok":
                    raise store.damaged(str(text))
        self._archive = Archive(store, self._keeping)
        parts = self._archive.read_snapshot()
        self._last = self._archive.upto
        self.appended_bytes = 0
        for first, last, body in store.run("read_batches", (self._last,)):
            if first != self._last + 1:
                raise store.damaged(f"record {first} stands where {self._last + 1} should")
            try:
                count = count_records(body)
            except JournalTooNewError:
                raise
            except JournalDamagedError as error:
                raise store.damaged(f"in the batch that begins with record {first}, {error}") from error
            if last != first + count - 1:
                raise store.damaged(f"the batch of records {first} to {last} has {count}")
            self._last = last
            self.appended_bytes += len(body)
        return parts

    def _begin_tenure(self, store: Store) -> None:
        """Make sure of what was found, and count the tenure.

        The WAL is emptied into the file, so that no new write shares a sector with the last ones before a crash.
        """
        mark = self._directory / UNSYNCED
        is_unsynced = mark.exists()
        with watched(self._watch, "empty the WAL"):
            if is_unsynced:
                write_again(store.db, f"{self._path}-wal")
            busy, _, _ = next(store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)"))
        if busy:
            raise JournalError(f"{self._path}: the WAL cannot be emptied. Stop whatever else has the file open")
        epoch = store.meta("epoch") + 1
        self._identity = store.meta("identity") or self._identity
        scalars = [("epoch", epoch), ("identity", self._identity)]

        def write() -> None:
            _bring_up(store)
            store.do("write_meta", scalars)

        store.commit("open", write)
        if is_unsynced:
            mark.unlink()
        self._epoch = epoch

    def _tail(self) -> Iterator[Record]:
        """Yield the records after the snapshot."""
        store, archive = self._seated("open"), self._archived("open")
        wanted = archive.upto + 1
        for _, _, body in store.run("read_batches", (archive.upto,)):
            for record in decode_batch(body):
                if record.seq != wanted:
                    raise store.damaged(f"record {record.seq} stands where {wanted} should")
                wanted += 1
                yield record


def check_files(directory: Path, *, owner: int | None = None) -> None:
    """Raise `NotOursError` for a directory or a file in it that others could have made or changed.

    SQLite opens files by their names; so the directory is looked at first, where nobody else may put any. Those who may
    only read the journal learn no token from it: the copy that somebody put back may be readable.
    """
    check_folder(directory, owner=owner)
    for name in (FILE, *(FILE + suffix for suffix in ("-wal", "-shm", "-journal"))):
        path = directory / name
        with contextlib.suppress(FileNotFoundError):
            check_file(path, path.lstat(), closed=WRITE_FOR_OTHERS, owner=owner)
    ballast = directory / BALLAST
    with contextlib.suppress(FileNotFoundError):
        check_file(ballast, ballast.lstat(), owner=owner, one_name=True)


def mark_of(store: Store, last_seq: int) -> mark.Mark | None:
    """Return how far a journal has come; None if no server has finished its first start on it."""
    epoch = store.meta("epoch")
    return mark.Mark(store.meta("identity"), epoch, last_seq) if epoch else None


def _create(db: apsw.Connection) -> None:
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")
    for statement in _CREATE:
        db.execute(statement)
    db.execute(SQL["write_meta"], ("schema", SCHEMA))


def _bring_up(store: Store) -> None:
    """Let a file of schema 1 have what it lacks: its history is counted by the next compaction, in slices."""
    if store.meta("schema") == SCHEMA:
        return
    for name, statement in SQL.items():
        if name.startswith("create_share"):
            store.db.execute(statement)
    newest = next(store.run("read_newest_history"))[0] or 0
    store.do("write_meta", [("schema", SCHEMA), (UNCOUNTED, newest)])


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
