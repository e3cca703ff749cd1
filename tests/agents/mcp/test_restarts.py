"""A host restarts the tools of its agent: the same owner resumes what lives, and hears of what does not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from mcp import MCPError

from holdfast.agents.mcp.stdio import JOBS
from tests.agents.mcp.hosts import TTL, Home, run
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import wait_until
from tests.support.server import ServerProcess


def _left(home: Home) -> dict[str, object]:
    """What the one memory of a home holds."""
    (path,) = (home.folder / "state" / "holdfast" / "mcp").glob("*.json")
    assert path.stat().st_mode & 0o777 == 0o600
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def test_killed_process_is_resumed(home: Home, operator: Api, name: str) -> None:
    """The next process of an owner has what the killed one had, under the same fencing token, and says so (C4)."""

    async def test() -> None:
        home.ttl = 3 * TTL
        async with home.host("ana") as ana:
            before = await ana.call("claim_job", job=name)
            await ana.call("claim_job", job=f"{name}/2")
            home.kill("ana")
        operator.revoke(f"{name}/2", reason="wrong")
        async with home.host("ana") as ana:
            result = await ana.call("get_job_owner", job="anything")
            assert result["resumed"] == [name]
            assert [(each["job"], each["reason"]) for each in result["lost"]] == [(f"{name}/2", "revoked")]
            (mine,) = (await ana.call("my_jobs"))["jobs"]
            assert (mine["job"], mine["fencing_token"]) == (name, before["fencing_token"])
            # And it is renewed again, by this process.
            first = operator.status(name).json()["last_heartbeat_at"]
            await asyncio.to_thread(
                wait_until, lambda: operator.status(name).json()["last_heartbeat_at"] > first, seconds_max=2 * home.ttl
            )
            assert operator.status(name).json()["owner"] == "ana"
            assert "lost" not in await ana.call("my_jobs")

    run(test())


def test_expired_session_is_reported(home: Home, operator: Api, name: str) -> None:
    """A process that comes back too late is told which jobs it has lost, and has none of them."""

    async def test() -> None:
        async with home.host("ana") as ana:
            await ana.call("claim_job", job=name)
            home.kill("ana")
        await asyncio.to_thread(wait_until, lambda: operator.status(name).json()["owner"] is None, seconds_max=3 * TTL)
        async with home.host("ana") as ana:
            result = await ana.call("my_jobs")
            assert [each["job"] for each in result["lost"]] == [name] and result["jobs"] == []
            assert result["lost"][0]["reason"] in {"expired", "session_ended"}
            assert (await ana.call("claim_job", job=name))["status"] == "acquired"

    run(test())


def test_orderly_end_is_reported_by_the_next_process(home: Home, name: str) -> None:
    """A host that closes the pipe has given everything back; the next process tells its model so, once."""

    async def test() -> None:
        async with home.host("ana") as ana:
            await ana.call("claim_job", job=name)
        assert _left(home)["session"] is None
        async with home.host("ana") as ana:
            result = await ana.call("my_jobs")
            assert [(each["job"], each["reason"]) for each in result["lost"]] == [(name, "released")]
        assert not list((home.folder / "state" / "holdfast" / "mcp").iterdir()), "nothing is left to tell"

    run(test())


def test_two_live_processes_of_one_owner_share_nothing(home: Home, operator: Api, name: str) -> None:
    """A second process of a live owner is told so, is refused what the first has, and takes nothing away from it."""

    async def test() -> None:
        async with home.host("ana") as first:
            await first.call("claim_job", job=name)
            async with home.host("ana") as second:
                refused = await second.call("claim_job", job=name)
                assert (refused["status"], refused["has_your_name"]) == ("held", True)
                assert "another live process" in refused["warning"]
                assert (await second.call("release_job", job=name))["status"] == "not_yours"
                await second.call("claim_job", job=f"{name}/2")
                assert (await first.call("release_job", job=f"{name}/2"))["status"] == "not_yours"
            assert operator.status(f"{name}/2").json()["owner"] is None
            assert (await first.call("heartbeat_job", job=name))["still_held"] is True

    run(test())


def test_another_token_or_owner_resumes_nothing(home: Home, operator: Api, name: str) -> None:
    """What a killed process left is taken over by its owner with its access token, and by nobody else."""

    async def test() -> None:
        home.ttl = 6 * TTL
        async with home.host("ana") as ana:
            await ana.call("claim_job", job=name)
            home.kill("ana")
        async with home.host("ben") as ben:
            assert (await ben.call("claim_job", job=name))["status"] == "held"
        other_home = Home(home.folder, home.server, callers.BOB)
        async with other_home.host("ana") as bob:
            result = await bob.call("claim_job", job=name)
            assert result["status"] == "held" and "resumed" not in result
            assert [each["job"] for each in result["lost"]] == [name]
        assert operator.status(name).json()["owner"] == "ana"

    run(test())


def test_unusable_saved_state_is_reported(home: Home, name: str) -> None:
    """Where nothing can be kept, or what was kept is not readable, the tools work, and say what a restart loses."""

    async def test() -> None:
        folder = home.folder / "state" / "holdfast" / "mcp"
        async with home.host("ana") as ana:
            await ana.call("claim_job", job=name)
            home.kill("ana")
        (path,) = folder.glob("*.json")
        path.write_bytes(b"\x00 not JSON")
        async with home.host("ana") as ana:
            assert (await ana.call("my_jobs"))["jobs"] == []
            await ana.call("claim_job", job=f"{name}/2")
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()
        folder.write_text("in the way")
        async with home.host("ana") as ana:
            got = await ana.call("claim_job", job=f"{name}/3")
            assert got["status"] == "acquired" and "a restart resumes nothing" in got["warning"]

    run(test())


def test_restart_without_a_server_resumes_later(home: Home, tmp_path: Path, name: str) -> None:
    """While the server is away, calls say so and nothing is believed; when it is back, what was left is resumed."""

    async def test(server: ServerProcess) -> None:
        there = Home(tmp_path, server)
        there.ttl = 6 * TTL
        async with there.host("ana") as ana:
            await ana.call("claim_job", job=name)
            there.kill("ana")
        server.terminate()
        async with there.host("ana") as ana:
            said = await ana.error("my_jobs")
            assert "no answer from" in said and "begin nothing" in said and "tell your person" in said
            with pytest.raises(MCPError, match="no answer from"):
                await ana.client.read_resource(JOBS)
            with server.restart():
                assert (await ana.call("my_jobs"))["resumed"] == [name]

    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        run(test(server))


def test_stopped_process_reports_its_loss(home: Home, operator: Api, name: str) -> None:
    """A process that stood still for longer than its session lives says so with its first result after that."""

    async def test() -> None:
        async with home.host("ana") as ana:
            await ana.call("claim_job", job=name)
            pid = home.process_of("ana")
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.to_thread(
                    wait_until, lambda: operator.status(name).json()["owner"] is None, seconds_max=3 * TTL
                )
            finally:
                os.kill(pid, signal.SIGCONT)
            result = await ana.call("list_claimed_jobs", prefix=name)
            assert [each["job"] for each in result["lost"]] == [name]
            assert (await ana.call("claim_job", job=name))["status"] == "acquired"

    run(test())


def test_unanswered_end_is_completed_after_restart(tmp_path: Path, name: str) -> None:
    """A process that ends while the server is away gave nothing back: the next one has it, and says nothing else."""

    async def test(server: ServerProcess) -> None:
        there = Home(tmp_path, server)
        there.ttl = 6 * TTL
        async with there.host("ana") as ana:
            await ana.call("claim_job", job=name)
            server.terminate()
        with server.restart():
            async with there.host("ana") as ana:
                result = await ana.call("my_jobs")
                assert result["resumed"] == [name] and "lost" not in result

    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        run(test(server))


def test_unanswered_release_is_completed_after_restart(tmp_path: Path, name: str) -> None:
    """A job that was given back while the server was away is free when that is back, although the process lives on."""

    async def test(server: ServerProcess) -> None:
        async with Home(tmp_path, server, ttl=120).host("ana") as ana:
            await ana.call("claim_job", job=name)
            await ana.call("claim_job", job=f"{name}/kept")
            server.terminate()
            assert "no answer from" in await ana.error("release_job", job=name)
            with server.restart():
                operator = Api.of(server, callers.OPERATOR)
                await asyncio.to_thread(wait_until, lambda: operator.status(name).json()["owner"] is None)
                assert operator.status(f"{name}/kept").json()["owner"] == "ana"
                assert [each["job"] for each in (await ana.call("my_jobs"))["jobs"]] == [f"{name}/kept"]

    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        run(test(server))
