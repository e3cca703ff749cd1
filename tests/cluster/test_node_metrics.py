"""What a node that follows says at `/metrics`: its own numbers, to whoever may read."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.api.auth.auth import StaticTokens
from holdfast.api.handlers.metrics import FollowerMetrics
from holdfast.engine.clock import SystemClock
from holdfast.observability.metrics import Meter, NodeRole
from tests.cluster.linked_nodes import ANA, LinkedNode, nodes, run, two_nodes, until
from tests.cluster.test_node_serving import NodeRun, cluster
from tests.observability.metrics_reader import samples_in, value

KNOWN_HERE = "monitor:monitor-has-this-token:read,claimer:claimer-has-this-token:claim"


def let_it_measure(node: LinkedNode, tokens: str = "") -> Meter:
    """Give a follower the numbers that a whole node has."""
    meter = Meter(node.settings, SystemClock())
    meter.sources.role = lambda: NodeRole(leads=False, epoch=1, is_linked=node.node.is_linked)
    follower = FollowerMetrics(meter, StaticTokens.parse(tokens))
    node.forwarder._local[b"/metrics"] = follower.answer
    node.forwarder._counters = meter.sources.counters
    return meter


def test_follower_serves_its_own_metrics_to_authorized_readers(tmp_path: Path) -> None:
    """A token that the leader knows gets the follower's numbers; one that it does not know gets the refusal."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            let_it_measure(follower)
            there, here = await leader.call(), await follower.call()
            await there.ask("POST", "/locks/a/acquire", {})
            of_leader, of_follower = await there.ask("GET", "/metrics"), await here.ask("GET", "/metrics")
            assert (value(of_leader.body, "holdfast_leader"), value(of_follower.body, "holdfast_leader")) == (1, 0)
            assert (value(of_follower.body, "holdfast_linked"), value(of_follower.body, "holdfast_epoch")) == (1, 1)
            names = {name for name, _ in samples_in(of_follower.body)}
            assert "holdfast_leases_held" not in names, "or a sum over all nodes would count it twice"
            assert of_follower.headers["content-type"] == of_leader.headers["content-type"]
            wrong = await here.ask("GET", "/metrics", token="nobody-has-this-token-at-all")
            assert (wrong.status, wrong.json()["code"]) == (401, "authentication_failed")
            nobody = await here.ask("GET", "/metrics", token=None)
            assert (nobody.status, nobody.json()["code"]) == (401, "authentication_required")

    run(test)


def test_static_token_reads_metrics_without_a_leader(tmp_path: Path) -> None:
    """Monitoring goes on without a leader; a token that may not read, or that nobody here knows, is refused."""

    async def test() -> None:
        async with nodes(tmp_path, 1) as (follower,):
            let_it_measure(follower, KNOWN_HERE)
            caller = await follower.call()
            said = await caller.ask("GET", "/metrics", token="monitor-has-this-token")
            assert (said.status, value(said.body, "holdfast_leader")) == (200, 0)
            for token in ("claimer-has-this-token", ANA):
                refused = await caller.ask("GET", "/metrics", token=token)
                assert (refused.status, refused.json()["code"]) == (503, "not_leader")

    run(test)


def test_public_metrics_need_no_leader(tmp_path: Path) -> None:
    """With `metrics_open` a follower answers anybody, at once, and counts what it refuses itself."""

    async def test() -> None:
        async with nodes(tmp_path, 1, metrics_open=True) as (follower,):
            meter = let_it_measure(follower)
            caller = await follower.call()
            said = await caller.ask("GET", "/metrics", token=None)
            assert (said.status, value(said.body, "holdfast_leader")) == (200, 0)
            refused = await caller.ask("GET", "/locks")
            assert refused.json()["code"] == "not_leader"
            assert meter.sources.counters.reasons == {"not_leader": 1}

    run(test)


def test_nodes_report_the_leader_and_count_takeovers(tmp_path: Path) -> None:
    """One of two leads and knows the leases; when it stops the other does, with a takeover and an epoch more."""

    async def test() -> None:
        async with cluster(tmp_path, "one", "two") as (one, two):
            await one.ask("POST", "/locks/a/acquire", {"ttl_seconds": 600})
            first, second = (await one.ask("GET", "/metrics")).body, (await two.ask("GET", "/metrics")).body
            assert (value(first, "holdfast_leader"), value(second, "holdfast_leader")) == (1, 0)
            assert (value(first, "holdfast_links"), value(second, "holdfast_linked")) == (1, 1)
            assert value(first, "holdfast_leases_held") == 1
            assert value(first, "holdfast_epoch") == value(second, "holdfast_epoch")
            assert (value(first, "holdfast_takeovers_total"), value(second, "holdfast_takeovers_total")) == (1, 0)
            assert value(second, "holdfast_connections") >= 1
            await one.stop()
            await until(lambda: two.leads)
            await until_said(two, "holdfast_takeovers_total", 1)
            after = (await two.ask("GET", "/metrics")).body
            assert (value(after, "holdfast_leader"), value(after, "holdfast_leases_held")) == (1, 1)
            assert value(after, "holdfast_epoch") == value(first, "holdfast_epoch") + 1

    run(test)


async def until_said(node: NodeRun, name: str, number: float) -> None:
    """Ask until it says so: its text may be a second old."""
    async with asyncio.timeout(20):
        while value((await node.ask("GET", "/metrics")).body, name) != number:  # noqa: ASYNC110 - it asks a server
            await asyncio.sleep(0.1)
