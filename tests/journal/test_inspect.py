"""A look at a data directory changes nothing and finds everything that is wrong with it."""

import asyncio
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from holdfast.core.events import Record, is_history
from holdfast.journal.base import JournalDamagedError, JournalError, JournalLockedError
from holdfast.journal.codec import encode_batch
from holdfast.journal.inspect import as_json, dump, inspect
from holdfast.journal.sqlite import FILE, SqliteJournal
from holdfast.testing.contract import sample_events
from tests.journal.records import WALL_MS, grants


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A journal that was closed well: 6 records under a snapshot, 4 after it."""
    asyncio.run(write(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """The same, of a server that died: the last of it is in the WAL."""
    asyncio.run(write(tmp_path / "live", copy_to=tmp_path / "crashed"))
    return tmp_path / "crashed"


async def write(directory: Path, copy_to: Path | None = None) -> None:
    journal = SqliteJournal(directory, ballast_bytes=0)
    await journal.open()
    await journal.append(grants(1, 3))
    await journal.append(grants(4, 6))
    await journal.compact(6, [b"one", b"two"], WALL_MS)
    await journal.append(grants(7, 10))
    if copy_to is not None:
        shutil.copytree(directory, copy_to)
    await journal.close()


def change(directory: Path, statement: str, *values: object) -> None:
    with closing(apsw.Connection(str(directory / FILE))) as db:
        db.execute(statement, values).fetchall()


def bytes_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("kind", ["data", "crashed"])
def test_sound_journal_has_no_problems(kind: str, request: pytest.FixtureRequest) -> None:
    """Of a sound journal everything is told, also what is still in the WAL, and not a file or byte is changed."""
    directory: Path = request.getfixturevalue(kind)
    before = bytes_of(directory)
    assert (FILE + "-wal" in before) == (kind == "crashed")
    found = inspect(directory)
    assert (found.integrity, found.problems) == ("ok", ())
    assert (found.schema, found.epoch, found.snapshot_upto, found.last_seq) == (2, 1, 6, 10)
    kept = [record for record in grants(1, 10) if record.seq > 6 or is_history(record.event)]
    assert found.records == len(kept)
    assert (found.first_wall_ms, found.last_wall_ms) == (WALL_MS + 1, WALL_MS + 10)
    assert list(dump(directory)) == [as_json(record) for record in kept]
    assert bytes_of(directory) == before


def test_dump_can_be_written_as_json() -> None:
    """Every kind of record is said in plain JSON, with its fields by name and its kind as `event`."""
    for seq, event in enumerate(sample_events(), 1):
        line = as_json(Record(seq, seq, WALL_MS, event))
        assert json.loads(json.dumps(line)) == line
        assert line["event"] == event.__struct_config__.tag
        assert line.keys() >= {"seq", "at_ms", "wall_ms", *event.__struct_fields__}


def test_running_server_is_left_alone(data: Path) -> None:
    """While a server has the journal, a look is refused and says what to do; the server does not notice."""

    async def scene() -> None:
        journal = SqliteJournal(data, ballast_bytes=0)
        await journal.open()
        with pytest.raises(JournalLockedError, match="ask it over HTTP, or stop it first"):
            inspect(data)
        with pytest.raises(JournalLockedError):
            next(dump(data))
        await journal.append(grants(11, 12))
        await journal.close()

    asyncio.run(scene())
    assert inspect(data).last_seq == 12


def test_look_keeps_no_lock(data: Path) -> None:
    """Once the look is over a server can start, also when a dump was left in the middle."""
    inspect(data)
    lines = dump(data)
    next(lines)
    lines.close()  # type: ignore[attr-defined]
    asyncio.run(SqliteJournal(data, ballast_bytes=0).open())


def test_empty_directory_is_told(tmp_path: Path) -> None:
    """Where there is no journal, that is what is said, and none is made."""
    with pytest.raises(JournalError, match="holds no journal"):
        inspect(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_file_that_is_no_database_is_a_problem(tmp_path: Path) -> None:
    """A file that SQLite cannot read is reported as damage; a dump of it is refused."""
    (tmp_path / FILE).write_bytes(b"something else" * 1000)
    found = inspect(tmp_path)
    assert "is damaged" in found.integrity and len(found.problems) == 1
    with pytest.raises(JournalDamagedError):
        next(dump(tmp_path))


def test_database_of_another_is_a_problem(tmp_path: Path) -> None:
    """A database that is not a journal, or is still empty, is told from one."""
    change(tmp_path, "CREATE TABLE other (x)")
    assert inspect(tmp_path).problems == ("the file is a database of another program",)
    (tmp_path / FILE).write_bytes(b"")
    assert "no server has finished its first start" in inspect(tmp_path).problems[0]


PROBLEMS: dict[str, tuple[Callable[[Path], None], str]] = {
    "schema": (lambda d: change(d, "UPDATE meta SET value = 3 WHERE key = 'schema'"), "has schema 3"),
    "gap": (lambda d: change(d, "UPDATE meta SET value = 5 WHERE key = 'upto'"), "snapshot is not the one"),
    "batch": (lambda d: change(d, "UPDATE batch SET body = x'0102'"), "records 7 to 10: a frame is cut short"),
    "number": (
        lambda d: change(d, "UPDATE batch SET body = ?", encode_batch(grants(8, 11))),
        "record 8 stands where 7 should",
    ),
    "short": (
        lambda d: change(d, "UPDATE batch SET body = ?", encode_batch(grants(7, 9))),
        "does not end with record 10",
    ),
    "part": (lambda d: change(d, "DELETE FROM snapshot_part WHERE part = 0"), "part 0 of the snapshot is missing"),
    "history": (
        lambda d: change(d, "UPDATE history SET body = x'02' WHERE seq = 2"),
        "history record 2: a frame is cut",
    ),
    "share": (lambda d: change(d, "DELETE FROM history_share WHERE seq = 2"), "is not counted against"),
    "sum": (lambda d: change(d, "UPDATE history_sum SET bytes = bytes + 1"), "is not counted against"),
    "moved": (
        lambda d: change(d, "UPDATE history SET body = ? WHERE seq = 2", encode_batch(grants(1, 1))),
        "history record 2 says that it is record 1",
    ),
    "count": (lambda d: change(d, "DELETE FROM history WHERE seq = 2"), "history has 3 records and should have 4"),
    "names": (lambda d: change(d, "DELETE FROM history_name WHERE seq = 2"), "record 2 is not listed under its names"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_problem_is_named(name: str, data: Path) -> None:
    """Whatever is wrong is said in words, and the look goes on to the end."""
    spoil, text = PROBLEMS[name]
    spoil(data)
    found = inspect(data)
    assert any(text in problem for problem in found.problems), found.problems
    assert found.integrity == "ok" and found.epoch == 1


def test_problems_are_limited(data: Path) -> None:
    """A journal that is wrong everywhere gives a hundred problems, not a million."""

    async def more() -> None:
        journal = SqliteJournal(data, ballast_bytes=0)
        await journal.open()
        for seq in range(11, 200):
            await journal.append(grants(seq, seq))
        await journal.close()

    asyncio.run(more())
    change(data, "UPDATE batch SET body = x'01'")
    assert len(inspect(data).problems) == 100
