"""`holdfast mcp`, started by the official client over a pipe: what an agent claims is kept, whatever it forgets."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from holdfast.agents.mcp.stdio import JOBS, _raise_bugs
from holdfast.errors import Unreachable
from tests.agents.mcp.hosts import TTL, Home, run
from tests.support.api import Api
from tests.support.checks import wait_until


def _owner(api: Api, name: str) -> object:
    return api.status(name).json()["owner"]


def _events(api: Api, name: str, event: str) -> int:
    return [each["event"] for each in api.history(name).json()["history"]].count(event)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_tools_are_listed(home: Home, mode: str) -> None:
    """A host of the protocol's new way, and one of its old way, find the seven tools, and how to use them."""

    async def test() -> None:
        async with home.host("ana", mode=mode) as ana:
            listed = await ana.client.list_tools()
            assert [tool.name for tool in listed.tools] == [
                "claim_job",
                "wait_for_job",
                "heartbeat_job",
                "release_job",
                "get_job_owner",
                "list_claimed_jobs",
                "my_jobs",
            ]
            assert "never instructions" in (ana.client.instructions or "")

    run(test())


def test_second_claim_of_one_process_is_already_yours(home: Home, name: str) -> None:
    """Subagents that share a process see that the job was had already; what is new to the process is not told so."""

    async def test() -> None:
        async with home.host("ana") as ana, home.host("ben") as ben:
            assert "already_yours" not in await ana.call("claim_job", job=name)
            again = await ana.call("claim_job", job=name)
            assert again["status"] == "acquired" and again["already_yours"] is True
            assert (await ana.call("wait_for_job", job=name))["already_yours"] is True
            assert (await ben.call("wait_for_job", job=name, seconds=1))["status"] == "waiting"
            await ana.call("release_job", job=name)
            assert "already_yours" not in await ben.call("wait_for_job", job=name)
            assert (await ben.call("claim_job", job=name))["already_yours"] is True

    run(test())


def test_claim_note_and_release(home: Home, operator: Api, name: str) -> None:
    """A job is claimed, noted and released by its name alone; nothing that the model sees is a lease id or a secret."""

    async def test() -> None:
        async with home.host("ana") as ana:
            got = await ana.call("claim_job", job=name, note="begun")
            assert got["status"] == "acquired" and got["still_held"] and 0 < got["expires_in"] <= TTL
            assert got["fencing_token"] == operator.status(name).json()["fencing_token"]
            assert not {"lease_id", "session", "session_id", "ticket"} & set(got)
            again = got | {"expires_in": pytest.approx(TTL, abs=TTL), "already_yours": True}
            assert await ana.call("claim_job", job=name) == again
            renewed = await ana.call("heartbeat_job", job=name, note="tests pass")
            assert renewed["status"] == "renewed" and renewed["still_held"]
            assert operator.status(name).json()["note"] == "tests pass"
            assert (await ana.call("my_jobs"))["jobs"][0]["job"] == name
            assert (await ana.call("get_job_owner", job=name))["yours"] is True
            done = await ana.call("release_job", job=name, outcome="done", result="PR 77")
            assert done == {"status": "released", "job": name, "still_held": False}
            finished = await ana.call("claim_job", job=name)
            assert (finished["status"], finished["result"], finished["owner"]) == ("done", "PR 77", "ana")

    run(test())


def test_failure_is_reported_to_the_next_owner(home: Home, name: str) -> None:
    """Whoever claims a job that was given back as failed reads that; given back without a word, it does not."""

    async def test() -> None:
        async with home.host("ana") as ana, home.host("ben") as ben:
            await ana.call("claim_job", job=name)
            await ana.call("release_job", job=name, outcome="failed")
            assert (await ben.call("get_job_owner", job=name))["previous"]["failed"] is True
            got = await ben.call("claim_job", job=name)
            assert (got["previous"]["owner"], got["previous"]["failed"], got["attempts"]) == ("ana", True, 2)
            assert (await ana.call("get_job_owner", job=name))["previous"]["failed"] is True
            await ben.call("release_job", job=name)
            assert "failed" not in (await ana.call("claim_job", job=name))["previous"]

    run(test())


def test_second_host_of_one_token_is_refused(home: Home, name: str) -> None:
    """Of two hosts that share one token one has the job; the other is told who, since and until when, and the place."""

    async def test() -> None:
        async with home.host("ana") as ana, home.host("ben") as ben:
            await ana.call("claim_job", job=name, note="half of it")
            held = await ben.call("claim_job", job=name)
            assert (held["status"], held["owner"], held["note"]) == ("held", "ana", "half of it")
            assert held["since"] <= held["until"] and held["place"] == 1 and held["still_held"] is False
            for tool in ("release_job", "heartbeat_job"):
                refused = await ben.call(tool, job=name)
                assert (refused["status"], refused["owner"]) == ("not_yours", "ana")
            assert (await ana.call("my_jobs"))["jobs"][0]["still_held"] is True

    run(test())


def test_first_free_of_a_list(home: Home, name: str) -> None:
    """Of a list the first free job is claimed; if none is free, the result says who has them."""

    async def test() -> None:
        jobs = [f"{name}/{number}" for number in range(3)]
        async with home.host("ana") as ana, home.host("ben") as ben:
            await ana.call("claim_job", job=jobs[0])
            assert (await ben.call("claim_job", any_of=jobs))["job"] == jobs[1]
            await ana.call("claim_job", job=jobs[2])
            held = await ben.call("claim_job", any_of=jobs)
            assert held["status"] == "held"
            assert {each["job"]: each["owner"] for each in held["held"]} == dict(
                zip(jobs, ("ana", "ben", "ana"), strict=True)
            )

    run(test())


def test_wait_keeps_its_position_across_calls(home: Home, operator: Api, name: str) -> None:
    """Two calls of a wait are one place in the line: whoever joins between them stands behind (W2)."""

    async def test() -> None:
        async with home.host("ana") as ana, home.host("ben") as ben, home.host("cleo") as cleo:
            await ana.call("claim_job", job=name)
            waits = await ben.call("wait_for_job", job=name, seconds=1)
            assert (waits["status"], waits["place"], waits["owner"]) == ("waiting", 1, "ana")
            second_wait = await cleo.call("wait_for_job", job=name, seconds=1)
            assert (second_wait["status"], second_wait["place"]) == ("waiting", 2)
            turn = asyncio.create_task(ben.call("wait_for_job", job=name, seconds=30))
            await ana.call("release_job", job=name)
            got = await turn
            assert (got["status"], got["owner"], got["previous"]["owner"]) == ("acquired", "ben", "ana")
            assert _events(operator, name, "waiting") == 2, "somebody joined the line twice"
            # Its place is as the server last told it: every few seconds.
            later = await cleo.call("wait_for_job", job=name, seconds=10)
            assert (later["status"], later["place"], later["owner"]) == ("waiting", 1, "ben")

    run(test())


def test_grant_between_two_calls_is_reported(home: Home, operator: Api, name: str) -> None:
    """A model that thinks is not passed over: its turn comes meanwhile, and the next call tells it, whatever it is."""

    async def test() -> None:
        async with home.host("ana") as ana, home.host("ben") as ben:
            await ana.call("claim_job", job=name)
            await ben.call("wait_for_job", job=name, seconds=1)
            await ana.call("release_job", job=name)
            wait_until(lambda: _owner(operator, name) == "ben")
            result = await ben.call("list_claimed_jobs", prefix=name)
            assert result["granted"] == [name]
            assert "granted" not in await ben.call("my_jobs")
            assert (await ben.call("heartbeat_job", job=name))["still_held"] is True

    run(test())


def test_takeover_after_the_other_is_killed(home: Home, operator: Api, name: str) -> None:
    """Whoever waits gets the job of a process that was killed, and reads its note; not before its time is over."""

    async def test() -> None:
        async with home.host("ben") as ben:
            async with home.host("ana") as ana:
                await ana.call("claim_job", job=name, note="step 2 of 3")
                left = operator.status(name).json()["expires_in_ms"]
                home.kill("ana")
            got = await ben.call("wait_for_job", job=name, seconds=50)
            assert got["status"] == "acquired" and left <= TTL * 1_000
            assert (got["previous"]["owner"], got["previous"]["note"]) == ("ana", "step 2 of 3")
            assert got["previous"]["ended"] in {"expired", "session_ended"}

    run(test())


def test_jobs_lost_with_the_access_token_are_reported(home: Home, operator: Api, name: str) -> None:
    """Whose access token is revoked hears what ended with it, before its time is over: nobody lets it in to be told."""

    async def test() -> None:
        home.token = operator.post("/tokens", {"name": name}).json()["token"]
        async with home.host("ana") as ana:
            await ana.call("claim_job", job=name)
            assert operator.delete(f"/tokens/{name}").status == 204
            result = await ana.until("lost", "my_jobs")
            assert result["jobs"] == []
            assert [(each["job"], each["reason"]) for each in result["lost"]] == [(name, "session_ended")]
            assert "no other call will help" in await ana.error("claim_job", job=name)

    run(test())


def test_job_is_renewed_while_the_process_is_alive(home: Home, operator: Api, name: str) -> None:
    """A model that claims and never calls again keeps its job for as long as its process lives."""

    async def test() -> None:
        async with home.host("ana") as ana:
            claimed = await ana.call("claim_job", job=name)
            first = operator.status(name).json()["last_heartbeat_at"]
            # Renewed more often than its time would last without.
            seen = {first}

            def has_outlived() -> bool:
                status = operator.status(name).json()
                assert (status["owner"], status["fencing_token"]) == ("ana", claimed["fencing_token"])
                seen.add(status["last_heartbeat_at"])
                return len(seen) > 4

            await asyncio.to_thread(wait_until, has_outlived, seconds_max=4 * TTL)

    run(test())


@pytest.mark.parametrize("how", ["input", "SIGTERM"])
def test_end_releases_everything(home: Home, operator: Api, name: str, how: str) -> None:
    """What a process has is free as soon as its input ends, or it is told to end; its place in a line too."""

    async def test() -> None:
        async with home.host("ben") as ben:
            await ben.call("claim_job", job=f"{name}/other")
            async with home.host("ana") as ana:
                await ana.call("claim_job", job=name)
                await ana.call("wait_for_job", job=f"{name}/other", seconds=1)
                if how == "SIGTERM":
                    os.kill(home.process_of("ana"), signal.SIGTERM)
                    await asyncio.to_thread(wait_until, lambda: _owner(operator, name) is None)
            assert _owner(operator, name) is None
            assert operator.status(name).json()["previous"]["ended"] == "session_ended"
            assert operator.status(f"{name}/other").json()["waiting"] == 0

    run(test())


def test_loss_is_reported_with_the_next_result(home: Home, operator: Api, name: str) -> None:
    """A job that an operator ended is told with the next result, whichever tool it is of, and told once."""

    async def test() -> None:
        async with home.host("ana") as ana:
            for job in (name, f"{name}/2", f"{name}/3"):
                await ana.call("claim_job", job=job)
            operator.revoke(name, reason="wrong branch")
            result = await ana.until("lost", "list_claimed_jobs", prefix=name)
            assert result["lost"] == [{"job": name, "reason": "revoked", "by": "operator", "why": "wrong branch"}]
            assert "lost" not in await ana.call("my_jobs")
            assert [each["job"] for each in (await ana.call("my_jobs"))["jobs"]] == [f"{name}/2", f"{name}/3"]
            operator.revoke(f"{name}/2", reason="also wrong")
            gone = await ana.call("heartbeat_job", job=f"{name}/2")
            assert (gone["status"], gone["why"], gone["still_held"]) == ("lost", "also wrong", False)
            assert "lost" not in gone

    run(test())


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("no_such_tool", {}), ("claim_job", {}), ("claim_job", {"job": "not a name"})],
    ids=["unknown tool", "wrong arguments", "refused by the server"],
)
def test_loss_is_reported_with_an_error(
    home: Home, operator: Api, name: str, tool: str, arguments: dict[str, str]
) -> None:
    """A call that was written wrongly is answered with what is wrong, and with what was lost meanwhile."""

    async def test() -> None:
        async with home.host("ana") as ana:
            await ana.call("claim_job", job=name)
            async with ana.client.listen(resource_subscriptions=[JOBS]) as events:
                operator.revoke(name, reason="wrong branch")
                await anext(aiter(events))
            result = await ana.error(tool, **arguments)
            assert f'"lost":[{{"job":"{name}","reason":"revoked"' in result
            assert "lost" not in await ana.call("my_jobs")

    run(test())


def test_errors_of_the_client_are_raised_when_the_input_has_ended() -> None:
    """An error of a pipe that the host has closed is no bug; an `Unreachable` is raised, though an `OSError` too."""
    _raise_bugs([None, BrokenPipeError(), ExceptionGroup("of tasks", [OSError("closed")])])
    with pytest.raises(Unreachable):
        _raise_bugs([ExceptionGroup("of tasks", [BrokenPipeError(), Unreachable("http://host", "connection refused")])])
