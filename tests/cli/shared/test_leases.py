"""Where lease ids are kept between two commands."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from holdfast.cli.shared.leases import OWNERS_MAX, RETAINED_AFTER_END_MS, Leases, StoredLease, own, state_dir

URL = "http://127.0.0.1:7420"


@pytest.fixture
def leases(tmp_path: Path) -> Leases:
    return Leases({"XDG_STATE_HOME": str(tmp_path)})


def stored(job: str = "job", *, url: str = URL, until_ms: int = 1_000, lease_id: str = "secret-id") -> StoredLease:
    return StoredLease(url, job, lease_id, "agent-1", 7, until_ms)


def test_lease_is_stored_and_forgotten(leases: Leases) -> None:
    """What is kept is found under its server and job alone, and gone once it is forgotten."""
    leases.store(stored(), 0)
    assert leases.find(URL, "job") == [stored()]
    assert leases.find(URL, "job2") == []
    assert leases.find("http://127.0.0.1:7421", "job") == []
    leases.forget(URL, "job")
    leases.forget(URL, "job")
    assert leases.find(URL, "job") == []


def test_lease_is_found_by_every_address(leases: Leases) -> None:
    """What was claimed at several addresses is found by any of them, and forgotten at all of them."""
    one, other, third = (f"http://127.0.0.1:{port}" for port in (7421, 7422, 7423))
    both = stored(url=f"{one},{other}")
    leases.store(both, 0)
    for url in (one, other, f"{other},{one}", f"{third},{one}"):
        assert leases.find(url, "job") == [both]
    assert leases.find(third, "job") == []
    assert leases.jobs() == ["job"]
    leases.forget(other, "job")
    assert leases.find(one, "job") == [] and leases.jobs() == []


def test_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither the environment nor the system knows a home, the error says what to set."""

    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(OSError, match="set HOME or XDG_STATE_HOME"):
        state_dir({})


def test_newer_lease_replaces_older(leases: Leases) -> None:
    """A job has one lease: the last one that was kept."""
    leases.store(stored(), 0)
    leases.store(stored(lease_id="another"), 0)
    found = leases.find(URL, "job")
    assert [each.lease_id for each in found] == ["another"]


def test_other_owners_stay_with_the_last(leases: Leases) -> None:
    """Each owner has its own last lease, a few of them and for as long as any; the last one is the job's."""

    def claimed(owner: str, lease_id: str, until_ms: int = 1_000) -> StoredLease:
        return msgspec.structs.replace(stored(lease_id=lease_id, until_ms=until_ms), owner=owner)

    for owner, lease_id in (("ci-7", "a"), ("ci-8", "b"), ("ci-7", "c"), ("ci-8", "d")):
        leases.store(claimed(owner, lease_id), 0)
    found = leases.find(URL, "job")
    assert [(each.owner, each.lease_id) for each in found] == [("ci-8", "d"), ("ci-7", "c")]
    assert "'c'" not in repr(found) and "'d'" not in repr(found)
    for number in range(OWNERS_MAX + 3):
        leases.store(claimed(f"agent-{number}", f"lease-{number}", 10**9), 0)
    found = leases.find(URL, "job")
    assert [each.owner for each in found] == [f"agent-{number}" for number in range(OWNERS_MAX + 2, 2, -1)]
    leases.store(claimed("late", "z", 10**10), 10**9 + RETAINED_AFTER_END_MS + 1)
    assert [each.owner for each in leases.find(URL, "job")] == ["late"]


def test_only_the_user_can_read(leases: Leases, tmp_path: Path) -> None:
    """The directory is 0700 and each file 0600, whatever the umask, and nothing unfinished stays behind."""
    leases.store(stored("github://acme/app/issues/42"), 0)
    (file,) = (tmp_path / "holdfast" / "leases").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_dead_leases_are_pruned(leases: Leases) -> None:
    """A lease that ended more than a day ago is forgotten when the next one is kept, and none that may live."""
    leases.store(stored("old", until_ms=0), 0)
    leases.store(stored("young", until_ms=RETAINED_AFTER_END_MS), 0)
    leases.store(stored("new", until_ms=2 * RETAINED_AFTER_END_MS), RETAINED_AFTER_END_MS + 1)
    assert leases.jobs() == ["new", "young"]


def test_damaged_file_counts_as_missing(leases: Leases, tmp_path: Path) -> None:
    """A file that cannot be read is as if it were not there, and is replaced by the next claim."""
    leases.store(stored(), 0)
    (file,) = (tmp_path / "holdfast" / "leases").iterdir()
    file.write_text("{")
    assert leases.find(URL, "job") == []
    assert leases.jobs() == []
    leases.store(stored(), 0)
    assert leases.find(URL, "job") == [stored()]


def test_secret_does_not_show() -> None:
    """The text of a kept lease has everything but its id."""
    assert "secret-id" not in repr(stored()) and "secret-id" in msgspec.json.encode(stored()).decode()


def test_directory_follows_the_xdg_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG_STATE_HOME counts if it is absolute; else it is ~/.local/state."""
    assert state_dir({"XDG_STATE_HOME": "/var/x", "HOME": "/h"}) == Path("/var/x/holdfast")
    assert state_dir({"XDG_STATE_HOME": "x", "HOME": "/h"}) == Path("/h/.local/state/holdfast")
    assert state_dir({"HOME": "/h"}) == Path("/h/.local/state/holdfast")
    monkeypatch.setenv("XDG_STATE_HOME", "/nowhere/at/all")
    assert own().jobs() == []
