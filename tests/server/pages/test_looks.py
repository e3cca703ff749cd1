"""What a job's page shows of the state, and what it offers: plain functions, each bounded, nothing hidden shown."""

from __future__ import annotations

from holdfast.core.commands import Release, Revoke
from holdfast.core.values import Moment
from holdfast.server.access.auth import Caller
from holdfast.server.pages.job import LINE_SHOWN, LINKS_SHOWN, chain_of, job_of, line_of, offers_for
from tests.core.bare import FAR_MS, Core
from tests.support.asking import acquire
from tests.support.steps import count_steps

NOW = Moment(0, 5_000)
OPERATOR = Caller("op", frozenset({"read", "claim", "admin"}))
READER = Caller("p", frozenset({"read"}))
HOLDER = Caller("p", frozenset({"read", "claim"}))


def verbs(core: Core, caller: Caller) -> list[str]:
    return [offer.verb for offer in offers_for(core.state, NOW, "job", caller).offers]


def happens(core: Core, verb: str) -> str:
    offer = offers_for(core.state, NOW, "job", OPERATOR).of(verb)
    assert offer is not None
    return " ".join(map(str, offer.happens))


# How things are.


def test_every_state_of_a_name_has_its_word() -> None:
    """Unknown, held, free, closed and done are told apart."""
    core = Core()
    assert job_of(core.state, NOW, "job", None).status == "unknown"
    core.ask(acquire(name="job", principal="p", owner="ana", lease_id="A", ttl_ms=FAR_MS, delay_ms=10_000))
    held = job_of(core.state, NOW, "job", None)
    assert held.status == "held" and held.row is not None and held.row.owner == "ana"
    core.ask(Release(name="job", principal="p", lease_id="A"))
    closed = job_of(core.state, NOW, "job", None)
    assert (closed.status, closed.opens_ms) == ("closed", NOW.wall_ms + 10_000)
    assert closed.ended is not None and closed.ended.how == "released"
    core.now = Moment(20_000, 25_000)
    core.settle()
    assert job_of(core.state, core.now, "job", None).status == "free"
    core.hold("job", owner="ben")
    core.ask(Release(name="job", principal="p", lease_id="L-job", done=True, remember_ms=60_000, result="pr=9"))
    done = job_of(core.state, core.now, "job", None)
    assert done.status == "done" and done.done is not None
    assert (done.done.owner, done.done.result[0].key) == ("ben", "pr")
    assert job_of(core.state, Moment(900_000, 900_000), "job", None).status == "free"


def test_a_line_is_shown_in_parts() -> None:
    """Of a line of any length a part is shown, with places, and who is away; the parts together are the line."""
    core = Core()
    core.hold("job", owner="ana")
    total = 2 * LINE_SHOWN + 7
    for number in range(1, total + 1):
        core.want("job", f"w{number}")
    core.state.depart("t-w3-job", 0)
    line = line_of(core.state, "job")
    assert (line.total, line.there, line.previous_first) == (total, total - 1, None)
    assert [place.number for place in line.places if not place.is_there] == [3]
    owners: list[str] = []
    first: int | None = 1
    while first is not None:
        line = line_of(core.state, "job", first)
        owners += [place.owner for place in line.places]
        first = line.next_first
    assert owners == [f"w{number}" for number in range(1, total + 1)]
    assert line.previous_first == LINE_SHOWN + 1
    assert line_of(core.state, "job", 10**15).places[0].number == total
    assert line_of(core.state, "nothing", 5).places == ()


def test_a_chain_is_shown_up_to_a_bound() -> None:
    """The first boxes of a long chain are shown and the others counted; a confined reader sees its own names alone."""
    core = Core()
    for number in range(40):
        core.hold(f"n{number}", owner=f"h{number}")
    for number in range(39):
        core.want(f"n{number + 1}", f"h{number}")
    chain = chain_of(core.state, NOW, "n0", None)
    assert (len(chain.boxes), chain.left_out, chain.is_circle) == (LINKS_SHOWN, 40 - LINKS_SHOWN, False)
    assert [(box.owner, box.waits_for) for box in chain.boxes[:2]] == [("h0", ("n1",)), ("h1", ("n2",))]
    assert [box.name for box in chain_of(core.state, NOW, "n0", "n0").boxes] == ["n0"]
    assert chain_of(core.state, NOW, "n0", "n0").boxes[0].waits_for == ()


def test_a_look_costs_what_is_shown() -> None:
    """A name with a line of thousands costs no more to look at than one with hundreds."""
    core = Core()
    core.hold("job", owner="ana")
    for number in range(3_000):
        core.want("job", f"w{number}")
    assert count_steps(lambda: job_of(core.state, NOW, "job", None)) < 6_000
    assert count_steps(lambda: offers_for(core.state, NOW, "job", OPERATOR)) < 300


# What is offered.


def test_offers_ask_for_the_scope_that_the_api_asks_for() -> None:
    """L8: ending, reopening and handing over without a lease id need `admin`, also for the holder's own token."""
    core = Core()
    assert verbs(core, OPERATOR) == []
    core.hold("job", owner="ana")
    assert verbs(core, OPERATOR) == ["revoke", "transfer"]
    assert verbs(core, HOLDER) == verbs(core, READER) == []
    assert "admin" in " ".join(offers_for(core.state, NOW, "job", HOLDER).missing)
    core.ask(Release(name="job", principal="p", lease_id="L-job", done=True, remember_ms=60_000))
    assert verbs(core, OPERATOR) == ["reopen"]
    assert verbs(core, HOLDER) == []


def test_it_is_said_what_will_happen() -> None:
    """Who loses it and when it hears of that, who is next, and whether the name stays closed: all of it beforehand."""
    core = Core()
    core.hold("job", owner="ana")
    said = happens(core, "revoke")
    assert "ana loses this job at once" in said and "fencing token 1" in said
    assert "next heartbeat" in said and "Nobody waits" in said
    core.want("job", "ben")
    assert "ben, the first in line, has it at once." in happens(core, "revoke")
    assert "One stands in line and goes on waiting" in happens(core, "transfer")
    core.state.depart("t-ben-job", 0)
    assert "away" in happens(core, "revoke")


def test_what_is_said_comes_true() -> None:
    """Who is named as the next has it after the revocation, and not before a lock delay is over."""
    core = Core()
    core.ask(acquire(name="job", principal="p", owner="ana", lease_id="A", ttl_ms=FAR_MS, delay_ms=30_000))
    core.want("job", "ben")
    said = happens(core, "revoke")
    assert "stays closed for 30 s" in said and "then ben has it" in said
    core.ask(Revoke(name="job", principal="op", reason="stuck"))
    assert core.state.lease_of("job") is None
    core.now = Moment(30_000, 30_000)
    core.settle()
    lease = core.state.lease_of("job")
    assert lease is not None and lease.owner == "ben"
