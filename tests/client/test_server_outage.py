"""A server that goes away while somebody waits in line: the wait goes on, and comes back to its place."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.answers import Answer
from holdfast.client.claim_flows import claim, claim_all, claim_any
from holdfast.client.effects import Policy, Send
from holdfast.client.options import ClaimRequest
from holdfast.client.records import QueuePosition
from holdfast.errors import HoldfastError, NotAllowed, Refused, Unreachable
from tests.client.both import KINDS, Both
from tests.client.driving import (
    BROKEN,
    POLICY,
    TICKET,
    URL,
    Network,
    World,
    acquired,
    after,
    bodies,
    lock,
    no_answer,
    problem,
    scripted,
    waiting,
)
from tests.client.test_claims import many, none_free
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import wait_until
from tests.support.server import ServerProcess, serving

SECONDS_MAX = 30.0


def wanted(wait: float, **fields: Any) -> ClaimRequest:  # noqa: ANN401 - passed on as it is
    return ClaimRequest(ttl=60, owner="o", wait=wait, **fields)


def absent(network: Network, *, begins: float, lasts: float, why: Exception | Answer | Network = BROKEN) -> Network:
    """A network whose server is away for a while, counted from the first request."""
    first: list[int] = []

    def passed(world: World) -> float:
        first.append(world.now().boot_ms)
        return (world.now().boot_ms - first[0]) / 1_000

    def network_with_absence(world: World, request: Send) -> Answer:
        if begins <= passed(world) < begins + lasts:
            return scripted(why)(world, request)
        return network(world, request)

    return network_with_absence


def line(granted_after: float) -> Network:
    """A server where a wait takes as long as it asks for, until the job is free."""
    first: list[int] = []

    def network(world: World, request: Send) -> Answer:
        if request.method != "POST":
            return lock()
        first.append(world.now().boot_ms)
        asked = bodies([request])[0].get("wait_seconds", 0)
        left = granted_after - (world.now().boot_ms - first[0]) / 1_000
        world.advance(max(0.0, min(asked, left)))
        return acquired() if left <= asked else waiting(3)

    return network


@pytest.mark.parametrize("why", [BROKEN, problem(503, "storage_unavailable"), problem(502, "bad_gateway")])
def test_wait_outlives_an_absence(why: Exception | Answer) -> None:
    """W2: within its wait a client asks again for as long as it takes, with the same key and the same ticket."""
    world = World(absent(line(70), begins=10, lasts=40, why=why))
    got = world.run(claim("j", wanted(80, on_wait=lambda _: None), POLICY))
    assert got.claim.fencing_token == 7
    claims = [request for request in world.sent if request.method == "POST"]
    assert {request.key for request in claims} == {"key-1"}
    assert {body["ticket"] for body in bodies(claims)[1:]} == {TICKET}


def test_on_wait_reports_the_absence() -> None:
    """`on_wait` hears why the server does not answer, and its place again soon after it is back."""
    updates: list[QueuePosition] = []
    world = World(absent(line(70), begins=10, lasts=30))
    world.run(claim("j", wanted(80, on_wait=updates.append), POLICY))
    away = [update for update in updates if update.away is not None]
    assert {update.away for update in away} == {"connection refused"}
    assert {update.position for update in away} == {3}, "the last place that it heard of"
    first_back = next(update for update in updates if update.away is None and update.waited > away[-1].waited)
    assert first_back.position == 3 and first_back.waited - away[-1].waited < 3


def test_on_wait_reports_the_servers_answer() -> None:
    """A server that is there and cannot grant anything, for its disk is full, says so in its own words."""
    updates: list[QueuePosition] = []
    world = World(absent(line(70), begins=10, lasts=30, why=problem(503, "storage_unavailable")))
    world.run(claim("j", wanted(80, on_wait=updates.append), POLICY))
    assert {update.away for update in updates} - {None} == {"it answers 503: Because."}


def test_server_that_hangs_is_away_too() -> None:
    """A server that takes requests and does not answer them is away as well, and said to be."""
    updates: list[QueuePosition] = []
    world = World(absent(line(200), begins=10, lasts=90, why=no_answer))
    world.run(claim("j", wanted(300, on_wait=updates.append), POLICY))
    assert {update.away for update in updates} == {None, "the answer did not come in time"}
    with pytest.raises(Unreachable):
        World(no_answer).run(claim("j", wanted(math.inf), POLICY))


def test_on_wait_does_not_report_a_blip() -> None:
    """An absence of less than a second is nothing that anybody has to hear of."""
    updates: list[QueuePosition] = []
    world = World(absent(line(30), begins=10, lasts=0.5))
    world.run(claim("j", wanted(80, on_wait=updates.append), POLICY))
    assert [update for update in updates if update.away is not None] == []


def test_absence_without_on_wait_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Without `on_wait` a warning says that the server is away, once, and another that it is back."""
    with caplog.at_level(logging.INFO, "holdfast.client"):
        World(absent(line(130), begins=40, lasts=40)).run(claim("j", wanted(200), POLICY))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and "away (connection refused)" in said[0] and "back" in said[1]


def test_absence_beyond_the_wait() -> None:
    """A server that is away when the wait is over is `Unreachable`, then and not before."""
    world = World(absent(line(900), begins=10, lasts=900))
    before = world.now()
    with pytest.raises(Unreachable):
        world.run(claim("j", wanted(80), POLICY))
    assert 75_000 < world.now().boot_ms - before.boot_ms <= 80_000


def test_absence_from_the_start() -> None:
    """A wait with an end is used to its end, also for a server that was away when it began."""
    world = World(absent(line(5), begins=0, lasts=40))
    world.run(claim("j", wanted(80), POLICY))
    assert set(world.keys) == {"key-1"}


def test_without_a_wait_as_ever() -> None:
    """Without a wait a server that does not answer is asked for `retry_seconds`."""
    world = World(scripted(BROKEN))
    with pytest.raises(Unreachable):
        world.run(claim("j", wanted(0), POLICY))
    assert sum(world.sleeps) <= POLICY.retry_seconds


def test_wait_without_end_needs_a_server() -> None:
    """A wait without end goes on through any absence, but a server that never answered is given up: a wrong address."""
    world = World(scripted(BROKEN))
    with pytest.raises(Unreachable):
        world.run(claim("j", wanted(math.inf), POLICY))
    assert sum(world.sleeps) <= POLICY.retry_seconds
    day = 86_400
    world = World(absent(line(2 * day), begins=60, lasts=3_600))
    assert world.run(claim("j", wanted(math.inf), POLICY)).claim.fencing_token == 7
    world = World(absent(line(60), begins=0.2, lasts=60))
    assert world.run(claim("j", wanted(math.inf), POLICY)).claim.fencing_token == 7, "away in its very first wait"


@pytest.mark.parametrize("refusal", [problem(401, "authentication_failed"), problem(403, "forbidden")])
def test_refused_for_good(refusal: Answer) -> None:
    """A server that comes back and refuses for good ends the wait."""
    world = World(scripted(after(50, waiting()), BROKEN, BROKEN, refusal))
    with pytest.raises(NotAllowed):
        world.run(claim("j", wanted(600), POLICY))
    with pytest.raises(Refused):
        World(scripted(after(50, waiting()), BROKEN, problem(400, "invalid"))).run(claim("j", wanted(600), POLICY))


def test_token_that_stays_unknown() -> None:
    """A token from a file that nobody replaces is refused after a while, however long the wait is."""
    world = World(scripted(after(50, waiting()), problem(401, "authentication_failed")))
    before = world.now()
    with pytest.raises(NotAllowed):
        world.run(claim("j", wanted(6_000), Policy(URL, token_file="f")))
    assert world.now().boot_ms - before.boot_ms < 70_000


def test_lost_ticket_rejoins_the_queue() -> None:
    """W2: who comes back too late joins the line anew, for the rest of the wait, and is told so."""
    updates: list[QueuePosition] = []
    gone = problem(404, "ticket_gone")
    back = scripted(waiting(1), lock(), *[after(2, BROKEN)] * 40, gone, after(0.1, waiting(5)), lock(), acquired())
    world = World(back)
    world.run(claim("j", wanted(600, on_wait=updates.append), POLICY))
    assert [update.rejoined for update in updates if update.away is None] == [0, 1]
    assert world.keys[-1] == "key-2"
    assert bodies(world.sent)[-1]["wait_seconds"] <= 5


def test_claim_all_and_any_go_on() -> None:
    """M1, M2: the same for several jobs, whether there is a line for them or not."""
    world = World(absent(scripted(after(50, waiting()), many("a", "b")), begins=50, lasts=60))
    assert len(world.run(claim_all(["a", "b"], wanted(600), POLICY))) == 2
    updates: list[QueuePosition] = []
    world = World(absent(scripted(*[none_free("a")] * 5, many("a")), begins=0.5, lasts=60))
    world.run(claim_any(["a"], wanted(600, on_wait=updates.append), POLICY))
    assert {(update.position, update.away) for update in updates} == {(0, None), (0, "connection refused")}


@pytest.mark.parametrize("kind", [HoldfastError, RuntimeError])
@pytest.mark.parametrize("is_any", [False, True])
def test_on_wait_may_end_the_wait(kind: type[Exception], *, is_any: bool) -> None:
    """What `on_wait` raises comes out as it is, also while the server is away."""

    def stop(update: QueuePosition) -> None:
        if update.away is not None or is_any:
            raise kind("enough")

    network = absent(scripted(none_free("a")) if is_any else line(500), begins=3, lasts=600)
    flow = (claim_any(["a"], wanted(60, on_wait=stop), POLICY)) if is_any else None
    with pytest.raises(kind, match="enough"):
        World(network).run(flow or claim("j", wanted(60, on_wait=stop), POLICY))


@pytest.fixture
def server_of_one_s_own(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that the test may kill."""
    with serving(tmp_path / "data", tokens=callers.TOKENS) as process:
        yield process


@pytest.mark.parametrize("kind", KINDS)
def test_ticket_survives_a_killed_server(
    kind: str, server_of_one_s_own: ServerProcess, nowhere: dict[str, str], job: str
) -> None:
    """W2: a server that is killed and comes back late: both who wait are served, in the order in which they came."""
    server = server_of_one_s_own
    both = Both(kind)
    holder = Api.of(server, callers.BOB)
    lease_id = holder.acquired(job, owner="ben", ttl_seconds=600)["lease_id"]
    is_away = [threading.Event(), threading.Event()]
    served: list[int] = []

    def wait_in_line(number: int) -> None:
        client = both.client(url=server.url, token=callers.ALICE, environment=nowhere, retry_seconds=0.2)
        with client.claim(job, owner=f"w{number}", wait=60, on_wait=on_update(number)):
            served.append(number)

    def on_update(number: int) -> Callable[[QueuePosition], None]:
        return lambda update: is_away[number].set() if update.away else None

    threads = [threading.Thread(target=wait_in_line, args=(number,)) for number in range(2)]
    for number, thread in enumerate(threads):
        thread.start()
        wait_until(lambda number=number: waiting_now(server, job) == number + 1, seconds_max=SECONDS_MAX)  # type: ignore[misc]
    server.kill()
    assert all(each.wait(SECONDS_MAX) for each in is_away)
    with server.restart() as again:
        wait_until(lambda: waiting_now(again, job) == 2, seconds_max=SECONDS_MAX)
        Api.of(again, callers.BOB).release(job, lease_id)
        for thread in threads:
            thread.join(SECONDS_MAX)
    both.close()
    assert served == [0, 1]


def waiting_now(server: ServerProcess, job: str) -> int:
    return int(Api.of(server, callers.BOB).status(job).json()["waiting"])
