"""The default journal: two SQLite files. The tail has one connection, is locked whole, and every commit is synced.

- `journal.sqlite3` has the tail. Its seat is SQLite's own exclusive lock on it: it ends with the process, however that
  ends. `archive.sqlite3` has all that came before (`journal/archive`); whoever may write it holds a lock of its own.
- `append` runs on the event loop: one commit serves the whole turn, and a thread's hand-overs cost more than they save.
- The one failed COMMIT that does not end the process is a full disk: the same batch is tried once more after a ballast
  file was given up, for nobody has heard of it yet and the second try writes the same rows in the same place.
- One that is gone, or older than the directory knows, is refused and never begun anew (`journal/mark.py`); so is an
  archive that does not reach as far as the journal counts on.
- What cannot be read is refused before anything is changed. After a sync has failed, what can be read may be in the
  machine's memory only: the next process writes it again before it builds on it.
- SQLite must be 3.51.3 or later: before, a WAL could be reset at the wrong moment and the file damaged.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from typing import TYPE_CHECKING

import apsw

from holdfast.journal import mark
from holdfast.journal.archive import file as archive_file
from holdfast.journal.archive.archivist import Local, Place, Step
from holdfast.journal.atonce import at_once
from holdfast.journal.ballast import Ballast
from holdfast.journal.base import (
    Health,
    HeldPage,
    HeldQuery,
    HistoryPage,
    HistoryQuery,
    JournalError,
    JournalUnavailableError,
    Keeping,
    Nobody,
    Recovered,
    Watch,
    watched,
)
from holdfast.journal.base import Tail as TailPart
from holdfast.journal.codec import decode_batch, encode_batch
from holdfast.journal.failpoints import failpoint
from holdfast.journal.store import SQL, DiskFullError, Store
from holdfast.journal.tail.batches import Looking, Tail
from holdfast.journal.tail.opening import (
    APPLICATION_ID,
    BALLAST,
    FILE,
    NEWER_VERSION,
    OWN_DIRECTORY,
    SCHEMA,
    SQLITE_MIN,
    Found,
    Opening,
    check_files,
    check_sound,
    look_at_tail,
    mark_of,
)
from holdfast.journal.tail.room import LARGE_BYTES, Room, part_of
from holdfast.privatefiles import NotOursError, make_folder, reason_of, sync_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from holdfast.core.events import Record
    from holdfast.journal.archive.archivist import Archivist
    from holdfast.journal.base import Changes, Part, Snapshot, Values

__all__ = [
    "APPLICATION_ID",
    "BALLAST",
    "CHECKPOINT_PAGES",
    "FILE",
    "NEWER_VERSION",
    "OWN_DIRECTORY",
    "SCHEMA",
    "SqliteJournal",
    "SqliteWriter",
    "check_files",
    "mark_of",
]

CHECKPOINT_PAGES = 500
"""After how many pages the WAL is moved into the file, by the commit that filled it: half of SQLite's 1000 halves the
time that one such commit takes, and costs nothing else."""
MIB = 2**20

log = logging.getLogger("holdfast.journal")


class SqliteJournal:
    """A journal in a directory."""

    is_shared = False

    def __init__(
        self,
        directory: Path,
        *,
        keeping: Keeping | None = None,
        synchronous: str = "FULL",
        ballast_bytes: int = 16 * MIB,
        tail_bytes_max: int = 4096 * MIB,
        checkpoint_pages: int = CHECKPOINT_PAGES,
        identity: int = 0,
        witnesses: Sequence[str] = (),
        watch: Watch | None = None,
        archivist: Archivist | None = None,
        connect: Callable[[str], apsw.Connection] = apsw.Connection,
    ) -> None:
        """Prepare; nothing is touched before `open`.

        `identity` is the number of a journal that has none yet. `witnesses` are names of files in the directory that
        are only there after a journal. `watch` hears of every call to the disk that can hang. `archivist` writes the
        archive; by default this process does. `connect` lets a test put its own file system underneath.
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
        self._archivist = archivist or Local(connect=connect, synchronous=synchronous)
        self._ballast = Ballast(directory / BALLAST, ballast_bytes, self._watch)
        self._room = Room(tail_bytes_max)
        self._store: Store | None = None
        self._lock: archive_file.Lock | None = None
        self._values: deque[Values] = deque()
        self._epoch = 0
        self._last = 0
        self._has_reserve = True
        self.takes_claims = True
        """Whether there is room for everybody's new claims; renewals and releases go on either way."""

    # What the seam promises (`journal/base.py`).

    async def open(self) -> Recovered:
        """Lock the file and tell what is in it."""
        # Whoever closes the file leaves no WAL behind.
        was_closed = self._store is not None or not _size_of(self._directory / f"{FILE}-wal")
        if self._store is None:
            try:
                self._take_seat()
            except BaseException:
                await self._unlock()
                raise
        else:
            await self._archivist.settle()
            self._look_again(self._store)
        self._judge()
        return Recovered(self._epoch, self._taken_values(), self._records(), was_closed)

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
        room, size_bytes = self._room, len(row[2])
        room.size_bytes += size_bytes
        if size_bytes > LARGE_BYTES:
            room.add_part(part_of(row[1], batch, row[2]))
            self._judge()
        elif room.size_bytes > room.bytes_max:
            self._judge()
        failpoint("after_commit")

    async def archive(self, upto: int, head: bytes, changes: Iterable[Changes], wall_ms: int) -> None:
        """Let the archivist write a step, then drop what it stands for from the tail."""
        self._seated("archive")
        tail, fed_bytes = self._tail, 0
        step = Step(tail.upto, None, (), wall_ms)
        if upto > tail.upto:
            tail.refuse_unless_durable(upto)
            step = Step(upto, head, changes, wall_ms)

        def feed(after: int) -> list[tuple[int, int, bytes]]:
            nonlocal fed_bytes
            rows = tail.some(after, upto)
            fed_bytes += sum(len(body) for _, _, body in rows)
            return rows

        try:
            await self._archivist.step(step, feed)
        except JournalUnavailableError as error:
            since_ms = wall_ms if self._room.failing is None else self._room.failing[0]
            self._room.failing = since_ms, error.problem
            raise
        self._room.failing = None
        tail.upto = self._archivist.position.upto
        self._room.drop(tail.upto, fed_bytes)
        self._judge()
        try:
            await tail.drop_archived()
        except JournalUnavailableError as error:
            # The step counts all the same: whoever gave it must not give it again.
            log.warning("%s; what is archived is dropped from the tail the next time", error)
        self._leave_mark()

    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        """Give all that there is at this instant."""
        self._seated("snapshot")
        return self._looking.snapshot(self._last)

    async def history(self, query: HistoryQuery) -> HistoryPage:
        """Look in the tail first, then in the archive."""
        self._seated("history")
        return await self._looking.history(query)

    async def follow(self, after_seq: int, limit: int) -> Sequence[Record]:
        """Look in the archive first, then in the tail."""
        self._seated("follow")
        return await self._looking.follow(after_seq, limit)

    async def last_by(self, wall_ms: int) -> int:
        """Look in the tail first, then in the archive."""
        self._seated("last_by")
        return await self._looking.last_by(wall_ms)

    async def held(self, query: HeldQuery) -> HeldPage:
        """Follow the tail on top of the archive."""
        self._seated("held")
        return await self._looking.held(query, self._last)

    @property
    def tail_bytes(self) -> int:
        """What waits for the archive."""
        return self._room.size_bytes

    @property
    def history_begins_after(self) -> int:
        """The newest that was pruned. Read from the archive: it may have been pruned a moment ago."""
        self._seated("history")
        return self._archivist.reader.position().pruned

    def health(self) -> Health:
        """Tell how the store is. Once the ballast was given up, claims wait until it could be laid down again."""
        text = self._room.words()
        if not self._has_reserve:
            text = f"the disk under {self._directory} is full: free some space"
            try:
                self._has_reserve = self._ballast.lay()
            except NotOursError as error:
                text = str(error)
            if self._has_reserve:
                text = self._room.words()
            self._judge()
        files = [FILE, f"{FILE}-wal", archive_file.FILE, f"{archive_file.FILE}-wal"]
        size_bytes = sum(_size_of(self._directory / name) for name in files)
        free = self._ballast.free_bytes()
        is_open = self._has_reserve and self._room.is_open
        return Health(takes_claims=is_open, size_bytes=size_bytes, storage="wal", text=text, free_bytes=free)

    def why_no_claims(self, principal: str) -> str | None:
        """Say why: nobody's are taken, or this principal has too much of what waits for the archive."""
        if self._has_reserve and self._room.is_open:
            return self._room.why_not(principal)
        health = self.health()
        return self._room.why_not(principal) if health.takes_claims else health.text

    def _judge(self) -> None:
        """Let everybody's claims be taken, or not."""
        self.takes_claims = self._has_reserve and self._room.is_open_to_all

    async def close(self) -> None:
        """Unlock the file."""
        if self._store is not None:
            self._leave_mark()
        await self._unlock()

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

    async def _unlock(self) -> None:
        """Give everything back: the archive first, for the journal keeps others from it."""
        store, self._store = self._store, None
        if store is not None:
            await self._archivist.close()
        if self._lock is not None:
            with watched(self._watch, "give back the lock"):
                self._lock.release()
            self._lock = None
        if store is not None:
            store.close()

    # Filling (`SqliteWriter`).

    def put(self, records: Sequence[Record]) -> None:
        """Write some records into the tail, wherever the archive will end."""
        store = self._seated("fill")
        row = (records[0].seq, records[-1].seq, encode_batch(records))
        store.commit("fill", lambda: store.do("append_batch", [row]))

    def reach(self, epoch: int, upto: int, last_seq: int) -> None:
        """Count on an archive that reaches up to a record, and on a tail up to another."""
        store = self._seated("fill")
        store.commit("fill", lambda: store.do("write_meta", [("epoch", epoch), ("archived", upto)]))
        self._epoch, self._tail.upto, self._last = epoch, upto, last_seq

    # Appending.

    def _append_without_ballast(self, store: Store, write: Callable[[], None], full: DiskFullError) -> None:
        """Make room and try the same batch again. If that fails too, what is known is what the first try left open."""
        self._has_reserve = self.takes_claims = False
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

    # Opening.

    def _take_seat(self) -> None:
        """Open the files. On a full disk the ballast goes first: a server that cannot start cannot release anything."""
        if tuple(int(part) for part in apsw.sqlite_lib_version().split(".")) < SQLITE_MIN:
            raise JournalError(f"SQLite {apsw.sqlite_lib_version()} can damage a WAL: install apsw 3.51.3 or later")
        opening = Opening(
            self._directory,
            synchronous=self._synchronous,
            checkpoint_pages=self._checkpoint_pages,
            identity=self._identity,
            witnesses=self._witnesses,
            watch=self._watch,
            archivist=self._archivist,
            connect=self._connect,
        )
        mask = os.umask(0o077)
        try:
            make_folder(self._directory)
            check_files(self._directory)
            try:
                self._open_files(opening)
            except (apsw.FullError, DiskFullError):
                if not self._ballast.give_up():
                    raise
                self._open_files(opening)
            self._leave_mark()
            self._has_reserve = self._ballast.lay()
        except NotOursError as error:
            raise JournalError(str(error)) from error
        except (apsw.Error, DiskFullError, OSError) as error:
            raise opening.explained(error) from error
        finally:
            os.umask(mask)
        failpoint("after_open")

    def _open_files(self, opening: Opening) -> None:
        store, lock, found = opening.run()
        try:
            place = Place(self._directory / archive_file.FILE, opening.identity, self._keeping, lock, self._watch)
            self._archivist.open(place)
        except BaseException:
            lock.release()
            store.close()
            raise
        self._store, self._lock = store, lock
        self._identity, self._epoch = opening.identity, opening.epoch
        self._begin_with(store, found)

    def _begin_with(self, store: Store, found: Found) -> None:
        self._values = deque(found.values)
        self._last = found.last_seq
        self._room.begin(found.tail_bytes, found.parts)
        self._tail = Tail(store, found.upto)
        self._looking = Looking(self._tail, self._archivist)

    def _look_again(self, store: Store) -> None:
        """Read anew what is there, as the one who has the seat."""
        check_sound(store)
        reader = self._archivist.reader
        self._begin_with(store, look_at_tail(store, reader.position(), list(reader.values())))

    def _taken_values(self) -> Iterator[Values]:
        """Yield the archived values, and let go of each: they are many."""
        while self._values:
            yield self._values.popleft()

    def _records(self) -> Iterator[Record]:
        """Yield the records that are not archived."""
        store, upto = self._seated("open"), self._tail.upto
        wanted = upto + 1
        for _, _, body in store.run("read_batches", (upto,)):
            for record in decode_batch(body):
                if record.seq != wanted:
                    raise store.damaged(f"record {record.seq} stands where {wanted} should")
                wanted += 1
                yield record


class SqliteWriter:
    """Fills an empty data directory. It is synced once, at the end: until then nobody may count on it."""

    def __init__(self, directory: Path, *, identity: int, epoch: int) -> None:
        """`identity` is the number of the new journal, `epoch` that of the last start on what it is filled with."""
        self._directory = directory
        self._epoch = epoch
        self._archivist = Local(synchronous="NORMAL")
        self._journal = SqliteJournal(
            directory, synchronous="NORMAL", ballast_bytes=0, identity=identity, archivist=self._archivist
        )

    async def begin(self) -> None:
        """Make the files. Raises `JournalError`."""
        await self._journal.open()

    async def put(self, part: Part) -> None:
        """Write a part."""
        with self._named():
            if isinstance(part, TailPart):
                self._journal.put(part.records)
            else:
                self._archivist.writer.fill(part)

    async def end(self, source: Snapshot) -> None:
        """Let the archive count."""
        with self._named():
            self._archivist.writer.end_fill(source.upto, source.pruned)
            self._journal.reach(self._epoch, source.upto, source.last_seq)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except DiskFullError as error:
            raise JournalUnavailableError(f"fill: the disk under {self._directory} is full: {error}") from error

    async def close(self) -> None:
        """Close the files and sync them."""
        await self._journal.close()
        for name in (archive_file.FILE, FILE):
            with contextlib.suppress(FileNotFoundError):
                sync_file(self._directory / name)


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
