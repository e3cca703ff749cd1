"""A server whose journal is lost, empty or older than it knows does not start: fencing never goes back unsaid (I2)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import wait_until
from tests.support.compactor import archived_by_now
from tests.support.server import ServerFailed, ServerProcess, serving

EX_IOERR = 74
JOURNAL, ARCHIVE, MARK, KEY = "journal.sqlite3", "archive.sqlite3", "journal.mark", "authority.key"


def claimed(data: Path, job: str) -> int:
    """Start a server, claim a job, stop it; return the fencing token."""
    with serving(data, tokens=callers.TOKENS) as server:
        token: int = Api.of(server, callers.ALICE).acquired(job)["fencing_token"]
        assert server.terminate() == 0
    return token


def refusal(data: Path) -> str:
    """Start a server that must not start, and return what it says: what is wrong, and two lines with what to do."""
    with pytest.raises(ServerFailed) as failed:
        ServerProcess.start(data, tokens=callers.TOKENS).kill()
    assert failed.value.returncode == EX_IOERR, failed.value.output
    wrong, *ways = failed.value.output.splitlines()
    assert "given a second time" in wrong and str(data / JOURNAL) in wrong
    assert len(ways) == 2 and all(way.startswith("  - ") for way in ways)
    return failed.value.output


def test_lost_journal_stops_the_start(tmp_path: Path) -> None:
    """I2: without its journal a server does not start, says what is known and what to do, and what it says works."""
    data, saved = tmp_path / "data", tmp_path / "kept"
    first = claimed(data, "a")
    (data / JOURNAL).rename(saved)
    for _ in range(2):
        text = refusal(data)
        assert f"is missing, but {KEY} and {MARK} are there" in text and "up to record" in text
    (data / JOURNAL).touch(0o600)
    assert "has 0 bytes" in refusal(data)
    saved.replace(data / JOURNAL)
    assert claimed(data, "b") == first + 1, "it was put back"

    (data / JOURNAL).unlink()
    for name in (KEY, MARK):
        (data / name).unlink()
    assert claimed(data, "a") == 1, "it was said to be lost for good, and all is new"


def test_unannounced_restore_stops_the_start(tmp_path: Path) -> None:
    """I2: a journal that was put back from an older copy is refused until its mark is removed."""
    data, saved = tmp_path / "data", tmp_path / "kept"
    first = claimed(data, "a")
    shutil.copy(data / JOURNAL, saved)
    assert claimed(data, "b") == first + 1
    shutil.copy(saved, data / JOURNAL)
    text = refusal(data)
    assert "has gone back in time" in text and f"remove {data / MARK} and start again" in text
    (data / MARK).unlink()
    assert claimed(data, "c") == first + 1, "whoever removed the mark knows that"


def test_journal_of_another_directory_stops_the_start(tmp_path: Path) -> None:
    """I2: the journal of another server is told from the own one, although it has come further."""
    claimed(tmp_path / "data", "a")
    for job in ("a", "b", "c"):
        claimed(tmp_path / "other", job)
    shutil.copy(tmp_path / "other" / JOURNAL, tmp_path / "data" / JOURNAL)
    assert "is another journal" in refusal(tmp_path / "data")


def archived(data: Path, first: int) -> None:
    """Start a server, claim some jobs, and stop it once all that was there before is archived."""
    with serving(data, tokens=callers.TOKENS, settings={"snapshot_records": 2}) as server:
        before = archived_by_now(data)
        for job in range(first, first + 5):
            Api.of(server, callers.ALICE).acquired(f"job-{job}", ttl_seconds=600)
        wait_until(lambda: archived_by_now(data) > before, seconds_max=30)
        assert server.terminate() == 0


def test_lost_or_older_archive_stops_the_start(tmp_path: Path) -> None:
    """I5: with an archive that is gone, older or another's a server does not start; put back, all leases are there."""
    data, older, newest = (tmp_path / name for name in ("data", "older", "newest"))
    archived(data, 0)
    shutil.copy(data / ARCHIVE, older)
    archived(data, 5)
    shutil.copy(data / ARCHIVE, newest)
    archived(tmp_path / "other", 0)
    (data / ARCHIVE).unlink()
    other = tmp_path / "other" / ARCHIVE
    for spoiled, text in ((None, "is missing"), (older, "has gone back in time"), (other, "of another journal")):
        if spoiled is not None:
            shutil.copy(spoiled, data / ARCHIVE)
        before = {path.name: path.read_bytes() for path in data.iterdir()}
        with pytest.raises(ServerFailed) as failed:
            ServerProcess.start(data, tokens=callers.TOKENS).kill()
        assert failed.value.returncode == EX_IOERR, failed.value.output
        assert f"{data / ARCHIVE} " in failed.value.output and text in failed.value.output
        assert f"Put {ARCHIVE} back, with its -wal, or restore a backup" in failed.value.output
        after = {path.name: path.read_bytes() for path in data.iterdir()}
        assert {name: content for name, content in after.items() if content or name in before} == before
    shutil.copy(newest, data / ARCHIVE)
    with serving(data, tokens=callers.TOKENS) as server:
        tokens = [Api.of(server, callers.ALICE).status(f"job-{job}").json()["fencing_token"] for job in range(10)]
        assert tokens == list(range(1, 11))


def test_older_journal_beside_a_newer_archive_stops_the_start(tmp_path: Path) -> None:
    """I2: a journal that was put back alone, and its mark removed, is told from the newest by the archive."""
    data, older = tmp_path / "data", tmp_path / "older"
    archived(data, 0)
    shutil.copy(data / JOURNAL, older)
    archived(data, 5)
    shutil.copy(older, data / JOURNAL)
    assert "has gone back in time" in refusal(data)
    (data / MARK).unlink()
    with pytest.raises(ServerFailed) as failed:
        ServerProcess.start(data, tokens=callers.TOKENS).kill()
    assert f"{data / JOURNAL} has gone back in time" in failed.value.output
    assert f"Put the newest {JOURNAL} back" in failed.value.output


@pytest.mark.parametrize("is_empty", [False, True], ids=["gone", "empty"])
def test_key_without_a_watermark_stops_the_start(is_empty: bool, tmp_path: Path) -> None:
    """I2: a key without a mark is enough to know that there was a journal."""
    data = tmp_path / "data"
    claimed(data, "a")
    (data / MARK).unlink()
    (data / JOURNAL).unlink()
    if is_empty:
        (data / JOURNAL).touch(0o600)
    assert KEY in refusal(data)


def test_first_start_that_was_killed_goes_on(tmp_path: Path) -> None:
    """A first start that was killed before the key was made is no lost journal: the next start makes the key."""
    data = tmp_path / "data"
    env = {"HOLDFAST_TESTING": "1", "HOLDFAST_FAILPOINTS": "after_open=kill"}
    with pytest.raises(ServerFailed):
        ServerProcess.start(data, tokens=callers.TOKENS, env=env)
    assert (data / MARK).exists() and not (data / KEY).exists()
    assert claimed(data, "a") == 1
