"""A job's page as far as the state is concerned: what it shows and offers, each bounded, nothing hidden shown."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from holdfast.api.auth.auth import Caller
from holdfast.core.commands import Release, Revoke, Transfer
from holdfast.core.values import Instant
from holdfast.dashboard import site
from holdfast.dashboard.job import LINKS_SHOWN, WAITERS_SHOWN, view_of
from holdfast.dashboard.rows import free_job_of
from tests.core.bare_core import FAR_MS, Core
from tests.support.commands import acquire
from tests.support.steps import count_steps
from tests.support.visitor import Page

NOW = Instant(0, 5_000)
OPERATOR = Caller("op", frozenset({"read", "claim", "admin"}))
READER = Caller("p", frozenset({"read"}))
HOLDER = Caller("p", frozenset({"read", "claim"}))
NO_HISTORY: dict[str, Any] = {"drawing": None, "history_rows": [], "is_newest": True, "next_before": None}


def page_of(core: Core, caller: Caller) -> Page:
    """The page of `job`, for somebody who came by a token."""
    api: Any = SimpleNamespace(engine=SimpleNamespace(state=core.state))
    call: Any = SimpleNamespace(caller=caller)
    shown = {"rejected": None, "did": "", "key": "k", "path": "/ui/jobs/job", **NO_HISTORY}
    view = view_of(core.state, NOW, "job", caller.prefix)
    _, body, _ = asyncio.run(site.page(api, call, NOW, "job.html", "jobs", **shown, **view))
    page = Page()
    page.feed(body.decode())
    page.close()
    return page


def verbs(core: Core, caller: Caller) -> list[str]:
    return [said["id"] for tag, said in page_of(core, caller).tags if said.get("class") == "offer"]


def text_of(core: Core, caller: Caller = OPERATOR) -> str:
    return " ".join(page_of(core, caller).text.split())


def view(core: Core, now: Instant = NOW, first_waiter: int = 1) -> dict[str, Any]:
    return view_of(core.state, now, "job", None, first_waiter)


# How things are.


def test_every_state_of_a_name_has_its_word() -> None:
    """Unknown, held, free, closed and done are told apart."""
    core = Core()
    assert view(core)["state"] == "unknown"
    core.ask(acquire(name="job", principal="p", owner="ana", lease_id="A", ttl_ms=FAR_MS, delay_ms=10_000))
    held = view(core)
    assert held["state"] == "held" and held["row"].owner == "ana"
    core.ask(Release(name="job", principal="p", lease_id="A"))
    closed = view(core)
    assert closed["state"] == "closed" and closed["slot"].closed_until_ms == NOW.ms + 10_000
    assert closed["gone"].how == "released" and "ana" in text_of(core)
    core.now = Instant(20_000, 25_000)
    core.expire_due()
    assert view(core, core.now)["state"] == "free"
    core.hold("job", owner="ben")
    core.ask(Release(name="job", principal="p", lease_id="L-job", done=True, remember_ms=60_000, result="pr=9"))
    done = view(core, core.now)
    assert (done["state"], done["gone"].owner) == ("done", "ben") and "Finished by ben" in text_of(core)
    assert view(core, Instant(900_000, 900_000))["state"] == "free"


def test_the_last_owner_without_a_name_is_its_access_token() -> None:
    """The last owner of a lease without an owner is its holder, whether the holder or an operator ended it."""
    for principal, command in (
        ("p", Release(name="job", principal="p", lease_id="A")),
        ("p", Transfer(name="job", principal="p", lease_id="A", new_lease_id="B", to_owner="ben")),
        ("op", Transfer(name="job", principal="op", lease_id=None, new_lease_id="B", to_owner="ben", reason="shift")),
        ("op", Revoke(name="job", principal="op", reason="stuck")),
    ):
        core = Core()
        core.ask(acquire(name="job", principal="p", owner=None, lease_id="A", ttl_ms=FAR_MS))
        core.ask(command)
        end = core.state.slots["job"].last_end
        assert end is not None and end.by == principal
        assert free_job_of("job", core.state, NOW).owner == "(access token p)"


def test_queue_is_shown_in_pages() -> None:
    """Of a line of any length a part is shown, with places, and who is away; the parts together are the line."""
    core = Core()
    core.hold("job", owner="ana")
    total = 2 * WAITERS_SHOWN + 7
    for number in range(1, total + 1):
        core.want("job", f"w{number}")
    core.state.detach("t-w3-job", 0)
    line = view(core)
    assert (line["queue_total"], line["queue_connected"], line["first_position"]) == (total, total - 1, 1)
    assert [ticket.terms.owner for ticket, is_there in line["waiters"] if not is_there] == ["w3"]
    owners: list[str] = []
    while len(owners) < total:
        owners += [ticket.terms.owner for ticket, _ in view(core, first_waiter=len(owners) + 1)["waiters"]]
    assert owners == [f"w{number}" for number in range(1, total + 1)]
    assert view(core, first_waiter=10**15)["first_position"] == total
    assert view(Core(), first_waiter=5)["waiters"] == []


def test_a_chain_is_shown_up_to_a_bound() -> None:
    """The first links of a long chain are shown and the others counted; a confined reader sees its own names alone."""
    core = Core()
    for number in range(40):
        core.hold(f"n{number}", owner=f"h{number}")
    for number in range(39):
        core.want(f"n{number + 1}", f"h{number}")
    shown = view_of(core.state, NOW, "n0", None)
    assert (len(shown["chain"]), shown["chain_left_out"], shown["is_cycle"]) == (LINKS_SHOWN, 40 - LINKS_SHOWN, False)
    assert [(row.owner, link.waits_for) for link, _, row, _ in shown["chain"][:2]] == [("h0", ("n1",)), ("h1", ("n2",))]
    [(link, *_)] = view_of(core.state, NOW, "n0", "n0")["chain"]
    assert (link.name, link.waits_for) == ("n0", ())


def test_job_view_cost_is_bounded_by_its_size() -> None:
    """A name with a line of thousands costs no more to look at than one with hundreds."""
    core = Core()
    core.hold("job", owner="ana")
    for number in range(3_000):
        core.want("job", f"w{number}")
    assert count_steps(lambda: view(core)) < 6_000


# What is offered.


def test_actions_require_the_scope_of_the_api() -> None:
    """L8: ending, reopening and handing over without a lease id need `admin`, also for the holder's own token."""
    core = Core()
    assert verbs(core, OPERATOR) == []
    core.hold("job", owner="ana")
    assert verbs(core, OPERATOR) == ["revoke", "transfer"]
    assert verbs(core, HOLDER) == verbs(core, READER) == []
    assert "needs an access token with the scope admin" in text_of(core, HOLDER)
    core.ask(Release(name="job", principal="p", lease_id="L-job", done=True, remember_ms=60_000))
    assert verbs(core, OPERATOR) == ["reopen"]
    assert verbs(core, HOLDER) == []


def test_actions_describe_their_effects() -> None:
    """Who loses it and when it hears of that, who is next, and whether the name stays closed: all of it beforehand."""
    core = Core()
    core.hold("job", owner="ana")
    said = text_of(core)
    assert "ana loses this job at once" in said and "fencing token 1 is checked" in said
    assert "next heartbeat" in said and "Nobody waits for it: it is free then." in said
    core.want("job", "ben")
    assert "ben , the first in the queue, has it at once." in text_of(core)
    assert "One waiter in the queue goes on waiting" in text_of(core)
    core.state.detach("t-ben-job", 0)
    assert "All who wait are away" in text_of(core)


def test_described_effects_happen() -> None:
    """Who is named as the next has it after the revocation, and not before a lock delay is over."""
    core = Core()
    core.ask(acquire(name="job", principal="p", owner="ana", lease_id="A", ttl_ms=FAR_MS, delay_ms=30_000))
    core.want("job", "ben")
    assert "The job stays closed for 30 s then; then ben has it." in text_of(core)
    core.ask(Revoke(name="job", principal="op", reason="stuck"))
    assert core.state.lease_of("job") is None
    core.now = Instant(30_000, 30_000)
    core.expire_due()
    lease = core.state.lease_of("job")
    assert lease is not None and lease.owner == "ben"
