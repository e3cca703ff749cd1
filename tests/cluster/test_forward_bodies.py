"""Large bodies of one user are bounded through a follower too, at both ends of the link."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.http import limits
from tests.cluster.linked_nodes import BEN, lose, run, two_nodes, until
from tests.support.checks import refused

NAMES = {"all": [f"job/{'x' * 60}/{number}" for number in range(400)], "ttl_seconds": 60}
HEAD = "POST /claims HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n"


def test_follower_bounds_the_bodies_of_each_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-30: beyond its share a user's next large body is refused before it is read; another's is not."""
    monkeypatch.setattr(limits, "USER_BYTES_MAX", 100_000)

    async def test() -> None:
        async with two_nodes(tmp_path) as (_, follower):
            budget = follower.manager.body_budget
            callers = [await follower.call() for _ in range(4)]
            for caller in callers:
                await caller.ask("GET", "/locks/a")
            for caller in callers[:3]:
                caller.writer.write(f"{HEAD.format('ana-has-this-token')}Content-Length: 30000\r\n\r\n".encode())
            await until(lambda: budget.bytes == 90_000)
            problem = refused(await callers[3].ask("POST", "/claims", NAMES), 429, "quota_exceeded")
            assert "100000 is the most" in problem["details"]
            other = await follower.call()
            await other.ask("GET", "/locks/a", token=BEN)
            assert (await other.ask("POST", "/claims", NAMES, token=BEN)).status == 200
            assert budget.bytes == 90_000, "what is answered counts no more"
            lose(callers[0])
            callers[1].writer.write(b" " * 30_000)
            refused(await callers[1].answer(), 400, "invalid_input")
            await until(lambda: budget.bytes == 30_000)

    run(test)


def test_leader_bounds_bodies_received_over_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-30: while a user is in debt its bodies wait at the leader: beyond its share they are refused, not kept."""
    monkeypatch.setattr(limits, "USER_BYTES_MAX", 100_000)

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            follower.manager.body_budget.take = lambda *_: None  # type: ignore[method-assign]
            callers = [await follower.call() for _ in range(6)]
            for caller in callers:
                await caller.ask("GET", "/locks/a")
            leader.manager.throttled["ana"] = leader.manager.now_ms() + 60_000
            catch_up, leader.manager._run_queue = leader.manager._run_queue, lambda: None  # type: ignore[method-assign]
            for caller in callers:
                caller.send("POST", "/claims", NAMES)
            answers = [asyncio.ensure_future(each.answer()) for each in callers]
            await until(lambda: sum(each.done() for each in answers) == 3)
            for each in [each for each in answers if each.done()]:
                refused(each.result(), 503, "overloaded")
            assert 0 < leader.manager.body_budget.bytes <= 100_000
            leader.manager._run_queue = catch_up  # type: ignore[method-assign]
            catch_up()
            assert sorted([(await each).status for each in answers]) == [200] * 3 + [503] * 3
            assert leader.manager.body_budget.bytes == 0

    run(test)
