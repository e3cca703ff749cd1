"""The archive's file: how it is opened, for writing and for reading, and what the numbers in it mean.

One process writes it at a time, and whoever may holds the lock of `archive.lock`: a server, and the child that has
inherited it. So a server that starts while the child of one that was killed still writes waits for its end.

After a sync has failed, what can be read may be in the machine's memory only. A file says so until the next one who
opens the archive for writing has written it again (`store.write_again`).

The state is a row for each value, in the order of its table. Each row has a checksum over its table, its key and its
value. How many rows there are, and the sum of their checksums, is kept beside them: so a start that reads every row
knows that it has read what was written, and nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING
from zlib import crc32

import apsw
import msgspec

from holdfast.journal.base import HEAD, JournalError, JournalLockedError, Values
from holdfast.journal.sql import load
from holdfast.journal.store import Store, set_pragmas, write_again
from holdfast.privatefiles import open_ours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from holdfast.journal.base import Changes, Watch

    Connect = Callable[[str], apsw.Connection]

FILE = "archive.sqlite3"
LOCK = "archive.lock"
UNSYNCED = "archive.unsynced"
SUFFIXES = ("", "-wal", "-shm", "-journal")
APPLICATION_ID = 0x486F6C41
"""`HolA`: marks the file as ours."""
SCHEMA = 1
OPEN = 2**62
"""Stands for the end of a grant whose lease lives."""
PLACE_BITS = 48
"""A place in the state is a number within its table, below that of the table."""
CACHE_KIB = 32 * 1024
"""A step touches some thousand pages. What does not fit is written to the WAL before its time, and then again."""
CHECKPOINT_PAGES = 1_000
"""After how many pages the WAL is moved into the file, by the commit that filled it: most steps do."""
LOCK_TRIES = 200
LOCK_SECONDS = 0.05

SQL = load("archive.sql")
_CREATE = [statement for name, statement in SQL.items() if name.startswith("create_")]


class Position(msgspec.Struct, frozen=True, array_like=True, tag="position"):
    """Whose archive it is, how far it reaches, and up to which number history is no longer kept."""

    identity: int
    upto: int
    pruned: int


def segment_of(seq: int) -> int:
    """Return the segment of names that a record belongs to."""
    return seq >> 17


def stretch_of(seq: int) -> int:
    """Return the stretch of wall times that a record belongs to."""
    return seq >> 10


def places_of(number: int) -> tuple[int, int]:
    """Return the first place of a table, and the first behind it."""
    return number << PLACE_BITS, (number + 1) << PLACE_BITS


def position_of(store: Store) -> Position:
    """Return how far an archive has come, as its connection sees it now."""
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
    """Open an archive, or make it, and let all that is in it be durable. `alone`: no other connection may read it."""
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
            write_again(store.db, f"{path}-wal")
        # What a process left that was killed may not have been synced. This syncs it, before anything is built on it.
        store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        unsynced.unlink(missing_ok=True)
    except BaseException:
        store.close_untouched()
        raise
    return store


def open_for_reading(path: Path, *, connect: Connect = apsw.Connection, watch: Watch | None = None) -> Store:
    """Open an archive to read what is committed, while another may write."""
    store = Store(connect(str(path)), path, watch, sql=SQL, unsynced=UNSYNCED)
    # The writer empties its own WAL: it would take the server's loop long.
    store.db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    store.db.execute("PRAGMA query_only=1").fetchall()
    # While a writer puts things in order after one that was killed, readers wait for a moment.
    store.db.set_busy_timeout(1_000)
    return store


def look_at(path: Path, connect: Connect = apsw.Connection, watch: Watch | None = None) -> Store:
    """Open an archive that nobody writes, change nothing of it, and keep everybody out."""
    store = Store(connect(str(path)), path, watch, sql=SQL, unsynced=UNSYNCED)
    try:
        # With the whole file locked SQLite keeps its index of the WAL in memory instead of in a file beside it.
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


def give_back(store: Store) -> None:
    """Give the disk back what a step that was rolled back has written to the WAL."""
    with contextlib.suppress(apsw.Error):
        store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def throw_away(path: Path) -> None:
    """Remove an archive that counts for nothing."""
    for suffix in SUFFIXES:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    path.with_name(UNSYNCED).unlink(missing_ok=True)


class Lock:
    """Says that one may write the archive of a directory. A child inherits it, and it ends with both."""

    def __init__(self, directory: Path) -> None:
        """Take it, and wait a while for the child of a server that ended. Raises `JournalLockedError`."""
        self._path = directory / LOCK
        self.file = open_ours(self._path, os.O_RDWR | os.O_CREAT)
        try:
            self._wait()
        except BaseException:
            os.close(self.file)
            raise

    def _wait(self) -> None:
        for _ in range(LOCK_TRIES):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(LOCK_SECONDS)
        writer = os.pread(self.file, 32, 0).decode("ascii", "replace").strip() or "of an unknown number"
        raise JournalLockedError(
            f"the archivist of a server that ended still writes to {self._path.with_name(FILE)}",
            f"Wait until process {writer} has ended, or end it; nothing that was acknowledged depends on it",
        )

    def note(self, process: int) -> None:
        """Write down who has inherited it: for people, and so never a reason to fail."""
        with contextlib.suppress(OSError):
            os.ftruncate(self.file, 0)
            os.pwrite(self.file, f"{process}\n".encode(), 0)

    def release(self) -> None:
        """Give it back. Nobody else can have the file open: a server takes it only after it has the journal."""
        self._path.unlink(missing_ok=True)
        os.close(self.file)


def _create(store: Store, identity: int) -> None:
    store.db.execute(f"PRAGMA application_id={APPLICATION_ID}")
    for statement in _CREATE:
        store.db.execute(statement)
    scalars = [("schema", SCHEMA), ("identity", identity), ("upto", 0), ("pruned", 0)]
    store.do("write_meta", [*scalars, ("state_rows", 0), ("state_sum", 0)])


READ_ROWS = 1_024
HEAD_NUMBER = 0


def checksum_of(number: int, key: bytes, value: bytes) -> int:
    """Return the checksum of a row."""
    return crc32(value, crc32(key, number))


class StateRows:
    """Changes the rows, inside a transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._numbers: dict[str, int] = {name: number for number, name in store.some("read_tables")}
        self._last_places: dict[int, int] = {}
        self._rows = store.meta("state_rows")
        self._sum = store.meta("state_sum")

    def change(self, changes: Changes) -> None:
        """Put some changes in place. What does not fit what is there is damage, and refused."""
        number = self._number_of(changes.table)
        self._drop(number, changes.gone)
        self._change(number, changes.changed)
        self._add(number, changes.new)

    def set_head(self, head: bytes) -> None:
        """Set the one value that changes each time."""
        number = self._number_of(HEAD)
        row = (HEAD.encode(), head)
        if self._place_of(number, row[0]) is None:
            self._add(number, [row])
        else:
            self._change(number, [row])

    def write_totals(self) -> None:
        """Write how many rows there are, and the sum of their checksums."""
        self._store.do("write_meta", [("state_rows", self._rows), ("state_sum", self._sum)])

    def _drop(self, number: int, keys: Sequence[bytes]) -> None:
        places = [self._place_or_refuse(number, key) for key in keys]
        self._store.do("drop_value", [(place,) for place, _ in places])
        self._rows -= len(places)
        self._sum -= sum(checksum for _, checksum in places)

    def _change(self, number: int, rows: Sequence[tuple[bytes, bytes]]) -> None:
        changed = []
        for key, value in rows:
            place, before = self._place_or_refuse(number, key)
            checksum = checksum_of(number, key, value)
            changed.append((value, checksum, place))
            self._sum += checksum - before
        self._store.do("change_value", changed)

    def _add(self, number: int, rows: Sequence[tuple[bytes, bytes]]) -> None:
        place = self._last_place_of(number)
        added = []
        for key, value in rows:
            place += 1
            checksum = checksum_of(number, key, value)
            added.append((place, number, key, value, checksum))
            self._sum += checksum
        try:
            self._store.do("write_value", added)
        except apsw.ConstraintError as error:
            raise self._store.damaged(f"a value that is new to the table {self._name_of(number)} is there") from error
        self._last_places[number] = place
        self._rows += len(added)

    def _place_of(self, number: int, key: bytes) -> tuple[int, int] | None:
        return self._store.one("read_place", (number, key))

    def _place_or_refuse(self, number: int, key: bytes) -> tuple[int, int]:
        found = self._place_of(number, key)
        if found is None:
            raise self._store.damaged(f"a value of the table {self._name_of(number)} that changed is not there")
        return found

    def _last_place_of(self, number: int) -> int:
        if number not in self._last_places:
            first, behind = places_of(number)
            found = self._store.one("read_last_place", (first, behind))
            self._last_places[number] = first if found is None or found[0] is None else found[0]
        return self._last_places[number]

    def _number_of(self, table: str) -> int:
        number = self._numbers.get(table)
        if number is None:
            number = HEAD_NUMBER if table == HEAD else max(self._numbers.values(), default=HEAD_NUMBER) + 1
            self._store.do("write_table", [(number, table)])
            self._numbers[table] = number
        return number

    def _name_of(self, number: int) -> str:
        return next((name for name, each in self._numbers.items() if each == number), "")


def read_values(store: Store) -> Iterator[Values]:
    """Yield all values, some of a table at a time, the head first. Raises for rows that are not those written."""
    count = total = 0
    for number, table in store.some("read_tables"):
        place, behind = places_of(number)
        while rows := store.some("read_state_after", (place, behind, READ_ROWS)):
            place = rows[-1][0]
            try:
                checksums = [crc32(value, crc32(key, number)) for _, key, value, _ in rows]
            except TypeError:
                checksums = []
            if checksums != [row[3] for row in rows]:
                raise store.damaged(f"a value of the table {table} is not the one that was written")
            count += len(rows)
            total += sum(checksums)
            yield Values(table, [(key, value) for _, key, value, _ in rows])
    if (count, total) != (store.meta("state_rows"), store.meta("state_sum")):
        raise store.damaged("the values are not those that were written")
