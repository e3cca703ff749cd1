"""A retry of a claim of several names looks up what became of its leases, and searches nothing (C5, M1, M2)."""

import pytest

from holdfast.core import outcomes
from holdfast.core.commands import Release
from holdfast.core.state import State
from tests.core.bare_core import FAR_MS, Core
from tests.support.commands import claim_all, claim_any

ALL = claim_all(
    names=("a", "b", "c"), principal="p", lease_ids=("L-a", "L-b", "L-c"), ttl_ms=FAR_MS, key="k", fingerprint="f"
)
ANY = claim_any(names=("a", "b", "c"), principal="p", lease_id="L-a", ttl_ms=FAR_MS, key="k", fingerprint="f")


def give_back(core: Core, name: str) -> None:
    assert core.ask(Release(name=name, principal="p", lease_id=f"L-{name}")) == outcomes.Released()


@pytest.mark.parametrize("others", [3, 300])
def test_retry_of_claim_all_cost_ignores_other_principals(others: int) -> None:
    """One of its leases has ended, and many others since: the retry is told of its own end at once (C5)."""
    core = Core()
    core.ask(ALL)
    give_back(core, "b")
    for number in range(others):
        core.hold(f"other{number}")
        give_back(core, f"other{number}")
    answer = core.ask(ALL)
    assert isinstance(answer, outcomes.NotCurrent) and answer.ended is not None
    assert (answer.ended.name, answer.ended.end.how) == ("b", "released")
    assert core.steps(ALL) < 300


def test_retry_of_claim_all_reports_each_lease_by_name() -> None:
    """Whichever has ended is told, also after a restart and when another holds the name by now (C5, I15)."""
    for name in ALL.names:
        core = Core()
        core.ask(ALL)
        give_back(core, name)
        core.ask(claim_all(names=(name,), principal="q", lease_ids=("other",), ttl_ms=FAR_MS))
        core.state = State.thaw(core.state.freeze())
        answer = core.ask(ALL)
        assert isinstance(answer, outcomes.NotCurrent) and answer.succeeded and answer.ended is not None
        assert answer.ended.name == name


def test_retry_of_claim_all_returns_its_leases() -> None:
    """While all of them live, the retry gets the same answer, with the same tokens (C5)."""
    core = Core()
    first = core.ask(ALL)
    assert isinstance(first, outcomes.AcquiredMany)
    again = core.ask(ALL)
    assert isinstance(again, outcomes.AcquiredMany)
    assert [claim.lease for _, claim in again.claims] == [claim.lease for _, claim in first.claims]
    assert core.state.memos["p", "k"].lease_ids == ALL.lease_ids


def test_retry_of_claim_any_reports_its_lease() -> None:
    """The one name that it got has ended and another has it: the retry is told how its own lease ended (C5, M1)."""
    core = Core()
    core.hold("x")
    core.ask(ANY)
    give_back(core, "a")
    core.ask(claim_all(names=("a",), principal="q", lease_ids=("other",), ttl_ms=FAR_MS))
    answer = core.ask(ANY)
    assert isinstance(answer, outcomes.NotCurrent) and answer.succeeded and answer.ended is not None
    assert answer.ended.name == "a"
