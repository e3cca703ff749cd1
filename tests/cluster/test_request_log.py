"""The log of requests on several nodes: one line for each, at the node that was asked, with one id everywhere."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from holdfast.observability.request_log import ObserverChain, RequestLog
from tests.cluster.linked_nodes import LinkedNode, lose, run, two_nodes, until


def _log(node: LinkedNode) -> None:
    """Let a node log its requests, whoever answers them."""
    node.manager._wrap = ObserverChain([RequestLog(node.clock, node.manager._proxies)]).wrap


def test_called_node_logs_the_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a follower passes on is one line, at the follower: with its route and whose it is. The leader's line of a
    refusal has the same request id.
    """

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            for node in (leader, follower):
                _log(node)
            leader.manager.set_handler(leader.manager.handler)
            follower.manager.set_handler(follower.forwarder.handler())
            caller = await follower.call()
            granted = await caller.ask("POST", "/locks/a/acquire", {"ttl_seconds": 60})
            refused = await caller.ask("POST", "/locks/a/acquire", {"ttl_seconds": 60}, token="nobody-has-this-one")
            assert (granted.status, refused.status) == (200, 401)
            lines = [record.fields for record in caplog.records if record.name == "holdfast.requests"]  # type: ignore[attr-defined]
            assert [line["status"] for line in lines] == [200, 401]
            assert {line["route"] for line in lines} == {"/locks/{name}/acquire"}
            assert [line["request_id"] for line in lines] == [granted.request_id, refused.request_id]
            assert lines[0]["principal"] == "ana" and lines[1]["principal"] is None
            (refusal,) = [record for record in caplog.records if record.getMessage().startswith("refused 401")]
            assert refusal.fields["request_id"] == refused.request_id  # type: ignore[attr-defined]

    with caplog.at_level(logging.INFO, "holdfast"):
        run(test)


def test_client_that_leaves_a_follower_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Who waits at the leader, by a follower, and is gone, has a line without a status; a stream has one at its end."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (_, follower):
            _log(follower)
            follower.manager.set_handler(follower.forwarder.handler())
            await (await follower.call()).ask("POST", "/locks/a/acquire", {"ttl_seconds": 60})
            waits = await follower.call()
            waits.send("POST", "/locks/a/acquire", {"ttl_seconds": 60, "wait_seconds": 30})
            watches = await follower.call()
            watches.send("GET", "/locks/a/watch")
            await watches.read_until(b"HTTP/1.1 200")
            for caller in (waits, watches):
                lose(caller)
            await until(lambda: len(caplog.records) >= 3)
            lines = [record.fields for record in caplog.records if record.name == "holdfast.requests"]  # type: ignore[attr-defined]
            seen = {(line["route"], line["status"]) for line in lines[1:]}
            assert seen == {("/locks/{name}/acquire", None), ("/locks/{name}/watch", 200)}

    with caplog.at_level(logging.INFO, "holdfast.requests"):
        run(test)
