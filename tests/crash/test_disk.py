"""Disks that hang, fail and fill up under a real server: it never says what is not so, and never loses what it said."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from holdfast.journal.sqlite.inspect import dump, inspect
from tests.crash.history import judge
from tests.crash.load import Crowd
from tests.support import callers, fulldisk
from tests.support.api import Api
from tests.support.checks import refused, wait_until
from tests.support.pending import waiting
from tests.support.raw import facts
from tests.support.server import serving

EXIT_STORE_FAILED, EXIT_DISK_HANGS = 74, 75
SMALL: dict[str, object] = {"disk_reserve_mib": 1, "snapshot_records": 1_000_000}


def failing(*points: str) -> dict[str, str]:
    return {"HOLDFAST_TESTING": "1", "HOLDFAST_FAILPOINTS": ",".join(points)}


def test_hanging_disk_ends_the_server(tmp_path: Path) -> None:
    """I5, I6: a commit that hangs ends the process with code 75; what was acknowledged before is there afterwards."""
    data = tmp_path / "data"
    crowd = Crowd(seed=2)
    env = failing("before_commit=sleep:600000@60")
    with serving(data, tokens=crowd.tokens, env=env, settings={"disk_hang_seconds": 1}) as server:
        threads = crowd.work(server, lambda: False)
        assert server.process.wait(60) == EXIT_DISK_HANGS, server.log
        crowd.finish(threads)
        assert "hung" in server.log
    crowd.history.nobody_is_left()
    assert inspect(data).problems == []
    with serving(data, tokens=crowd.tokens) as server:
        assert crowd.look_after(server), server.log
        server.terminate()
    crowd.history.nobody_is_left()
    assert judge(crowd.history, dump(data)).complaints == []


@pytest.mark.parametrize("point", ["mid_drop", "before_mark"])
def test_hanging_archive_disk_ends_the_server(point: str, tmp_path: Path) -> None:
    """I5, I6: a disk that hangs while what is archived is dropped, or behind that, is noticed like any other: code 75,
    a line in the log that names what hung, and what was acknowledged is there afterwards.
    """
    data = tmp_path / "data"
    # The mark is written at the start too.
    env = failing(f"{point}=sleep:600000@{2 if point == 'before_mark' else 1}")
    settings = {"disk_hang_seconds": 1, "snapshot_records": 20}
    with serving(data, tokens=callers.TOKENS, env=env, settings=settings) as server:
        alice = Api.of(server, callers.ALICE)
        acknowledged = _claim_until_it_hangs(alice)
        assert server.process.wait(60) == EXIT_DISK_HANGS, server.log
        assert "a call to the disk has hung" in server.log
        assert ("drop" if point == "mid_drop" else "write the mark") in server.log
    assert len(acknowledged) >= 19 and inspect(data).problems == []
    with serving(data, tokens=callers.TOKENS) as server:
        alice = Api.of(server, callers.ALICE)
        for name, token in acknowledged.items():
            assert alice.status(name).json()["fencing_token"] == token


def _claim_until_it_hangs(alice: Api) -> dict[str, int]:
    """Claim name after name; return the tokens of those that were answered."""
    acknowledged: dict[str, int] = {}
    with contextlib.suppress(OSError, HTTPException):
        for index in range(1_000):
            acknowledged[f"job-{index}"] = alice.acquired(f"job-{index}", ttl_seconds=3600)["fencing_token"]
    return acknowledged


def test_slow_disk_ends_nothing(tmp_path: Path) -> None:
    """L4: a commit that takes long, but not too long, is answered late and costs nobody a lease."""
    env = failing("before_commit=sleep:1500@4")
    with serving(tmp_path / "data", tokens=callers.TOKENS, env=env, settings={"disk_hang_seconds": 30}) as server:
        alice = Api.of(server, callers.ALICE)
        leases = [alice.acquired(f"slow-{index}", ttl_seconds=60) for index in range(6)]
        for index, lease in enumerate(leases):
            assert alice.renew(f"slow-{index}", lease["lease_id"]).status == 200
        assert server.terminate() == 0, server.log


def test_append_that_fails_changes_nothing(tmp_path: Path) -> None:
    """I6: an append known to have failed is 503 `storage_unavailable`, changes nothing, and the next one works."""
    data = tmp_path / "data"
    # The first passing is the server's own first record, the second and third grant what must outlive the failure.
    with serving(data, tokens=callers.TOKENS, env=failing("before_commit=error@4")) as server:
        alice = Api.of(server, callers.ALICE)
        first_lease = alice.acquired("kept", ttl_seconds=600, key="kept")
        alice.acquired("other", ttl_seconds=600)
        before = facts(alice)
        body = refused(alice.acquire("job", ttl_seconds=600, key="again"), 503, "storage_unavailable")
        assert "Nothing was changed" in body["details"] and body["retry_after_ms"] > 0, body
        assert facts(alice) == before
        lease = alice.acquired("job", ttl_seconds=600, key="again")
        assert lease["fencing_token"] == before["next_token"], "the token of a grant that never was is not lost"
        assert alice.acquired("kept", ttl_seconds=600, key="kept")["lease_id"] == first_lease["lease_id"]
        assert alice.release("kept", first_lease["lease_id"]).status == 200
        assert server.terminate() == 0, server.log
    granted = [record["name"] for record in dump(data) if record["event"] == "granted"]
    assert granted == ["kept", "other", "job"]


def test_waiter_keeps_its_ticket_when_a_later_append_fails(tmp_path: Path) -> None:
    """W2, I6: who stands in line since an earlier commit hears `waiting` with its ticket, not that nothing happened."""
    # Passings: the server's own first record, the grant, the joining, then the claim that fails.
    with serving(tmp_path / "data", tokens=callers.TOKENS, env=failing("before_commit=error@4")) as server:
        alice, bob = Api.of(server, callers.ALICE), Api.of(server, callers.BOB)
        lease = alice.acquired("job", ttl_seconds=600)
        with waiting(bob, "job", wait_seconds=40, owner="bob") as asked:
            refused(alice.acquire("other", ttl_seconds=600), 503, "storage_unavailable")
            reply = asked.json()
        assert reply["status"] == "waiting" and reply["position"] == 1, reply
        assert alice.release("job", lease["lease_id"]).status == 200
        back = bob.acquire("job", ticket=reply["ticket"], wait_seconds=10, owner="bob").json()
        assert back["status"] == "acquired", back


def test_failing_renewal_and_release_change_nothing(tmp_path: Path) -> None:
    """I6, L1: a renewal or a release that could not be written is 503, and the lease is what it was."""
    env = failing("before_commit=error@3")
    with serving(tmp_path / "data", tokens=callers.TOKENS, env=env) as server:
        alice = Api.of(server, callers.ALICE)
        lease = alice.acquired("job", ttl_seconds=600)
        refused(alice.release("job", lease["lease_id"], key="give-back"), 503, "storage_unavailable")
        assert alice.status("job").json()["fencing_token"] == lease["fencing_token"]
        assert alice.release("job", lease["lease_id"], key="give-back").status == 200
        assert alice.status("job").json()["status"] == "free"


def test_write_that_fails_ends_the_server(tmp_path: Path) -> None:
    """I6: when a commit fails nobody can know: `outcome_unknown` or no answer, the server ends, a restart tells.

    A limit on the size of files makes the kernel refuse the write.
    """
    data = tmp_path / "data"
    with serving(data, tokens=callers.TOKENS, settings=SMALL) as server:
        size_bytes = max(1 << 20, sum(path.stat().st_size for path in data.iterdir())) + (200 << 10)
        server.terminate()
    wrapper = ["prlimit", f"--fsize={size_bytes}"]
    acknowledged: dict[str, dict[str, Any]] = {}
    with serving(data, tokens=callers.TOKENS, settings=SMALL, wrapper=wrapper) as server:
        alice = Api.of(server, callers.ALICE)
        unknown = _claim_until_it_breaks(alice, acknowledged)
        assert server.process.wait(30) == EXIT_STORE_FAILED, server.log
    assert acknowledged and inspect(data).problems == []
    with serving(data, tokens=callers.TOKENS, settings=SMALL) as server:
        alice = Api.of(server, callers.ALICE)
        for name, lease in acknowledged.items():
            assert alice.status(name).json()["fencing_token"] == lease["fencing_token"]
            assert (
                alice.acquired(name, ttl_seconds=3600, metadata="x" * 1000, key=name)["lease_id"] == lease["lease_id"]
            )
        highest = max(lease["fencing_token"] for lease in acknowledged.values())
        retried = alice.acquired(unknown, ttl_seconds=3600, metadata="x" * 1000, key=unknown)
        assert retried["fencing_token"] == highest + 1
        server.terminate()
    granted = [record["name"] for record in dump(data) if record["event"] == "granted"]
    assert granted == [*acknowledged, unknown]


def _claim_until_it_breaks(alice: Api, acknowledged: dict[str, dict[str, Any]]) -> str:
    """Claim name after name; return the one whose claim was not answered, or answered with nobody knows."""
    for index in range(20_000):
        name = f"job-{index}"
        try:
            answer = alice.acquire(name, ttl_seconds=3600, metadata="x" * 1000, key=name)
        except (OSError, HTTPException):
            return name
        if answer.status == 503:
            refused(answer, 503, "outcome_unknown")
            return name
        assert answer.json()["status"] == "acquired", answer
        acknowledged[name] = answer.json()
    raise AssertionError("the limit was never met")


# --- A full disk -----------------------------------------------------------------------------------------------------


class SmallDisk:
    """A file system of 12 MiB in a namespace of its own, kept by a process that does nothing else."""

    def __init__(self, mount: Path) -> None:
        self.mount = mount
        mount.mkdir()
        script = 'mount -t tmpfs -o size=12m,mode=700 tmpfs "$1" && echo made && exec sleep 3600'
        namespaces = ["-m"] if os.geteuid() == 0 else ["-U", "-r", "-m"]
        self._keeper = subprocess.Popen(
            ["unshare", *namespaces, "--propagation", "private", "sh", "-c", script, "sh", str(mount)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._keeper.stdout is not None
        said = self._keeper.stdout.readline().decode(errors="replace").strip()
        if said != "made":
            self.end()
            raise OSError(said or "no answer")
        pid = str(self._keeper.pid)
        users = [] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]
        self.wrapper = ["nsenter", "-t", pid, *users, "-m"]
        self._filler = Path("/proc", pid, "root") / mount.relative_to("/") / "filler"

    def fill(self) -> None:
        """Leave no room at all."""
        with contextlib.suppress(OSError), self._filler.open("ab", buffering=0) as file:
            while True:
                file.write(b"\0" * 4096)

    def clear(self) -> None:
        """Give the room back."""
        self._filler.unlink()

    def is_sound(self, data: Path) -> None:
        """Look at a data directory from inside."""
        look = "import pathlib, sys; from holdfast.journal.sqlite.inspect import inspect as look; "
        look += "print(look(pathlib.Path(sys.argv[1])).problems)"
        command = [*self.wrapper, sys.executable, "-c", look, str(data)]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        assert found.stdout == "[]\n", found

    def end(self) -> None:
        self._keeper.kill()
        self._keeper.wait()
        if self._keeper.stdout is not None:
            self._keeper.stdout.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        disk = SmallDisk(tmp_path / "disk")
    except OSError as error:
        pytest.skip(f"no small file system can be made here (unshare and mount say: {error})")
    yield disk
    disk.end()


def leases_go_on(alice: Api, leases: dict[str, dict[str, Any]]) -> None:
    """While the disk is full: claims, sessions and tokens are refused, renewals and releases work, nothing is lost."""
    for name, lease in leases.items():
        renewed = alice.renew(name, lease["lease_id"], ttl_seconds=1200)
        assert renewed.status == 200 and renewed.json()["expires_in_ms"] == 1_200_000, renewed
    for _ in range(5):
        body = refused(alice.acquire("one-more", ttl_seconds=600), 503, "storage_unavailable")
        assert "full" in body["details"] and body["retry_after_ms"] > 0, body
    refused(alice.create_session(), 503, "storage_unavailable")
    assert alice.status("one-more").json()["status"] == "free"
    name, lease = leases.popitem()
    assert alice.release(name, lease["lease_id"]).status == 200
    assert alice.status(name).json()["status"] == "free"
    for name, lease in leases.items():
        assert alice.status(name).json()["fencing_token"] == lease["fencing_token"]


def claim_until_full(alice: Api) -> dict[str, dict[str, Any]]:
    """Claim until the server refuses because the disk is full. The claim that found out may have been granted."""
    leases: dict[str, dict[str, Any]] = {}
    for index in range(1_000):
        answer = alice.acquire(f"late-{index}", ttl_seconds=600)
        if answer.status == 503:
            refused(answer, 503, "storage_unavailable")
            return leases
        assert answer.json()["status"] == "acquired", answer
        leases[f"late-{index}"] = answer.json()
    raise AssertionError("the disk never was full")


def test_full_disk_refuses_claims_and_keeps_leases(small_disk: SmallDisk) -> None:
    """I5: on a full disk (a real one) claims are refused while renewals and releases go on; also after a crash."""
    data = small_disk.mount / "data"
    options: dict[str, Any] = {"tokens": callers.TOKENS, "settings": SMALL, "wrapper": small_disk.wrapper}
    options["env"] = {"XDG_CONFIG_HOME": str(small_disk.mount / "config")}
    with serving(data, **options) as server:
        alice = Api.of(server, callers.ALICE)
        leases = {f"job-{index}": alice.acquired(f"job-{index}", ttl_seconds=600) for index in range(5)}
        small_disk.fill()
        leases = claim_until_full(alice) | leases
        leases_go_on(alice, leases)
        server.kill()
    with serving(data, **options) as server:
        alice = Api.of(server, callers.ALICE)
        leases_go_on(alice, leases)
        small_disk.clear()
        wait_until(lambda: alice.acquire("one-more", ttl_seconds=600).status == 200)
        for name, lease in leases.items():
            assert alice.release(name, lease["lease_id"]).status == 200
        assert server.terminate() == 0, server.log
    small_disk.is_sound(data)


def test_simulated_full_disk_refuses_claims_and_keeps_leases(tmp_path: Path) -> None:
    """I5: the same on a disk that only pretends to be full, for machines where no small one can be made."""
    data, flag = tmp_path / "data", tmp_path / "full"
    wrapper = [sys.executable, "-P", fulldisk.__file__, str(flag), str(data / "ballast")]
    options: dict[str, Any] = {"tokens": callers.TOKENS, "settings": SMALL, "wrapper": wrapper}
    with serving(data, **options) as server:
        alice = Api.of(server, callers.ALICE)
        leases = {f"job-{index}": alice.acquired(f"job-{index}", ttl_seconds=600) for index in range(5)}
        flag.touch()
        leases = claim_until_full(alice) | leases
        leases_go_on(alice, leases)
        server.kill()
    with serving(data, **options) as server:
        alice = Api.of(server, callers.ALICE)
        leases_go_on(alice, leases)
        flag.unlink()
        wait_until(lambda: alice.acquire("one-more", ttl_seconds=600).status == 200)
        assert server.terminate() == 0, server.log
    assert inspect(data).problems == []
