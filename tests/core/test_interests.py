"""Interests are shared out: whoever leaves many loses its own, and nobody else's (D3, decision 0036)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.core import connected_waiters, outcomes
from holdfast.core.commands import OpenSession
from holdfast.core.values import INTERESTS_OF_HOLDER_MAX
from tests.core.bare_core import FAR_MS, Core
from tests.core.crowd import check_queues
from tests.support.commands import acquire, altered

if TYPE_CHECKING:
    from types import FrameType

MOST = 100


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connected_waiters, "INTERESTS_MAX", MOST)


def ask(core: Core, name: str, principal: str, owner: str, session: str | None = None) -> object:
    """Ask for a name without waiting, as `rlock` does."""
    core.made += 1
    asked = acquire(name=name, principal=principal, owner=owner, lease_id=f"L{core.made}", ttl_ms=FAR_MS, interest=True)
    return core.ask(asked if session is None else altered(asked, session=session, bound=True))


def make_cycle(core: Core, principal: str, session: str | None = None) -> None:
    """Two of a principal hold a name each, and the first wants what the second has."""
    for owner in ("x", "y"):
        ask(core, f"{principal}-{owner}", principal, owner, session)
    assert isinstance(ask(core, f"{principal}-y", principal, "x", session), outcomes.Held)


def reports_cycle(core: Core, principal: str, session: str | None = None) -> bool:
    return isinstance(ask(core, f"{principal}-x", principal, "y", session), outcomes.Deadlock)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("owners", [1, 30], ids=["one owner", "many owners"])
def test_interests_of_other_principals_survive_eviction(owners: int) -> None:
    """D3: a principal that wants everything that others hold loses its own oldest, and ben's circle is told."""
    core = Core()
    for number in range(400):
        ask(core, f"job-{number}", "holder", "h")
    make_cycle(core, "ben")
    for number in range(400):
        ask(core, f"job-{number}", "ana", f"a{number % owners}")
    ledger = core.state.connected.interest_usage
    assert ledger.weight <= MOST and ledger.principal_usage("ben").weight == 1
    assert reports_cycle(core, "ben")
    check_queues(core.state)


@pytest.mark.usefixtures("few")
def test_interests_of_sibling_runs_survive_eviction() -> None:
    """D3: inside a principal the sessions have their shares too."""
    core = Core()
    for session in ("s1", "s2"):
        core.ask(OpenSession(principal="ben", session_id=session, ttl_ms=3_600_000))
    for number in range(400):
        ask(core, f"job-{number}", "holder", "h")
    make_cycle(core, "ben", "s1")
    for number in range(400):
        ask(core, f"job-{number}", "ben", f"a{number % 30}", "s2")
    assert core.state.connected.interest_usage.weight <= MOST
    assert reports_cycle(core, "ben", "s1")
    check_queues(core.state)


def test_interests_of_one_holder_are_bounded() -> None:
    """D3: all that a holder wants is dropped when it gives anything back, so that is bounded: the oldest go."""
    core = Core()
    more = INTERESTS_OF_HOLDER_MAX + 10
    for number in range(more):
        core.state.connected.add_interest(("principal", "ana", "x"), f"job-{number}", "ana", 0, 60_000)
    names = list(core.state.connected.interests["principal", "ana", "x"])
    assert names == [f"job-{number}" for number in range(10, more)]
    check_queues(core.state)


@pytest.mark.usefixtures("few")
def test_adding_an_interest_runs_in_constant_time() -> None:
    """D3: what goes goes a few at a time; no request pays for all that others left and that has faded."""
    dropped = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal dropped
        dropped += event == "call" and frame.f_code is connected_waiters.ConnectedWaiters.drop_interest.__code__

    waiters = connected_waiters.ConnectedWaiters()
    for number in range(MOST):
        waiters.add_interest(("principal", "ana", f"o{number}"), "job", "ana", 0, 60_000)
    sys.setprofile(count)
    waiters.add_interest(("principal", "ben", "x"), "job", "ben", 60_000, 120_000)
    sys.setprofile(None)
    assert dropped <= 5, "one of its own, two that have faded, and what is too many"
    assert ("principal", "ben", "x") in waiters.interests
