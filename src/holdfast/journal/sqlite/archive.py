"""The archive's file: opens it, writes its state, and reads all of it.

The holder of `archive.lock` is the only writer: a server, or the child that inherited it. So a starting server waits
for the end of a killed server's child.

After a failed sync the readable bytes may only be in memory. A marker file exists until the next process that opens
the archive for writing has written them again (`store.rewrite_file`).

Each value of the state is a row, in the order of its table, with a checksum over table, key and value. The number of
rows and the sum of the checksums are scalars: a start that reads every row verifies that none is missing or extra.

A reader sees the data committed when a read begins. One that shares the writer's connection (in tests with a disk in
memory) sees more, so callers pass the number up to which the archive counts.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import time
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from zlib import crc32

import apsw
import msgspec

from holdfast.core.events import Record
from holdfast.journal.codec import decode_batch
from holdfast.journal.interface import HEAD, Changes, HeldQuery, JournalError, JournalLockedError, Values, Watch
from holdfast.journal.search import Grants, Hold
from holdfast.journal.sql import load
from holdfast.journal.sqlite.store import Store, rewrite_file, set_pragmas
from holdfast.privatefiles import open_ours

Connect = Callable[[str], apsw.Connection]

FILE = "archive.sqlite3"
LOCK = "archive.lock"
UNSYNCED = "archive.unsynced"
SUFFIXES = ("", "-wal", "-shm", "-journal")
APPLICATION_ID = 0x486F6C41  # `HolA`: marks the file as ours.
SCHEMA = 1
OPEN = 2**62  # The end of a live grant.
ORDINAL_BITS = 48  # A place is the number of its table, then a number within it.
CACHE_KIB = 32 * 1024  # For some thousand pages per step. Those that do not fit are written to the WAL twice.
CHECKPOINT_PAGES = 1_000  # Most steps write more, so their commit empties the WAL into the file.
LOCK_TRIES = 200
LOCK_SECONDS = 0.05
READ_ROWS = 1_024
READ_RECORDS = 256
HEAD_NUMBER = 0
_LARGEST_CHARACTER = 0x10FFFF

SQL = load("archive.sql")
_CREATE = [statement for name, statement in SQL.items() if name.startswith("create_")]


class Position(msgspec.Struct, frozen=True, array_like=True, tag="position"):
    """The archive's journal, how far the archive reaches, and up to where history is pruned."""

    identity: int
    upto: int
    pruned: int


def segment_of(seq: int) -> int:
    """Return a record's segment of names."""
    return seq >> 17


def block_of(seq: int) -> int:
    """Return a record's block of wall times."""
    return seq >> 10


def ordinals_of(number: int) -> tuple[int, int]:
    """Return the first place of a table, and the first after it."""
    return number << ORDINAL_BITS, (number + 1) << ORDINAL_BITS


def position_of(store: Store) -> Position:
    found = dict(store.some("read_all_meta"))
    return Position(found.get("identity", 0), found.get("upto", 0), found.get("pruned", 0))


def open_for_writing(
    path: Path,
    identity: int,
    *,
    connect: Connect = apsw.Connection,
    synchronous: str = "FULL",
    alone: bool = False,
    checkpoint_pages: int = CHECKPOINT_PAGES,
    watch: Watch | None = None,
) -> Store:
    """Open or create an archive, and make it durable. `alone`: no other connection may read it."""
    store = Store(connect(str(path)), path, watch, sql=SQL, unsynced=UNSYNCED)
    try:
        set_pragmas(
            store,
            locking_mode="exclusive" if alone else "normal",
            synchronous=synchronous,
            checkpoint_pages=checkpoint_pages,
            cache_size=-CACHE_KIB,
        )
        if store.db.execute("PRAGMA schema_version").get == 0:
            store.commit("open", lambda: _create(store, identity))
        check(store)
        unsynced = path.with_name(UNSYNCED)
        if unsynced.exists():
            rewrite_file(store.db, f"{path}-wal")
        # What a killed process left may not have been synced. This syncs it, before anything is built on it.
        store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        unsynced.unlink(missing_ok=True)
    except BaseException:
        store.close_untouched()
        raise
    return store


def open_for_reading(path: Path, *, connect: Connect = apsw.Connection, watch: Watch | None = None) -> Store:
    """Open an archive to read, while another connection may write."""
    store = Store(connect(str(path)), path, watch, sql=SQL, unsynced=UNSYNCED)
    # Emptying the WAL is the writer's task: it would block the server's loop.
    store.db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    store.db.execute("PRAGMA query_only=1").fetchall()
    # Readers wait for a moment while a writer recovers the WAL of a killed one.
    store.db.set_busy_timeout(1_000)
    return store


def open_for_check(path: Path, connect: Connect = apsw.Connection, watch: Watch | None = None) -> Store:
    """Open an archive without changing it, and keep other processes out."""
    store = Store(connect(str(path)), path, watch, sql=SQL, unsynced=UNSYNCED)
    try:
        # With the whole file locked, SQLite keeps the index of the WAL in memory instead of in a file.
        store.db.execute("PRAGMA locking_mode=exclusive").fetchall()
        store.db.execute("PRAGMA query_only=1").fetchall()
        check(store)
    except BaseException:
        store.close_untouched()
        raise
    return store


def check(store: Store) -> None:
    """Raise unless this is an archive that this version can read."""
    try:
        application = store.db.execute("PRAGMA application_id").get
        if store.db.execute("PRAGMA schema_version").get == 0:
            raise store.damaged("it is empty")
        if application != APPLICATION_ID:
            raise JournalError(f"{store.path} is a database of another program", "Put the archive back")
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise store.damaged(str(error)) from error
    if (schema := store.meta("schema")) != SCHEMA:
        raise JournalError(f"{store.path} has schema {schema}; this version knows {SCHEMA}", "Use the newer version")


def truncate_wal(store: Store) -> None:
    """Free the WAL space of a step that was rolled back."""
    with contextlib.suppress(apsw.Error):
        store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def delete_archive(path: Path) -> None:
    for suffix in SUFFIXES:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    path.with_name(UNSYNCED).unlink(missing_ok=True)


def wait_for_lock(file: int, kind: int) -> bool:
    """Lock a file within ten seconds: a compactor without a server ends soon."""
    for _ in range(LOCK_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return True
        time.sleep(LOCK_SECONDS)
    return False


class Lock:
    """The right to write a directory's archive. A child inherits it; it lasts until both processes end."""

    def __init__(self, directory: Path) -> None:
        """Wait for the child of a server that ended. Raises `JournalLockedError` after ten seconds."""
        self._path = directory / LOCK
        self.file = open_ours(self._path, os.O_RDWR | os.O_CREAT)
        try:
            if wait_for_lock(self.file, fcntl.LOCK_EX):
                return
            writer = os.pread(self.file, 32, 0).decode("ascii", "replace").strip() or "of an unknown number"
            raise JournalLockedError(
                f"the archivist of a server that ended still writes to {self._path.with_name(FILE)}",
                f"Wait until process {writer} has ended, or end it; nothing that was acknowledged depends on it",
            )
        except BaseException:
            os.close(self.file)
            raise

    def note(self, process: int) -> None:
        """Note which process inherited it. Only for people, so ignore errors."""
        with contextlib.suppress(OSError):
            os.ftruncate(self.file, 0)
            os.pwrite(self.file, f"{process}\n".encode(), 0)

    def release(self) -> None:
        """Release it. No other server can have the file open: each locks the journal first."""
        self._path.unlink(missing_ok=True)
        os.close(self.file)


def _create(store: Store, identity: int) -> None:
    store.db.execute(f"PRAGMA application_id={APPLICATION_ID}")
    for statement in _CREATE:
        store.db.execute(statement)
    scalars = [("schema", SCHEMA), ("identity", identity), ("upto", 0), ("pruned", 0)]
    store.do("write_meta", [*scalars, ("state_rows", 0), ("state_sum", 0)])


def checksum_of(number: int, key: bytes, value: bytes) -> int:
    return crc32(value, crc32(key, number))


class StateRows:
    """Changes the rows of the state, inside a transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._numbers: dict[str, int] = {name: number for number, name in store.some("read_tables")}
        self._last_ordinals: dict[int, int] = {}
        self._rows = store.meta("state_rows")
        self._sum = store.meta("state_sum")

    def change(self, changes: Changes) -> None:
        """Apply changes. Raises `JournalDamagedError` if they do not fit the rows."""
        store, table = self._store, changes.table
        number = self._number_of(table)

        def known(key: bytes) -> tuple[int, int]:
            found: tuple[int, int] | None = store.one("read_ordinal", (number, key))
            if found is None:
                raise store.damaged(f"a value of the table {table} that changed is not there")
            return found

        gone = [known(key) for key in changes.gone]
        store.do("drop_value", [(ordinal,) for ordinal, _ in gone])
        changed = [(value, checksum_of(number, key, value), *known(key)) for key, value in changes.changed]
        store.do("change_value", [(value, checksum, ordinal) for value, checksum, ordinal, _ in changed])
        last = self._last_ordinal_of(number)
        new = [
            (ordinal, number, key, value, checksum_of(number, key, value))
            for ordinal, (key, value) in enumerate(changes.new, last + 1)
        ]
        try:
            store.do("write_value", new)
        except apsw.ConstraintError as error:
            raise store.damaged(f"a value that is new to the table {table} is there") from error
        self._last_ordinals[number] = last + len(new)
        self._rows += len(new) - len(gone)
        self._sum += sum(checksum - before for _, checksum, _, before in changed)
        self._sum += sum(row[-1] for row in new) - sum(checksum for _, checksum in gone)

    def set_head(self, head: bytes) -> None:
        row = (HEAD.encode(), head)
        is_there = self._store.one("read_ordinal", (self._number_of(HEAD), row[0])) is not None
        self.change(Changes(HEAD, changed=[row]) if is_there else Changes(HEAD, new=[row]))

    def write_totals(self) -> None:
        self._store.do("write_meta", [("state_rows", self._rows), ("state_sum", self._sum)])

    def _last_ordinal_of(self, number: int) -> int:
        if number not in self._last_ordinals:
            first, end = ordinals_of(number)
            found = self._store.one("read_last_ordinal", (first, end))
            self._last_ordinals[number] = first if found is None or found[0] is None else found[0]
        return self._last_ordinals[number]

    def _number_of(self, table: str) -> int:
        number = self._numbers.get(table)
        if number is None:
            number = HEAD_NUMBER if table == HEAD else max(self._numbers.values(), default=HEAD_NUMBER) + 1
            self._store.do("write_table", [(number, table)])
            self._numbers[table] = number
        return number


class Reader:
    def __init__(self, store: Store) -> None:
        self.store = store

    def position(self) -> Position:
        return position_of(self.store)

    def values(self) -> Iterator[Values]:
        """Yield the state in parts, the head first. Raises at the end unless it is complete and unchanged."""
        count = total = 0
        for number, table in self.store.some("read_tables"):
            ordinal, end = ordinals_of(number)
            while rows := self.store.some("read_state_after", (ordinal, end, READ_ROWS)):
                ordinal = rows[-1][0]
                try:
                    checksums = [crc32(value, crc32(key, number)) for _, key, value, _ in rows]
                except TypeError:
                    checksums = []
                if checksums != [row[3] for row in rows]:
                    raise self.store.damaged(f"a value of the table {table} is not the one that was written")
                count += len(rows)
                total += sum(checksums)
                yield Values(table, [(key, value) for _, key, value, _ in rows])
        if (count, total) != (self.store.meta("state_rows"), self.store.meta("state_sum")):
            raise self.store.damaged("the values are not those that were written")

    def newest_first(
        self, name: str | None, upto: int, before: int, limit: int, bytes_max: int
    ) -> list[tuple[int, int, bytes]]:
        """Return number, wall time and bytes of records up to `upto` and before `before`, of one name or all."""
        if name is None:
            return self.store.some_bytes("read_history", (upto, before, limit), bytes_max)
        values = (min(upto, before), name, upto, before, limit)
        return self.store.some_bytes("read_history_of_name", values, bytes_max)

    def oldest_first(self, after: int, upto: int, limit: int) -> Iterator[tuple[int, bytes]]:
        """Yield number and bytes of records."""
        return self.store.run("read_history_after", (after, upto, limit))

    def records(self) -> Iterator[list[Record]]:
        """Yield the history in parts."""
        after = -OPEN
        while rows := self.store.some("read_history_after", (after, OPEN, READ_RECORDS)):
            yield [record for _, body in rows for record in decode_batch(body)]
            after = rows[-1][0]

    def last_by(self, wall_ms: int, upto: int) -> int:
        """Return the number of the last record up to a wall time, or 0."""
        block = block_of(upto)
        while found := self.store.one("read_block_by", (wall_ms, block)):
            first, end = found[0] << 10, (found[0] + 1) << 10
            last = self.store.one("read_last_by", (first, end, upto, wall_ms))
            if last is not None and last[0] is not None:
                seq: int = last[0]
                return seq
            # The records of that time are pruned.
            block = found[0] - 1
        return 0

    def holds(self, query: HeldQuery, upto: int) -> Iterator[Hold]:
        """Yield, by name, who held what as of the query's record, at most `upto`."""
        seq = min(query.seq, upto)
        first = query.prefix if query.after is None else max(query.prefix, query.after + "\0")
        bounds = (first, _prefix_end(query.prefix))
        living = self.store.run("read_held_now", (*bounds, seq))
        over = (
            self.store.run("read_held_then", (segment, *bounds, seq, seq))
            for (segment,) in self.store.some("read_segments_until", (segment_of(seq), seq))
        )
        return heapq.merge(living, *over, key=itemgetter(0, 1))

    def read_grant(self, seq: int, grants: Grants) -> None:
        """Read the leases that a record granted. Raises if any is missing."""
        found = self.store.one("read_body", (seq,))
        problem = f"the grant of record {seq} is missing" if found is None else grants.take(seq, found[0])
        if problem is not None:
            raise self.store.damaged(problem)


def _prefix_end(prefix: str) -> str | bytes:
    """Return the least value after all with this prefix. In SQLite, blobs sort after all texts."""
    while prefix:
        last = ord(prefix[-1]) + 1
        if last <= _LARGEST_CHARACTER:
            # Surrogates are not characters.
            return prefix[:-1] + chr(0xE000 if 0xD800 <= last < 0xE000 else last)  # noqa: PLR2004 - Unicode's own
        prefix = prefix[:-1]
    return b""
