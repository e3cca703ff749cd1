"""What a step costs where many wait for many names: as much as has changed, counted in lines of code that were run."""

import pytest

from holdfast.core import outcomes
from holdfast.core.commands import ClaimAll, EndSession, Leave, OpenSession, Release
from holdfast.core.deadlock import why
from holdfast.core.values import Instant, Limits
from tests.core.bare_core import FAR_MS, Core
from tests.core.crowd import Crowd, release_all
from tests.core.test_queue import STEPS, Walk
from tests.support import proof
from tests.support.commands import acquire, claim_all
from tests.support.steps import count_steps

WALKS = proof.count("line: walks")


def crowded(waiters: int, names: int) -> tuple[Core, tuple[str, ...]]:
    """So many wait for all of so many names, of which all are free but the first and the last."""
    core = Core()
    wanted = tuple(f"n{number:04}" for number in range(names))
    core.hold(wanted[0], wanted[-1])
    for _ in range(waiters):
        assert isinstance(core.ask(core.want_all(wanted)), outcomes.MustWait)
    return core, wanted


def release(name: str) -> Release:
    return Release(name=name, principal="p", lease_id=f"L-{name}")


@pytest.mark.parametrize("names", [50, 400])
def test_release_cost_depends_on_waiters_of_that_name(names: int) -> None:
    """20 wait for all of many names and cannot be met: a release looks at each of them once, and not at what else they
    want (M2)."""
    core, wanted = crowded(20, names)
    steps = core.steps(release(wanted[0]))
    assert steps < 500 + 20 * 10
    assert len(core.state.tickets) == 20


@pytest.mark.parametrize("waiters", [2, 40])
def test_attach_cost_depends_on_names_of_the_ticket(waiters: int) -> None:
    """Who joins many others for the same names pays for its own names alone (M2)."""
    core, wanted = crowded(waiters, 100)
    assert core.steps(core.want_all(wanted)) < 500 + 100 * 80


@pytest.mark.parametrize("waiters", [2, 40])
def test_leave_cost_depends_on_names_of_the_ticket(waiters: int) -> None:
    """Who gives up a place for many names pays for its own names alone (M2, W2)."""
    core, _ = crowded(waiters, 100)
    assert core.steps(Leave(ticket_id="t1", principal="p")) < 500 + 100 * 40


def test_grant_of_all_visits_each_waiter_once_per_name() -> None:
    """The last name of 100 opens and the first of 20 gets them all: each other ticket is told once by each name."""
    core, wanted = crowded(20, 100)
    core.ask(release(wanted[0]))
    steps = core.steps(release(wanted[-1]))
    assert len(core.state.index.held) == 100
    assert steps < 100 * 20 * 3 + 100 * 400


def test_session_end_visits_each_waiter_once_per_name() -> None:
    """A session that holds 100 names ends, and 20 wait for all of them and for one more (I10, M2)."""
    core = Core()
    core.ask(OpenSession(principal="p", session_id="s", ttl_ms=FAR_MS))
    wanted = tuple(f"n{number:04}" for number in range(100))
    core.hold(*wanted, session="s")
    core.hold("more")
    for _ in range(20):
        core.ask(core.want_all((*wanted, "more")))
    steps = core.steps(EndSession(principal="p", session_id="s"))
    assert not [name for name in wanted if core.state.lease_of(name) is not None]
    assert steps < 100 * 20 * 5 + 100 * 400


@pytest.mark.parametrize("others", [5, 200])
def test_retry_cost_ignores_other_tickets_of_the_holder(others: int) -> None:
    """A holder with many places, in a line with many others, finds the one it has at once (W3)."""
    core = Core()
    core.hold("job", *(f"n{number}" for number in range(others)))
    for number in range(others):
        for owner, name in (("x", f"n{number}"), (f"o{number}", "job")):
            core.ask(
                acquire(
                    name=name, principal="p", owner=owner, lease_id=f"M-{name}-{owner}", ttl_ms=FAR_MS,
                    wait_ms=50_000, new_ticket=f"t-{name}-{owner}",
                )
            )  # fmt: skip
    asked = acquire(name="job", principal="p", owner="x", lease_id="M", ttl_ms=FAR_MS, wait_ms=50_000, new_ticket="t")
    assert core.steps(asked) < 500
    assert core.steps(asked) < 500
    assert core.state.tickets["t"].names == ("job",)


@pytest.mark.parametrize("waits", [1, 6])
def test_chain_query_cost_depends_on_links_shown(waits: int) -> None:
    """`why` at a name whose holder waits for thousands of others looks at the first of them."""
    core = Core()
    core.hold("job", owner="me")
    wanted = tuple(f"n{number:04}" for number in range(1_000))
    core.hold("n0000")
    for number in range(waits):
        core.ask(core.want_all(("n0000", *wanted[1 + number :]), owner="me"))
    assert len(core.state.connected.tickets_by_holder["principal", "p", "me"]) == waits
    links = why(core.state, "job").links
    assert [len(link.waits_for) for link in links] == [100, 0]
    assert count_steps(lambda: why(core.state, "job")) < 1_000
    assert count_steps(lambda: why(core.state, "job", "elsewhere/")) < 5_000


class Greedy(Walk):
    """Most want several of few names, so that most are passed over most of the time."""

    def claim(self) -> ClaimAll:
        chance = self.chance
        names = tuple(chance.sample(self.names, chance.randint(1, len(self.names))))
        return claim_all(
            names=names,
            lease_ids=tuple(self.fresh("L") for _ in names),
            **self.who(),
            ttl_ms=chance.choice([1_000, 5_000, 20_000]),
            delay_ms=chance.choice([0, 0, 500, 2_000]),
            redo=chance.random() < 0.2,
            wait_ms=50_000,
            new_ticket=self.fresh("t"),
        )


@pytest.mark.parametrize("block", range(4))
def test_claims_of_all_are_granted_in_order(block: int) -> None:
    """Crowds that want several of the same names, with delays, finished work, absences, ended sessions, revocations and
    restarts: of all who are there and find everything open the one that joined first is met, and nobody who could be
    met waits. The judge looks at every ticket and every name at every step (M2, I12, W1)."""
    for seed in range(block * WALKS // 8, (block + 1) * WALKS // 8):
        walk = Greedy(seed, Limits())
        try:
            for _ in range(STEPS):
                walk.step()
            assert isinstance(walk.crowd, Crowd)
            release_all(walk.crowd)
        except Exception as error:
            raise AssertionError(f"walk {seed}: {error!r}") from error
        assert not walk.crowd.queue


def test_abandoned_tickets_end_in_slices() -> None:
    """After a restart everybody has been away since then. A minute later their places end, not all of them in one turn
    (W2).
    """
    core = Core()
    core.hold("job")
    for _ in range(1_200):
        core.ask(core.want_all(("job",)))
    core.state.detach_all()
    left = []
    for now_ms in range(60_000, 60_004):
        core.now = Instant(now_ms, now_ms)
        core.expire_due()
        left.append(len(core.state.tickets))
    assert left == [700, 200, 0, 0]
