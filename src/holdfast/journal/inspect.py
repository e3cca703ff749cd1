"""A look at a data directory while no server has it open. Nothing is changed: not a byte, not a file, not the seat.

Both files are read, the journal and the archive: whether each is sound, and whether the two belong together.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import apsw
import msgspec

from holdfast.core.events import Record, Restored
from holdfast.journal import mark
from holdfast.journal.archive.file import FILE as ARCHIVE
from holdfast.journal.archive.file import LOCK, look_at
from holdfast.journal.archive.reader import Reader
from holdfast.journal.base import RESTORE, JournalDamagedError, JournalError
from holdfast.journal.codec import decode_batch, event_row
from holdfast.journal.glasses import Glasses
from holdfast.journal.soundness import Check, held_in
from holdfast.journal.store import Store
from holdfast.journal.tail.opening import (
    APPLICATION_ID,
    FILE,
    NEWER_VERSION,
    OWN_DIRECTORY,
    SCHEMA,
    check_archive,
    last_seq_of,
    lost_archive,
    mark_of,
)
from holdfast.privatefiles import NotOursError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from holdfast.journal.base import Values

PROBLEMS_MAX = 100


class Restoration(msgspec.Struct, frozen=True, kw_only=True):
    """That a directory was made from a backup: when, of when, and after which fencing token it went on."""

    wall_ms: int
    backup_wall_ms: int
    last_token: int


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """What a data directory holds, and what is wrong with it."""

    path: str
    integrity: str
    """`ok`, or what SQLite says of the files."""
    schema: int = 0
    epoch: int = 0
    archived_upto: int = 0
    """Up to which number the archive stands for the records."""
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
        with Glasses() as glasses:
            return _Look(Files(directory, glasses), witnesses).everything()
    except JournalDamagedError as error:
        path = str(directory / FILE)
        return Inspection(path=path, integrity=error.problem, problems=(error.problem,), ways=error.ways)


def dump(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield every record that is kept, in order, as what JSON can say. Raises as `inspect` does, and for any damage."""
    with reading(directory) as files:
        for records in (files.history(), files.tail()):
            for some in records:
                yield from map(as_json, some)


@contextlib.contextmanager
def reading(directory: Path) -> Iterator[Files]:
    """Give all that a directory holds, for a backup of it. Raises as `dump` does."""
    with Glasses() as glasses:
        files = Files(directory, glasses)
        files.check()
        yield files


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


class Files:
    """The files of a directory, opened to be looked at: what a backup is made of. Raises for damage that it meets."""

    def __init__(self, directory: Path, glasses: Glasses) -> None:
        """Open the journal, and wait for whoever may still write the archive."""
        self.path = directory / FILE
        if not self.path.is_file():
            problem = f"{directory} holds no journal: there is no {FILE} in it"
            raise JournalError(problem, "Check that the server was started with this directory")
        self.journal = Store(glasses.open(self.path), self.path)
        glasses.hold(directory / LOCK)
        self._glasses = glasses
        self._opened: Reader | None = None

    @property
    def archive(self) -> Reader | None:
        """The archive, opened at the first time; None if the journal does not count on one: before its first start."""
        if not self.journal.meta("epoch"):
            return None
        path = self.path.with_name(ARCHIVE)
        if not path.exists():
            raise lost_archive(self.journal, path)
        if self._opened is None:
            self._opened = Reader(look_at(path, lambda _: self._glasses.open(path)))
        return self._opened

    @property
    def upto(self) -> int:
        """Up to which number the records are archived."""
        return 0 if self.archive is None else self.archive.position().upto

    @property
    def pruned(self) -> int:
        """Up to which number the history is not whole."""
        return 0 if self.archive is None else self.archive.position().pruned

    @property
    def last_seq(self) -> int:
        """The number of the last record."""
        return last_seq_of(self.journal)

    def check(self) -> None:
        """Raise unless the two files belong together, in the words in which a start is refused."""
        if self.archive is not None:
            check_archive(self.journal, self.archive.store.path, self.archive.position())

    def tail(self) -> Iterator[Sequence[Record]]:
        """Yield every record that is not archived, batch by batch."""
        for _, _, body in self.journal.run("read_batches", (self.upto,)):
            yield list(decode_batch(body))

    def values(self) -> Iterator[Values]:
        """Yield the archived state."""
        return iter(()) if self.archive is None else self.archive.values()

    def history(self) -> Iterator[Sequence[Record]]:
        """Yield the archived records with history value, oldest first."""
        return iter(()) if self.archive is None else self.archive.records()


class _Look:
    """One inspection: goes on after a problem, so that all are found."""

    def __init__(self, files: Files, witnesses: Sequence[str]) -> None:
        self._files = files
        self._store = files.journal
        self._witnesses = witnesses
        self._problems: list[str] = []
        self._ways: tuple[str, ...] = ()
        self._records = 0
        self._walls_ms: list[int] = []
        self._restored: Restoration | None = None
        self._last = 0

    def everything(self) -> Inspection:
        """Look at all there is."""
        found = Inspection(path=str(self._files.path), integrity="not checked")
        try:
            found = msgspec.structs.replace(found, integrity=self._integrity(self._store))
            if self._is_ours():
                found = self._contents(found)
        except JournalError as error:
            self._problem(error.problem, error.ways)
        except apsw.Error as error:
            self._problem(str(error))
        return msgspec.structs.replace(found, problems=tuple(self._problems), ways=self._ways)

    def _integrity(self, store: Store) -> str:
        integrity = "; ".join(str(line) for (line,) in store.run("check_integrity"))
        if integrity != "ok":
            self._problem(f"SQLite finds {store.path.name} damaged: {integrity}")
        return integrity

    def _is_ours(self) -> bool:
        db = self._store.db
        if db.execute("PRAGMA schema_version").get == 0:
            mark.check(self._files.path, None, self._witnesses)
            self._problem("the journal is empty: no server has finished its first start here", ("Start the server",))
            return False
        if db.execute("PRAGMA application_id").get != APPLICATION_ID:
            self._problem("the file is a database of another program", (OWN_DIRECTORY,))
            return False
        return True

    def _contents(self, found: Inspection) -> Inspection:
        schema, epoch = (self._store.meta(key) for key in ("schema", "epoch"))
        found = msgspec.structs.replace(found, schema=schema, epoch=epoch)
        if schema != SCHEMA:
            self._problem(f"the journal has schema {schema}; this version knows {SCHEMA}", (NEWER_VERSION,))
            return found
        with self._noting():
            mark.check(self._files.path, mark_of(self._store, self._files.last_seq), self._witnesses)
            self._files.check()
        with self._noting():
            self._archived()
        upto = self._tail()
        return msgspec.structs.replace(
            found,
            archived_upto=upto,
            records=self._records,
            last_seq=self._last,
            first_wall_ms=min(self._walls_ms, default=None),
            last_wall_ms=max(self._walls_ms, default=None),
            restored=self._restored,
        )

    def _archived(self) -> None:
        """Look at the archive: the file, the state, the history, and who holds what."""
        archive = self._files.archive
        if archive is None:
            return
        self._integrity(archive.store)
        held = None
        with self._noting():
            held = held_in(archive.values())
        Check(archive.store, self._problem, self._saw).everything(held)

    def _tail(self) -> int:
        """Look at the tail, and return after which number it begins."""
        upto = self._store.meta("archived")
        with contextlib.suppress(JournalError):
            upto = self._files.upto
        self._last, wanted = upto, upto + 1
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
        return upto

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
        except JournalError as error:
            # What is only not ours is whole, and its own words say what to do.
            usual = () if isinstance(error.__cause__, NotOursError) else (RESTORE,)
            self._problem(f"{where}{error.problem}", error.ways or usual)
        except ValueError as error:
            self._problem(f"{where}{error}")

    def _problem(self, text: str, ways: tuple[str, ...] = (RESTORE,)) -> None:
        if not self._problems:
            self._ways = ways
        if len(self._problems) < PROBLEMS_MAX and text not in self._problems:
            self._problems.append(text)
