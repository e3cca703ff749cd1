"""What a follower does with a request while there is no leader, and when one is lost."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest

from holdfast.cluster import forwarder, request_queue
from tests.cluster.linked_nodes import ANA, BEN, Caller, LinkedNode, nodes, run, two_nodes, until
from tests.cluster.proxy import Draw, Fate
from tests.support.checks import refused
from tests.support.http import Answer

CLAIM = {"ttl_seconds": 60}
WAIT = {"ttl_seconds": 60, "wait_seconds": 30}


def test_request_waits_for_a_leader(tmp_path: Path) -> None:
    """N-31: what is asked while there is no leader is answered as soon as there is one."""

    async def test() -> None:
        async with nodes(tmp_path, 2) as (leader, follower):
            caller = await follower.call()
            caller.send("POST", "/locks/a/acquire", CLAIM)
            await until(lambda: len(follower.forwarder._queue) == 1)
            follower.follow(await leader.lead(), leader.url)
            assert (await caller.answer()).json()["status"] == "acquired"
            assert follower.forwarder._queue.bytes == 0

    run(test)


def test_request_wait_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-31: after its time a request that was never sent is refused with `not_leader`, and may be sent again."""
    monkeypatch.setattr(request_queue, "HELD_MS_MAX", 200)

    async def test() -> None:
        async with nodes(tmp_path, 1) as (follower,):
            caller = await follower.call()
            problem = refused(await caller.ask("POST", "/locks/a/acquire", CLAIM), 503, "not_leader")
            assert problem["retry_after_ms"] == 200
            refused(await caller.ask("GET", "/locks/a/watch"), 503, "not_leader")
            assert request_queue.HELD_MS_MAX == 200 and len(follower.forwarder._queue) == 0

    run(test)


def test_request_without_hope_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-31: once nobody has led for as long as a request is held, others are refused at once, until somebody does."""
    monkeypatch.setattr(request_queue, "HELD_MS_MAX", 200)

    async def test() -> None:
        async with nodes(tmp_path, 2) as (leader, follower):
            caller = await follower.call()
            refused(await caller.ask("POST", "/locks/a/acquire", CLAIM), 503, "not_leader")
            # Nobody would look again at what is held.
            monkeypatch.setattr(forwarder, "CHECK_SECONDS", 3_600)
            refused(await caller.ask("POST", "/locks/a/acquire", CLAIM), 503, "not_leader")
            refused(await caller.ask("GET", "/locks/a/watch"), 503, "not_leader")
            monkeypatch.undo()
            follower.follow(await leader.lead(), leader.url)
            await until(lambda: follower.node.is_linked)
            assert (await caller.ask("POST", "/locks/a/acquire", CLAIM)).json()["status"] == "acquired"
            follower.follow(None)
            assert follower.forwarder._link is not None
            follower.forwarder._link.end(at_once=True)
            caller.send("POST", "/locks/b/acquire", CLAIM)
            await until(lambda: len(follower.forwarder._queue) == 1)

    run(test)


def test_stopping_node_refuses_queued_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-31: a node that was told to stop looks for no leader, so what it holds, and what still comes, is refused."""
    monkeypatch.setattr(forwarder, "CHECK_SECONDS", 3_600)

    async def test() -> None:
        async with nodes(tmp_path, 1) as (follower,):
            held, late = await follower.call(), await follower.call()
            held.send("POST", "/locks/a/acquire", CLAIM)
            await until(lambda: len(follower.forwarder._queue) == 1)
            follower.forwarder.end()
            refused(await held.answer(), 503, "not_leader")
            refused(await late.ask("POST", "/locks/a/acquire", CLAIM), 503, "not_leader")
            refused(await late.ask("GET", "/locks/a/watch"), 503, "not_leader")

    run(test)


def test_reconnected_leader_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The line that a leader cannot be reached is not the last one: it is said when it is reached."""

    async def test() -> None:
        async with nodes(tmp_path, 2) as (leader, follower):
            leadership = await leader.lead()
            follower.follow(leadership, "http://127.0.0.1:9")
            await until(lambda: any("cannot be reached" in text for text in caplog.messages))
            assert not any("reached again" in text for text in caplog.messages)
            follower.follow(leadership, leader.url)
            await until(lambda: follower.node.is_linked)

    run(test)
    (line,) = [text for text in caplog.messages if "reached again" in text]
    assert line.startswith("the leader node0 at http://127.0.0.1:")


def test_default_queue_time_is_five_seconds() -> None:
    """N-31: a request waits up to 5 s for a leader."""
    assert request_queue.HELD_MS_MAX == 5_000


def test_request_of_a_disconnected_client_is_dropped(tmp_path: Path) -> None:
    """N-31: what is held for a client that left is never sent."""

    async def test() -> None:
        async with nodes(tmp_path, 2) as (leader, follower):
            caller = await follower.call()
            caller.send("POST", "/locks/a/acquire", CLAIM)
            await until(lambda: len(follower.forwarder._queue) == 1)
            caller.close()
            await until(lambda: len(follower.forwarder._queue) == 0)
            follower.follow(await leader.lead(), leader.url)
            await until(lambda: follower.node.is_linked)
            seen = await (await follower.call()).ask("GET", "/locks/a")
            assert seen.json()["status"] == "free", seen

    run(test)


def test_queued_requests_are_bounded_in_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-31: beyond the most that may be held, and for strangers beyond half of it, 503 is said at once."""
    monkeypatch.setattr(request_queue, "HELD_MAX", 4)

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            users = [await follower.call() for _ in range(5)]
            for user in users:
                await user.ask("GET", "/locks/a")
            await leader.resign()
            await until(lambda: not follower.node.is_linked)
            unauthenticated = [await follower.call() for _ in range(3)]
            for caller_without_token in unauthenticated:
                caller_without_token.send("GET", "/locks/a", token="nobody-has-this-one")
            refused(await _first(unauthenticated), 503, "not_leader")
            for user in users:
                user.send("GET", "/locks/a")
            # Two of the four places were left, for users alone.
            refused(await _first(users), 503, "not_leader")
            assert len(follower.forwarder._queue) == 4
            follower.follow(await leader.lead(), leader.url)
            await until(lambda: len(follower.forwarder._queue) == 0)

    run(test)


async def _first(callers: list[Caller]) -> Answer:
    done, rest = await asyncio.wait(
        [asyncio.ensure_future(each.answer()) for each in callers], return_when=asyncio.FIRST_COMPLETED
    )
    for each in rest:
        each.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    return done.pop().result()


def test_queued_requests_are_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-31: one request more than may be held in bytes is refused at once, and a small one still has room."""
    monkeypatch.setattr(request_queue, "HELD_BYTES_MAX", 40_000)

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            users = [await follower.call() for _ in range(4)]
            for user, token in zip(users, (ANA, BEN, ANA, ANA), strict=True):
                await user.ask("GET", "/locks/a", token=token)
            await leader.resign()
            await until(lambda: not follower.node.is_linked)
            body = b'{"ttl_seconds": 60}' + b" " * 15_000
            for user, token in zip(users[:2], (ANA, BEN), strict=True):
                user.send("POST", "/locks/a/acquire", body, token=token)
            await until(lambda: len(follower.forwarder._queue) == 2)
            refused(await users[2].ask("POST", "/locks/a/acquire", body), 503, "not_leader")
            users[3].send("POST", "/locks/a/acquire", CLAIM)
            await until(lambda: len(follower.forwarder._queue) == 3)
            assert follower.forwarder._queue.bytes < 40_000

    run(test)


async def _wait_in_queue(leader: LinkedNode, caller: Caller, **headers: str) -> None:
    """Let somebody hold a name, and a client of a follower wait for it."""
    held = await (await leader.call()).ask("POST", "/locks/a/acquire", CLAIM)
    assert held.json()["status"] == "acquired", held
    caller.send("POST", "/locks/a/acquire", WAIT, token=BEN, **headers)
    assert leader.term is not None
    engine = leader.term.engine
    await until(lambda: len(engine._waiters) == 1)


def test_request_without_a_key_is_unknown_after_a_lost_link(tmp_path: Path) -> None:
    """N-31: a request without a key that was handed to a link that broke is `outcome_unknown`, never `not_leader`."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            caller = await follower.call()
            await _wait_in_queue(leader, caller)
            assert follower.forwarder._link is not None
            follower.forwarder._link.end(at_once=True)
            refused(await caller.answer(), 503, "outcome_unknown")

    run(test)


def test_request_with_a_key_is_resent_after_a_lost_link(tmp_path: Path) -> None:
    """N-31: with a key the same request goes to the next leader, and waits there."""

    async def test() -> None:
        async with nodes(tmp_path, 3) as (first, second, follower):
            follower.follow(await first.lead(), first.url)
            await until(lambda: follower.node.is_linked)
            caller = await follower.call()
            await _wait_in_queue(first, caller, Idempotency_Key="k1")
            follower.follow(await second.lead(), second.url)
            assert second.term is not None
            engine = second.term.engine
            await until(lambda: len(engine._waiters) == 1)
            lease = engine.state.lease_of("a")
            assert lease is not None
            done = await (await second.call()).ask("POST", "/locks/a/release", {"lease_id": lease.lease_id})
            assert done.status == 200, done
            answer = await caller.answer()
            assert answer.json()["status"] == "acquired" and answer.headers["Holdfast-Epoch"] == "2", answer

    run(test)


def test_lost_response_with_a_key_is_replayed(tmp_path: Path) -> None:
    """N-31: a claim that was done and whose answer was lost is asked for again with its key, and is the same claim."""

    async def test() -> None:
        async with nodes(tmp_path, 2) as (leader, follower):
            await leader.start_leading_through_proxy()
            proxy = leader.proxy
            assert proxy is not None
            follower.follow(leader.shelf.leadership, f"http://127.0.0.1:{proxy.port}")
            await until(lambda: follower.node.is_linked)
            proxy.draw = _once(b"acquire")
            answer = await (await follower.call()).ask("POST", "/locks/a/acquire", CLAIM, Idempotency_Key="k1")
            assert answer.json()["status"] == "acquired" and answer.json()["fencing_token"] == 1, answer
            assert proxy.fates[Fate.AFTER] == 1
            proxy.draw = _once(b"acquire")
            unknown = await (await follower.call()).ask("POST", "/locks/b/acquire", CLAIM)
            refused(unknown, 503, "outcome_unknown")
            proxy.draw = _once(b"GET")
            seen = await (await follower.call()).ask("GET", "/locks/b")
            assert seen.json()["status"] == "held", seen

    run(test)


def _once(word: bytes) -> Draw:
    """Cut the way once, after the leader had a piece with this word in it."""
    is_done = False

    def draw(piece: bytes) -> Fate:
        nonlocal is_done
        if is_done or word not in piece:
            return Fate.PASS
        is_done = True
        return Fate.AFTER

    return draw


def test_ignored_key_does_not_allow_a_resend(tmp_path: Path) -> None:
    """N-31: on a route that ignores keys a request with one is not sent again."""

    async def test() -> None:
        async with nodes(tmp_path, 2) as (leader, follower):
            await leader.start_leading_through_proxy()
            proxy = leader.proxy
            assert proxy is not None
            follower.follow(leader.shelf.leadership, f"http://127.0.0.1:{proxy.port}")
            await until(lambda: follower.node.is_linked)
            caller = await follower.call()
            proxy.draw = _once(b"/tickets/")
            answer = await caller.ask("DELETE", f"/tickets/{uuid.uuid4()}", Idempotency_Key="k")
            refused(answer, 503, "outcome_unknown")

    run(test)


def test_unanswered_request_ends_as_outcome_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-31: with a key and no new leader in time, the answer is `outcome_unknown` and not `not_leader`."""
    monkeypatch.setattr(request_queue, "HELD_MS_MAX", 200)

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            caller = await follower.call()
            await _wait_in_queue(leader, caller, Idempotency_Key="k1")
            assert follower.forwarder._link is not None
            follower.follow(None)
            follower.forwarder._link.end(at_once=True)
            refused(await caller.answer(), 503, "outcome_unknown")

    run(test)


def test_undecided_request_goes_to_the_next_leader(tmp_path: Path) -> None:
    """N-30: a request that a leader answers with `not_leader` was not decided: it goes to the next, key or none."""

    async def test() -> None:
        async with nodes(tmp_path, 3) as (first, second, follower):
            follower.follow(await first.lead(), first.url)
            await until(lambda: follower.node.is_linked)
            leadership = await second.lead()
            caller = await follower.call()
            # The first still believes to lead; its store tells it otherwise when it writes.
            caller.send("POST", "/locks/a/acquire", CLAIM)
            await until(lambda: len(follower.forwarder._queue) == 1)
            follower.follow(leadership, second.url)
            answer = await caller.answer()
            assert answer.json()["status"] == "acquired" and answer.headers["Holdfast-Epoch"] == "2", answer

    run(test)


def test_orderly_stop_answers_forwarded_requests(tmp_path: Path) -> None:
    """N-18: a leader that gives its seat back tells those who wait at a follower their places; nothing is unknown."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            callers = [await follower.call() for _ in range(5)]
            for caller in callers:
                await _wait_in_queue(leader, caller) if caller is callers[0] else caller.send(
                    "POST", "/locks/a/acquire", WAIT, token=BEN
                )
            assert leader.term is not None
            engine = leader.term.engine
            await until(lambda: len(engine._waiters) == 5)
            assert leader.term is not None
            term, leader.term = leader.term, None
            leader.follow(None)
            leader.links.end_all()
            await term.engine.stop()
            answers = [await caller.answer() for caller in callers]
            assert [answer.json()["status"] for answer in answers] == ["waiting"] * 5
            await until(lambda: leader.node.links == 0)

    run(test)


def test_request_is_forwarded_once(tmp_path: Path) -> None:
    """N-30: what came over a link is never passed on, also if its node follows another by now: `not_leader` is said."""

    async def test() -> None:
        async with nodes(tmp_path, 3) as (first, second, follower):
            leadership = await first.lead()
            follower.follow(leadership, first.url)
            await until(lambda: follower.node.is_linked)
            first.follow(await second.lead(), second.url)
            assert first.term is not None
            await until(lambda: first.node.is_linked)
            caller = await follower.call()
            caller.send("POST", "/locks/a/acquire", CLAIM)
            await until(lambda: len(follower.forwarder._queue) == 1)
            assert second.term is not None and second.term.engine.state.lease_of("a") is None
            follower.follow(second.shelf.leadership, second.url)
            assert (await caller.answer()).json()["status"] == "acquired"

    run(test)


def test_new_leader_answers_its_queued_requests(tmp_path: Path) -> None:
    """N-31: what waits in a follower that itself becomes the leader goes to its own routes; streams too."""

    async def test() -> None:
        async with nodes(tmp_path, 1) as (node,):
            caller, watcher = await node.call(), await node.call()
            caller.send("POST", "/locks/a/acquire", CLAIM)
            watcher.send("GET", "/locks/b/watch")
            await until(lambda: len(node.forwarder._queue) == 2)
            await node.lead()
            assert (await caller.answer()).json()["status"] == "acquired"
            await watcher.read_until(b'"released"')
            # The same connection, now answered without any link.
            assert (await caller.ask("GET", "/locks/a")).json()["status"] == "held"

    run(test)


def test_resent_request_with_a_key_goes_to_own_routes(tmp_path: Path) -> None:
    """N-31: if the node that passed a request on becomes the leader, it answers the one with a key itself."""

    async def test() -> None:
        async with nodes(tmp_path, 2) as (leader, follower):
            follower.follow(await leader.lead(), leader.url)
            await until(lambda: follower.node.is_linked)
            caller, other = await follower.call(), await follower.call()
            await _wait_in_queue(leader, caller, Idempotency_Key="k1")
            other.send("POST", "/locks/a/acquire", WAIT, token=BEN)
            assert leader.term is not None
            engine = leader.term.engine
            await until(lambda: len(engine._waiters) == 2)
            await follower.lead()
            refused(await other.answer(), 503, "outcome_unknown")
            assert follower.term is not None
            own = follower.term.engine
            await until(lambda: len(own._waiters) == 1)

    run(test)


def test_connections_stay_when_leaders_come_and_go(tmp_path: Path) -> None:
    """N-31: a client's connection to a follower lives on through two leaders and one of its own."""

    async def test() -> None:
        async with nodes(tmp_path, 2) as (one, two):
            caller = await one.call()
            for turn in range(3):
                leader, other = (two, one) if turn % 2 == 0 else (one, two)
                other.follow(await leader.lead(), leader.url)
                answer = await caller.ask("POST", f"/locks/{turn}/acquire", CLAIM)
                assert answer.json()["fencing_token"] == turn + 1, answer
                assert answer.headers["Holdfast-Node"] == "node0" or leader is one

    run(test)


def test_queued_requests_are_handed_over_in_slices(tmp_path: Path) -> None:
    """N-31: hundreds that waited for a leader are all answered, each once, in the order of the tokens they got."""

    async def test() -> None:
        async with nodes(tmp_path, 2) as (leader, follower):
            callers = [await follower.call() for _ in range(300)]
            for number, caller in enumerate(callers):
                caller.send("POST", f"/locks/n{number}/acquire", CLAIM)
            await until(lambda: len(follower.forwarder._queue) == 300)
            follower.follow(await leader.lead(), leader.url)
            answers = [await caller.answer() for caller in callers]
            assert sorted(answer.json()["fencing_token"] for answer in answers) == list(range(1, 301))

    run(test)
