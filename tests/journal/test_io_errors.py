"""Disks that fail at the n-th sync or write: what was said of a batch is true after a restart and after a power cut.

What `append` returned from is there. What it raised `JournalUnavailableError` from is not, and never will be. After
`OutcomeUnknownError` the batch is there as a whole or not at all. A sync that failed may have left what was written in
the machine's memory and nowhere else, marked as safe: programs see it until the power is cut.
"""

import asyncio
import contextlib
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest

from holdfast.core.events import Granted, Record
from holdfast.journal.interface import JournalError, JournalUnavailableError, OutcomeUnknownError
from holdfast.journal.sqlite import tail
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.journal.sqlite.store import UNSYNCED
from tests.contract.tools import tables_of
from tests.journal.archive_samples import archive, tables_at, upto_of
from tests.journal.disk_journal import OnDisk
from tests.journal.power_vfs import CHECKPOINT_PAGES, Disk
from tests.journal.records import WALL_MS, grant
from tests.journal.runner import takes_claims
from tests.support import proof

POSITIONS = proof.count("I/O errors: positions")
RESERVE_BYTES = 4096


class Kind(NamedTuple):
    """What fails, with what error, and whether it fails once or from then on."""

    operation: str
    code: int
    lasts: bool

    @property
    def is_full(self) -> bool:
        return self.code == apsw.SQLITE_FULL


KINDS = {
    "fsync, once": Kind("sync", apsw.SQLITE_IOERR_FSYNC, False),
    "fsync, for good": Kind("sync", apsw.SQLITE_IOERR_FSYNC, True),
    "write, once": Kind("write", apsw.SQLITE_IOERR_WRITE, False),
    "write, for good": Kind("write", apsw.SQLITE_IOERR_WRITE, True),
    "full, once": Kind("write", apsw.SQLITE_FULL, False),
    "full, for good": Kind("write", apsw.SQLITE_FULL, True),
}


class Fault:
    """Makes a disk fail at the n-th sync or write from now on."""

    def __init__(self, disk: Disk, kind: Kind, position: int) -> None:
        self.disk, self.kind, self.position = disk, kind, position
        self.seen = 0
        self.struck = ""
        """The file that was last refused something."""
        disk.before_sync = self.before_sync
        disk.before_write = self.before_write

    @property
    def has_struck(self) -> bool:
        return self.seen >= self.position

    def before_sync(self, name: str) -> None:
        if self.kind.operation == "sync" and self._strikes():
            # The kernel gives up on what it could not write, and does not say so a second time.
            self.disk.files[name].pending.clear()
            self.struck = name
            raise self._error()

    def before_write(self, name: str, index: int, data: bytes | None) -> None:
        if self.kind.operation == "write" and self._strikes():
            if data is not None and len(data) > 1:
                self.disk.write_unseen(self.disk.files[name], index, data[: len(data) // 2])
            self.struck = name
            raise self._error()

    def _strikes(self) -> bool:
        self.seen += 1
        return self.seen == self.position or (self.kind.lasts and self.has_struck)

    def _error(self) -> Exception:
        error: Any = apsw.FullError("disk full") if self.kind.is_full else apsw.IOError("disk I/O error")
        error.result, error.extendedresult = self.kind.code & 0xFF, self.kind.code  # The stubs do not know that.
        raised: Exception = error
        return raised


class Deaf(apsw.Connection):
    """Does not hear of errors in a checkpoint that a commit brought about, as SQLite itself does not.

    In WAL mode the file is written by checkpoints only. SQLite takes the commit for done and tries the checkpoint again
    later; but an exception of a file system in Python gets out all the same.
    """

    fault: "Fault | None" = None

    def execute(self, statements: str, *args: Any, **options: Any) -> apsw.Cursor:  # noqa: ANN401 - passed on as they are
        if self.fault is not None:
            self.fault.struck = ""
        try:
            return super().execute(statements, *args, **options)
        except apsw.Error:
            if statements == "COMMIT" and self.fault is not None and self.fault.struck.endswith(".sqlite3"):
                return self.cursor()
            raise


class Story:
    """What was sent to a journal on a failing disk, and what was said of it."""

    def __init__(self, directory: Path, position: int) -> None:
        self.directory = directory
        self.chance = random.Random(position)
        self.disk = Disk()
        self.durable: list[Record] = []
        self.unknown: list[Record] = []
        self.said: Counter[str] = Counter()
        self._try = 0

    def journal(self, disk: Disk, fault: Fault | None = None) -> SqliteJournal:
        def connect(path: str) -> apsw.Connection:
            db = disk.connect(path, Deaf)
            if fault is not None:
                db.fault = fault  # type: ignore[attr-defined]
            db.execute("PRAGMA locking_mode=exclusive").fetchall()
            db.execute("PRAGMA cache_size=4").fetchall()  # So that a large batch is written in part before its COMMIT.
            return db

        return OnDisk(
            self.directory, disk, disk_reserve_bytes=RESERVE_BYTES, checkpoint_pages=CHECKPOINT_PAGES, connect=connect
        )

    async def play(self, journal: SqliteJournal, fault: Fault | None = None) -> None:
        """Append and compact until the fault has struck and some more; stop once an outcome is unknown."""
        more = 6
        while more and not self.unknown and not self.said["unknown archiving"]:
            await self._append(journal)
            if self.chance.random() < 0.25 and not self.unknown:
                await self._archive(journal)
            more -= fault is None or fault.has_struck

    async def _append(self, journal: SqliteJournal) -> None:
        """Append a batch that is like no other, also where it takes the place of one that was refused."""
        self._try += 1
        first = len(self.durable) + 1
        size = self.chance.choice((0, 50, 40_000))
        batch = [self._record(seq, size) for seq in range(first, first + self.chance.choice((1, 3)))]
        try:
            await journal.append(batch)
        except JournalUnavailableError:
            self.said["unavailable"] += 1
            await self._read(journal, "after a refusal")
        except OutcomeUnknownError:
            self.said["unknown"] += 1
            self.unknown = batch
        else:
            self.said["kept"] += 1
            self.durable += batch

    def _record(self, seq: int, size: int) -> Record:
        event = grant(1, size=size).event
        assert isinstance(event, Granted)
        return Record(seq, seq, WALL_MS + seq, Granted(f"try/{self._try}", event.lease))

    async def _archive(self, journal: SqliteJournal) -> None:
        before = journal._compactor.position.upto
        try:
            await archive(journal, before, len(self.durable), self.durable)
        except JournalUnavailableError:
            self.said["refused archiving"] += 1
        except OutcomeUnknownError:
            self.said["unknown archiving"] += 1
        else:
            self.said["archived"] += 1

    async def _read(self, journal: SqliteJournal, when: str) -> None:
        """Replay and compare; what was unknown is known from now on."""
        recovered = await journal.open()
        tables = tables_of(recovered.values)
        upto = upto_of(tables)
        assert upto <= len(self.durable), when
        assert tables == tables_at(upto, self.durable), when
        tail = list(recovered.records)
        truth = self.durable[upto:]
        assert tail in (truth, truth + self.unknown), f"{when}: {len(tail)} records instead of {len(truth)}"
        if self.unknown and len(tail) > len(truth):
            self.durable += self.unknown
        self.unknown = []

    async def end(self) -> None:
        """Restart, go on, and cut the power then; and look at what a cut in place of the restart would have left."""
        unknown, durable = list(self.unknown), list(self.durable)
        cut, restarted = self.disk.cut(self.chance, "none"), self.disk.crash()
        self.disk.heal()
        await self._check(restarted, "after a restart", and_go_on=True)
        await self._check(restarted.cut(self.chance, "none"), "after a restart and a power cut")
        self.unknown, self.durable = unknown, durable
        await self._check(cut, "after a power cut")
        for disk in (cut, restarted, self.disk):
            disk.unplug()

    async def _check(self, disk: Disk, when: str, *, and_go_on: bool = False) -> None:
        journal = self.journal(disk)
        await self._read(journal, when)
        for store in (journal._require_open("test"), journal._compactor.reader.store):
            assert store.db.execute("PRAGMA integrity_check").get == "ok", f"{store.path.name} {when}"
        if and_go_on:
            await self.play(journal)
            # The server is killed: nothing is closed, nothing is synced that was not.
        else:
            await journal.close()


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small transactions, so that faults meet all that is done after a step. What SQLite ignores is ignored."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    monkeypatch.setattr(tail, "SLICE_ROWS", 4)
    monkeypatch.setattr(tail, "SLICE_BYTES", 8_000)


async def describe(directory: Path, kind: Kind, position: int, *, is_closed: bool) -> Story:
    story = Story(directory, position)
    fault = Fault(story.disk, kind, 10**9)
    journal = story.journal(story.disk, fault)
    await journal.open()
    fault.seen, fault.position = 0, position
    await story.play(journal, fault)
    assert fault.has_struck
    if is_closed:
        await journal.close()
    await story.end()
    return story


@pytest.mark.parametrize("is_closed", [False, True], ids=["killed", "closed"])
@pytest.mark.parametrize("name", KINDS)
def test_reported_outcome_is_true_after_an_error(name: str, is_closed: bool, tmp_path: Path) -> None:
    """At whichever sync or write a disk fails, kept is kept, failed never happens, unknown is whole (I5, I6)."""
    kind = KINDS[name]
    said: Counter[str] = Counter()
    for position in range(1, POSITIONS + 1):
        try:
            story = asyncio.run(describe(tmp_path, kind, position, is_closed=is_closed))
        except Exception as error:
            raise AssertionError(f"{name} at position {position}: {error}") from error
        said.update(story.said)
    assert said["kept"] > POSITIONS
    assert said["archived"] and (said["refused archiving"] or said["unknown archiving"])
    if kind.is_full and not kind.lasts:
        assert not said["unknown"] and not said["unavailable"], "the ballast is there for this"
    else:
        assert said["unknown"]
        assert said["unavailable"] or kind.operation == "sync", "a large batch is written before its COMMIT"


def test_failed_sync_leaves_a_marker_file(tmp_path: Path) -> None:
    """After a sync has failed a mark tells the next process to write all again; then the mark goes (I5)."""

    async def scene() -> None:
        story = Story(tmp_path, 1)
        journal = story.journal(story.disk)
        await journal.open()
        Fault(story.disk, KINDS["fsync, once"], 1)
        await story._append(journal)
        assert story.said == {"unknown": 1} and (tmp_path / UNSYNCED).exists()
        await story.end()
        assert not (tmp_path / UNSYNCED).exists()

    asyncio.run(scene())


def test_full_disk_refuses_claims(tmp_path: Path) -> None:
    """Once the reserve was needed, renewals and releases are written and new claims are not taken."""

    async def scene() -> None:
        story = Story(tmp_path, 1)
        journal = story.journal(story.disk)
        await journal.open()
        assert takes_claims(journal) and (tmp_path / "ballast").exists()
        Fault(story.disk, KINDS["full, once"], 1)
        await story._append(journal)
        assert story.said == {"kept": 1}
        assert not takes_claims(journal) and not (tmp_path / "ballast").exists()
        await story.end()

    asyncio.run(scene())


@pytest.mark.parametrize("name", KINDS)
def test_open_on_a_failing_disk(name: str, tmp_path: Path) -> None:
    """A start that fails, at whichever sync or write, is an error of the journal, and the next start finds all (I5)."""

    async def scene(position: int) -> bool:
        story = Story(tmp_path, position)
        journal = story.journal(story.disk)
        await journal.open()
        await story.play(journal)
        story.disk = story.disk.crash()
        fault = Fault(story.disk, KINDS[name], position)
        journal = story.journal(story.disk)
        try:
            await story._read(journal, "while the disk fails")
        except JournalError:
            pass
        else:
            await story.play(journal, None if fault.has_struck else fault)
        await story.end()
        return fault.has_struck

    struck = [asyncio.run(scene(position)) for position in range(1, 25)]
    assert struck[0] and sum(struck) > 10


@pytest.mark.parametrize("name", KINDS)
def test_first_open_on_a_failing_disk(name: str, tmp_path: Path) -> None:
    """A first start that fails leaves something that the next start can use (I5)."""

    async def scene(position: int) -> bool:
        story = Story(tmp_path, position)
        fault = Fault(story.disk, KINDS[name], position)
        with contextlib.suppress(JournalError):
            await story.journal(story.disk).open()
        await story.end()
        return fault.has_struck

    struck = [asyncio.run(scene(position)) for position in range(1, 100)]
    assert struck[0] and not struck[-1]
