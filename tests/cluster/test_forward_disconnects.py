"""What is kept of a request whose client is gone, and what one client too many costs the others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.api.context import Reply
from holdfast.cluster import link_leader as leaders_end
from holdfast.cluster.link_follower import FollowerLink
from holdfast.cluster.node import CountedRoutes
from holdfast.http.connection import ResponseStream
from holdfast.http.messages import ClientDisconnectedError, Request, envelope, request_from
from holdfast.wire.problems import Problem
from tests.cluster.linked_nodes import BEN, Caller, LinkedNode, lose, run, two_nodes, until
from tests.support.checks import refused

NAMES = {"all": [f"job/{'x' * 60}/{number}" for number in range(400)], "ttl_seconds": 60}
WAIT = {"ttl_seconds": 60, "wait_seconds": 30}


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_request_of_a_lost_connection_is_dropped(tmp_path: Path, method: str) -> None:
    """N-32: neither the follower nor the leader keeps the request of a lost connection, whatever it asks for."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            (end,) = leader.links._open
            link = follower.forwarder._link
            assert link is not None
            end.pause_writing()
            callers = [await follower.call() for _ in range(3)]
            for number, caller in enumerate(callers):
                path, body = (
                    (f"/locks/a{number}", None) if method == "GET" else ("/locks/a/acquire", {"ttl_seconds": 60})
                )
                caller.send(method, path, body)
            await until(lambda: len(link._unanswered) == 3)
            for caller in callers[:2]:
                lose(caller)
            await until(lambda: len(link._unanswered) == 1)
            end.resume_writing()
            assert (await callers[2].answer()).status in {200, 409}
            assert not end._unanswered and not link._unanswered and follower.forwarder._link is link

    run(test)


@pytest.mark.parametrize("is_half_closed", [True, False])
def test_request_of_a_half_closed_client_is_not_sent_to_the_next_leader(tmp_path: Path, is_half_closed: bool) -> None:
    """N-32: a client that half-closed may be gone and ask again elsewhere; a second copy could be granted to nobody."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            (end,) = leader.links._open
            link = follower.forwarder._link
            assert link is not None
            end.pause_writing()
            caller = await follower.call()
            caller.send("POST", "/locks/a/acquire", {"ttl_seconds": 60}, Idempotency_Key="k1")
            await until(lambda: len(link._unanswered) == 1)
            if is_half_closed:
                caller.writer.write_eof()
                (pending,) = link._unanswered.values()
                await until(lambda: pending.request.is_half_closed)
            follower.follow(None)
            link.end(at_once=True)
            if is_half_closed:
                refused(await caller.answer(), 503, "outcome_unknown")
                assert not len(follower.forwarder._queue)
            else:
                await until(lambda: len(follower.forwarder._queue) == 1)

    run(test)


def test_excess_request_does_not_end_the_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-30: when too many of a link are unanswered the next is refused, and the link and those who wait stay."""
    monkeypatch.setattr(leaders_end, "UNANSWERED_MAX", 1)

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            holder, waiter, caller = await leader.call(), await follower.call(), await follower.call()
            held = await holder.ask("POST", "/locks/a/acquire", {"ttl_seconds": 60})
            waiter.send("POST", "/locks/a/acquire", WAIT, token=BEN)
            assert leader.term is not None
            engine = leader.term.engine
            await until(lambda: len(engine._waiters) == 1)
            link = follower.forwarder._link
            refused(await caller.ask("POST", "/locks/b/acquire", {"ttl_seconds": 60}), 503, "overloaded")
            assert engine.state.lease_of("b") is None
            refused(await (await follower.call()).ask("GET", "/events"), 503, "overloaded")
            await holder.ask("POST", "/locks/a/release", {"lease_id": held.json()["lease_id"]})
            assert (await waiter.answer()).json()["status"] == "acquired"
            assert follower.forwarder._link is link

    run(test)


def test_decided_request_is_answered_however_much_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-31: a large answer to a claim is never replaced by `overloaded`, which would say that nothing was done."""
    monkeypatch.setattr(leaders_end, "ANSWERS_BYTES_MAX", -1)
    monkeypatch.setattr(leaders_end, "LARGE_ANSWER_BYTES", 1_000)

    async def test() -> None:
        async with two_nodes(tmp_path) as (_, follower):
            caller = await follower.call()
            await caller.ask("GET", "/locks/a")
            answer = await caller.ask("POST", "/claims", NAMES)
            assert answer.status == 200 and len(answer.json()["claims"]) == 400

    run(test)


@pytest.mark.parametrize(
    ("code", "expected_code"),
    [
        ("not_leader", "outcome_unknown"),
        ("overloaded", "outcome_unknown"),
        ("storage_unavailable", "outcome_unknown"),
        ("authentication_failed", "outcome_unknown"),
        ("conflict", "conflict"),
    ],
)
def test_resend_refused_by_own_routes_leaves_the_outcome_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, expected_code: str
) -> None:
    """N-31: where a copy was sent and not answered, a refusal of the next by this node is `outcome_unknown`."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            caller = await _uncertain(leader, follower)

            def refuse(_: CountedRoutes, request: Request, reply: Reply) -> None:
                reply(request, *envelope(Problem(code, "Nothing was changed."), request))

            monkeypatch.setattr(CountedRoutes, "handle", refuse)
            await follower.lead()
            assert (await caller.answer()).json()["code"] == expected_code

    run(test)


def test_refused_resend_leaves_the_outcome_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-31: where a copy was sent and not answered, one that is too large for the next leader is `outcome_unknown`."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            caller = await _uncertain(leader, follower)
            monkeypatch.setattr(FollowerLink, "send_request", lambda *_: False)
            follower.follow(leader.shelf.leadership, leader.url)
            refused(await caller.answer(), 503, "outcome_unknown")

    run(test)


def test_half_of_a_body_is_rejected() -> None:
    """N-30: the body of a client that left before it was whole is never taken for a whole one."""

    async def test() -> None:
        connection: Any = SimpleNamespace(loop=asyncio.get_running_loop(), resume_parsing=lambda: None)
        manager: Any = None
        stream = ResponseStream(connection, manager, request_from(b"POST", b"/leases/watch", b"", {}, b""))
        stream.feed_body(b'{"leases": ')
        stream.loop.call_soon(stream.disconnect)
        with pytest.raises(ClientDisconnectedError):
            await stream.read_body()

    run(test)


async def _uncertain(leader: LinkedNode, follower: LinkedNode) -> Caller:
    """Let a follower hold a claim with a key of which a copy was sent and not answered."""
    holder, caller = await leader.call(), await follower.call()
    await holder.ask("POST", "/locks/a/acquire", {"ttl_seconds": 60}, token=BEN)
    caller.send("POST", "/locks/a/acquire", WAIT, Idempotency_Key="k1")
    assert leader.term is not None
    engine, link = leader.term.engine, follower.forwarder._link
    await until(lambda: len(engine._waiters) == 1)
    assert link is not None
    follower.follow(None)
    link.end(at_once=True)
    await until(lambda: len(follower.forwarder._queue) == 1)
    return caller
