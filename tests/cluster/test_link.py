"""A request over a link is answered as if its client had asked the leader itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.api.context import Reply
from holdfast.http.messages import Request
from tests.cluster.linked_nodes import ANA, BEN, run, two_nodes, until
from tests.support.checks import refused


def test_leader_decides_a_claim_through_a_follower(tmp_path: Path) -> None:
    """N-29: a claim through a follower is decided by the leader, and both say the same of it."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            there, here = await leader.call(), await follower.call()
            claimed = await here.ask("POST", "/locks/a/acquire", {"ttl_seconds": 60})
            assert claimed.json()["status"] == "acquired", claimed
            seen = [await caller.ask("GET", "/locks/a") for caller in (there, here)]
            assert [answer.json()["fencing_token"] for answer in seen] == [1, 1]
            again = await here.ask("POST", "/locks/a/acquire", {"ttl_seconds": 60}, token=BEN)
            assert again.json()["status"] == "held", again

    run(test)


def test_answer_names_the_node_and_the_epoch(tmp_path: Path) -> None:
    """N-34: an answer says which node gave it, and in which epoch it was decided; one without a leader names none."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            caller = await follower.call()
            answer = await caller.ask("GET", "/locks/a")
            assert (answer.headers["Holdfast-Node"], answer.headers["Holdfast-Epoch"]) == ("node1", "1")
            await leader.resign()
            await until(lambda: not follower.node.is_linked)
            answer = await caller.ask("GET", "/healthz")
            assert (answer.headers["Holdfast-Node"], answer.headers["Holdfast-Epoch"]) == ("node1", None)

    run(test)


def test_request_id_is_the_same_on_both_nodes(tmp_path: Path) -> None:
    """N-29: the id in the body of a refusal, made by the leader, is the one that the follower says in its header."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (_, follower):
            answer = await (await follower.call()).ask("GET", "/locks/a", token="nobody-has-this-one")
            refused(answer, 401, "authentication_failed")

    run(test)


def test_documents_and_liveness_are_answered_without_a_leader(tmp_path: Path) -> None:
    """N-34: `/healthz` and the documents are answered by every node by itself."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            await leader.resign()
            caller = await follower.call()
            for path in ("/healthz", "/openapi.json", "/docs"):
                assert (await caller.ask("GET", path)).status == 200, path

    run(test)


def test_follower_refuses_bad_paths_and_names(tmp_path: Path) -> None:
    """N-30: an unknown path, a wrong method and another server's name are refused as anywhere, by the follower."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (_, follower):
            caller = await follower.call()
            refused(await caller.ask("GET", "/nothing"), 404, "not_found")
            refused(await caller.ask("PUT", "/status"), 405, "invalid_input")
            refused(await caller.ask("GET", "/status", Host="elsewhere.example"), 421, "misdirected")

    run(test)


def test_called_node_checks_the_host(tmp_path: Path) -> None:
    """N-30: a name that the follower answers to is not judged again by the leader, which is called otherwise."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            follower.forwarder._hosts._names |= {"follower.example"}
            answer = await (await follower.call()).ask("GET", "/status", Host="follower.example")
            assert answer.status == 200, answer
            direct = await (await leader.call()).ask("GET", "/status", Host="follower.example")
            refused(direct, 421, "misdirected")

    run(test)


def test_wrong_tokens_count_by_the_clients_address(tmp_path: Path) -> None:
    """N-30: wrong tokens through a follower count for the client that a trusted proxy names, and for nobody else."""

    async def test() -> None:
        async with two_nodes(tmp_path, trusted_proxies="127.0.0.1", wrong_tokens_per_minute_max=3) as (_, follower):
            caller = await follower.call()

            async def ask(client: str) -> int:
                answer = await caller.ask("GET", "/locks/a", token="nobody-has-this-one", X_Forwarded_For=client)
                return answer.status

            assert [await ask("192.0.2.1") for _ in range(5)] == [401, 401, 401, 429, 429]
            assert await ask("192.0.2.2") == 401

    run(test)


def test_deposed_leader_counts_no_wrong_tokens(tmp_path: Path) -> None:
    """N-15: a token that is not known here may be another leader's, so a leader proves its seat before it says 429."""

    async def test() -> None:
        async with two_nodes(tmp_path, wrong_tokens_per_minute_max=1) as (leader, _):
            caller = await leader.call()
            asked = [await caller.ask("GET", "/locks/a", token="nobody-has-this-one") for _ in range(2)]
            assert [each.status for each in asked] == [401, 429]
            leader.shelf.change_leadership(epoch=leader.shelf.leadership.epoch + 1, term_id="another")
            late = await caller.ask("GET", "/locks/a", token="nobody-has-this-one")
            refused(late, 503, "not_leader")

    run(test)


def test_follower_learns_principals_from_the_leader(tmp_path: Path) -> None:
    """N-30: a connection is a stranger's at a follower until the leader has let somebody in on it."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (_, follower):
            caller = await follower.call()
            await caller.ask("GET", "/locks/a", token="nobody-has-this-one")
            assert [each.is_authenticated for each in follower.manager.connections] == [False]
            await caller.ask("GET", "/locks/a")
            assert [each.principal for each in follower.manager.connections] == ["ana"]

    run(test)


@pytest.mark.parametrize("is_known_before", [False, True])
def test_waiter_over_a_link_is_not_evicted(tmp_path: Path, is_known_before: bool) -> None:
    """N-30: a wait that is the first request of its connection is a user's at a follower too, long before its answer.

    One whose token is known to the follower is a user's even while there is no leader.
    """

    async def test() -> None:
        async with two_nodes(tmp_path, connections_max=20) as (leader, follower):
            holder, link = await leader.call(), follower.forwarder._link
            assert link is not None
            lease = (await holder.ask("POST", "/locks/a/acquire", {"ttl_seconds": 60})).json()["lease_id"]
            if is_known_before:
                before = await follower.call()
                await before.ask("GET", "/locks/a", token=BEN)
                before.close()
                await until(lambda: not follower.manager.connections)
                link.pause_writing()
            caller = await follower.call()
            caller.send("POST", "/locks/a/acquire", {"ttl_seconds": 60, "wait_seconds": 30}, token=BEN)
            await until(lambda: [each.principal for each in follower.manager.connections] == ["ben"])
            for _ in range(30):
                await follower.call()
            await until(lambda: len(follower.manager.connections) == 20)
            if is_known_before:
                link.resume_writing()
            await holder.ask("POST", "/locks/a/release", {"lease_id": lease})
            assert (await caller.answer()).json()["status"] == "acquired"

    run(test)


def test_wait_stays_in_the_leader(tmp_path: Path) -> None:
    """N-32: a claim that waits through a follower gets its turn when the name is released."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            holder, waiter = await leader.call(), await follower.call()
            held = await holder.ask("POST", "/locks/a/acquire", {"ttl_seconds": 60})
            waiter.send("POST", "/locks/a/acquire", {"ttl_seconds": 60, "wait_seconds": 30}, token=BEN)
            assert leader.term is not None
            engine = leader.term.engine
            await until(lambda: len(engine._waiters) == 1)
            await holder.ask("POST", "/locks/a/release", {"lease_id": held.json()["lease_id"]})
            assert (await waiter.answer()).json()["status"] == "acquired"

    run(test)


def test_disconnected_client_leaves_the_queue(tmp_path: Path) -> None:
    """N-32: who leaves a follower while it waits in line is gone from the leader's line at once."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            holder, waiter = await leader.call(), await follower.call()
            await holder.ask("POST", "/locks/a/acquire", {"ttl_seconds": 60})
            waiter.send("POST", "/locks/a/acquire", {"ttl_seconds": 60, "wait_seconds": 30}, token=BEN)
            assert leader.term is not None
            engine = leader.term.engine
            await until(lambda: len(engine._waiters) == 1)
            waiter.close()
            await until(lambda: len(engine._waiters) == 0)

    run(test)


def test_lost_link_removes_its_waiters(tmp_path: Path) -> None:
    """N-32: when a link is lost, all who wait over it are gone from the leader's line."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            holder = await leader.call()
            await holder.ask("POST", "/locks/a/acquire", {"ttl_seconds": 60})
            for _ in range(3):
                waiter = await follower.call()
                waiter.send("POST", "/locks/a/acquire", {"ttl_seconds": 60, "wait_seconds": 30}, token=BEN)
            assert leader.term is not None
            engine = leader.term.engine
            await until(lambda: len(engine._waiters) == 3)
            follower.follow(None)
            assert follower.forwarder._link is not None
            follower.forwarder._link.end(at_once=True)
            await until(lambda: len(engine._waiters) == 0)

    run(test)


def test_half_closed_client_gets_its_response(tmp_path: Path) -> None:
    """N-32: a client that closes only its sending side is answered through a follower too, unless it waits in line."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            caller = await follower.call()
            caller.send("POST", "/locks/a/acquire", {"ttl_seconds": 60})
            caller.writer.write_eof()
            assert (await caller.answer()).json()["status"] == "acquired"
            waiter = await follower.call()
            waiter.send("POST", "/locks/a/acquire", {"ttl_seconds": 60, "wait_seconds": 30}, token=BEN)
            waiter.writer.write_eof()
            assert await waiter.read_to_end() == b""
            assert leader.term is not None
            engine = leader.term.engine
            await until(lambda: len(engine._waiters) == 0)

    run(test)


def test_queued_time_shortens_the_wait_and_not_the_lease(tmp_path: Path) -> None:
    """N-31: what a follower held is taken off how long a claim waits; who wanted to wait still gets a place."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            holder = await leader.call()
            await holder.ask("POST", "/locks/a/acquire", {"ttl_seconds": 60})
            follower.follow(None)
            assert follower.forwarder._link is not None
            follower.forwarder._link.end(at_once=True)
            waiter, claimer = await follower.call(), await follower.call()
            waiter.send("POST", "/locks/a/acquire", {"ttl_seconds": 60, "wait_seconds": 20}, token=BEN)
            claimer.send("POST", "/locks/b/acquire", {"ttl_seconds": 60}, token=BEN)
            await until(lambda: len(follower.forwarder._queue) == 2)
            for pending in follower.forwarder._queue.waiting:
                pending.received_ms -= 20_000
            assert leader.term is not None
            follower.follow(leader.term.leadership, leader.url)
            began = asyncio.get_running_loop().time()
            waiting = await waiter.answer()
            assert asyncio.get_running_loop().time() - began < 15
            assert waiting.json()["status"] == "waiting" and waiting.json()["ticket"]
            assert (await claimer.answer()).json()["expires_in_ms"] == 60_000

    run(test)


def test_keys_cookies_and_origin_go_over_the_link(tmp_path: Path) -> None:
    """N-29: the leader sees the key, the cookie, the origin and the host that the client sent, and no other field."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            assert leader.term is not None
            seen: list[Request] = []
            routes = leader.term.routes
            handle = routes.handle

            def note(request: Request, reply: Reply) -> None:
                seen.append(request)
                handle(request, reply)

            routes.handle = note  # type: ignore[method-assign]
            caller = await follower.call()
            fields = {"Cookie": "a=b", "Origin": "https://example.org", "Idempotency-Key": "k1", "X-Other": "x"}
            first = await caller.ask("POST", "/locks/a/acquire", {"ttl_seconds": 60}, **fields)
            second = await caller.ask("POST", "/locks/a/acquire", {"ttl_seconds": 60}, **fields)
            assert first.json()["lease_id"] == second.json()["lease_id"]
            headers = seen[0].headers
            assert (headers[b"cookie"], headers[b"origin"], headers[b"host"]) == (
                b"a=b",
                b"https://example.org",
                b"127.0.0.1",
            )
            assert seen[0].peer == "127.0.0.1" and b"x-other" not in headers and seen[0].key == b"k1"

    run(test)


def test_expensive_caller_over_a_link_is_throttled(tmp_path: Path) -> None:
    """N-30: who is in debt for what took long stands behind, over a link too (decision 0042)."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            ana, ben = await follower.call(), await follower.call()
            await ana.ask("GET", "/locks/a")
            await ben.ask("GET", "/locks/a", token=BEN)
            leader.manager.throttled["ana"] = leader.clock.monotonic_ms() + 1_000
            defer = leader.manager.defer
            deferred: list[object] = []

            def note(what: object, *, throttled: str | None = None) -> None:
                deferred.append(throttled)
                defer(what, throttled=throttled)  # type: ignore[arg-type]

            leader.manager.defer = note  # type: ignore[method-assign,assignment]
            assert (await ana.ask("GET", "/locks/a", token=ANA)).status == 200
            assert (await ben.ask("GET", "/locks/a", token=BEN)).status == 200
            assert deferred == ["ana"]

    run(test)


@pytest.mark.parametrize("through", ["leader", "follower"])
def test_large_answers_are_charged_by_their_size(tmp_path: Path, through: str) -> None:
    """Decision 0042: who asks for large answers again and again is in debt for them, however short each request is."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            manager, names = leader.manager, [f"job/{number}" for number in range(1_000)]
            manager.charge = lambda *_: None  # type: ignore[method-assign]
            claimed = {"all": names, "ttl_seconds": 60}
            assert (await (await leader.call()).ask("POST", "/claims", claimed, token=BEN)).status == 200
            manager.throttled.clear()
            caller = await (leader if through == "leader" else follower).call()
            for _ in range(10):
                held = await caller.ask("POST", "/claims", {"any": names, "ttl_seconds": 60})
                assert len(held.body) > 100_000
            assert "ana" in manager.throttled

    run(test)


def test_forwarded_request_counts_as_activity(tmp_path: Path) -> None:
    """Decision 0042: those in debt have all of the time only while nobody else asks, through whichever node."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower):
            caller = await follower.call()
            await caller.ask("GET", "/locks/a", token=BEN)
            leader.manager.throttled["ana"] = leader.manager.now_ms() + 60_000
            leader.manager._others_asked = False
            await caller.ask("GET", "/locks/a", token=BEN)
            assert leader.manager._others_asked

    run(test)
