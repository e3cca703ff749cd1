"""Deadlocks over the wire: a wait that would never end is refused at once, and no other is (D1, D2)."""

from __future__ import annotations

import time

import pytest

from tests.support.api import Api
from tests.support.checks import refused, unique, wait_until
from tests.support.pending import Pending, waiters, waiting


def _owners(count: int) -> list[str]:
    return [f"agent-{number}" for number in range(count)]


class Ring:
    """Holders that each hold one name, and wait for the next one's; all but the last already do."""

    def __init__(self, api: Api, size: int) -> None:
        stem = unique("ring")
        self.api = api
        self.names = [f"{stem}-{number}" for number in range(size)]
        self.owners = _owners(size)
        self.leases = [
            api.acquired(name, owner=owner, ttl_seconds=600)["lease_id"]
            for name, owner in zip(self.names, self.owners, strict=True)
        ]
        self.waits: list[Pending] = [
            waiting(api, self.names[number + 1], owner=self.owners[number]) for number in range(size - 1)
        ]

    def close(self) -> None:
        for request in self.waits:
            request.close()


@pytest.mark.parametrize("size", [2, 3, 4])
def test_deadlock_is_refused_immediately(alice: Api, size: int) -> None:
    """D1: the wait that closes a circle of two, three or four is 409 `deadlock` at once, with the path; after a
    release everybody else proceeds.
    """
    ring = Ring(alice, size)
    began = time.monotonic()
    answer = alice.acquire(ring.names[0], owner=ring.owners[-1], wait_seconds=50)
    assert time.monotonic() - began < 25
    body = refused(answer, 409, "deadlock")
    expected = [ring.owners[-1], ring.names[0]]
    for number in range(size - 1):
        expected += [ring.owners[number], ring.names[number + 1]]
    assert body["cycle"] == expected
    assert "retry_after_ms" not in body
    assert all(name in body["details"] for name in ring.names)
    assert waiters(alice, ring.names[0]) == 0
    # The refused one gives up what it holds; then each gets what it waited for, does its work and gives both back.
    alice.release(ring.names[-1], ring.leases[-1])
    for number in reversed(range(size - 1)):
        granted = ring.waits[number].json()
        assert (granted["status"], granted["owner"]) == ("acquired", ring.owners[number])
        alice.release(ring.names[number + 1], granted["lease_id"])
        alice.release(ring.names[number], ring.leases[number])
    assert all(alice.status(name).json()["status"] == "free" for name in ring.names)
    ring.close()


@pytest.mark.parametrize("released", [0, 1, 2])
def test_any_release_resolves_the_deadlock(alice: Api, released: int) -> None:
    """D2: once any lease of the would-be circle is given back, the same wait is no deadlock any more."""
    ring = Ring(alice, 3)
    refused(alice.acquire(ring.names[0], owner=ring.owners[2], wait_seconds=50), 409, "deadlock")
    alice.release(ring.names[released], ring.leases[released])
    body = alice.acquire(ring.names[0], owner=ring.owners[2], wait_seconds=0.01).json()
    assert body["status"] == ("acquired" if released == 0 else "waiting")
    ring.close()


def test_waiting_for_own_lease_is_a_deadlock(alice: Api, name: str) -> None:
    """D1a: a holder that waits for what it holds itself is refused, and told whose lease that is and since when."""
    alice.acquired(name, owner="ana")
    since = alice.held(name, owner="ben")["claimed_at"]
    for answer in (
        alice.acquire(name, owner="ana", wait_seconds=10),
        alice.claims(all=[unique("free"), name], owner="ana", wait_seconds=10),
    ):
        body = refused(answer, 409, "deadlock")
        assert body["cycle"] == ["ana", name]
        assert (body["owner"], body["same_owner"], body["claimed_at"]) == ("ana", True, since)
        assert f"ana holds {name} itself since {since}" in body["details"]
        assert "resume: true" in body["details"] and "an owner of its own" in body["details"]
    assert alice.acquire(name, owner="ana", resume=True, wait_seconds=10).json()["reacquired"]


def test_waiting_for_own_session_is_a_deadlock(alice: Api, name: str) -> None:
    """D1a: so with a session's secret and no owner: it is the session that holds it, and `resume` gives it back."""
    session = alice.new_session(name="nightly")
    run = Api(alice.host, alice.port, session["session_secret"])
    lease = run.acquired(name)["lease_id"]
    body = refused(run.acquire(name, wait_seconds=10), 409, "deadlock")
    assert body["cycle"] == ["nightly", name] and body["owner"] is None
    assert body["details"].startswith(f"nightly holds {name} itself since {body['claimed_at']}")
    assert run.acquire(name, resume=True, wait_seconds=10).json()["lease_id"] == lease


def test_longer_deadlock_names_no_own_lease(alice: Api) -> None:
    """D1a: what is said of one's own lease is said of a circle of one alone."""
    ring = Ring(alice, 2)
    body = refused(alice.acquire(ring.names[0], owner=ring.owners[1], wait_seconds=50), 409, "deadlock")
    assert {"owner", "same_owner", "claimed_at"}.isdisjoint(body)
    ring.close()


def test_a_plain_try_is_never_a_deadlock(alice: Api) -> None:
    """D1: who does not wait cannot wait forever: the answer is `held`."""
    ring = Ring(alice, 2)
    alice.held(ring.names[0], owner=ring.owners[1])
    ring.close()


def test_no_deadlock_for_disconnected_waiter(alice: Api) -> None:
    """D2: a ticket whose holder is not there has no edge; who comes back to a circle is refused and loses the place."""
    ring = Ring(alice, 2)
    ring.waits[0].close()
    wait_until(lambda: waiters(alice, ring.names[1]) == 0)
    second = waiting(alice, ring.names[0], owner=ring.owners[1])
    refused(alice.acquire(ring.names[1], owner=ring.owners[0], wait_seconds=10), 409, "deadlock")
    assert not second.is_answered()
    alice.release(ring.names[0], ring.leases[0])
    assert second.json()["status"] == "acquired"
    second.close()


def test_no_deadlock_for_ended_lease(alice: Api) -> None:
    """D2: a circle through a lease that ran out is none; it is granted instead."""
    stem = unique()
    a, b = f"{stem}-a", f"{stem}-b"
    lease = alice.acquired(a, owner="ana", ttl_seconds=60)
    alice.acquired(b, owner="ben", ttl_seconds=60)
    first = waiting(alice, b, owner="ana")
    refused(alice.acquire(a, owner="ben", wait_seconds=1), 409, "deadlock")
    assert alice.renew(a, lease["lease_id"], ttl_seconds=1).status == 200
    wait_until(lambda: alice.status(a).json()["status"] == "free")
    alice.acquired(a, owner="ben", wait_seconds=10)
    first.close()


def test_no_deadlock_for_ended_session(alice: Api) -> None:
    """D2: the end of a session inside the circle takes its leases and its waits out of the graph."""
    stem = unique()
    a, b = f"{stem}-a", f"{stem}-b"
    session = alice.new_session()["session_id"]
    alice.acquired(a, owner="ana", session_id=session, ephemeral=True)
    alice.acquired(b, owner="ben")
    first = waiting(alice, b, owner="ana", session_id=session, ephemeral=True)
    refused(alice.acquire(a, owner="ben", wait_seconds=1), 409, "deadlock")
    alice.end_session(session)
    assert alice.acquired(a, owner="ben", wait_seconds=1)["waited_ms"] == 0
    assert first.answer().status == 404
    first.close()


def test_same_names_of_other_principals_are_others(alice: Api, bob: Api) -> None:
    """D2: `ana` of one token and `ana` of another are two holders; so are two sessions with one owner."""
    stem = unique()
    a, b = f"{stem}-a", f"{stem}-b"
    alice.acquired(a, owner="ana")
    alice.acquired(b, owner="ben")
    first = waiting(bob, b, owner="ana")
    assert alice.acquire(a, owner="ben", wait_seconds=0.01).json()["status"] == "waiting"
    session = alice.new_session()["session_id"]
    second = waiting(alice, b, owner="ana", session_id=session, ephemeral=True)
    assert alice.acquire(a, owner="ben", wait_seconds=0.01).json()["status"] == "waiting"
    first.close()
    second.close()


def test_claims_without_an_owner_are_each_alone(alice: Api) -> None:
    """D2: a claim without an owner is its own holder, so it cannot be in any circle."""
    stem = unique()
    a, b = f"{stem}-a", f"{stem}-b"
    alice.acquired(a)
    alice.acquired(b)
    first = waiting(alice, b)
    assert alice.acquire(a, wait_seconds=0.01).json()["status"] == "waiting"
    first.close()


def test_deadlock_closed_by_a_grant(alice: Api, bob: Api) -> None:
    """D1: when a grant hands a name to a holder that waits elsewhere, the wait that closes the circle is answered."""
    stem = unique()
    a, b = f"{stem}-a", f"{stem}-b"
    lease = bob.acquired(a, owner="zoe")
    ben_b = alice.acquired(b, owner="ben")
    ana_a = waiting(alice, a, owner="ana")
    ben_a = waiting(alice, a, owner="ben")
    ana_b = waiting(alice, b, owner="ana")
    bob.release(a, lease["lease_id"])
    granted = ana_a.json()
    assert (granted["status"], granted["owner"]) == ("acquired", "ana")
    body = refused(ben_a.answer(), 409, "deadlock")
    assert body["cycle"] == ["ben", a, "ana", b]
    assert not ana_b.is_answered()
    alice.release(b, ben_b["lease_id"])
    assert ana_b.json()["status"] == "acquired"
    for request in (ana_a, ben_a, ana_b):
        request.close()


def test_deadlock_closed_by_a_transfer(alice: Api) -> None:
    """D1: the same when a transfer hands the name over."""
    stem = unique()
    a, b = f"{stem}-a", f"{stem}-b"
    lease = alice.acquired(a, owner="zoe")
    alice.acquired(b, owner="ben")
    ana_b = waiting(alice, b, owner="ana")
    ben_a = waiting(alice, a, owner="ben")
    assert alice.transfer(a, lease["lease_id"], to_owner="ana").status == 200
    refused(ben_a.answer(), 409, "deadlock")
    assert not ana_b.is_answered()
    ana_b.close()
    ben_a.close()


def test_a_holder_that_waits_for_several_names(alice: Api) -> None:
    """D2: a circle through the second of two waits of one holder is found."""
    stem = unique()
    names = [f"{stem}-{number}" for number in range(3)]
    for name, owner in zip(names, ("ana", "ben", "cara"), strict=True):
        alice.acquired(name, owner=owner)
    first = waiting(alice, names[1], owner="ana")
    second = waiting(alice, names[2], owner="ana")
    body = refused(alice.acquire(names[0], owner="cara", wait_seconds=10), 409, "deadlock")
    assert body["cycle"] == ["cara", names[0], "ana", names[2]]
    first.close()
    second.close()


def test_a_claim_of_all_waits_for_every_holder(alice: Api) -> None:
    """M2, D1: a claim of all has an edge to every holder in its way; closing a circle through any is refused."""
    stem = unique()
    names = [f"{stem}-{number}" for number in range(4)]
    for name, owner in zip(names, ("ana", "ben", "cara", "ana"), strict=True):
        alice.acquired(name, owner=owner)
    ben = waiting(alice, names[3], owner="ben")
    body = refused(alice.claims(all=names[1:3], owner="ana", wait_seconds=10), 409, "deadlock")
    assert body["cycle"] == ["ana", names[1], "ben", names[3]]
    ben.close()


def test_no_lease_id_in_a_refusal(alice: Api) -> None:
    """C2, D1: the path names people and jobs, never a lease id."""
    ring = Ring(alice, 3)
    answer = alice.acquire(ring.names[0], owner=ring.owners[-1], wait_seconds=50)
    assert answer.status == 409
    assert not any(lease in answer.text for lease in ring.leases)
    ring.close()
