"""Possible deadlocks of runs that ask and do not wait: told when there is a circle, and never otherwise (D3)."""

from __future__ import annotations

import pytest

from tests.support.api import Api
from tests.support.checks import refused, wait_until
from tests.support.gateway import Run, answered, locked, resource
from tests.support.pending import waiting


@pytest.fixture
def ana(alice: Api) -> Run:
    """A run."""
    return Run(alice, "ana")


@pytest.fixture
def ben(bob: Api) -> Run:
    """Another run."""
    return Run(bob, "ben")


@pytest.fixture
def cem(alice: Api) -> Run:
    """A third run."""
    return Run(alice, "cem")


def expect_deadlock(run: Run, key: str) -> list[str]:
    """The run is told of a circle. Returns it."""
    answer = run.rlock(key)
    body = answer.json()
    assert answer.status == 409 and set(body) == {"ok", "reason", "deadlock", "cycle"}, answer
    assert (body["ok"], body["deadlock"]) == (False, True)
    cycle: list[str] = body["cycle"]
    assert body["reason"] == "possible deadlock: " + " → ".join([*cycle, cycle[0]])
    return cycle


def plain(run: Run, key: str, holder: Run) -> None:
    """The run is told who holds it, and of no circle."""
    answer = run.rlock(key)
    body = answer.json()
    assert answer.status == 409 and set(body) == {"ok", "holder", "heldSince"}, answer
    assert body["holder"] == holder.name


def test_deadlock_is_reported_to_the_last_requester(ana: Run, ben: Run) -> None:
    """D3: the first refusal is plain; the one that closes the circle has the path, and so has every later one."""
    x, y = resource(), resource()
    locked(ana, x)
    locked(ben, y)
    plain(ben, x, ana)
    assert expect_deadlock(ana, y) == [ana.name, y, ben.name, x]
    assert expect_deadlock(ana, y) == [ana.name, y, ben.name, x]
    assert expect_deadlock(ben, x) == [ben.name, x, ana.name, y]
    assert ana.has(x) and ben.has(y), "nothing is taken away"


def test_deadlock_of_three_runs(ana: Run, ben: Run, cem: Run) -> None:
    """D3: circles of any length are found, and told from the requester's point of view."""
    x, y, z = resource(), resource(), resource()
    for run, key in ((ana, x), (ben, y), (cem, z)):
        locked(run, key)
    plain(ana, y, ben)
    plain(ben, z, cem)
    assert expect_deadlock(cem, x) == [cem.name, x, ana.name, y, ben.name, z]


def test_deadlock_excludes_outside_runs(ana: Run, ben: Run, cem: Run) -> None:
    """D2: who waits behind a circle, or holds nothing, closes none."""
    x, y = resource(), resource()
    locked(ana, x)
    locked(ben, y)
    plain(ana, y, ben)
    expect_deadlock(ben, x)
    plain(cem, x, ana)
    locked(cem, resource())
    plain(cem, y, ben)


def test_a_release_of_anything_drops_the_interests(ana: Run, ben: Run) -> None:
    """D3: who gives something back has moved on, so what it was refused before is no wait any more."""
    x, y, z = resource(), resource(), resource()
    locked(ana, x)
    locked(ana, z)
    locked(ben, y)
    plain(ana, y, ben)
    assert ana.runlock(z).status == 200
    plain(ben, x, ana)


def test_an_interest_ends_with_what_it_was_in(ana: Run, ben: Run, cem: Run) -> None:
    """D3: who got the resource no longer waits for it, also when it loses it again."""
    x, y = resource(), resource()
    locked(ana, x)
    locked(ben, y)
    plain(ana, y, ben)
    assert ben.runlock(y).status == 200
    locked(ana, y, ttl=0.05)
    wait_until(lambda: not ana.has(y))
    locked(cem, y)
    plain(cem, x, ana)


def test_a_success_elsewhere_keeps_the_interests(ana: Run, ben: Run) -> None:
    """D2: taking another resource, or one's own again, does not hide that a run waits."""
    x, y = resource(), resource()
    locked(ana, x)
    locked(ben, y)
    plain(ana, y, ben)
    locked(ana, resource())
    locked(ana, x)
    assert ana.heartbeat(x).status == 200
    assert expect_deadlock(ben, x) == [ben.name, x, ana.name, y]


def test_a_run_may_want_two_resources(ana: Run, ben: Run, cem: Run) -> None:
    """D2: a run that asks for two in turn waits for both: neither circle is missed."""
    x, y, z = resource(), resource(), resource()
    locked(ana, x)
    locked(ben, y)
    locked(cem, z)
    plain(ana, y, ben)
    plain(ana, z, cem)
    assert expect_deadlock(ben, x) == [ben.name, x, ana.name, y]
    assert expect_deadlock(cem, x) == [cem.name, x, ana.name, z]


def test_a_dead_run_in_the_middle_closes_nothing(ana: Run, ben: Run, cem: Run) -> None:
    """D2: a run that has ended neither holds nor wants anything."""
    x, y, z = resource(), resource(), resource()
    for run, key in ((ana, x), (ben, y), (cem, z)):
        locked(run, key)
    plain(ana, y, ben)
    plain(ben, z, cem)
    ben.end()
    plain(cem, x, ana)
    locked(ana, y)


def test_an_expired_lock_in_the_middle_closes_nothing(ana: Run, ben: Run) -> None:
    """D2: what has expired is held by nobody."""
    x, y = resource(), resource()
    locked(ana, x)
    locked(ben, y, ttl=0.05)
    ana.rlock(y)
    wait_until(lambda: not ben.has(y))
    plain(ben, x, ana)


def test_interests_count_only_against_the_gateway(ana: Run, ben: Run, bob: Api) -> None:
    """D3: a true wait is never refused because somebody only asked; a wait counts against one who asks."""
    x, y = resource(), resource()
    locked(ana, x)
    locked(ben, y)
    plain(ana, y, ben)
    secret = Api(bob.host, bob.port, ben.secret)
    with waiting(secret, x, owner=ben.name) as wait:
        assert expect_deadlock(ana, y) == [ana.name, y, ben.name, x]
        assert ana.runlock(x).status == 200
        assert wait.json()["status"] == "acquired"
    refused(bob.release(x, "00000000-0000-4000-8000-000000000000"), 400, "lease_not_current")
    answered(ana.runlock(x), 409, {"ok": False, "reason": f"held by {ben.name}"})
