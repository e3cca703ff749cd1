"""On a full disk a reserve is given up: what ends or keeps leases is still written, and new claims wait."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.journal.interface import HistoryQuery, JournalError, JournalUnavailableError, OutcomeUnknownError
from holdfast.journal.sqlite.journal import RESERVE_FILE, SqliteJournal
from tests.journal.records import grants
from tests.journal.runner import found_in, nothing, run, takes_claims

RESERVE_BYTES = 64 * 1024


class FullDisk:
    """A disk without room for one more commit as long as the reserve lies there, or for good."""

    def __init__(self, directory: Path, *, for_good: bool = False, at: str = "COMMIT") -> None:
        self.is_full = False
        self.refused = 0
        self._disk_reserve = directory / RESERVE_FILE
        self._for_good = for_good
        self._at = at

    def connect(self, path: str) -> apsw.Connection:
        disk = self

        class OnDisk(apsw.Connection):
            def execute(self, statements: str, *args: Any, **options: Any) -> apsw.Cursor:  # noqa: ANN401 - passed on as they are
                if statements.startswith(disk._at) and disk.has_no_space():
                    disk.refused += 1
                    raise apsw.FullError("database or disk is full")
                return super().execute(statements, *args, **options)

        return OnDisk(path)

    def has_no_space(self) -> bool:
        return self.is_full and (self._for_good or self._disk_reserve.exists())


def test_reserve_is_created_at_open(tmp_path: Path) -> None:
    """16 MiB are set aside from the first moment on, as blocks of the disk and not as a promise."""
    fill_reserve = tmp_path / RESERVE_FILE

    async def scene(journal: SqliteJournal) -> None:
        assert fill_reserve.stat().st_size == 16 * 2**20 == fill_reserve.stat().st_blocks * 512
        assert journal.takes_claims and journal.health().takes_claims

    run(scene, tmp_path, disk_reserve_bytes=16 * 2**20)
    assert fill_reserve.exists()


def test_partial_reserve_is_created_again(tmp_path: Path) -> None:
    """A crash while the reserve was laid leaves too little: it is completed at the next start."""
    (tmp_path / RESERVE_FILE).touch(0o600)

    async def scene(journal: SqliteJournal) -> None:
        assert (tmp_path / RESERVE_FILE).stat().st_size == RESERVE_BYTES

    run(scene, tmp_path, disk_reserve_bytes=RESERVE_BYTES)


@pytest.mark.parametrize("size_bytes", [5, 2 * RESERVE_BYTES])
@pytest.mark.parametrize("kind", ["symlink", "hardlink"])
def test_reserve_is_never_another_file(kind: str, size_bytes: int, tmp_path: Path) -> None:
    """A link in the place of the reserve is refused, whatever it leads to: that file neither grows nor counts."""
    data, other = tmp_path / "data", tmp_path / "other"
    data.mkdir(0o700)
    other.touch(0o600)
    other.write_bytes(b"x" * size_bytes)
    if kind == "symlink":
        (data / RESERVE_FILE).symlink_to(other)
    else:
        (data / RESERVE_FILE).hardlink_to(other)
    with pytest.raises(JournalError, match="is a link" if kind == "symlink" else "has 2 names"):
        run(nothing, data, disk_reserve_bytes=RESERVE_BYTES)
    assert other.read_bytes() == b"x" * size_bytes

    (data / RESERVE_FILE).unlink()
    run(nothing, data, disk_reserve_bytes=RESERVE_BYTES)
    assert other.read_bytes() == b"x" * size_bytes


def test_reserve_of_another_user_is_refused(tmp_path: Path, foreign: Callable[[Path], Path]) -> None:
    """A reserve that others may use, or that is theirs, is refused with what to do."""
    tmp_path.chmod(0o700)
    reserve = tmp_path / RESERVE_FILE
    reserve.touch(0o600)
    reserve.chmod(0o666)
    with pytest.raises(JournalError, match=f"chmod 600 '{reserve}'"):
        run(nothing, tmp_path, disk_reserve_bytes=RESERVE_BYTES)
    reserve.chmod(0o600)
    foreign(reserve)
    with pytest.raises(JournalError, match="belongs to user"):
        run(nothing, tmp_path, disk_reserve_bytes=RESERVE_BYTES)


def test_reserve_is_not_created_through_a_link(tmp_path: Path) -> None:
    """A link that appears once the reserve was given up is said to be the reason, and claims go on waiting."""
    other = tmp_path / "other"
    other.write_bytes(b"precious")
    disk = FullDisk(tmp_path)

    async def scene(journal: SqliteJournal) -> None:
        disk.is_full = True
        await journal.append(grants(1, 2))
        (tmp_path / RESERVE_FILE).symlink_to(other)
        disk.is_full = False
        health = journal.health()
        assert not health.takes_claims and "ballast is a link" in health.text
        (tmp_path / RESERVE_FILE).unlink()
        assert journal.health().takes_claims

    run(scene, tmp_path, disk_reserve_bytes=RESERVE_BYTES, connect=disk.connect)
    assert other.read_bytes() == b"precious"


@pytest.mark.parametrize("at", ["BEGIN", "COMMIT"])
def test_reserve_is_freed_for_a_batch(at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk the reserve goes and the same batch is written; claims wait until there is room again (I5)."""
    disk = FullDisk(tmp_path, at=at)
    free = {"bytes": 10**12}
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": free["bytes"]})())

    async def scene(journal: SqliteJournal) -> None:
        await journal.append(grants(1, 2))
        disk.is_full, free["bytes"] = True, 0
        await journal.append(grants(3, 4))
        assert disk.refused == 1 and not (tmp_path / RESERVE_FILE).exists()
        assert not takes_claims(journal)
        await journal.append(grants(5, 6))
        assert not journal.health().takes_claims and "is full: free some space" in journal.health().text
        free["bytes"] = 2 * RESERVE_BYTES - 1
        assert not journal.health().takes_claims
        disk.is_full, free["bytes"] = False, 2 * RESERVE_BYTES
        assert journal.health().takes_claims and takes_claims(journal)
        assert (tmp_path / RESERVE_FILE).stat().st_size == RESERVE_BYTES

    run(scene, tmp_path, disk_reserve_bytes=RESERVE_BYTES, connect=disk.connect)
    assert found_in(tmp_path)[1] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("at", "error"), [("INSERT INTO batch", JournalUnavailableError), ("COMMIT", OutcomeUnknownError)]
)
@pytest.mark.parametrize("disk_reserve_bytes", [0, RESERVE_BYTES])
def test_full_disk_refuses_appends(at: str, error: type[Exception], disk_reserve_bytes: int, tmp_path: Path) -> None:
    """With the reserve used up, a batch that never reached COMMIT is known to have failed, any other is not (I6)."""
    disk = FullDisk(tmp_path, for_good=True, at=at)

    async def scene(journal: SqliteJournal) -> None:
        await journal.append(grants(1, 2))
        disk.is_full = True
        with pytest.raises(error, match="is full and the reserve is used up"):
            await journal.append(grants(3, 4))
        assert disk.refused == (2 if disk_reserve_bytes else 1)
        disk.is_full = False
        if error is OutcomeUnknownError:
            for asked in (journal.append(grants(3, 4)), journal.open(), journal.history(HistoryQuery())):
                with pytest.raises(OutcomeUnknownError):
                    await asked
        else:
            await journal.append(grants(3, 4))

    run(scene, tmp_path, disk_reserve_bytes=disk_reserve_bytes, connect=disk.connect)
    assert found_in(tmp_path)[1][:2] == [1, 2]


def test_server_starts_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that starts on a full disk gives up the reserve, so that what it knows can still be released."""
    run(lambda journal: journal.append(grants(1, 2)), tmp_path, disk_reserve_bytes=RESERVE_BYTES)
    disk = FullDisk(tmp_path)
    disk.is_full = True
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 0})())

    async def scene(journal: SqliteJournal) -> None:
        assert not journal.takes_claims
        await journal.append(grants(3, 4))

    run(scene, tmp_path, disk_reserve_bytes=RESERVE_BYTES, connect=disk.connect)
    assert found_in(tmp_path)[1] == [1, 2, 3, 4]


def test_missing_reserve_refuses_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the space cannot be had, claims are refused from the start and nothing is left lying about."""

    def refuse_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse_space)

    async def scene(journal: SqliteJournal) -> None:
        assert not journal.takes_claims and not (tmp_path / RESERVE_FILE).exists()
        await journal.append(grants(1, 1))

    run(scene, tmp_path, disk_reserve_bytes=RESERVE_BYTES)
