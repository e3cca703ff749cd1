"""Several addresses of one server: the next one is asked where one does not answer, and nothing is done twice.

Two ways through a proxy to one real server stand for two nodes: what is known at one is known at the other. A node that
knows no leader is a server of the tests, with the answer that such a node gives.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.api.streams import KEEPALIVE_SECONDS
from holdfast.client.answers import Answer
from holdfast.client.claim_flows import claim
from holdfast.client.config import Target
from holdfast.client.deadline import LeaseDeadline
from holdfast.client.effects import Close, Flow, Open, Policy, Read
from holdfast.client.lease_flows import Renewal, keep_renewed, renew_once
from holdfast.client.options import ClaimRequest
from holdfast.client.records import QueuePosition
from holdfast.client.retry import ask, get
from holdfast.client.transport import Failover
from holdfast.errors import Refused, Unreachable
from holdfast.wire.replies import StatusReply
from tests.client.driving import POLICY, URL, World, acquired, after, bodies, no_answer, problem, renewed, scripted
from tests.client.peer import LEADERLESS, NOT_LEADER, Peer, nobody, peering, silent
from tests.client.transports import TRANSPORTS, EitherTransport
from tests.cluster.proxy import TcpProxy
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique, wait_until
from tests.support.server import ServerProcess

SECONDS_MAX = 30.0
RENEWALS = 3
"""So many requests take longer than the lease in which they are counted."""
STOP = problem(404, "lease_not_current", ended="released")
PROXY_SAYS = (502, {"Content-Type": "text/html"}, b"<html>bad gateway</html>")


def server_status() -> Flow[StatusReply]:
    """A flow that asks once."""
    return ask(get("/status", POLICY), POLICY, StatusReply)


@pytest.fixture
def peers() -> Iterator[Callable[..., list[Peer]]]:
    """Makes servers that give one answer each."""
    with ExitStack() as stack:
        yield lambda *answers: [stack.enter_context(peering(each)) for each in answers]


@pytest.fixture
def nodes(server: ServerProcess) -> Iterator[tuple[TcpProxy, TcpProxy]]:
    """Two ways to the server of this file."""
    with TcpProxy(server.host, server.port) as one, TcpProxy(server.host, server.port) as other:
        yield one, other


@pytest.fixture(params=TRANSPORTS)
def open_way(request: pytest.FixtureRequest, nowhere: dict[str, str]) -> Iterator[Callable[..., EitherTransport]]:
    """Makes transports of either kind, to several addresses."""
    made: list[EitherTransport] = []

    def make(*addresses: str) -> EitherTransport:
        target = Target(",".join(addresses), "a test", callers.ALICE, "a test")
        made.append(EitherTransport(request.param, target, nowhere))
        return made[-1]

    yield make
    for way in made:
        way.close()


def url_of(*proxies: TcpProxy) -> str:
    return ",".join(f"http://{each.host}:{each.port}" for each in proxies)


def keys(peer: Peer) -> list[str | None]:
    return [headers.get("idempotency-key") for _, _, headers, _ in peer.asked]


# Which address is asked, and when the next.


def test_unreachable_address_is_skipped(
    open_way: Callable[..., EitherTransport], peers: Callable[..., list[Peer]]
) -> None:
    """N-35: where nobody listens nothing was sent, so the next is asked, whatever it is; and it stays with that one."""
    (peer,) = peers((200, {}, b'{"value": 1}'))
    with nobody() as dead:
        way = open_way(dead, peer.url)
        assert way.send("POST", "/x", {}).status == 200
        for _ in range(5):
            assert way.send("GET", "/y").status == 200
    assert len(peer.asked) == 6


def test_without_a_leader_the_next_is_asked_with_the_same_key(
    open_way: Callable[..., EitherTransport], peers: Callable[..., list[Peer]]
) -> None:
    """N-35: `not_leader` says that nothing happened: the same request goes to the next, with the same key."""
    lost, leads = peers(LEADERLESS, (200, {}, b'{"value": 1}'))
    way = open_way(lost.url, leads.url)
    assert way.send("POST", "/x", {"a": 1}, "k-1").status == 200
    assert way.send("POST", "/x", {"a": 2}, "k-2").status == 200
    assert (keys(lost), keys(leads)) == (["k-1"], ["k-1", "k-2"])
    assert lost.asked[0][3] == leads.asked[0][3]
    assert {headers["authorization"] for _, _, headers, _ in lost.asked + leads.asked} == {f"Bearer {callers.ALICE}"}


def test_leaderless_failover_works_without_a_key(
    open_way: Callable[..., EitherTransport], peers: Callable[..., list[Peer]]
) -> None:
    """What has no key is sent to the next as well, after an answer by which nothing happened."""
    lost, leads = peers(LEADERLESS, (200, {}, b"{}"))
    assert open_way(lost.url, leads.url).send("POST", "/x", {}).status == 200
    assert (len(lost.asked), len(leads.asked)) == (1, 1)


def test_leaderless_addresses_are_reported(
    open_way: Callable[..., EitherTransport], peers: Callable[..., list[Peer]]
) -> None:
    """If none of them knows a leader, each was asked once, and that is the answer. Dead ones do not change it."""
    one, other = peers(LEADERLESS, LEADERLESS)
    with nobody() as dead:
        answer = open_way(one.url, dead, other.url).send("POST", "/x", {}, "k")
    assert (answer.status, answer.body) == (503, NOT_LEADER)
    assert (len(one.asked), len(other.asked)) == (1, 1)


@pytest.mark.parametrize("code", ["storage_unavailable", "outcome_unknown"])
def test_leaders_refusal_is_final(
    open_way: Callable[..., EitherTransport], peers: Callable[..., list[Peer]], code: str
) -> None:
    """A refusal of the one that leads is not asked of another: all of them would pass it on to the same one."""
    body = msgspec.json.encode({"error": "No", "code": code, "details": "Because.", "request_id": "r"})
    one, other = peers((503, {}, body), (200, {}, b"{}"))
    assert open_way(one.url, other.url).send("POST", "/x", {}, "k").body == body
    assert other.asked == []


def test_a_lost_answer_is_not_asked_for_blindly(
    open_way: Callable[..., EitherTransport], peers: Callable[..., list[Peer]]
) -> None:
    """C5: what has no key may have happened when its answer is lost, so it is not sent again; the next request is."""
    (peer,) = peers((200, {}, b"{}"))
    with silent() as hangs:
        way = open_way(hangs, peer.url)
        with pytest.raises(Unreachable) as caught:
            way.send("POST", "/x", {})
        assert caught.value.was_sent
        assert peer.asked == []
        assert way.send("POST", "/y", {}).status == 200, "the one that hangs is not asked first any more"


@pytest.mark.parametrize(("method", "key"), [("GET", None), ("POST", "k")])
def test_silent_address_is_skipped(
    open_way: Callable[..., EitherTransport], peers: Callable[..., list[Peer]], method: str, key: str | None
) -> None:
    """What may be sent twice goes to the next when one is silent; and no other request waits for the silent one."""
    (peer,) = peers((200, {}, b"{}"))
    with silent() as hangs:
        way = open_way(hangs, peer.url)
        began = time.monotonic()
        assert way.send(method, "/x", {} if key else None, key).status == 200
        first = time.monotonic() - began
        for _ in range(20):
            way.send("GET", "/y")
        assert time.monotonic() - began - first < 10 * first, "none of the twenty others waited for it"


def test_lost_request_without_a_leader_is_unknown(
    open_way: Callable[..., EitherTransport], peers: Callable[..., list[Peer]]
) -> None:
    """N-12: if one copy may have happened, it is not said that nothing did, though the others say so of theirs."""
    (peer,) = peers(LEADERLESS)
    with silent() as hangs, pytest.raises(Unreachable) as caught:
        open_way(hangs, peer.url).send("POST", "/x", {}, "k")
    assert caught.value.was_sent
    assert len(peer.asked) == 1


def test_a_proxy_without_a_server(open_way: Callable[..., EitherTransport], peers: Callable[..., list[Peer]]) -> None:
    """A 502 of a proxy leaves open what happened: with a key the next is asked, without one it is the answer."""
    proxy, server = peers(PROXY_SAYS, (200, {}, b"{}"))
    assert open_way(proxy.url, server.url).send("POST", "/x", {}, "k").status == 200
    way = open_way(proxy.url, server.url)
    assert way.send("POST", "/x", {}).status == 502
    assert way.send("POST", "/x", {}).status == 200


def test_no_redirect_is_followed(open_client: Callable[..., Any], peers: Callable[..., list[Peer]]) -> None:
    """N-35: a token goes to no address that was not configured: a redirect is an answer, and the error names whose."""
    elsewhere, one, other = peers((200, {}, b"{}"), (200, {}, b"{}"), (200, {}, b"{}"))
    one.answer = (307, {"Location": f"{elsewhere.url}/x"}, b"")
    with pytest.raises(Refused, match=f"{one.url} answered with a redirect"):
        open_client(url=f"{one.url},{other.url}").server_status()
    assert elsewhere.asked == other.asked == []


def test_a_session_hands_out_one_address(open_client: Callable[..., Any], server: ServerProcess) -> None:
    """GATEWAY_URL of a session is one address, which programs of others can use; its `url` has all of them."""
    urls = f"{server.url},http://127.0.0.1:1"
    opened = open_client(url=urls).open_session("several")
    assert (opened.url, opened.environment["GATEWAY_URL"]) == (urls, server.url)
    with open_client(url=urls).session("kept") as session:
        assert (session.url, session.environment["GATEWAY_URL"]) == (urls, server.url)


def test_silent_stream_moves_to_the_next_address(
    open_way: Callable[..., EitherTransport], nodes: tuple[TcpProxy, TcpProxy]
) -> None:
    """A stream on which nothing comes for too long tells of its address what a request in vain would tell."""
    one, other = nodes
    way = open_way(*url_of(one, other).split(","))

    def follow() -> Flow[None]:
        stream = yield Open("/events", {"Accept": "text/event-stream"}, 0.5)
        assert stream.status == 200
        one.hold()
        try:
            while (yield Read(stream)):
                pass
        finally:
            yield Close(stream)

    with pytest.raises(Unreachable, match="did not come in time"):
        way.run(follow())
    assert other.fates.total() == 0
    assert way.send("GET", "/healthz").status == 200
    assert other.fates.total() == 1
    one.restore()


@pytest.mark.parametrize(("addresses", "seconds"), [(1, 45), (2, 20)])
def test_silent_address_is_detected_sooner(addresses: int, seconds: float) -> None:
    """A stream may be silent for less time where there are others, and for longer than a server ever is."""
    assert msgspec.structs.replace(POLICY, addresses=addresses).read_seconds == seconds > KEEPALIVE_SECONDS


def test_the_error_names_all_of_them(open_way: Callable[..., EitherTransport]) -> None:
    """If none answers, the error says what was wrong with each, and that nothing was sent."""
    with nobody() as one, nobody() as other, pytest.raises(Unreachable) as caught:
        open_way(one, other, "http://host.invalid").send("GET", "/x")
    assert not caught.value.was_sent
    assert caught.value.url == f"{one},{other},http://host.invalid"
    assert one in caught.value.problem and other in caught.value.problem and "host.invalid" in caught.value.problem


def test_concurrent_failures_switch_the_address_once() -> None:
    """Those who fail at the same address at the same time do not pass over the one behind it."""
    addresses = Failover(Target("http://a,http://b,http://c", "test", None, "test"), lambda _, **__: None)
    for _ in range(2):
        addresses.failed(0)
    assert addresses.order() == [1, 2, 0]
    addresses.failed(2)
    assert addresses.order() == [1, 2, 0], "only the one that is asked first is left by that"
    for at in (1, 2, 0):
        addresses.failed(at)
    assert addresses.order() == [1, 2, 0]


@pytest.mark.parametrize("count", [2, 3, 16])
def test_connecting_leaves_half_of_the_time(count: int) -> None:
    """Addresses where no connection comes about cost less than half of what there is for an answer, all together."""
    shares: list[float] = []
    urls = ",".join(f"http://host-{number}" for number in range(count))
    Failover(Target(urls, "test", None, "test"), lambda _, connect_share, **__: shares.append(connect_share))
    assert sum(shares[1:]) < 0.5


# Clients of both kinds.


def test_claims_through_the_one_that_answers(
    open_client: Callable[..., Any], server: ServerProcess, peers: Callable[..., list[Peer]], job: str
) -> None:
    """N-35: a dead address and one without a leader before the right one: a claim is held, renewed and given back."""
    (lost,) = peers(LEADERLESS)
    with nobody() as dead:
        client = open_client(url=f"{dead},{lost.url},{server.url}")
        with client.claim(job, ttl=60) as claim:
            claim.renew()
            assert client.get_job_owner(job) is not None
        assert client.get_job_owner(job) is None
    assert len(lost.asked) == 1


def test_stopped_server_is_skipped(
    open_client: Callable[..., Any], server: ServerProcess, tmp_path: Path, job: str
) -> None:
    """A server that was stopped (SIGSTOP) takes connections and is silent: it costs its share of the time, once."""
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as stopped:
        client = open_client(url=f"{stopped.url},{server.url}", answer_seconds=3)
        stopped.pause()
        began = time.monotonic()
        with client.claim(job, ttl=60):
            pass
        assert 2.9 < time.monotonic() - began < SECONDS_MAX
        began = time.monotonic()
        assert client.get_job_owner(job) is None
        assert time.monotonic() - began < 2.9
        stopped.resume()


def test_a_lease_outlives_its_first_address(
    open_client: Callable[..., Any], nodes: tuple[TcpProxy, TcpProxy], job: str
) -> None:
    """N-35: renewals go to the other address when the first is silent, soon enough for a term of four seconds."""
    one, other = nodes
    client = open_client(url=url_of(one, other))
    with client.claim(job, ttl=4) as claim:
        one.hold()
        wait_until(lambda: other.fates.total() >= RENEWALS or claim.remaining == 0, seconds_max=SECONDS_MAX)
        assert claim.remaining > 0
    one.restore()


def test_lease_outlives_a_cut_address(
    open_client: Callable[..., Any], nodes: tuple[TcpProxy, TcpProxy], job: str
) -> None:
    """The same where connections are reset, and there and back again."""
    one, other = nodes
    client = open_client(url=url_of(one, other))
    with client.claim(job, ttl=4) as claim:
        for broken, mended in ((one, other), (other, one), (one, other)):
            mended.restore()
            broken.cut()
            until = mended.fates.total() + RENEWALS
            wait_until(
                lambda way=mended, until=until: way.fates.total() >= until or claim.remaining == 0,  # type: ignore[misc]
                seconds_max=SECONDS_MAX,
            )
            assert claim.remaining > 0


def test_wait_keeps_its_queue_position_at_another_address(
    open_client: Callable[..., Any],
    nodes: tuple[TcpProxy, TcpProxy],
    server: ServerProcess,
    operator: Api,
    job: str,
) -> None:
    """W2, decision 0046: whoever waits through a node that goes away stands at the same place, at another node."""
    one, other = nodes
    held = operator.acquired(job, owner="ben", ttl_seconds=600)
    client = open_client(url=url_of(one, other))
    updates: list[Any] = []
    got: list[str] = []

    def wait() -> None:
        with client.claim(job, ttl=60, wait=60, on_wait=updates.append, owner="first") as claim:
            got.append(claim.owner)

    first = threading.Thread(target=wait)
    first.start()
    wait_until(lambda: any(update.position == 1 for update in updates), seconds_max=SECONDS_MAX)
    second_client = open_client(url=server.url)

    def wait_second() -> None:
        with second_client.claim(job, ttl=60, wait=60, owner="second") as claim:
            got.append(claim.owner)

    second = threading.Thread(target=wait_second)
    second.start()
    wait_until(lambda: operator.get(f"/locks/{job}").json()["waiting"] == 2, seconds_max=SECONDS_MAX)
    one.cut()
    seen = len(updates)
    wait_until(lambda: len(updates) > seen and updates[-1].away is None, seconds_max=SECONDS_MAX)
    assert updates[-1].position == 1 and updates[-1].rejoined == 0
    operator.release(job, held["lease_id"])
    for each in (first, second):
        each.join(SECONDS_MAX)
    assert got == ["first", "second"]
    assert other.fates.total() > 0


def test_events_go_on_at_another_address(
    open_client: Callable[..., Any], nodes: tuple[TcpProxy, TcpProxy], operator: Api
) -> None:
    """Who follows events through a node that goes away misses nothing and hears nothing twice."""
    one, other = nodes
    prefix = unique("followed")
    events = open_client(url=url_of(one, other)).events(prefix, after=0)
    seen: list[str] = []

    def follow() -> None:
        for event in events:
            seen.append(event.job_id)
            if event.job_id.endswith("/last"):
                return

    reader = threading.Thread(target=follow)
    reader.start()
    names = [f"{prefix}/{number}" for number in range(6)] + [f"{prefix}/last"]
    operator.acquired(names[0])
    wait_until(lambda: seen == names[:1], seconds_max=SECONDS_MAX)
    one.cut()
    for name in names[1:]:
        operator.acquired(name)
    reader.join(SECONDS_MAX)
    assert seen == names
    assert other.fates.total() > 0


def test_missing_leader_is_reported(
    open_client: Callable[..., Any], peers: Callable[..., list[Peer]], job: str
) -> None:
    """N-31: if no node leads for as long as it is asked, the refusal says so, and when to try again."""
    one, other = peers(LEADERLESS, LEADERLESS)
    client = open_client(url=f"{one.url},{other.url}", retry_seconds=0)
    with pytest.raises(Refused) as caught:
        client.claim_job(job)
    assert (caught.value.status, caught.value.code, caught.value.retry_after) == (503, "not_leader", 0.2)


def test_request_waits_for_a_leader(
    open_client: Callable[..., Any], peers: Callable[..., list[Peer]], job: str
) -> None:
    """N-35: they are asked again and again while no node leads, with one key, until one does."""
    one, other = peers(LEADERLESS, LEADERLESS)
    client = open_client(url=f"{one.url},{other.url}", retry_seconds=0.5)
    grants = acquired().body

    def elect() -> None:
        wait_until(lambda: len(one.asked) + len(other.asked) >= 6, seconds_max=SECONDS_MAX)
        other.answer = (200, {}, grants)

    electing = threading.Thread(target=elect)
    electing.start()
    assert client.claim_job(job).lease_id
    electing.join(SECONDS_MAX)
    assert len({*keys(one), *keys(other)}) == 1


def test_wait_polls_sooner_with_several_addresses(open_client: Callable[..., Any]) -> None:
    """What one request may wait, and what its answer may take, is less where others could be asked."""

    def policy_of(url: str, **options: Any) -> Policy:  # noqa: ANN401 - passed on as it is
        client = open_client(url=url, **options)
        policy: Policy = getattr(client, "_inner", client)._policy
        return policy

    one, two, four = (",".join(f"http://127.0.0.1:{port}" for port in range(1, count + 1)) for count in (1, 2, 4))
    assert [(policy_of(url).addresses, policy_of(url).answer_seconds) for url in (one, two, four)] == [
        (1, 10.0),
        (2, 5.0),
        (4, 3.0),
    ]
    assert policy_of(four, answer_seconds=1).answer_seconds == 1.0


# Flows, with a clock of their own: what is made of a server without a leader.


def leaderless(retry_after_ms: int = 200) -> Answer:
    return problem(503, "not_leader", retry_after_ms=retry_after_ms)


def test_retry_pause_follows_the_server() -> None:
    """N-31: between two rounds it rests at least as long as the server said, and not much longer than it must."""
    world = World(scripted(leaderless(), leaderless(5_000), acquired()), random_fraction=0.0)
    world.run(claim("j", ClaimRequest(ttl=60, owner="o"), POLICY))
    assert world.sleeps == [0.2, 1.0]
    assert len(set(world.keys)) == 1


def test_retries_last_until_the_next_leader() -> None:
    """Who would ask again for a second waits longer for a leader; who would not ask again at all does not."""
    short_policy, patient = (msgspec.structs.replace(POLICY, retry_seconds=seconds) for seconds in (0.0, 1.0))
    for policy, at_least, at_most in ((short_policy, 0.0, 0.0), (patient, 4.0, 5.0)):
        world = World(scripted(leaderless()))
        with pytest.raises(Refused, match="No: Because") as caught:
            world.run(claim("j", ClaimRequest(ttl=60, owner="o"), policy))
        assert caught.value.code == "not_leader"
        assert at_least <= sum(world.sleeps) <= at_most


def test_a_node_that_waited_for_a_leader_is_not_asked_to_wait_again() -> None:
    """The time in which a node itself waited for a leader counts: after five seconds of that, it is said."""
    policy = msgspec.structs.replace(POLICY, retry_seconds=1.0)
    world = World(scripted(after(5.04, leaderless())))
    with pytest.raises(Refused):
        world.run(claim("j", ClaimRequest(ttl=60, owner="o"), policy))
    assert len(world.sent) == 1
    world = World(scripted(after(5.04, leaderless()), acquired()))
    world.run(claim("j", ClaimRequest(ttl=60, owner="o"), msgspec.structs.replace(POLICY, retry_seconds=10.0)))
    assert len(world.sent) == 2, "who asks for longer waits longer"


def test_lost_query_reports_the_missing_leader() -> None:
    """A look changes nothing, so a copy of it that was lost keeps nobody from saying why there is no answer."""
    world = World(scripted(Unreachable(URL, "the answer did not come in time"), leaderless()))
    with pytest.raises(Refused) as caught:
        world.run(server_status())
    assert caught.value.code == "not_leader"


def test_lost_copy_is_reported_with_the_missing_leader(
    open_way: Callable[..., EitherTransport], peers: Callable[..., list[Peer]]
) -> None:
    """Where one address is silent and another knows of no leader, the error says both, and where to look."""
    (peer,) = peers(LEADERLESS)
    with silent() as hangs, pytest.raises(Unreachable, match="a node says that none leads right now: `holdfast nodes`"):
        open_way(hangs, peer.url).send("POST", "/x", {}, "k")
    world = World(scripted(Unreachable(URL, "the connection broke"), leaderless()))
    with pytest.raises(Unreachable, match="the connection broke; a node says that none leads right now"):
        world.run(claim("j", ClaimRequest(ttl=60, owner="o"), POLICY))


def test_nothing_happened_requires_every_copy_to_fail() -> None:
    """N-12: a first copy whose answer was lost may have happened, so the end of it is not that nothing did."""
    world = World(scripted(Unreachable(URL, "the connection broke"), leaderless()))
    with pytest.raises(Unreachable, match="the connection broke"):
        world.run(claim("j", ClaimRequest(ttl=60, owner="o"), POLICY))
    unsent = Unreachable(URL, "connection refused", was_sent=False)
    with pytest.raises(Refused):
        World(scripted(unsent, leaderless())).run(claim("j", ClaimRequest(ttl=60, owner="o"), POLICY))


@pytest.mark.parametrize("last", ["not_leader", "storage_unavailable", "overloaded"])
def test_possible_effect_is_not_forgotten(last: str) -> None:
    """N-12: a copy whose outcome the server itself does not know may have happened, whatever is said of a later one."""
    unknown, nothing = problem(503, "outcome_unknown"), problem(503, last, retry_after_ms=200)
    with pytest.raises(Refused) as caught:
        World(scripted(unknown, nothing)).run(claim("j", ClaimRequest(ttl=60, owner="o"), POLICY))
    assert caught.value.code == "outcome_unknown"
    by_proxy = Answer(502, {}, b"<html>Bad Gateway</html>")
    with pytest.raises(Refused) as caught:
        World(scripted(by_proxy, nothing)).run(claim("j", ClaimRequest(ttl=60, owner="o"), POLICY))
    assert caught.value.status == 502
    lost = Unreachable(URL, "the connection broke")
    with pytest.raises(Unreachable, match="the connection broke"):
        World(scripted(lost, nothing)).run(claim("j", ClaimRequest(ttl=60, owner="o"), POLICY))
    for step in (unknown, by_proxy):
        with pytest.raises(Refused) as caught:
            World(scripted(step, nothing)).run(server_status())
        assert caught.value.code == last, "a look changes nothing"


def test_a_renewal_waits_for_a_leader() -> None:
    """T4: a server without a leader is asked again within the term; if none leads till its end, it is out of reach."""
    world = World(scripted(leaderless(), leaderless(), renewed(), STOP))
    deadline = LeaseDeadline("j", 7, world.now(), 60_000)
    world.run(keep_renewed(deadline, Renewal("s", None).request, POLICY))
    assert deadline.loss is not None and deadline.loss.reason == "released", "it was renewed, and given back by another"
    world = World(scripted(leaderless()))
    deadline = LeaseDeadline("j", 7, world.now(), 60_000)
    world.run(keep_renewed(deadline, Renewal("s", None).request, POLICY))
    assert deadline.loss is not None and deadline.loss.reason == "unreachable"


@pytest.mark.parametrize(("addresses", "share"), [(1, 0.5), (2, 0.25), (5, 0.1)])
def test_a_renewal_leaves_time_for_the_other_addresses(addresses: int, share: float) -> None:
    """One try takes a part of the time left, and all addresses together no more than one did alone."""
    world = World(scripted(no_answer))
    deadline = LeaseDeadline("j", 7, world.now(), 6_000)
    left = deadline.left_ms(world.now()) / 1_000
    policy = msgspec.structs.replace(POLICY, addresses=addresses)
    assert world.run(renew_once(deadline, Renewal("s", None).request, policy)) is False
    assert world.sent[0].answer_seconds == pytest.approx(left * share)


def test_a_wait_without_an_end_waits_for_a_leader() -> None:
    """A node without a leader is a server that was met: a wait without an end goes on, and says why."""
    updates: list[QueuePosition] = []
    steps = [leaderless()] * 30 + [acquired()]
    wanted = ClaimRequest(ttl=60, owner="o", wait=math.inf, on_wait=updates.append)
    World(scripted(*steps)).run(claim("j", wanted, POLICY))
    assert {update.away for update in updates} == {"no node leads right now"}


@pytest.mark.parametrize(("addresses", "seconds"), [(1, 50), (2, 15)])
def test_wait_is_shorter_with_several_addresses(addresses: int, seconds: int) -> None:
    """W2: one request waits less if there are other addresses: a silent one is found out before the place lapses."""
    policy = msgspec.structs.replace(POLICY, addresses=addresses)
    world = World(scripted(acquired()))
    world.run(claim("j", ClaimRequest(ttl=60, owner="o", wait=600), policy))
    assert bodies(world.sent)[0]["wait_seconds"] == seconds
