"""The compactor is killed, refuses, cannot start or is away: nothing is lost, and what is said of it is true."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import msgspec
import pytest

from holdfast.core.events import Record, is_history
from holdfast.journal.interface import (
    Changes,
    Journal,
    JournalLockedError,
    JournalLostError,
    JournalUnavailableError,
    Recovered,
)
from holdfast.journal.sqlite.archive import FILE as ARCHIVE
from holdfast.journal.sqlite.archive import LOCK, Lock
from holdfast.journal.sqlite.archive_writer import Commit, Writer
from holdfast.journal.sqlite.compactor import ChildCompactor, LocalCompactor
from holdfast.journal.sqlite.compactor_process import Order, Setup
from holdfast.journal.sqlite.journal import FILE, SqliteJournal
from tests.contract.tools import pages, tables_of
from tests.journal.archive_samples import archive, changes, head_at, rows_at, tables_at, upto_of
from tests.journal.records import WALL_MS, grants
from tests.journal.runner import found_in, nothing, run, takes_claims

POINTS = ("archive_begin", "archive_mid", "archive_before_commit", "archive_after_commit")


@pytest.fixture
def killed_at(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Lets every child be killed at the first passing of a place."""
    point: str = request.param
    monkeypatch.setenv("HOLDFAST_TESTING", "1")
    monkeypatch.setenv("HOLDFAST_FAILPOINTS", f"{point}=kill")
    return point


def journal_with(compactor: ChildCompactor | LocalCompactor, directory: Path, **options: int) -> SqliteJournal:
    return SqliteJournal(directory, disk_reserve_bytes=0, compactor=compactor, **options)  # type: ignore[arg-type]


async def truth_is_there(recovered: Recovered, journal: Journal, records: list[Record]) -> int:
    """The archive, the tail and the history are those of these records. Return how far the archive reaches."""
    tables = tables_of(recovered.values)
    upto = upto_of(tables)
    assert tables == tables_at(upto, records)
    assert list(recovered.records) == records[upto:]
    history = [record for record in reversed(records) if is_history(record.event)]
    assert await pages(journal, 1_000) == history
    return upto


@pytest.mark.parametrize("killed_at", POINTS, indirect=True)
def test_killed_child_loses_nothing(killed_at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a child is killed, its step counts as a whole or not at all, and it is known which (I5).

    The next one goes on from there, with the same changes and those since, while appends go on.
    """
    records = grants(1, 90)

    async def scene() -> None:
        journal = journal_with(ChildCompactor(), tmp_path)
        await journal.open()
        await journal.append(records[:30])
        upto = 30
        if killed_at == "archive_after_commit":
            await archive(journal, 0, 30, records)
        else:
            with pytest.raises(JournalUnavailableError, match="was killed by signal 9"):
                await archive(journal, 0, 30, records)
            upto = 0
            assert "nothing could be archived since 2023-11-14" in journal.health().text
        assert journal._compactor.position.upto == upto
        await journal.append(records[30:60])
        assert await truth_is_there(await journal.open(), journal, records[:60]) == upto
        monkeypatch.delenv("HOLDFAST_FAILPOINTS")
        await archive(journal, upto, 60, records)
        assert journal.health().text == "ok" and journal.tail_bytes == 0
        await journal.append(records[60:])
        await journal.close()
        journal = journal_with(ChildCompactor(), tmp_path)
        assert await truth_is_there(await journal.open(), journal, records) == 60
        await journal.close()

    asyncio.run(scene())


class Doomed(ChildCompactor):
    """Kills its child with one of the messages of a step, or some time after the last."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self.dies_in = 10**9
        """With which message from now on."""

    async def _send(self, order: Order) -> None:
        self.dies_in -= 1
        await super()._send(order)
        if self.dies_in == 0 or (self.dies_in > 0 and isinstance(order, Commit) and self.dies_in < 1_000):
            self.dies_in = 10**9
            await asyncio.sleep(self._chance.choice((0, 0, 0.002, 0.01, 0.05)))
            assert self._process is not None
            self._process.kill()


@pytest.mark.parametrize("seed", range(3))
def test_child_killed_at_random_loses_nothing(seed: int, tmp_path: Path) -> None:
    """Killed at whichever moment, again and again, a child leaves an archive that agrees with the tail (I5)."""
    chance = random.Random(seed)

    async def appending(journal: SqliteJournal, records: list[Record]) -> None:
        while True:
            batch = grants(len(records) + 1, len(records) + chance.randrange(1, 40), size=100)
            await journal.append(batch)
            records.extend(batch)
            await asyncio.sleep(0.005)

    async def scene() -> None:
        compactor, records = Doomed(chance), grants(1, 40)
        journal = journal_with(compactor, tmp_path)
        await journal.open()
        await journal.append(records)
        others = asyncio.create_task(appending(journal, records))
        base = 0
        for number in range(8):
            upto = records[-1].seq
            compactor.dies_in = chance.randrange(1, 40) if number % 4 else 10**9
            with contextlib.suppress(JournalUnavailableError):
                await archive(journal, base, upto, list(records))
            assert compactor.position.upto in {base, upto}, "all of it, or nothing"
            base = compactor.position.upto
            await asyncio.sleep(0.05)
        others.cancel()
        await asyncio.wait([others])
        assert base and await truth_is_there(await journal.open(), journal, records) == base
        await journal.close()
        journal = journal_with(ChildCompactor(), tmp_path)
        assert await truth_is_there(await journal.open(), journal, records) == base
        await journal.close()

    asyncio.run(scene())


def test_cancelled_step_is_known_at_the_next_step(tmp_path: Path) -> None:
    """A step whose task is cancelled counts as a whole or not at all, and a look at the journal tells which."""

    async def scene() -> None:
        journal = journal_with(ChildCompactor(), tmp_path)
        await journal.open()
        records = grants(1, 200)
        await journal.append(records)
        base = 0
        for turns in (1, 3, 10, 30, 100):
            step = asyncio.create_task(archive(journal, base, 200, records))
            for _ in range(turns):
                await asyncio.sleep(0.001)
            if step.done() or not step.cancel():
                break
            await asyncio.wait([step])
            base = await truth_is_there(await journal.open(), journal, records)
            if base:
                break
        await journal.close()

    asyncio.run(scene())


def test_child_that_cannot_start_is_reported(tmp_path: Path) -> None:
    """Without a compactor the server serves on; health says so and since when, until it works again."""
    gone = ChildCompactor((str(tmp_path / "no such program"),))
    broken = ChildCompactor((sys.executable, "-c", "import sys; sys.exit(3)"))
    records = grants(1, 60)

    async def scene(compactor: ChildCompactor, words: str) -> None:
        journal = journal_with(compactor, tmp_path / "data")
        recovered = await journal.open()
        first = len(list(recovered.records)) + 1
        await journal.append(records[first - 1 : first + 19])
        for _ in range(2):
            with pytest.raises(JournalUnavailableError, match=words):
                await archive(journal, 0, first + 19, records)
        health = journal.health()
        assert health.takes_claims and "nothing could be archived since 2023-11-14T22:13:20+00:00" in health.text
        await journal.close()

    asyncio.run(scene(gone, "the archivist cannot be started: .*No such file"))
    asyncio.run(scene(broken, "the archivist ended with 3"))

    async def after() -> None:
        journal = journal_with(ChildCompactor(), tmp_path / "data")
        await truth_is_there(await journal.open(), journal, records[:40])
        await archive(journal, 0, 40, records)
        await journal.close()

    asyncio.run(after())
    assert found_in(tmp_path / "data") == (tables_at(40, records), [])


class Older(ChildCompactor):
    """Says that its server is of an earlier version."""

    async def _send(self, order: Order) -> None:
        await super()._send(msgspec.structs.replace(order, version="0.1.0") if isinstance(order, Setup) else order)


def test_child_of_another_version_writes_nothing(tmp_path: Path) -> None:
    """After an upgrade the installed code is newer than the server that runs: it must not write what that one reads."""
    records = grants(1, 30)

    async def scene() -> None:
        journal = journal_with(Older(), tmp_path)
        await journal.open()
        await journal.append(records)
        with pytest.raises(JournalUnavailableError, match=r"was installed after the server.*Restart the server"):
            await archive(journal, 0, 30, records)
        await journal.close()

    asyncio.run(scene())
    assert found_in(tmp_path) == ({}, [record.seq for record in records])


class Stopped(ChildCompactor):
    """Stops its child before the commit of a step, once."""

    stops = True

    async def _send(self, order: Order) -> None:
        if isinstance(order, Commit) and self.stops:
            self.stops = False
            assert self._process is not None
            self._process.send_signal(signal.SIGSTOP)
        await super()._send(order)


def test_hanging_child_is_killed_and_reported(tmp_path: Path) -> None:
    """A child that does nothing for long is ended; health says so, and the next one does the step."""
    records = grants(1, 30)

    async def scene() -> None:
        journal = journal_with(Stopped(timeout_seconds=2), tmp_path)
        await journal.open()
        await journal.append(records)
        with pytest.raises(JournalUnavailableError, match="did nothing for 2 s and was ended"):
            await archive(journal, 0, 30, records)
        assert "did nothing for 2 s" in journal.health().text
        await archive(journal, 0, 30, records)
        assert journal.health().text == "ok" and journal.tail_bytes == 0
        await journal.close()

    asyncio.run(scene())


def test_child_finds_its_modules_where_its_server_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that found its modules by a path of its own has a compactor that finds them too."""
    extra = tmp_path / "extra"
    extra.mkdir()
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.syspath_prepend(extra)
    (extra / "a_module_of_this_test.py").write_text("")
    compactor = ChildCompactor((sys.executable, "-P", "-c", "import a_module_of_this_test, sys; sys.exit(7)"))

    async def scene() -> None:
        journal = journal_with(compactor, tmp_path / "data")
        await journal.open()
        await journal.append(grants(1, 10))
        with pytest.raises(JournalUnavailableError, match="ended with 7"):
            await archive(journal, 0, 10)
        await journal.close()

    asyncio.run(scene())


def test_step_that_is_cancelled_right_after_its_commit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gives up a step that was committed finds it done, and the next one begins after it."""
    end = Writer._end

    def end_and_cancel(writer: Writer) -> None:
        end(writer)
        if (task := asyncio.current_task()) is not None:
            task.cancel()

    async def scene() -> None:
        journal = journal_with(LocalCompactor(), tmp_path)
        await journal.open()
        await journal.append(grants(1, 10))
        await journal.append(grants(11, 20))
        with monkeypatch.context() as patched:
            patched.setattr(Writer, "_end", end_and_cancel)
            step = asyncio.create_task(archive(journal, 0, 10))
            await asyncio.wait([step])
        assert step.cancelled()
        await archive(journal, 10, 20)
        assert upto_of(tables_of((await journal.open()).values)) == 20
        await journal.close()

    asyncio.run(scene())


def test_long_tail_refuses_claims(tmp_path: Path) -> None:
    """Beyond `tail_mib_max` new claims are refused, and all else is written; it opens by itself once it is archived."""
    compactor = LocalCompactor()

    async def scene() -> None:
        journal = journal_with(compactor, tmp_path, tail_bytes_max=10_000)
        await journal.open()
        taken = []
        for first in range(1, 200, 20):
            await journal.append(grants(first, first + 19))
            taken.append(takes_claims(journal))
        assert taken[0] and not taken[-1] and taken == sorted(taken, reverse=True)
        health = journal.health()
        assert not health.takes_claims
        assert "more than tail_mib_max" in health.text and "new claims are refused" in health.text
        await journal.open()
        assert not takes_claims(journal), "a look anew changes nothing of it"
        await archive(journal, 0, 200)
        assert takes_claims(journal) and journal.health().text == "ok"
        await journal.close()

    asyncio.run(scene())


def test_full_disk_under_the_archive_refuses_the_step_alone(tmp_path: Path) -> None:
    """A step for which there is no room is rolled back and tried later; claims are taken all the while."""
    records = grants(1, 60)

    class Full(apsw.Connection):
        is_full = False

        def executemany(self, *args: object, **options: object) -> apsw.Cursor:
            if Full.is_full:
                raise apsw.FullError("database or disk is full")
            return super().executemany(*args, **options)  # type: ignore[arg-type]

    async def scene() -> None:
        journal = journal_with(LocalCompactor(connect=Full), tmp_path)
        await journal.open()
        await journal.append(records[:30])
        Full.is_full = True
        with pytest.raises(JournalUnavailableError, match="the disk is full"):
            await archive(journal, 0, 30, records)
        await journal.append(records[30:])
        assert journal.takes_claims and "the disk is full" in journal.health().text
        Full.is_full = False
        assert await truth_is_there(await journal.open(), journal, records) == 0
        await archive(journal, 0, 60, records)
        await journal.close()

    asyncio.run(scene())
    assert found_in(tmp_path) == (tables_at(60, records), [])


def test_full_disk_under_the_tail_does_not_undo_a_step(tmp_path: Path) -> None:
    """A step that is archived counts, though nothing could be dropped from the tail: that is done the next time."""
    records = grants(1, 60)

    class Full(apsw.Connection):
        is_full = False

        def executemany(self, statements: str, *args: object, **options: object) -> apsw.Cursor:
            if Full.is_full and statements.startswith("DELETE FROM batch"):
                raise apsw.FullError("database or disk is full")
            return super().executemany(statements, *args, **options)  # type: ignore[arg-type]

    async def scene() -> None:
        journal = SqliteJournal(tmp_path, disk_reserve_bytes=0, compactor=LocalCompactor(), connect=Full)
        await journal.open()
        await journal.append(records[:30])
        Full.is_full = True
        await archive(journal, 0, 30, records)
        assert journal.tail_bytes == 0 and journal.health().text == "ok"
        await journal.append(records[30:])
        Full.is_full = False
        assert await truth_is_there(await journal.open(), journal, records) == 30
        await archive(journal, 30, 60, records)
        assert journal._require_open("test").db.execute("SELECT count(*) FROM batch").get == 0
        await journal.close()

    asyncio.run(scene())
    assert found_in(tmp_path) == (tables_at(60, records), [])


WRONG: dict[str, Changes] = {
    "changed": Changes("rows", changed=[(b"unknown", b"x")]),
    "gone": Changes("rows", gone=[b"unknown"]),
    "new": Changes("rows", new=[(b"row/1", b"x")]),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("kind", [LocalCompactor, ChildCompactor])
def test_changes_that_do_not_fit_are_refused(
    kind: type[LocalCompactor | ChildCompactor], wrong: str, tmp_path: Path
) -> None:
    """What changed or went must be there, and what is new must not: else the step is refused, and all is as before."""
    records = grants(1, 60)

    async def scene() -> None:
        journal = journal_with(kind(), tmp_path)
        await journal.open()
        await journal.append(records[:30])
        await archive(journal, 0, 30, records)
        await journal.append(records[30:])
        assert b"row/1" in rows_at(30)

        def given() -> Iterator[Changes]:
            yield from changes(30, 60)
            yield WRONG[wrong]

        if wrong == "new":
            assert b"row/1" in rows_at(60)
        with pytest.raises(JournalUnavailableError, match="is damaged") as refused:
            await journal.archive(60, head_at(60, records), given(), WALL_MS)
        # The server ends a child that has refused. That is nothing to be told of.
        assert "killed" not in str(refused.value)
        assert await truth_is_there(await journal.open(), journal, records) == 30
        await archive(journal, 30, 60, records)
        await journal.close()

    asyncio.run(scene())
    assert found_in(tmp_path) == (tables_at(60, records), [])


# An archive that is not the one that the journal counts on.


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The directory of a stopped server: an archive up to record 30, and records up to 40."""
    data = tmp_path / "data"

    async def scene(journal: SqliteJournal) -> None:
        await journal.append(grants(1, 30))
        await archive(journal, 0, 30)
        await journal.append(grants(31, 40))

    run(scene, data, identity=7)
    return data


def refused(data: Path) -> str:
    """Try to open it, see that nothing was changed, and return what was said. SQLite may have made a WAL, empty."""
    before = {path.name: path.read_bytes() for path in data.iterdir() if path.stat().st_size}
    with pytest.raises(JournalLostError) as caught:
        run(nothing, data)
    assert {path.name: path.read_bytes() for path in data.iterdir() if path.stat().st_size} == before
    return str(caught.value)


def test_lost_archive_is_refused(data: Path) -> None:
    """Without its archive a journal is not begun anew: the state and the tokens that were given stand in it."""
    saved = (data / ARCHIVE).read_bytes()
    (data / ARCHIVE).unlink()
    text = refused(data)
    assert f"{ARCHIVE} is missing" in text and "record 30" in text and f"Put {ARCHIVE} back" in text
    (data / ARCHIVE).write_bytes(saved)
    (data / ARCHIVE).chmod(0o600)
    assert found_in(data)[1] == list(range(31, 41))


def test_archive_without_a_journal_is_refused(data: Path) -> None:
    """An archive alone is not emptied for a new journal, though no other file tells of the one that it had."""
    for name in (FILE, "journal.mark"):
        (data / name).unlink()
    assert f"move {ARCHIVE} out of the directory" in refused(data)


def test_older_archive_is_refused(data: Path) -> None:
    """An archive of before the last step lacks what the journal has dropped since."""
    saved = (data / ARCHIVE).read_bytes()

    async def scene(journal: SqliteJournal) -> None:
        await archive(journal, 30, 40)

    run(scene, data)
    (data / ARCHIVE).write_bytes(saved)
    assert "it ends with record 30, and journal.sqlite3 has dropped all up to record 40" in refused(data)


def test_older_journal_is_refused(data: Path) -> None:
    """A journal that went back behind its archive is refused, also where no mark tells of it."""
    saved = (data / FILE).read_bytes()

    async def scene(journal: SqliteJournal) -> None:
        await journal.append(grants(41, 50))
        await archive(journal, 30, 50)

    run(scene, data)
    (data / FILE).write_bytes(saved)
    (data / "journal.mark").unlink()
    assert "has gone back in time: it ends with record 40, and archive.sqlite3 with 50" in refused(data)


def test_archive_of_another_journal_is_refused(data: Path, tmp_path: Path) -> None:
    """The archive of another directory is refused, however far it reaches."""

    async def scene(journal: SqliteJournal) -> None:
        await journal.append(grants(1, 40))
        await archive(journal, 0, 40)

    run(scene, tmp_path / "other", identity=8)
    (data / ARCHIVE).write_bytes((tmp_path / "other" / ARCHIVE).read_bytes())
    assert "is the archive of another journal" in refused(data)


# The lock.


def test_locked_archive_is_refused_after_waiting(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server waits for the compactor of one that ended, and says after a while which process it is."""
    monkeypatch.setattr("holdfast.journal.sqlite.archive.LOCK_TRIES", 3)
    other = Lock(data)
    other.note(4_711)
    with pytest.raises(JournalLockedError, match=r"still writes to .*Wait until process 4711 has ended"):
        run(nothing, data)
    os.close(other.file)
    run(nothing, data)
    assert not (data / LOCK).exists()


def test_lock_closes_its_file_when_locking_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that the system refuses, as some network disks do, leaves no open file."""
    files: list[int] = []

    def refuse(file: int, kind: int) -> None:
        files.append(file)
        raise OSError(errno.ENOLCK, "no locks available")

    with monkeypatch.context() as patched:
        patched.setattr("fcntl.flock", refuse)
        with pytest.raises(OSError, match="no locks available"):
            Lock(tmp_path)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(files[0])
    Lock(tmp_path).release()


def test_server_signals_do_not_end_the_compactor(tmp_path: Path) -> None:
    """SIGINT and SIGTERM go to all processes of a terminal or a service; the compactor ends with its server."""

    async def scene() -> None:
        compactor = ChildCompactor()
        journal = journal_with(compactor, tmp_path)
        await journal.open()
        await journal.append(grants(1, 10))
        await archive(journal, 0, 10)
        process = compactor._process
        assert process is not None and journal._lock is not None
        assert os.pread(journal._lock.file, 32, 0) == b"%d\n" % process.pid, "people can see whom to wait for"
        for number in (signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
        await journal.append(grants(11, 20))
        await archive(journal, 10, 20)
        assert compactor._process is process and process.poll() is None
        await journal.close()
        assert process.poll() == 0

    asyncio.run(scene())
    assert sorted(path.name for path in tmp_path.iterdir()) == [ARCHIVE, "journal.mark", FILE]


def test_archive_reader_does_not_write(tmp_path: Path) -> None:
    """The server's own connections cannot change the archive."""

    async def scene() -> None:
        journal = journal_with(ChildCompactor(), tmp_path)
        await journal.open()
        with pytest.raises(apsw.ReadOnlyError):
            journal._compactor.reader.store.db.execute("DELETE FROM state")
        with journal._compactor.another_reader() as reader, pytest.raises(apsw.ReadOnlyError):
            reader.store.db.execute("DELETE FROM state")
        await journal.close()

    asyncio.run(scene())
    with closing(apsw.Connection(str(tmp_path / ARCHIVE))) as db:
        assert db.execute("PRAGMA integrity_check").get == "ok"
