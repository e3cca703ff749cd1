"""What one client can make a follower keep: large bodies, large answers, and what a link does not take."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from holdfast.cluster import link_frames, request_queue
from holdfast.cluster.request_queue import LargeBodies, TokenCache
from holdfast.http.messages import Request, request_from
from holdfast.http.proxies import Proxies
from holdfast.wire.problems import Problem
from tests.cluster.linked_nodes import ANA, BEN, Caller, LinkedNode, lose, nodes, run, two_nodes, until
from tests.support.checks import refused

NAMES = {"all": [f"job/{'x' * 60}/{number}" for number in range(400)], "ttl_seconds": 60}


def test_known_bearer_may_send_a_large_body(tmp_path: Path) -> None:
    """N-30: who was let in through this follower before may send as much as at the leader; the leader judges it."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (_, follower):
            caller = await follower.call()
            await caller.ask("GET", "/locks/a")
            answer = await caller.ask("POST", "/claims", NAMES)
            assert answer.status == 200 and len(answer.json()["claims"]) == 400
            assert len(follower.forwarder._bodies) == 0

    run(test)


def test_large_unauthenticated_bodies_are_bounded(tmp_path: Path) -> None:
    """N-30: beyond a few from one address the large body of one whom nobody knows is refused before it is read."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (_, follower):
            announced = (
                "POST /claims HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer wrong-token-of-a-stranger\r\n"
            )
            announced += "Content-Type: application/json\r\nContent-Length: 30000\r\n\r\n"
            unauthenticated = [await follower.call() for _ in range(request_queue.BODIES_PER_NETWORK_MAX)]
            for caller_without_token in unauthenticated:
                caller_without_token.writer.write(announced.encode())
            await until(lambda: len(follower.forwarder._bodies) == request_queue.BODIES_PER_NETWORK_MAX)
            one_more = await follower.call()
            one_more.writer.write(announced.encode())
            refused(await one_more.answer(), 503, "overloaded")
            known = await follower.call()
            await known.ask("GET", "/locks/a")
            assert (await known.ask("POST", "/claims", NAMES)).status == 200
            # One that is answered frees its place: the leader says who it is not.
            unauthenticated[0].writer.write(b" " * 30_000)
            refused(await unauthenticated[0].answer(), 401, "authentication_failed")
            assert len(follower.forwarder._bodies) == request_queue.BODIES_PER_NETWORK_MAX - 1

    run(test)


def test_body_reservations_expire() -> None:
    """N-30: number, bytes and place are bounded; a body that never becomes complete frees its place when time is up."""
    bodies = LargeBodies(30)
    for number in range(request_queue.BODIES_MAX):
        bodies.take(f"{number}", f"place {number}", 1_000, now_ms=number)
    with pytest.raises(Problem, match="large bodies"):
        bodies.take("one more", "elsewhere", 1_000, now_ms=100)
    bodies.take("later", "elsewhere", 1_000, now_ms=30_001)
    assert len(bodies) == request_queue.BODIES_MAX and bodies.bytes == request_queue.BODIES_MAX * 1_000
    for number in range(request_queue.BODIES_MAX):
        bodies.free(f"{number}")
    bodies.free("later")
    assert len(bodies) == bodies.bytes == 0 and not bodies._by_network
    bodies.take("large", "a", request_queue.BODIES_BYTES_MAX, now_ms=0)
    with pytest.raises(Problem, match="large bodies"):
        bodies.take("one byte", "b", 1, now_ms=0)


def test_token_cache_is_bounded() -> None:
    """N-30: so many bearer tokens are remembered, none that is long, and none that was refused since."""
    known, proxies = TokenCache(), Proxies("10.0.0.1")

    def request(bearer: bytes) -> Request:
        made = request_from(b"GET", b"/", b"", {b"authorization": bearer}, b"", "10.0.0.2")
        made.on_known = lambda _principal: None
        return made

    for number in range(request_queue.CACHED_TOKENS_MAX + 1):
        known.note(b"Bearer %d" % number, "ana")
    assert not known.is_known_caller(request(b"Bearer 0"), proxies) and known.is_known_caller(
        request(b"Bearer 1"), proxies
    )
    known.note(b"Bearer 1", None)
    assert not known.is_known_caller(request(b"Bearer 1"), proxies)
    known.note(b"x" * 1_000, "ana")
    assert len(known.principals) == request_queue.CACHED_TOKENS_MAX - 1


@pytest.mark.parametrize(("peer", "is_believed"), [("10.0.0.2", True), ("10.0.0.1", False)])
def test_proxy_connection_has_no_principal(peer: str, is_believed: bool) -> None:
    """N-30: whose connection it is counts where one client has it; on a trusted proxy's the token alone does."""
    known, proxies = TokenCache(), Proxies("10.0.0.1")
    known.note(b"Bearer right", "ana")
    for bearer, is_known in ((b"Bearer right", True), (b"Bearer wrong", is_believed)):
        request = request_from(b"GET", b"/", b"", {b"authorization": bearer}, b"", peer)
        assert request.on_known is None and known.is_known_caller(request, proxies) == is_known


def test_unauthenticated_body_holds_its_reservation_until_answered(tmp_path: Path) -> None:
    """N-30: a large body counts while it is on its way too, and its place is free once it is answered or lost."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            bodies, (end,) = follower.forwarder._bodies, leader.links._open
            end.pause_writing()
            first, second = await follower.call(), await follower.call()
            first.send("POST", "/claims", NAMES)
            second.send("POST", "/claims", NAMES)
            link = follower.forwarder._link
            assert link is not None
            await until(lambda: len(link._unanswered) == 2)
            assert len(bodies) == 2
            lose(second)
            await until(lambda: len(bodies) == 1)
            end.resume_writing()
            assert (await first.answer()).status == 200
            assert len(bodies) == bodies.bytes == 0

    run(test)


@pytest.mark.parametrize("path", ["/claims", "/locks/a/acquire"])
@pytest.mark.parametrize("sent", ["a part", "too much"])
def test_incomplete_body_frees_its_reservation(tmp_path: Path, path: str, sent: str) -> None:
    """N-30: when the connection of a stranger is lost or its request refused, the place of its body is free at once."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (_, follower):
            bodies, caller = follower.forwarder._bodies, await follower.call()
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
            caller.writer.write(head.encode() + b"8000\r\n" + b" " * 0x8000 + b"\r\n")
            await until(lambda: len(bodies) == 1)
            if sent == "too much":
                caller.writer.write(b"no size of a chunk\r\n")
                refused(await caller.answer(), 400, "invalid_input")
            else:
                lose(caller)
            await until(lambda: len(bodies) == 0, 1.0)

    run(test)


def test_full_link_is_sent_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-31: what the leader does not take is not written without end: requests are held, and answered later."""
    monkeypatch.setattr(link_frames, "UNSENT_BYTES_MAX", 65_536)

    async def test() -> None:
        async with nodes(tmp_path, 2) as (leader, follower):
            await leader.start_leading_through_proxy()
            assert leader.proxy is not None
            follower.follow(leader.shelf.leadership, f"http://127.0.0.1:{leader.proxy.port}")
            await until(lambda: follower.node.is_linked)
            link = follower.forwarder._link
            assert link is not None
            link.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            callers = await _known(follower, 200)
            leader.proxy.hold()
            body = b'{"ttl_seconds": 60}' + b" " * 16_000
            for number, caller in enumerate(callers):
                caller.send("POST", f"/locks/n{number}/acquire", body, Idempotency_Key=f"k{number}")
            await until(lambda: link.is_writing_paused and len(follower.forwarder._queue) > 0)
            assert link.unsent_bytes < 65_536 + 100_000
            leader.proxy.restore()
            answers = [await caller.answer() for caller in callers]
            assert {answer.json()["status"] for answer in answers} == {"acquired"}
            assert sorted(answer.json()["fencing_token"] for answer in answers) == list(range(1, 201))

    run(test)


def test_full_link_is_overloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-31: who finds the link full and too much held is told `overloaded`: another node has the same leader. One user
    has half of the places at most.
    """
    monkeypatch.setattr(request_queue, "HELD_MAX", 4)

    async def test() -> None:
        async with two_nodes(tmp_path) as (_, follower):
            callers = await _known(follower, 3)
            other = await follower.call()
            await other.ask("GET", "/locks/a", token=BEN)
            link, held = follower.forwarder._link, follower.forwarder._queue
            assert link is not None
            link.pause_writing()
            for caller in callers[:2]:
                caller.send("GET", "/locks/a")
            await until(lambda: len(held) == 2)
            answer = await callers[2].ask("GET", "/locks/a")
            refused(answer, 503, "overloaded")
            assert answer.headers["Retry-After"] is not None
            other.send("GET", "/locks/a", token=BEN)
            await until(lambda: len(held) == 3)
            link.resume_writing()
            for caller in (*callers[:2], other):
                assert (await caller.answer()).status == 200
            assert not held._usage

    run(test)


async def _known(node: LinkedNode, count: int) -> list[Caller]:
    callers = [await node.call() for _ in range(count)]
    for caller in callers:
        assert (await caller.ask("GET", "/locks/a", token=ANA)).status == 200
    return callers


def test_leader_pauses_reading_while_responses_are_unread(tmp_path: Path) -> None:
    """N-31: while a follower takes no answers the leader takes no requests from it, and goes on when it does."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            (end,) = leader.links._open
            end.pause_writing()
            caller = await follower.call()
            caller.send("POST", "/locks/a/acquire", {"ttl_seconds": 60})
            await asyncio.sleep(0.05)  # Nothing may happen, and no state says that nothing did.
            assert leader.term is not None and leader.term.engine.state.lease_of("a") is None
            end.resume_writing()
            assert (await caller.answer()).json()["status"] == "acquired"

    run(test)


def test_oversized_request_does_not_end_the_link(tmp_path: Path) -> None:
    """N-30: what is too large for the leader's settings is refused by the follower, and the link stays."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            link = follower.forwarder._link
            assert link is not None
            caller = await follower.call()
            await caller.ask("GET", "/locks/a")
            link._request_bytes_max = 20_000
            refused(await caller.ask("POST", "/claims", NAMES), 413, "invalid_input")
            assert (await caller.ask("GET", "/locks/a")).status == 200
            assert follower.forwarder._link is link and leader.node.links == 1

    run(test)


def test_first_read_of_a_connection_is_bounded(tmp_path: Path) -> None:
    """N-29: one who sends much before anybody has looked makes a node keep as little as a lane does."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, _):
            caller = await leader.call()
            caller.send("GET", "/locks/a/watch")
            await caller.read_until(b'"released"')
            other = await leader.call()
            for _ in range(1_000):
                other.send("GET", "/healthz")
            buffered = 0

            def look() -> bool:
                nonlocal buffered
                buffered = max([buffered, *(len(getattr(each, "_unread", b"")) for each in leader.manager.connections)])
                answered: int = other.reader._buffer.count(b"HTTP/1.1 200")  # type: ignore[attr-defined]
                return answered >= 300

            await until(look)
            assert buffered <= 8_192, buffered

    run(test)


def test_large_responses_are_complete(tmp_path: Path) -> None:
    """N-29: an answer of hundreds of kilobytes comes through a follower as the leader gave it."""

    async def test() -> None:
        async with two_nodes(tmp_path, metadata_chars_max=10_000) as (leader, follower):
            claimer, here, there = await leader.call(), await follower.call(), await leader.call()
            for number in range(60):
                body = {"ttl_seconds": 600, "metadata": "x" * 10_000}
                await claimer.ask("POST", f"/locks/n{number}/acquire", body)
            seen, direct = await here.ask("GET", "/locks"), await there.ask("GET", "/locks")
            assert len(seen.body) > 600_000
            assert [lock["lock_name" if "lock_name" in lock else "name"] for lock in seen.json()["locks"]] == [
                lock["lock_name" if "lock_name" in lock else "name"] for lock in direct.json()["locks"]
            ]

    run(test)


def test_large_responses_beyond_the_buffer_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-31: once too much waits in a link, a large answer is refused: it was a look, and can be asked for again."""
    from holdfast.cluster import link_leader as leaders_end

    monkeypatch.setattr(leaders_end, "ANSWERS_BYTES_MAX", -1)

    async def test() -> None:
        async with two_nodes(tmp_path, metadata_chars_max=10_000) as (leader, follower):
            claimer, here = await leader.call(), await follower.call()
            for number in range(10):
                await claimer.ask("POST", f"/locks/n{number}/acquire", {"ttl_seconds": 600, "metadata": "x" * 10_000})
            refused(await here.ask("GET", "/locks"), 503, "overloaded")
            assert (await here.ask("GET", "/locks/n1")).status == 200

    run(test)
