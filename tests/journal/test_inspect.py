"""A look at a data directory changes nothing and finds everything that is wrong with it."""

import asyncio
import fcntl
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import msgspec
import pytest

from holdfast.core.events import Granted, Record, is_history
from holdfast.core.state import StateScalars
from holdfast.core.values import Slot
from holdfast.journal.codec import encode_batch
from holdfast.journal.interface import Changes, JournalDamagedError, JournalError, JournalLockedError
from holdfast.journal.sqlite import inspect as inspection
from holdfast.journal.sqlite.archive import FILE as ARCHIVE
from holdfast.journal.sqlite.archive import LOCK
from holdfast.journal.sqlite.inspect import as_json, dump, inspect
from holdfast.journal.sqlite.journal import FILE, SqliteJournal
from tests.contract.suite import sample_events
from tests.journal.records import WALL_MS, grants


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A journal that was closed well: 6 records are archived, 4 are not."""
    asyncio.run(write(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """The same, of a server that died: the last of it is in the WAL."""
    asyncio.run(write(tmp_path / "live", copy_to=tmp_path / "crashed"))
    return tmp_path / "crashed"


def slots(records: list[Record]) -> Changes:
    """The rows of the names that these records grant."""
    granted = [record.event for record in records if isinstance(record.event, Granted)]
    rows = [(event.name.encode(), msgspec.msgpack.encode(Slot(lease=event.lease))) for event in granted]
    return Changes("slots", new=rows)


async def write(directory: Path, copy_to: Path | None = None) -> None:
    journal = SqliteJournal(directory, disk_reserve_bytes=0, identity=7)
    await journal.open()
    await journal.append(grants(1, 3))
    await journal.append(grants(4, 6))
    await journal.archive(6, msgspec.msgpack.encode(StateScalars(6, 6, 5, 1)), [slots(grants(1, 6))], WALL_MS)
    await journal.append(grants(7, 10))
    if copy_to is not None:
        shutil.copytree(directory, copy_to)
    await journal.close()


def change(directory: Path, statement: str, *values: object, file: str = FILE) -> None:
    with closing(apsw.Connection(str(directory / file))) as db:
        db.execute(statement, values).fetchall()


def spoil(statement: str, *values: object, file: str = ARCHIVE) -> Callable[[Path], None]:
    return lambda directory: change(directory, statement, *values, file=file)


def bytes_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("kind", ["data", "crashed"])
def test_sound_journal_has_no_problems(kind: str, request: pytest.FixtureRequest) -> None:
    """Of a sound journal everything is told, also what is still in the WAL, and not a file or byte is changed."""
    directory: Path = request.getfixturevalue(kind)
    before = bytes_of(directory)
    assert (FILE + "-wal" in before) == (kind == "crashed")
    found = inspect(directory)
    assert found.problems == []
    assert (found.epoch, found.archived_upto, found.last_seq) == (1, 6, 10)
    saved = [record for record in grants(1, 10) if record.seq > 6 or is_history(record.event)]
    assert found.records == len(saved)
    assert list(dump(directory)) == [as_json(record) for record in saved]
    assert bytes_of(directory) == before


def test_dump_can_be_written_as_json() -> None:
    """Every kind of record is said in plain JSON, with its fields by name and its kind as `event`."""
    for seq, event in enumerate(sample_events(), 1):
        line = as_json(Record(seq, seq, WALL_MS, event))
        assert json.loads(json.dumps(line)) == line
        assert line["event"] == event.__struct_config__.tag
        assert line.keys() >= {"seq", "at_ms", "wall_ms", *event.__struct_fields__}


def test_inspect_leaves_a_running_server_unchanged(data: Path) -> None:
    """While a server has the journal, a look is refused and says what to do; the server does not notice."""

    async def scene() -> None:
        journal = SqliteJournal(data, disk_reserve_bytes=0)
        await journal.open()
        with pytest.raises(JournalLockedError, match="ask it over HTTP, or stop it first"):
            inspect(data)
        with pytest.raises(JournalLockedError):
            next(dump(data))
        await journal.append(grants(11, 12))
        await journal.close()

    asyncio.run(scene())
    assert inspect(data).last_seq == 12


def test_inspect_keeps_no_lock(data: Path) -> None:
    """Once the look is over a server can start, also when a dump was left in the middle."""
    inspect(data)
    lines = dump(data)
    next(lines)
    lines.close()  # type: ignore[attr-defined]
    asyncio.run(SqliteJournal(data, disk_reserve_bytes=0).open())


def test_empty_directory_is_reported(tmp_path: Path) -> None:
    """Where there is no journal, that is what is said, and none is made."""
    with pytest.raises(JournalError, match="holds no journal"):
        inspect(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_file_that_is_no_database_is_a_problem(tmp_path: Path) -> None:
    """A file that SQLite cannot read is reported as damage; a dump of it is refused."""
    (tmp_path / FILE).write_bytes(b"something else" * 1000)
    found = inspect(tmp_path)
    assert len(found.problems) == 1 and "is damaged" in found.problems[0]
    with pytest.raises(JournalDamagedError):
        next(dump(tmp_path))


def test_database_of_another_is_a_problem(tmp_path: Path) -> None:
    """A database that is not a journal, or is still empty, is told from one."""
    change(tmp_path, "CREATE TABLE other (x)")
    assert inspect(tmp_path).problems == ["the file is a database of another program"]
    (tmp_path / FILE).write_bytes(b"")
    assert "no server has finished its first start" in inspect(tmp_path).problems[0]


PROBLEMS: dict[str, tuple[Callable[[Path], None], str]] = {
    # The journal.
    "schema": (spoil("UPDATE meta SET value = 9 WHERE key = 'schema'", file=FILE), "has schema 9"),
    "batch": (spoil("UPDATE batch SET body = x'0102'", file=FILE), "records 7 to 10: a frame is cut short"),
    "number": (
        spoil("UPDATE batch SET body = ?", encode_batch(grants(8, 11)), file=FILE),
        "record 8 stands where 7 should",
    ),
    "short": (spoil("UPDATE batch SET body = ?", encode_batch(grants(7, 9)), file=FILE), "does not end with record 10"),
    # The state.
    "value": (spoil("UPDATE state SET value = x'01' WHERE key = x'6a6f622f32'"), "is not the one that was written"),
    "row": (spoil("DELETE FROM state WHERE key = x'6a6f622f32'"), "values are not those that were written"),
    "sum": (spoil("UPDATE meta SET value = value + 1 WHERE key = 'state_sum'"), "values are not those"),
    # The history.
    "history": (spoil("UPDATE history SET body = x'02' WHERE seq = 2"), "history record 2: a frame is cut"),
    "moved": (
        spoil("UPDATE history SET body = ? WHERE seq = 2", encode_batch(grants(1, 1))),
        "history record 2 says that it is record 1",
    ),
    "count": (spoil("DELETE FROM history WHERE seq = 2"), "the history has 3 records, and 4 are counted"),
    "whose": (spoil("UPDATE who SET name = name || 'x'"), "record 1 is not counted against whoever left it"),
    "shares": (spoil("UPDATE who SET bytes = bytes + 1"), "the history has 4 records, and 4 are counted"),
    "wall": (spoil("UPDATE stretch SET wall_ms = wall_ms + 3"), "record 2 is not found by its time"),
    # The names.
    "names": (spoil("DELETE FROM name WHERE seq = 2"), "record 2 is not listed under its names"),
    "kind": (spoil("UPDATE name SET until = 5 WHERE seq = 4"), "record 4 is listed under job/4 as what it is not"),
    "left over": (
        spoil("INSERT INTO name (segment, name, seq, until, began) VALUES (0, 'job/9', 2, NULL, NULL)"),
        "listed under 5 names, and it should be 4",
    ),
    "kept": (
        spoil(
            "INSERT INTO grant_kept (seq, names, body) VALUES (100, 2, x''), (101, 0, x'');"
            " INSERT INTO name (segment, name, seq, until, began) VALUES"
            " (0, 'job/9', 100, NULL, NULL), (0, 'job/9', 101, NULL, NULL)"
        ),
        "listed under 6 names, and it should be 6",
    ),
    "segment": (spoil("DELETE FROM segment"), "record 2 of job/2 is where no search finds it"),
    "end": (spoil("UPDATE name SET until = 4 WHERE seq = 2"), "record 4 does not know that it ended the grant 2"),
    "began": (
        spoil("UPDATE name SET began = 3 WHERE seq = 4"),
        "grant 3 of job/4 does not know that record 4 ended it",
    ),
    # Who holds what.
    "holder": (spoil("DELETE FROM living WHERE name = 'job/2'"), "job/2 is held, and its grant is not known"),
    "nobody": (spoil("INSERT INTO living VALUES ('job/4', 4)"), "job/4 is said to be held by record 4"),
    "grant": (spoil("UPDATE living SET seq = 5 WHERE name = 'job/2'"), "by record 5, which does not say so"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_problem_is_named(name: str, data: Path) -> None:
    """Whatever is wrong is said in words, and the look goes on to the end."""
    do, text = PROBLEMS[name]
    do(data)
    found = inspect(data)
    assert any(text in problem for problem in found.problems), found.problems
    assert found.epoch == 1


def test_problems_are_limited(data: Path) -> None:
    """A journal that is wrong everywhere gives a hundred problems, not a million."""

    async def more() -> None:
        journal = SqliteJournal(data, disk_reserve_bytes=0)
        await journal.open()
        for seq in range(11, 200):
            await journal.append(grants(seq, seq))
        await journal.close()

    asyncio.run(more())
    change(data, "UPDATE batch SET body = x'01'")
    assert len(inspect(data).problems) == 100


# Two files that must fit.


def archive_of_before(directory: Path) -> None:
    """Put the archive back as it was before the last records were archived."""

    async def more() -> None:
        journal = SqliteJournal(directory, disk_reserve_bytes=0)
        recovered = await journal.open()
        assert list(recovered.values) and len(list(recovered.records)) == 4
        await journal.archive(10, b"head", [slots(grants(7, 10))], WALL_MS)
        await journal.close()

    saved = directory.with_name("kept")
    shutil.copy(directory / ARCHIVE, saved)
    asyncio.run(more())
    shutil.copy(saved, directory / ARCHIVE)


def journal_of_before(directory: Path) -> None:
    """Put the journal back as it was before the last records, with a mark that knows no better."""

    async def more() -> None:
        journal = SqliteJournal(directory, disk_reserve_bytes=0)
        await journal.open()
        await journal.append(grants(11, 12))
        await journal.archive(12, b"head", [slots(grants(7, 12))], WALL_MS)
        await journal.close()

    saved = directory.with_name("kept")
    shutil.copy(directory / FILE, saved)
    asyncio.run(more())
    shutil.copy(saved, directory / FILE)
    (directory / "journal.mark").unlink()


MISFITS: dict[str, tuple[Callable[[Path], object], str]] = {
    "lost": (lambda directory: (directory / ARCHIVE).unlink(), "is missing"),
    "empty": (lambda directory: (directory / ARCHIVE).write_bytes(b""), "is damaged: it is empty"),
    "behind": (archive_of_before, "has gone back in time"),
    "ahead": (journal_of_before, "has gone back in time"),
    "another's": (spoil("UPDATE meta SET value = 8 WHERE key = 'identity'"), "another journal"),
    "damaged": (lambda directory: (directory / ARCHIVE).write_bytes(b"something else" * 1_000), "is damaged"),
    "another program's": (spoil("PRAGMA application_id = 1"), "is a database of another program"),
    "newer": (spoil("UPDATE meta SET value = 9 WHERE key = 'schema'"), "has schema 9"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_mismatched_archive_is_reported_as_by_a_server(name: str, data: Path) -> None:
    """A lost, older, newer, foreign or damaged archive is a problem, in the words in which a start is refused."""
    do, text = MISFITS[name]
    do(data)
    before = bytes_of(data)
    found = inspect(data)
    (problem, *_) = [each for each in found.problems if text in each] or [f"only {found.problems}"]
    assert text in problem
    assert (ARCHIVE in problem or FILE in problem) and found.remedies, found
    with pytest.raises(JournalError):
        list(dump(data))
    assert bytes_of(data) == before
    with pytest.raises(JournalError) as refusal:
        asyncio.run(SqliteJournal(data, disk_reserve_bytes=0).open())
    assert (refusal.value.problem, refusal.value.remedies) == (found.problems[0], found.remedies)
    left = {name: content for name, content in bytes_of(data).items() if content or name in before}
    assert left == before, "SQLite leaves empty files, and nothing else"


def test_journal_of_a_newer_version_is_not_read(data: Path) -> None:
    """Neither a dump nor a backup is made of a journal with a schema that this version does not know."""
    change(data, "UPDATE meta SET value = 9 WHERE key = 'schema'")
    with pytest.raises(JournalError, match=r"journal\.sqlite3 has schema 9; this version knows 1"):
        list(dump(data))
    with pytest.raises(JournalError, match="has schema 9"), inspection.reading(data):
        pass


def test_inspect_waits_for_a_running_compactor(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child of a server that was killed may still write: a look waits for its lock, and then says so."""
    monkeypatch.setattr("holdfast.journal.sqlite.archive.LOCK_SECONDS", 0.0)
    with (data / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(JournalLockedError, match="still writes"):
            inspect(data)
        sleeps = iter(range(3))

        def release_lock(_seconds: float) -> None:
            if next(sleeps) == 2:
                fcntl.flock(lock, fcntl.LOCK_UN)

        monkeypatch.setattr("holdfast.journal.sqlite.archive.time.sleep", release_lock)
        assert inspect(data).problems == []
