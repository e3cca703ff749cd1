"""What an operator finds in the log: a crash, a full disk and its end, writes that fail; each once, in plain words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.support import callers, fulldisk
from tests.support.api import Api
from tests.support.checks import wait_until
from tests.support.server import serving

CRASH = "the server before this one did not stop"
FULL, SPACE = "is full: the reserve was given up", "there is room under"
FAILED, WORKS = "the state is read anew", "writes work again"


def test_start_after_a_crash_is_logged_once(tmp_path: Path) -> None:
    """After a kill there is one line: how much was replayed and what lives on. After a stop, and at first, none."""
    data = tmp_path / "data"
    with serving(data, tokens=callers.TOKENS) as server:
        alice = Api.of(server, callers.ALICE)
        for number in range(3):
            alice.acquired(f"job-{number}", ttl_seconds=600)
        alice.create_session(ttl_seconds=600)
        assert CRASH not in server.log
        server.kill()
    with serving(data, tokens=callers.TOKENS) as server:
        wait_until(lambda: server.log.count(CRASH) == 1)
        (line,) = [line for line in server.log.splitlines() if CRASH in line]
        assert "it was killed, or the power failed; its last record is " in line
        assert " s old. 5 records were replayed. 3 leases, 1 sessions and 0 places in line live on" in line
        server.terminate()
    with serving(data, tokens=callers.TOKENS) as server:
        assert Api.of(server, callers.ALICE).status("job-1").json()["status"] == "held"
        server.terminate()
        assert CRASH not in server.log


def test_full_disk_and_recovery_are_logged_once(tmp_path: Path) -> None:
    """However many requests meet it: one line when the reserve is given up, and one when there is room again."""
    data, flag = tmp_path / "data", tmp_path / "full"
    wrapper = [sys.executable, "-P", fulldisk.__file__, str(flag), str(data / "ballast")]
    settings = {"disk_reserve_mib": 1, "snapshot_records": 1_000_000}
    options: dict[str, Any] = {"tokens": callers.TOKENS, "settings": settings, "wrapper": wrapper}
    with serving(data, **options) as server:
        alice = Api.of(server, callers.ALICE)
        lease = alice.acquired("kept", ttl_seconds=600)
        flag.touch()
        wait_until(lambda: alice.acquire("job", ttl_seconds=600).status == 503)
        for _ in range(20):
            assert alice.acquire("other", ttl_seconds=600).status == 503
            assert alice.renew("kept", lease["lease_id"], ttl_seconds=600).status == 200
        wait_until(lambda: FULL in server.log)
        assert SPACE not in server.log
        flag.unlink()
        wait_until(lambda: alice.acquire("other", ttl_seconds=600).status == 200)
        wait_until(lambda: SPACE in server.log)
        server.terminate()
        assert (server.log.count(FULL), server.log.count(SPACE)) == (1, 1), server.log
        assert "Claims are refused until 2 MiB are free" in server.log


def test_failing_write_and_recovery_are_logged(tmp_path: Path) -> None:
    """One line says that a write failed and that the state is read anew, and one that writes work again."""
    env = {"HOLDFAST_TESTING": "1", "HOLDFAST_FAILPOINTS": "before_commit=error@3"}
    with serving(tmp_path / "data", tokens=callers.TOKENS, env=env) as server:
        alice = Api.of(server, callers.ALICE)
        alice.acquired("one", ttl_seconds=600)
        assert alice.acquire("two", ttl_seconds=600).status == 503
        alice.acquired("two", ttl_seconds=600)
        alice.acquired("three", ttl_seconds=600)
        server.terminate()
        assert (server.log.count(FAILED), server.log.count(WORKS)) == (1, 1), server.log
        assert "writes work again: 1 records are on the disk; 1 writes had failed" in server.log
