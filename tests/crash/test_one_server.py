"""One data directory has one server, and a server that is told to stop leaves nothing unsaid that it did."""

from __future__ import annotations

import time
from pathlib import Path

from holdfast.journal.sqlite.inspect import dump, inspect
from tests.crash.history import judge
from tests.crash.load import Crowd
from tests.support import callers, proof
from tests.support.api import Api
from tests.support.checks import at_once
from tests.support.server import ServerFailed, ServerProcess, serving

EXIT_IN_USE = 75
ROUNDS = proof.count("one server: rounds")


def start_or_fail(data: Path) -> ServerProcess | ServerFailed:
    try:
        return ServerProcess.start(data, tokens=callers.TOKENS)
    except ServerFailed as failed:
        return failed


def is_refused_clearly(failed: ServerFailed, data: Path) -> None:
    assert failed.returncode == EXIT_IN_USE, failed
    assert f"another server has {data} open" in failed.output and "--data" in failed.output, failed
    assert "Traceback" not in failed.output, failed


def test_second_server_is_refused(tmp_path: Path) -> None:
    """I1: a second server on one data directory says why it does not start, and the first does not notice."""
    data = tmp_path / "data"
    with serving(data, tokens=callers.TOKENS) as first:
        alice = Api.of(first, callers.ALICE)
        lease = alice.acquired("job", ttl_seconds=600)
        before = sorted(path.name for path in data.iterdir())
        second = start_or_fail(data)
        assert isinstance(second, ServerFailed), "two servers run on one data directory"
        is_refused_clearly(second, data)
        assert alice.renew("job", lease["lease_id"], ttl_seconds=600).status == 200
        assert alice.acquired("next")["fencing_token"] == lease["fencing_token"] + 1
        assert sorted(path.name for path in data.iterdir()) == before
        assert first.is_running()


def test_one_of_two_concurrent_starts_serves(tmp_path: Path) -> None:
    """I1: of servers started at the same moment, on a new directory or an old one, exactly one serves."""
    data = tmp_path / "data"
    for _ in range(ROUNDS):
        started = at_once([lambda: start_or_fail(data)] * 2, seconds_max=60)
        servers = [one for one in started if isinstance(one, ServerProcess)]
        refused = [one for one in started if isinstance(one, ServerFailed)]
        try:
            assert (len(servers), len(refused)) == (1, 1), "\n".join(str(one) for one in refused)
            is_refused_clearly(refused[0], data)
            alice = Api.of(servers[0], callers.ALICE)
            alice.release("job", alice.acquired("job")["lease_id"])
        finally:
            for server in servers:
                server.kill()
    assert inspect(data).problems == []


def test_killed_server_releases_its_lock(tmp_path: Path) -> None:
    """I5: after kill −9 of the first the second starts at once, with all that the first had acknowledged."""
    data = tmp_path / "data"
    with serving(data, tokens=callers.TOKENS) as first:
        lease = Api.of(first, callers.ALICE).acquired("job", ttl_seconds=600)
        assert isinstance(start_or_fail(data), ServerFailed)
        first.kill()
        with serving(data, tokens=callers.TOKENS) as second:
            alice = Api.of(second, callers.ALICE)
            assert alice.renew("job", lease["lease_id"]).status == 200
            assert alice.acquired("other")["fencing_token"] > lease["fencing_token"]


def test_stop_under_load_loses_nothing(tmp_path: Path) -> None:
    """I5, I6: SIGTERM under load ends with code 0; every request is answered or broken off, and no answer is untrue."""
    data = tmp_path / "data"
    crowd = Crowd(seed=1)
    for _ in range(ROUNDS):
        server = ServerProcess.start(data, tokens=crowd.tokens, settings={"snapshot_records": 150})
        try:
            assert crowd.look_after(server), server.log
            ends_at = time.monotonic() + 30
            threads = crowd.work(server, lambda ends_at=ends_at: time.monotonic() > ends_at)  # type: ignore[misc]
            time.sleep(0.2)
            assert server.terminate() == 0, server.log
            crowd.finish(threads)
        finally:
            server.kill()
        crowd.history.nobody_is_left()
    with serving(data, tokens=crowd.tokens) as server:
        assert crowd.look_after(server), server.log
        assert server.terminate() == 0, server.log
    crowd.history.nobody_is_left()
    verdict = judge(crowd.history, dump(data))
    assert verdict.complaints == []
    assert inspect(data).problems == []
