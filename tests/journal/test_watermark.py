"""A directory knows of its journal: one that is lost, empty, another or older is refused and never begun anew."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import msgspec
import pytest

from holdfast.journal.interface import JournalError, JournalLostError
from holdfast.journal.sqlite import watermark
from holdfast.journal.sqlite.archive import FILE as ARCHIVE
from holdfast.journal.sqlite.inspect import inspect
from holdfast.journal.sqlite.journal import FILE, SqliteJournal
from tests.journal.records import WALL_MS, grants
from tests.journal.runner import found_in, nothing, run

WITNESS = "some.key"


def left_in(directory: Path) -> dict[str, int]:
    """Return the mark as it stands there."""
    fields: dict[str, int] = json.loads((directory / watermark.FILE).read_text())
    return fields


def refused(directory: Path, **options: object) -> str:
    """Try to open it, see that nothing was changed, and return what was said; a look without a server says the same."""
    before = {path.name: path.read_bytes() for path in directory.iterdir() if not path.name.endswith("-wal")}
    with pytest.raises(JournalLostError) as caught:
        run(nothing, directory, witnesses=(WITNESS,), **options)
    after = {path.name: path.read_bytes() for path in directory.iterdir() if not path.name.endswith("-wal")}
    assert after == before, "what is refused stays as it was"
    try:
        found = inspect(directory, witnesses=(WITNESS,))
        problems, remedies = found.problems, found.remedies
    except JournalLostError as error:
        problems, remedies = [error.problem], error.remedies
    assert (problems, remedies) == ([caught.value.problem], caught.value.remedies)
    return str(caught.value)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The directory of a stopped server: three starts, ten records, and a file that is made after a journal."""
    data = tmp_path / "data"

    async def scene(journal: SqliteJournal) -> None:
        await journal.append(grants(1, 10))

    run(scene, data, identity=77)
    run(nothing, data)
    run(nothing, data)
    (data / WITNESS).touch(0o600)
    return data


def gone(journal: Path) -> None:
    """Lose the file."""
    journal.unlink()


def emptied(journal: Path) -> None:
    """Lose what is in it."""
    journal.write_bytes(b"")


def begun(journal: Path) -> None:
    """Put one there that has its tables and was never served from."""
    journal.unlink()
    run(nothing, journal.parent.with_name("new"))
    shutil.copy(journal.parent.with_name("new") / FILE, journal)
    with closing(apsw.Connection(str(journal))) as db:
        db.execute("DELETE FROM meta WHERE key <> 'schema'").fetchall()


@pytest.mark.parametrize("lose", [gone, emptied, begun])
@pytest.mark.parametrize("witnesses", [{WITNESS}, {watermark.FILE}, {WITNESS, watermark.FILE}])
def test_lost_journal_is_not_recreated(data: Path, lose: Callable[[Path], None], witnesses: set[str]) -> None:
    """A journal that is gone or empty is refused as long as a mark or a key is there, with what to do, both ways."""
    saved = (data / FILE).read_bytes()
    for name in {WITNESS, watermark.FILE} - witnesses:
        (data / name).unlink()
    lose(data / FILE)
    text = refused(data)
    assert str(data / FILE) in text and "given a second time" in text and "backup" in text
    for name in witnesses:
        assert name in text
    if watermark.FILE in witnesses:
        assert "up to record 10, at least" in text
    assert len(text.splitlines()) == 3, "what is wrong, and a line for each way out"

    (data / FILE).write_bytes(saved)
    assert found_in(data)[1] == list(range(1, 11)), "the journal was put back"
    lose(data / FILE)
    for name in (WITNESS, watermark.FILE):
        (data / name).unlink(missing_ok=True)
    assert found_in(data)[1] == [], "it was said to be lost for good"


def test_older_journal_is_refused(data: Path, tmp_path: Path) -> None:
    """A journal that has gone back in time, by records or by starts, is refused until the mark is removed."""
    saved = tmp_path / "kept"

    async def scene(journal: SqliteJournal) -> None:
        await journal.append(grants(11, 15))

    shutil.copy(data / FILE, saved)
    run(scene, data)
    shutil.copy(saved, data / FILE)
    text = refused(data)
    assert "ends with record 10 of start 3" in text and "record 15 of start 4" in text
    assert "given a second time" in text and f"remove {data / watermark.FILE}" in text

    (data / watermark.FILE).unlink()
    run(nothing, data)
    assert left_in(data) == {"identity": 77, "epoch": 4, "last_seq": 10}

    run(nothing, data)
    shutil.copy(saved, data / FILE)
    assert "of start 3, and it had come to record 10 of start 5" in refused(data)


def test_lost_wal_is_noticed(data: Path) -> None:
    """A WAL that was removed after a crash takes records with it: that is a journal that has gone back in time."""

    async def scene() -> None:
        journal = SqliteJournal(data, disk_reserve_bytes=0)
        await journal.open()
        await journal.append(grants(11, 15))
        for suffix in ("", "-wal"):
            shutil.copy(data / (FILE + suffix), data.with_name("crashed" + suffix))
        await journal.close()

    asyncio.run(scene())
    (data / FILE).write_bytes(data.with_name("crashed").read_bytes())
    assert "has gone back in time" in refused(data)


def test_another_journal_is_refused(data: Path, tmp_path: Path) -> None:
    """A journal of another directory is refused, however far it has come."""

    async def scene(journal: SqliteJournal) -> None:
        await journal.append(grants(1, 100))

    other = tmp_path / "other"
    run(scene, other, identity=78)
    for _ in range(5):
        run(nothing, other)
    for name in (FILE, ARCHIVE):
        shutil.copy(other / name, data / name)
    assert "is another journal" in refused(data)
    (data / watermark.FILE).unlink()
    run(nothing, data)
    assert left_in(data)["identity"] == 78


def test_watermark_is_written_at_start_snapshot_and_stop(tmp_path: Path) -> None:
    """The mark is written at the start, after a snapshot and at the end, and never for a batch."""

    async def scene(journal: SqliteJournal) -> None:
        assert left_in(tmp_path) == {"identity": 9, "epoch": 1, "last_seq": 0}
        await journal.append(grants(1, 3))
        assert left_in(tmp_path)["last_seq"] == 0
        await journal.archive(3, b"head", [], WALL_MS)
        assert left_in(tmp_path)["last_seq"] == 3
        await journal.append(grants(4, 5))
        assert left_in(tmp_path)["last_seq"] == 3

    run(scene, tmp_path, identity=9)
    assert left_in(tmp_path) == {"identity": 9, "epoch": 1, "last_seq": 5}
    assert sorted(path.name for path in tmp_path.iterdir()) == [ARCHIVE, watermark.FILE, FILE]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"identity": 1}', b"x" * 10_000])
def test_damaged_watermark_is_refused(data: Path, content: bytes) -> None:
    """A mark that cannot be read is refused with what to do, and not taken for none."""
    (data / watermark.FILE).write_bytes(content)
    with pytest.raises(JournalError, match=f"is damaged.*remove {data / watermark.FILE}"):
        run(nothing, data)


def test_watermark_of_another_user_is_refused(data: Path) -> None:
    """A mark that others could have written is refused, like everything in the directory."""
    (data / watermark.FILE).chmod(0o666)
    with pytest.raises(JournalError, match="chmod 600"):
        run(nothing, data)


def test_unwritable_watermark_is_logged(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk without room for the mark stops nothing: the one before goes on counting, and a line says so."""

    def full(_path: Path, _content: bytes) -> None:
        raise OSError(28, "No space left on device")

    before = left_in(data)
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(watermark, "replace", full)
        assert found_in(data)[1] == list(range(1, 11))
    assert left_in(data) == before and "journal.mark cannot be written" in caplog.text
    run(nothing, data)
    assert left_in(data)["epoch"] == before["epoch"] + 2


MOVED = watermark.Moved(to="postgresql://db/holdfast", schema="holdfast", authority="a1", is_done=True, wall_ms=WALL_MS)


def test_a_directory_that_was_moved_is_refused(data: Path) -> None:
    """No server starts on a directory whose content counts elsewhere: both would give out the same fencing tokens."""
    watermark.write_moved(data, MOVED)
    said = refused(data)
    assert "was moved to postgresql://db/holdfast" in said
    assert "holdfast serve --store postgresql://db/holdfast" in said
    assert watermark.read_moved(data) == MOVED


def test_a_directory_whose_move_was_interrupted_is_refused(data: Path) -> None:
    """While nobody knows which of the two counts, neither the directory is served nor is anything lost."""
    watermark.write_moved(data, msgspec.structs.replace(MOVED, is_done=False))
    assert "Move it again: that finds out" in refused(data)
    watermark.remove_moved(data)
    assert len(found_in(data)[1]) == 10


def test_damaged_moved_file_is_refused(data: Path) -> None:
    """What cannot be read may say that the directory counts no more."""
    watermark.write_moved(data, MOVED)
    (data / watermark.MOVED).write_bytes(b"{")
    with pytest.raises(JournalError, match=r"journal\.moved is damaged"):
        run(nothing, data)
