"""A data directory that others could have filled is refused, with what to do, before anything in it is touched."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.journal.interface import JournalError
from holdfast.journal.sqlite.archive import FILE as ARCHIVE
from holdfast.journal.sqlite.archive import LOCK
from holdfast.journal.sqlite.journal import FILE, SqliteJournal
from tests.journal.records import grants
from tests.journal.runner import found_in, nothing, run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The directory of a stopped server."""

    async def scene(journal: SqliteJournal) -> None:
        await journal.append(grants(1, 3))

    run(scene, tmp_path / "data")
    return tmp_path / "data"


@pytest.mark.parametrize("bits", [0o770, 0o707, 0o775, 0o1777])
def test_directory_that_others_can_fill_is_refused(data: Path, bits: int) -> None:
    """Whoever can write to the directory can put another journal there: it is refused, new or not, sticky or not."""
    for directory in (data, data.parent / "new"):
        directory.mkdir(exist_ok=True)
        directory.chmod(bits)
        before = sorted(directory.iterdir())
        with pytest.raises(JournalError, match=f"chmod go-w '{directory}'"):
            run(nothing, directory)
        assert sorted(directory.iterdir()) == before
        directory.chmod(0o755)
        run(nothing, directory)
    assert found_in(data)[1] == [1, 2, 3]


def test_directory_of_another_user_is_refused(data: Path, foreign: Callable[[Path], Path]) -> None:
    """Another user's directory is refused, however private it is."""
    foreign(data)
    with pytest.raises(JournalError, match=f"belongs to user {data.stat().st_uid}"):
        run(nothing, data)


def test_linked_directory_is_used(data: Path) -> None:
    """The way to the directory may be a link, as systemd's is: what counts is the directory."""
    link = data.parent / "link"
    link.symlink_to(data)
    assert found_in(link)[1] == [1, 2, 3]


@pytest.mark.parametrize("bits", [0o660, 0o602, 0o622])
def test_journal_that_others_can_change_is_refused(data: Path, bits: int) -> None:
    """A journal or archive that others may write to is refused; one that they may read is not: it holds no secret."""
    for file in (data / FILE, data / ARCHIVE):
        file.chmod(bits)
        with pytest.raises(JournalError, match=f"chmod 600 '{file}'"):
            run(nothing, data)
        file.chmod(0o644)
    assert found_in(data)[1] == [1, 2, 3]


def test_journal_of_another_user_is_refused(data: Path, foreign: Callable[[Path], Path]) -> None:
    """Another user's journal is refused."""
    foreign(data / FILE)
    with pytest.raises(JournalError, match="belongs to user"):
        run(nothing, data)


@pytest.mark.parametrize("name", [FILE, FILE + "-wal", ARCHIVE, ARCHIVE + "-wal", LOCK])
def test_journal_that_is_a_link_is_refused(data: Path, name: str) -> None:
    """A link in the place of the journal or of its WAL is refused, and what it leads to is not touched."""
    other = data.parent / "other"
    other.write_bytes(b"precious")
    (data / name).unlink(missing_ok=True)
    (data / name).symlink_to(other)
    with pytest.raises(JournalError, match=f"{name} is a link"):
        run(nothing, data)
    assert other.read_bytes() == b"precious"


def test_refused_files_leave_the_journal_unlocked(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that appears in the place of the reserve after the look is refused when it is opened, and nothing stays
    locked.
    """
    other = data.parent / "other"
    other.write_bytes(b"precious")
    usage = os.statvfs

    def plant(path: object) -> os.statvfs_result:
        (data / "ballast").symlink_to(other)
        monkeypatch.undo()
        return usage(path)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "statvfs", plant)
    with pytest.raises(JournalError, match="ballast is a link"):
        run(nothing, data, disk_reserve_bytes=4096)
    assert other.read_bytes() == b"precious"
    (data / "ballast").unlink()
    run(nothing, data, disk_reserve_bytes=4096)
