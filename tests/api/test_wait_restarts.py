"""The line outlives the server: W2, I12, and what a server that stops says to those who wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import callers
from tests.support.api import Api, lock_path
from tests.support.checks import refused, unique
from tests.support.pending import pending, waiters, waiting
from tests.support.server import ServerProcess

Start = Callable[..., ServerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers on one data directory, and ends them."""
    started: list[ServerProcess] = []

    def begin(**settings: object) -> ServerProcess:
        server = ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS)
        started.append(server)
        return server

    yield begin
    for server in started:
        server.kill()


def _pair(server: ServerProcess) -> tuple[Api, Api]:
    return Api.of(server, callers.ALICE), Api.of(server, callers.BOB)


def test_stopping_server_answers_waiters(start: Start) -> None:
    """W2: SIGTERM answers every wait with its ticket at once, and the server does not stay for them."""
    server = start()
    alice, bob = _pair(server)
    alice.acquired("job")
    line = [waiting(bob, "job", owner=f"agent-{number}", wait_seconds=50) for number in range(5)]
    began = time.monotonic()
    assert server.terminate() == 0
    assert time.monotonic() - began < 25
    bodies = [request.json() for request in line]
    assert [body["status"] for body in bodies] == ["waiting"] * 5
    assert bodies[0]["position"] == 1
    for request in line:
        request.close()


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_queue_survives_a_restart(start: Start, how: str) -> None:
    """W2, I12: after SIGTERM and after kill −9 every place is where it was, by ticket and by key."""
    server = start()
    alice, bob = _pair(server)
    lease = alice.acquired("job", ttl_seconds=600)
    keys = [unique("key") for _ in range(4)]
    line = [waiting(bob, "job", owner=f"agent-{number}", key=key, wait_seconds=50) for number, key in enumerate(keys)]
    ticket = bob.acquire("job", owner="last", wait_seconds=0.001).json()["ticket"]
    getattr(server, how)()
    for request in line:
        request.close()
    alice, bob = _pair(start())
    assert alice.status("job").json()["waiting"] == 0
    # They come back in another order, and one does not come back at all.
    last = pending(bob, f"{lock_path('job')}/acquire", {"owner": "last", "ticket": ticket, "wait_seconds": 40})
    back = {}
    for number in (3, 0, 2):
        back[number] = waiting(bob, "job", key=keys[number], owner=f"agent-{number}", wait_seconds=40)
    assert waiters(alice, "job") == 4
    assert alice.renew("job", lease["lease_id"]).status == 200
    alice.release("job", lease["lease_id"])
    for number in (0, 2, 3):
        granted = back[number].json()
        assert (granted["status"], granted["owner"]) == ("acquired", f"agent-{number}")
        assert not last.is_answered()
        bob.release("job", granted["lease_id"])
        back[number].close()
    assert last.json()["status"] == "acquired"
    last.close()


def test_a_grant_survives_kill(start: Start) -> None:
    """I5: a name granted out of the line is its holder's after kill −9, and a retry with its key gets that lease."""
    server = start()
    alice, bob = _pair(server)
    lease = alice.acquired("job")
    request = waiting(bob, "job", owner="ben", key="k", ttl_seconds=600, wait_seconds=40)
    alice.release("job", lease["lease_id"])
    granted = request.json()
    server.kill()
    request.close()
    _, bob = _pair(start())
    again = bob.acquired("job", owner="ben", key="k", ttl_seconds=600, wait_seconds=40)
    assert (again["lease_id"], again["fencing_token"]) == (granted["lease_id"], granted["fencing_token"])


def test_queue_limits(start: Start) -> None:
    """W1: a line and a token's places in lines are bounded: one more is 429, and leaving makes room."""
    alice, bob = _pair(start(queue_max=5, tickets_per_principal_max=5))
    for name in ("a", "b"):
        alice.acquired(name)
    tickets = [bob.acquire("a", owner=f"o-{n}", wait_seconds=0.001).json()["ticket"] for n in range(3)]
    # One token has half of a line, so that there is room for others.
    assert "queue_max" in refused(bob.acquire("a", owner="o-3", wait_seconds=1), 429, "quota_exceeded")["details"]
    others = [alice.acquire("a", owner=f"o-{n}", wait_seconds=0.001).json()["ticket"] for n in range(2)]
    full = refused(alice.acquire("a", owner="o-2", wait_seconds=1), 429, "quota_exceeded")
    assert full["retry_after_ms"] > 0
    alice.leave(others[0])
    # Who has a place in the line comes back to it.
    assert bob.acquire("a", owner="o-0", wait_seconds=0.001).json()["ticket"] == tickets[0]
    for number in range(2):
        assert bob.acquire("b", owner=f"o-{number}", wait_seconds=0.001).json()["status"] == "waiting"
    refused(bob.acquire("b", owner="o-2", wait_seconds=1), 429, "quota_exceeded")
    assert alice.acquire("b", owner="o-2", wait_seconds=0.001).json()["status"] == "waiting"
    bob.leave(tickets[1])
    assert bob.acquire("b", owner="o-9", wait_seconds=0.001).json()["status"] == "waiting"
    refused(bob.claims(all=["a", "b"], owner="x", wait_seconds=1), 429, "quota_exceeded")


def test_a_quota_of_leases_is_judged_at_the_grant(start: Start) -> None:
    """W5: who holds all it may when its turn comes is refused then, and the next one in line is served."""
    alice, bob = _pair(start(leases_per_principal_max=2))
    lease = alice.acquired("job")
    bob.acquired("one")
    full = waiting(bob, "job", owner="ben")
    later = waiting(alice, "job", owner="ana")
    bob.acquired("two")
    alice.release("job", lease["lease_id"])
    refused(full.answer(), 403, "lock_limit_exceeded")
    assert later.json()["owner"] == "ana"
    refused(bob.acquire("job", wait_seconds=1), 403, "lock_limit_exceeded")
    full.close()
    later.close()
