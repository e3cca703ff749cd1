"""The default journal: two SQLite files. One connection writes the tail and syncs every commit.

- `journal.sqlite3` has the tail, under SQLite's own exclusive lock, which ends with the process. `archive.sqlite3` has
  all older records (`archive`), under a lock of its own.
- `append` runs on the event loop: one commit serves the whole tick, and handing over to a thread would cost more.
- A full disk is the one failed COMMIT that does not end the process: the journal removes the reserve file and tries
  the same batch again. None of it was announced yet, and the second try writes the same rows.
- A journal that is missing, or older than its watermark (`watermark`), is refused and never recreated; so is an
  archive that ends before the journal begins. Acknowledged leases would be lost.
- After a failed sync, the readable bytes may only be in memory: the next process writes them again.
- SQLite must be 3.51.3 or later: earlier ones could reset a WAL at the wrong moment and damage the file.

`open` locks and checks before it changes anything. A refused directory stays as it was:

    lock journal.sqlite3   refused if another server has it
    lock archive.lock      the child of a killed server may still write: wait for its end
    check                  every byte to replay, and that the archive belongs to the journal
    count the start        from now on the journal is ours
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import apsw
import msgspec

from holdfast.core.events import Record
from holdfast.journal.codec import count_records, decode_batch, encode_batch
from holdfast.journal.failpoints import failpoint
from holdfast.journal.interface import (
    NO_WATCH,
    RESTORE,
    Changes,
    Health,
    HeldPage,
    HeldQuery,
    HistoryPage,
    HistoryQuery,
    JournalDamagedError,
    JournalError,
    JournalLockedError,
    JournalLostError,
    JournalTooNewError,
    JournalUnavailableError,
    Recovered,
    Retention,
    Snapshot,
    SnapshotPart,
    TailPart,
    Values,
    Watch,
    sync_append,
    watched,
)
from holdfast.journal.sqlite import archive as archive_file
from holdfast.journal.sqlite import watermark
from holdfast.journal.sqlite.archive import Position, Reader
from holdfast.journal.sqlite.archive_writer import Commit
from holdfast.journal.sqlite.compactor import ArchiveConfig, Compactor, LocalCompactor
from holdfast.journal.sqlite.store import SQL, UNSYNCED, DiskFullError, Store, rewrite_file, set_pragmas
from holdfast.journal.sqlite.tail import LARGE_BYTES, BacklogLimit, LargeBatch, Tail, large_batch_of
from holdfast.privatefiles import (
    WRITE_FOR_OTHERS,
    NotOursError,
    check_file,
    check_folder,
    check_may_use,
    make_folder,
    open_ours,
    reason_of,
    sync_file,
    sync_folder,
)

FILE = "journal.sqlite3"
RESERVE_FILE = "ballast"
SCHEMA = 1
APPLICATION_ID = 0x486F6C64  # `Hold`: marks the file as ours, for us and for the `file` command.
OWN_DIRECTORY = "Give the server its own directory"
NEWER_VERSION = "Use the newer version"
PUT_BACK = f"Put {archive_file.FILE} back, with its -wal, or restore a backup"
SQLITE_MIN = (3, 51, 3)
LOCK_TRIES = 3
CHECKPOINT_PAGES = 500  # Half of SQLite's default halves the duration of a commit that checkpoints, at no other cost.
MIB = 2**20

_CREATE = [statement for name, statement in SQL.items() if name.startswith("create_")]

log = logging.getLogger("holdfast.journal")


class SqliteJournal:
    """A journal in a directory."""

    is_shared = False

    def __init__(
        self,
        directory: Path,
        *,
        retention: Retention | None = None,
        synchronous: str = "FULL",
        disk_reserve_bytes: int = 16 * MIB,
        tail_bytes_max: int = 4096 * MIB,
        checkpoint_pages: int = CHECKPOINT_PAGES,
        identity: int = 0,
        witnesses: Sequence[str] = (),
        watch: Watch = NO_WATCH,
        compactor: Compactor | None = None,
        connect: Callable[[str], apsw.Connection] = apsw.Connection,
    ) -> None:
        """Prepare without touching the disk.

        `identity` is for a journal that has none yet. `witnesses` are names of files in the directory that only exist
        after a journal. `compactor` writes the archive; by default this process does. `connect` is for tests.
        """
        self._directory = directory
        self._path = directory / FILE
        self._archive_path = directory / archive_file.FILE
        self._retention = retention or Retention()
        self._synchronous = synchronous
        self._checkpoint_pages = checkpoint_pages
        self._identity = identity
        self._witnesses = witnesses
        self._watch = watch
        self._connect = connect
        self._compactor = compactor or LocalCompactor(connect=connect, synchronous=synchronous)
        self._disk_reserve = DiskReserve(directory / RESERVE_FILE, disk_reserve_bytes, watch)
        self._backlog = BacklogLimit(tail_bytes_max)
        self._store: Store | None = None
        self._lock: archive_file.Lock | None = None
        self._values: deque[Values] = deque()
        self._epoch = 0
        self._last = 0
        self._has_reserve = True
        self.takes_claims = True

    async def open(self) -> Recovered:
        # Closing the file removes the WAL.
        was_closed = self._store is not None or not _size_of(self._directory / f"{FILE}-wal")
        if self._store is None:
            try:
                self._open_or_explain()
            except BaseException:
                await self._unlock()
                raise
        else:
            await self._compactor.finish_abandoned_step()
            check_sound(self._store)
            reader = self._compactor.reader
            self._begin_with(self._store, check_tail(self._store, reader.position(), list(reader.values())))
        self._update_takes_claims()
        return Recovered(self._epoch, self._taken_values(), self._records(), was_closed)

    @sync_append
    def append(self, batch: Sequence[Record]) -> None:
        if not batch:
            return
        store = self._require_open("append")
        if batch[0].seq != self._last + 1:
            raise JournalUnavailableError(f"append: record {batch[0].seq} does not follow {self._last} in {self._path}")
        row = (batch[0].seq, batch[-1].seq, encode_batch(batch))

        def write() -> None:
            store.db.execute(SQL["append_batch"], row)
            failpoint("before_commit")

        try:
            store.commit("append", write)
        except DiskFullError as full:
            self._append_without_reserve(store, write, full)
        self._last = row[1]
        backlog, size_bytes = self._backlog, len(row[2])
        backlog.size_bytes += size_bytes
        if size_bytes > LARGE_BYTES:
            backlog.add_batch(large_batch_of(row[1], batch, row[2]))
            self._update_takes_claims()
        elif backlog.size_bytes > backlog.bytes_max:
            self._update_takes_claims()
        failpoint("after_commit")

    async def archive(self, upto: int, head: bytes, changes: Iterable[Changes], wall_ms: int) -> None:
        self._require_open("archive")
        tail, fed_bytes = self._tail, 0
        commit = Commit(tail.upto, None, wall_ms)
        if upto > tail.upto:
            tail.refuse_unless_durable(upto)
            commit = Commit(upto, head, wall_ms)

        def feed(after: int) -> list[tuple[int, int, bytes]]:
            nonlocal fed_bytes
            rows = tail.some(after, upto)
            fed_bytes += sum(len(body) for _, _, body in rows)
            return rows

        try:
            await self._compactor.step(commit, changes, feed)
        except JournalUnavailableError as error:
            since_ms = wall_ms if self._backlog.failing is None else self._backlog.failing[0]
            self._backlog.failing = since_ms, error.problem
            raise
        self._backlog.failing = None
        tail.upto = self._compactor.position.upto
        self._backlog.drop(tail.upto, fed_bytes)
        self._update_takes_claims()
        try:
            await tail.drop_archived()
        except JournalUnavailableError as error:
            # The step counts nevertheless: the caller must not repeat it.
            log.warning("%s; what is archived is dropped from the tail the next time", error)
        self._write_watermark()

    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        self._require_open("snapshot")
        return self._tail.snapshot(self._last)

    async def history(self, query: HistoryQuery) -> HistoryPage:
        self._require_open("history")
        return await self._tail.history(query)

    async def follow(self, after_seq: int, limit: int) -> Sequence[Record]:
        self._require_open("follow")
        return await self._tail.follow(after_seq, limit)

    async def last_by(self, wall_ms: int) -> int:
        self._require_open("last_by")
        return await self._tail.last_by(wall_ms)

    async def held(self, query: HeldQuery) -> HeldPage:
        self._require_open("held")
        return await self._tail.held(query, self._last)

    @property
    def tail_bytes(self) -> int:
        return self._backlog.size_bytes

    @property
    def history_begins_after(self) -> int:
        self._require_open("history")
        return self._compactor.reader.position().pruned

    def health(self) -> Health:
        """Report the state. After the reserve was used, claims are refused until it exists again."""
        text = f"the disk under {self._directory} is full: free some space"
        if not self._has_reserve:
            try:
                self._has_reserve = self._disk_reserve.ensure()
            except NotOursError as error:
                text = str(error)
            self._update_takes_claims()
        if self._has_reserve:
            text = self._backlog.status_text()
        files = [FILE, f"{FILE}-wal", archive_file.FILE, f"{archive_file.FILE}-wal"]
        size_bytes = sum(_size_of(self._directory / name) for name in files)
        free = self._disk_reserve.free_bytes()
        is_open = self._has_reserve and self._backlog.is_open
        return Health(takes_claims=is_open, size_bytes=size_bytes, storage="wal", text=text, free_bytes=free)

    def why_no_claims(self, principal: str) -> str | None:
        if self._has_reserve and self._backlog.is_open:
            return self._backlog.why_not(principal)
        health = self.health()
        return self._backlog.why_not(principal) if health.takes_claims else health.text

    def _update_takes_claims(self) -> None:
        self.takes_claims = self._has_reserve and self._backlog.is_open_to_all

    async def close(self) -> None:
        if self._store is not None:
            self._write_watermark()
        await self._unlock()

    def _write_watermark(self) -> None:
        """Write the watermark: only durable records, and only while the journal is ours."""
        try:
            with watched(self._watch, "write the mark"):
                failpoint("before_mark")
                watermark.write(self._directory, watermark.Watermark(self._identity, self._epoch, self._last))
        except OSError as error:
            # The old watermark stays valid: it claims less.
            why = reason_of(error)
            log.warning("%s cannot be written: %s; it is tried again later", self._directory / watermark.FILE, why)

    async def _unlock(self) -> None:
        """Release the archive first, which the journal's lock protects."""
        store, self._store = self._store, None
        if store is not None:
            await self._compactor.close()
        if self._lock is not None:
            with watched(self._watch, "give back the lock"):
                self._lock.release()
            self._lock = None
        if store is not None:
            store.close()

    # Filling (`SqliteWriter`).

    def put(self, records: Sequence[Record]) -> None:
        store = self._require_open("fill")
        row = (records[0].seq, records[-1].seq, encode_batch(records))
        store.commit("fill", lambda: store.do("append_batch", [row]))

    def reach(self, epoch: int, upto: int, last_seq: int) -> None:
        """Set how far the archive and the tail reach."""
        store = self._require_open("fill")
        store.commit("fill", lambda: store.do("write_meta", [("epoch", epoch), ("archived", upto)]))
        self._epoch, self._tail.upto, self._last = epoch, upto, last_seq

    # Appending.

    def _append_without_reserve(self, store: Store, write: Callable[[], None], full: DiskFullError) -> None:
        """Free the reserve and retry. If both tries fail, the outcome is unknown if either sent its COMMIT."""
        self._has_reserve = self.takes_claims = False
        text = f"append: the disk under {self._directory} is full and the reserve is used up ({full}): free some space"
        if not self._disk_reserve.release():
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

    def _require_open(self, operation: str) -> Store:
        if self._store is None:
            raise JournalUnavailableError(f"{operation}: {self._path} is not open; open it first")
        return self._store

    # Opening.

    def _open_or_explain(self) -> None:
        """Open the files. On a full disk free the reserve: a server that cannot start cannot release anything."""
        if tuple(int(part) for part in apsw.sqlite_lib_version().split(".")) < SQLITE_MIN:
            raise JournalError(f"SQLite {apsw.sqlite_lib_version()} can damage a WAL: install apsw 3.51.3 or later")
        mask = os.umask(0o077)
        try:
            make_folder(self._directory)
            check_files(self._directory)
            try:
                self._open_unless_locked()
            except (apsw.FullError, DiskFullError):
                if not self._disk_reserve.release():
                    raise
                self._open_unless_locked()
            self._write_watermark()
            self._has_reserve = self._disk_reserve.ensure()
        except NotOursError as error:
            raise JournalError(str(error)) from error
        except apsw.BusyError as error:
            raise JournalLockedError(f"another server has {self._directory} open", "Stop it first") from error
        except (apsw.CorruptError, apsw.NotADBError) as error:
            raise JournalDamagedError(f"{self._path} is damaged: {error}", RESTORE) from error
        except (apsw.Error, DiskFullError, OSError) as error:
            way = "Check that the directory is writable and has room"
            raise JournalError(f"{self._path} cannot be opened: {reason_of(error)}", way) from error
        finally:
            os.umask(mask)
        failpoint("after_open")

    def _open_unless_locked(self) -> None:
        """Open both files, with retries: two servers that start together can block each other, but wait differently."""
        for _ in range(1, LOCK_TRIES):
            try:
                self._open_files()
            except apsw.BusyError:
                time.sleep(0.02 * (1 + os.getpid() % 8))
            else:
                return
        self._open_files()

    def _open_files(self) -> None:
        if not self._path.exists():
            watermark.check(self._path, None, self._witnesses)
        with contextlib.ExitStack() as undo:
            store = Store(self._connect(str(self._path)), self._path, self._watch)
            undo.callback(store.close_untouched)
            is_new = self._lock_journal(store.db)
            if is_new:
                watermark.check(self._path, None, self._witnesses)
                self._refuse_lone_archive()
            pages = self._checkpoint_pages
            set_pragmas(store, locking_mode="exclusive", synchronous=self._synchronous, checkpoint_pages=pages)
            lock = archive_file.Lock(self._directory)
            undo.callback(lock.release)
            if is_new:
                store.commit("open", lambda: _create(store.db))
            self._identity = store.meta("identity") or self._identity
            found = self._check(store)
            self._empty_wal(store)
            if not store.meta("epoch"):
                self._make_archive()
            self._epoch = store.meta("epoch") + 1
            scalars = [("epoch", self._epoch), ("identity", self._identity)]
            store.commit("open", lambda: store.do("write_meta", scalars))
            undo.pop_all()
        try:
            self._compactor.open(ArchiveConfig(self._archive_path, self._identity, self._retention, lock, self._watch))
        except BaseException:
            lock.release()
            store.close()
            raise
        self._store, self._lock = store, lock
        self._begin_with(store, found)

    def _begin_with(self, store: Store, found: Found) -> None:
        self._values = deque(found.values)
        self._last = found.last_seq
        self._backlog.begin(found.tail_bytes, found.parts)
        self._tail = Tail(store, found.upto, self._compactor)

    def _lock_journal(self, db: apsw.Connection) -> bool:
        """Lock the file before reading it, refuse one that is not ours, and return whether it is new."""
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

    def _check(self, store: Store) -> Found:
        """Check all that will be replayed, the watermark first: a wrong journal must not ask for another archive."""
        check_sound(store)
        watermark.check(self._path, watermark_of(store, last_seq_of(store)), self._witnesses)
        if not store.meta("epoch"):  # No start has finished: there need be no archive.
            return check_tail(store, Position(self._identity, 0, 0), [])
        if not self._archive_path.exists():
            raise lost_archive(store, self._archive_path)
        with self._archive_untouched() as reader:
            check_archive(store, self._archive_path, reader.position())
            return check_tail(store, reader.position(), list(reader.values()))

    @contextlib.contextmanager
    def _archive_untouched(self) -> Iterator[Reader]:
        archive = archive_file.open_for_check(self._archive_path, self._connect, self._watch)
        try:
            yield Reader(archive)
        finally:
            archive.close_untouched()

    def _refuse_lone_archive(self) -> None:
        """Raise if there is an archive with records: its journal is lost."""
        upto = 0
        with contextlib.suppress(JournalError, apsw.Error):
            # A killed first start may leave one that cannot be read.
            if self._archive_path.exists():
                with self._archive_untouched() as reader:
                    upto = reader.position().upto
        if upto:
            name = self._archive_path.name
            problem = f"{self._path} is missing, but {name} is there, with all up to record {upto}"
            raise JournalLostError(problem, watermark.PUT_BACK, watermark.start_over_remedy(name))

    def _make_archive(self) -> None:
        """Make an empty archive in place of one that an interrupted first start left."""
        archive_file.delete_archive(self._archive_path)
        archive = archive_file.open_for_writing(
            self._archive_path,
            self._identity,
            connect=self._connect,
            synchronous=self._synchronous,
            alone=True,
            watch=self._watch,
        )
        archive.close()
        sync_folder(self._directory)

    def _empty_wal(self, store: Store) -> None:
        """Empty the WAL, so that no new write shares a sector with the last ones before a crash."""
        unsynced = self._directory / UNSYNCED
        is_unsynced = unsynced.exists()
        with watched(self._watch, "empty the WAL"):
            if is_unsynced:
                rewrite_file(store.db, f"{self._path}-wal")
            busy, _, _ = next(store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)"))
        if busy:
            raise JournalError(f"{self._path}: the WAL cannot be emptied. Stop whatever else has the file open")
        if is_unsynced:
            unsynced.unlink()

    def _taken_values(self) -> Iterator[Values]:
        """Yield the archived values, and free each."""
        while self._values:
            yield self._values.popleft()

    def _records(self) -> Iterator[Record]:
        store, upto = self._require_open("open"), self._tail.upto
        wanted = upto + 1
        for _, _, body in store.run("read_batches", (upto,)):
            for record in decode_batch(body):
                if record.seq != wanted:
                    raise store.damaged(f"record {record.seq} stands where {wanted} should")
                wanted += 1
                yield record


class DiskReserve:
    """The reserve file: disk space held back for releases and renewals on a full disk.

    It must be a regular file of ours with one name: through a link another file would grow, and removing it would free
    nothing.
    """

    def __init__(self, path: Path, size_bytes: int, watch: Watch = NO_WATCH) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._watch = watch
        self._is_missing = False

    def free_bytes(self) -> int | None:
        try:
            return shutil.disk_usage(self._path.parent).free
        except OSError:
            return None

    def ensure(self) -> bool:
        """Reserve the space, and return whether it exists. Raises `NotOursError` for a file that is not ours."""
        with watched(self._watch, "lay the reserve"):
            is_there = self._size_bytes == 0 or self._is_complete() or self._create_file()
        if is_there and self._is_missing:
            log.warning("there is room under %s again: the reserve is back, and claims are taken", self._path.parent)
        elif not is_there and not self._is_missing:
            self._log_full_disk("there is no room for the reserve")
        self._is_missing = not is_there
        return is_there

    def release(self) -> bool:
        """Free the space, and return whether there was any."""
        if not self._delete_file():
            return False
        self._is_missing = True
        self._log_full_disk("the reserve was given up for what keeps and ends leases")
        return True

    def _create_file(self) -> bool:
        if shutil.disk_usage(self._path.parent).free < 2 * self._size_bytes:  # Else it would come and go.
            return False
        try:
            file = open_ours(self._path, os.O_WRONLY | os.O_CREAT, one_name=True)
            try:
                os.posix_fallocate(file, 0, self._size_bytes)
            finally:
                os.close(file)
        except OSError:
            self._delete_file()
            return False
        return True

    def _delete_file(self) -> bool:
        try:
            with watched(self._watch, "give up the reserve"):
                self._path.unlink()
        except OSError:
            return False
        return True

    def _is_complete(self) -> bool:
        """Return whether the size is right: a crash in `_create_file` leaves a smaller file."""
        try:
            file = open_ours(self._path, one_name=True)
        except OSError:
            return False
        with os.fdopen(file):
            return os.fstat(file).st_size >= self._size_bytes

    def _log_full_disk(self, what: str) -> None:
        size = f"{2 * self._size_bytes / MIB:.0f} MiB"
        log.error("the disk under %s is full: %s. Claims are refused until %s are free", self._path.parent, what, size)


class SqliteWriter:
    """Fills an empty data directory. `close` syncs it: before, it is not durable."""

    def __init__(self, directory: Path, *, identity: int, epoch: int) -> None:
        self._directory = directory
        self._epoch = epoch
        self._compactor = LocalCompactor(synchronous="NORMAL")
        self._journal = SqliteJournal(
            directory, synchronous="NORMAL", disk_reserve_bytes=0, identity=identity, compactor=self._compactor
        )

    async def begin(self) -> None:
        await self._journal.open()

    async def put(self, part: SnapshotPart) -> None:
        with self._named():
            if isinstance(part, TailPart):
                self._journal.put(part.records)
            else:
                self._compactor.writer.fill(part)

    async def end(self, source: Snapshot) -> None:
        with self._named():
            self._compactor.writer.end_fill(source.upto, source.pruned)
            self._journal.reach(self._epoch, source.upto, source.last_seq)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except DiskFullError as error:
            raise JournalUnavailableError(f"fill: the disk under {self._directory} is full: {error}") from error

    async def close(self) -> None:
        await self._journal.close()
        for name in (archive_file.FILE, FILE):
            with contextlib.suppress(FileNotFoundError):
                sync_file(self._directory / name)


class Found(msgspec.Struct):
    """The content to replay, and how far the archive and the tail reach."""

    upto: int
    values: list[Values]
    last_seq: int
    tail_bytes: int = 0
    parts: list[LargeBatch] = []


def check_tail(store: Store, position: Position, values: list[Values]) -> Found:
    """Check each batch of the tail, and that it follows the archive without a gap."""
    found = Found(position.upto, values, position.upto)
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
            found.parts.append(large_batch_of(last, decode_batch(body), body))
    return found


def check_sound(store: Store) -> None:
    """Raise if SQLite finds damage in a table that a start needs."""
    for check in ("check_meta", "check_batch"):
        for (text,) in store.run(check):
            if text != "ok":
                raise store.damaged(str(text))


def last_seq_of(store: Store) -> int:
    return max(store.meta("archived"), next(store.run("read_last_batch"))[0] or 0)


def lost_archive(store: Store, path: Path) -> JournalLostError:
    problem = f"{path} is missing, and it has all that {store.path.name} knew up to record {store.meta('archived')}"
    return JournalLostError(problem, PUT_BACK)


def check_archive(store: Store, path: Path, position: Position) -> None:
    """Raise `JournalLostError` unless this archive belongs to the journal."""
    if position.identity != store.meta("identity"):
        raise JournalLostError(f"{path} is the archive of another journal than {store.path.name}", PUT_BACK)
    archived = store.meta("archived")
    back = "has gone back in time: it ends with record"
    if position.upto < archived:
        problem = f"{path} {back} {position.upto}, and {store.path.name} has dropped all up to record {archived}"
        raise JournalLostError(problem, PUT_BACK)
    last = last_seq_of(store)
    if position.upto > last:
        problem = f"{store.path} {back} {last}, and {path.name} with {position.upto}"
        raise JournalLostError(problem, f"Put the newest {FILE} back, with its -wal, or restore a backup")


def check_files(directory: Path) -> None:
    """Raise `NotOursError` for a directory or a file in it that others could have made or changed, or that root keeps.

    The directory comes first: SQLite opens files by name, so no other user may create files there. Others may read
    them: the journal contains no token, and a restored copy may be readable.
    """
    check_folder(directory)
    names = [name + suffix for name in (FILE, archive_file.FILE) for suffix in archive_file.SUFFIXES]
    for name in (*names, archive_file.LOCK):
        path = directory / name
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat()
            check_file(path, found, closed=WRITE_FOR_OTHERS)
            check_may_use(path, found)
    reserve = directory / RESERVE_FILE
    with contextlib.suppress(FileNotFoundError):
        check_file(reserve, reserve.lstat(), one_name=True)


def watermark_of(store: Store, last_seq: int) -> watermark.Watermark | None:
    """Return how far a journal has come; None before its first start has finished."""
    epoch = store.meta("epoch")
    return watermark.Watermark(store.meta("identity"), epoch, last_seq) if epoch else None


def _create(db: apsw.Connection) -> None:
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")
    for statement in _CREATE:
        db.execute(statement)
    db.execute(SQL["write_meta"], ("schema", SCHEMA))


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
