"""Waits that hang together by the thousand: a search for a circle has an end, and what it cannot tell is refused."""

from holdfast.core import outcomes
from holdfast.core.commands import EndSession, OpenSession, Release
from holdfast.core.deadlock import STEPS_SHOWN
from holdfast.core.timers import EDGES_MAX
from tests.core.bare_core import FAR_MS, Core
from tests.support.commands import altered

FAR = tuple(f"far{number:04}" for number in range(1_000))
"""Names of which many are waited for at once."""


def entangled_holders(holders: int) -> tuple[Core, tuple[str, ...]]:
    """So many, each with a token of its own, hold a name and wait for a thousand others. Return those names as well."""
    core = Core()
    core.hold(*FAR)
    near = tuple(f"near{number}" for number in range(holders))
    for name in near:
        core.hold(name, owner=name, principal=name)
        assert isinstance(core.ask(core.want_all(FAR, owner=name, principal=name)), outcomes.MustWait)
    return core, near


def test_wait_in_a_large_graph_is_refused() -> None:
    """One who would wait for eleven that wait for a thousand names each is refused, after ten thousand looks; one who
    would wait for nine of them waits (D1)."""
    core, near = entangled_holders(11)
    assert core.ask(core.want_all(near, owner="me")) == outcomes.DeadlockSearchExceeded(EDGES_MAX)
    assert core.steps(core.want_all(near, owner="me")) < 20 * EDGES_MAX
    assert isinstance(core.ask(core.want_all(near[:9], owner="me")), outcomes.MustWait)


def test_short_cycle_in_a_large_graph_is_reported() -> None:
    """The search goes breadth first: a circle of two is found before ten thousand other waits are looked at (I13)."""
    core, near = entangled_holders(11)
    core.hold("mine", owner="me")
    core.hold("yours", owner="you")
    core.want("mine", "you")
    answer = core.ask(core.want_all(("yours", *near), owner="me"))
    assert answer == outcomes.Deadlock(("me", "yours", "you", "mine"))


def test_ticket_outlives_an_exceeded_search() -> None:
    """Who comes back while too many waits hang together is refused, and has its place when fewer do (W2, D1)."""
    core, near = entangled_holders(10)
    core.hold("last", owner="last")
    claim = core.want_all((*near[:9], "last"), owner="me")
    answer = core.ask(claim)
    assert isinstance(answer, outcomes.MustWait)
    core.state.detach(answer.ticket_id, 0)
    core.ask(core.want_all((near[9], *FAR[1:]), owner="last"))
    again = altered(claim, ticket=answer.ticket_id)
    assert core.ask(again) == outcomes.DeadlockSearchExceeded(EDGES_MAX)
    assert answer.ticket_id in core.state.tickets
    core.state.detach(next(iter(core.state.connected.tickets_by_holder["principal", "p", "last"])), 0)
    assert core.ask(again) == answer


def wait_for_many(core: Core, count: int) -> None:
    """`hub` waits for `job` first and for the names of many; these wait for `job` behind it."""
    spokes = tuple(f"spoke{number:04}" for number in range(count))
    core.want("job", "hub")
    for name in spokes:
        core.hold(name, owner=name)
    assert isinstance(core.ask(core.want_all(spokes, owner="hub")), outcomes.MustWait)
    for name in spokes:
        assert isinstance(core.want("job", name), outcomes.MustWait)


def test_grant_that_closes_many_cycles_ends_the_waits_of_the_new_holder() -> None:
    """A name goes to one who waits for six hundred others, who all wait for that name: some are told of their circle.
    When the budget is spent the new holder's own wait is ended, so that the rest wait on (D1)."""
    core = Core()
    core.hold("job")
    wait_for_many(core, 600)
    steps = core.steps(Release(name="job", principal="p", lease_id="L-job"))
    lease = core.state.lease_of("job")
    assert lease is not None and lease.owner == "hub"
    assert core.notices["t1"] == outcomes.DeadlockSearchExceeded(EDGES_MAX)
    cycles = [notice for notice in core.notices.values() if isinstance(notice, outcomes.Deadlock)]
    assert 0 < len(cycles) < 20
    assert core.state.waiter_count("job") == 600 - len(cycles)
    assert steps < 20 * EDGES_MAX


def test_small_cycle_is_reported_among_many_handovers() -> None:
    """What one handover spent does not take from another of the same record that has little to look at (D1, I13)."""
    core = Core()
    core.ask(OpenSession(principal="p", session_id="s", ttl_ms=FAR_MS))
    core.hold("job", "small", session="s")
    wait_for_many(core, 600)
    core.hold("mine", owner="me")
    core.want("small", "you")
    core.want("mine", "you")
    core.want("small", "me")
    core.ask(EndSession(principal="p", session_id="s"))
    assert core.notices["t1"] == outcomes.DeadlockSearchExceeded(EDGES_MAX)
    assert core.notices["t-me-small"] == outcomes.Deadlock(("me", "small", "you", "mine"))
    assert "t-you-mine" in core.state.tickets


def test_path_of_a_long_cycle_omits_the_middle() -> None:
    """A circle of three hundred holders is told with both its ends, and says how much is left out (D1)."""
    core = Core()
    count = 300
    for number in range(count):
        core.hold(f"n{number}", owner=f"o{number}")
    for number in range(count - 1):
        core.want(f"n{number + 1}", f"o{number}")
    answer = core.want("n0", f"o{count - 1}")
    assert isinstance(answer, outcomes.Deadlock)
    path = answer.path
    assert path[:4] == ("o299", "n0", "o0", "n1")
    assert path[-2:] == ("o298", "n299")
    assert path[STEPS_SHOWN : STEPS_SHOWN + 2] == ("…", "500 steps left out")
    assert len(path) == 2 * STEPS_SHOWN + 2
