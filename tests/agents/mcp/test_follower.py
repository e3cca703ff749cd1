"""`/mcp` of a node that follows: it asks whoever leads, so any node answers any call."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.agents.mcp.hosts import Home, run
from tests.cluster.cluster import Cluster
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import refused, wait_until
from tests.support.postgres import running


def test_any_node_answers_any_call(tmp_path: Path) -> None:
    """A session that one node opened goes on at another: claims, waits, notes and losses are those of one authority."""

    async def test(cluster: Cluster) -> None:
        leader = cluster.leader()
        follower = cluster.followers(leader)[0]
        here, there = Home(tmp_path, follower.server), Home(tmp_path, leader.server)
        operator = Api.of(leader.server, callers.OPERATOR)
        async with here.web() as ana, there.web() as same, here.web(mode="legacy") as ben:
            same.session = (await ana.call("claim_job", job="a", owner="ana"))["session"]
            assert (await same.call("heartbeat_job", job="a", note="half"))["still_held"] is True
            assert (await ben.call("claim_job", job="a", owner="ben"))["note"] == "half"
            waits = asyncio.create_task(ben.call("wait_for_job", job="a", owner="ben", seconds=30))
            await asyncio.to_thread(wait_until, lambda: operator.status("a").json()["waiting"] == 1)
            await ana.call("release_job", job="a")
            assert (await waits)["status"] == "acquired"
            assert (await same.call("my_jobs"))["jobs"] == []
            waits = asyncio.create_task(ana.call("wait_for_job", job="a", seconds=50))
            await asyncio.to_thread(wait_until, lambda: operator.status("a").json()["waiting"] == 1)
            waits.cancel()
            await asyncio.wait({waits})
            await asyncio.to_thread(wait_until, lambda: operator.status("a").json()["waiting"] == 0)
        wrong = Api.of(follower.server, "hold_wrong").post("/mcp", {}, headers={"Accept": "application/json"})
        refused(wrong, 401, "authentication_failed")

    with (
        running("mcp") as postgres,
        Cluster(tmp_path, postgres.url, tokens=callers.TOKENS, nodes=2) as cluster,
    ):
        cluster.all_ready()
        run(test(cluster))
