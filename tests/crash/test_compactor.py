"""A real server whose archivist is killed, hangs, or outlives it: nobody waits for it, and nothing is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast.engine.restore import read_backup
from holdfast.journal.sqlite.inspect import dump, inspect
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import wait_until
from tests.support.compactor import archived_by_now, compactors_of, is_compactor
from tests.support.server import ServerProcess, serving

OFTEN: dict[str, object] = {"snapshot_records": 20, "disk_reserve_mib": 1}


def failing(*points: str) -> dict[str, str]:
    return {"HOLDFAST_TESTING": "1", "HOLDFAST_FAILPOINTS": ",".join(points)}


def claimed(alice: Api, first: int, count: int) -> dict[str, int]:
    """Claim jobs; return their fencing tokens."""
    names = [f"job-{number}" for number in range(first, first + count)]
    return {name: alice.acquired(name, ttl_seconds=3_600)["fencing_token"] for name in names}


def held(alice: Api, tokens: dict[str, int]) -> None:
    for name, token in tokens.items():
        assert alice.status(name).json()["fencing_token"] == token, name


def archived_upto(data: Path) -> int:
    found = inspect(data)
    assert found.problems == [], found
    return found.archived_upto


def test_killed_compactor_is_replaced(tmp_path: Path) -> None:
    """I5: kill −9 of the archivist, again and again: every claim is answered, and the next one archives all of it."""
    data = tmp_path / "data"
    with serving(data, tokens=callers.TOKENS, settings=OFTEN) as server:
        alice = Api.of(server, callers.ALICE)
        tokens: dict[str, int] = {}
        seen: set[int] = set()
        while len(seen) < 4:
            tokens |= claimed(alice, len(tokens), 10)
            for each in compactors_of(server.pid) - seen:
                seen.add(each)
                os.kill(each, signal.SIGKILL)
        killed = len(tokens)

        def is_archived() -> bool:
            tokens.update(claimed(alice, len(tokens), 10))
            return archived_by_now(data) > killed

        wait_until(is_archived)
        assert server.terminate() == 0, server.log
        assert "nothing is lost, and archiving is tried again" in server.log
    assert archived_upto(data) > killed
    with serving(data, tokens=callers.TOKENS) as server:
        held(Api.of(server, callers.ALICE), tokens)
        server.terminate()
    granted = [record["name"] for record in dump(data) if record["event"] == "granted"]
    assert granted == list(tokens), "none twice, none missing"


def test_server_without_a_compactor_serves(tmp_path: Path) -> None:
    """An archivist that always dies costs nobody anything: claims go on, and a backup restores to what there is."""
    data, file = tmp_path / "data", tmp_path / "file"
    with serving(data, tokens=callers.TOKENS, settings=OFTEN, env=failing("archive_begin=kill")) as server:
        alice = Api.of(server, callers.ALICE)
        tokens = claimed(alice, 0, 100)
        wait_until(lambda: "archiving is tried again" in server.log)
        health = alice.get("/health").json()
        assert health["status"] == "ok" and "archiv" in health["details"], health
        file.write_bytes(Api.of(server, callers.OPERATOR).get("/backup").body)
        slots = read_backup(file).frozen.slots
        assert {name: slot.lease.token for name, slot in slots.items() if slot.lease is not None} == tokens
        assert server.terminate() == 0, server.log
    assert archived_upto(data) == 0
    with serving(data, tokens=callers.TOKENS, settings=OFTEN) as server:
        held(Api.of(server, callers.ALICE), tokens)
        claimed(Api.of(server, callers.ALICE), 100, 30)
        wait_until(lambda: archived_by_now(data) > 100)
        server.terminate()
    assert archived_upto(data) > 100


@pytest.mark.parametrize("point", ["archive_mid", "archive_before_commit"])
def test_start_waits_for_an_orphaned_compactor(point: str, tmp_path: Path) -> None:
    """I5: a server that is killed while its archivist commits, and started again at once, finds one of both states."""
    data = tmp_path / "data"
    server = ServerProcess.start(data, tokens=callers.TOKENS, settings=OFTEN, env=failing(f"{point}=sleep:1500"))
    tokens = claimed(Api.of(server, callers.ALICE), 0, 30)
    wait_until(lambda: bool(compactors_of(server.pid)))
    (archivist,) = compactors_of(server.pid)
    tokens |= claimed(Api.of(server, callers.ALICE), 30, 10)
    os.kill(server.pid, signal.SIGKILL)
    server.process.wait()
    with serving(data, tokens=callers.TOKENS, settings=OFTEN) as again:
        assert not is_compactor(archivist), "two would write one archive"
        held(Api.of(again, callers.ALICE), tokens)
        tokens |= claimed(Api.of(again, callers.ALICE), 40, 30)
        wait_until(lambda: archived_by_now(data) > 0)
        assert again.terminate() == 0, again.log
    server.kill()
    assert archived_upto(data) > 0
    assert [record["name"] for record in dump(data) if record["event"] == "granted"] == list(tokens)


def test_hanging_compactor_blocks_no_requests(tmp_path: Path) -> None:
    """A disk that hangs under the archivist alone: claims and reads go on, and the server is not ended for it."""
    data = tmp_path / "data"
    settings = {**OFTEN, "disk_hang_seconds": 1}
    with serving(data, tokens=callers.TOKENS, settings=settings, env=failing("archive_mid=sleep:600000")) as server:
        alice = Api.of(server, callers.ALICE)
        tokens = claimed(alice, 0, 30)
        wait_until(lambda: bool(compactors_of(server.pid)))
        tokens |= claimed(alice, 30, 200)
        held(alice, tokens)
        assert [each["event"] for each in alice.history("job-1").json()["history"]] == ["granted"]
        server.kill()
    assert archived_upto(data) == 0
    with serving(data, tokens=callers.TOKENS, settings=OFTEN) as again:
        held(Api.of(again, callers.ALICE), tokens)
