"""What a reader may do to a job, and what will happen then: said before it is done. Plain functions of the state.

An offer is made only to a caller with the scope `admin`, as in the API. Other callers read what is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.core.state import EMPTY
from holdfast.server.pages.rows import span_text
from holdfast.server.pages.views.told import shown_owner
from holdfast.wire.holders import shown_as

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.core.values import Lease, Moment
    from holdfast.server.access.auth import Caller

REVOKE, REOPEN, TRANSFER = "revoke", "reopen", "transfer"


class Sentence(msgspec.Struct, frozen=True):
    """One sentence with somebody in it. What that one is called stands apart: it may be written in any direction."""

    before: str
    who: str = ""
    after: str = ""

    def __str__(self) -> str:
        return f"{self.before}{self.who}{self.after}"


class Offer(msgspec.Struct, frozen=True):
    """Something that can be done now."""

    verb: str
    title: str
    button: str
    happens: tuple[Sentence, ...]
    """What will happen, to whom, and when."""
    token: int = 0
    """The fencing token of the lease that it is about: another one is not touched."""


class Offers(msgspec.Struct, frozen=True):
    """What can be done, and what cannot and why."""

    offers: tuple[Offer, ...]
    missing: tuple[str, ...]

    def of(self, verb: str) -> Offer | None:
        """Return the offer of that verb."""
        return next((offer for offer in self.offers if offer.verb == verb), None)


def offers_for(state: State, now: Moment, name: str, caller: Caller) -> Offers:
    """Return what this caller can do to this name now."""
    slot = state.slots.get(name, EMPTY)
    offers: list[Offer] = []
    missing: list[str] = []
    if slot.lease is not None:
        if "admin" in caller.scopes:
            offers.append(_revocation(state, now, name, slot.lease))
            offers.append(_transfer(state, now, name, slot.lease))
        else:
            missing.append("Ending this lease, or handing it over, needs an access token with the scope admin.")
    elif slot.done is not None and slot.done.until_ms > now.ms:
        if "admin" in caller.scopes:
            who = shown_owner(slot.done.owner, slot.done.whose)
            offers.append(Offer(REOPEN, "Reopen this job", "Reopen", _of_reopening(who), slot.done.token))
        else:
            missing.append("Reopening this job needs an access token with the scope admin.")
    return Offers(tuple(offers), tuple(missing))


def _revocation(state: State, now: Moment, name: str, lease: Lease) -> Offer:
    refused = f" is refused wherever fencing token {lease.token} is checked."
    happens = [
        Sentence("", _holder(lease), f" loses this job at once, and what it writes from then on{refused}"),
        _when_told(lease, now),
    ]
    if lease.bound:
        happens.append(Sentence("Its session goes on, and so does all else that it holds."))
    return Offer(REVOKE, "End this lease", "End the lease", (*happens, _who_is_next(state, name, lease)), lease.token)


def _transfer(state: State, now: Moment, name: str, lease: Lease) -> Offer:
    waiting = len(state.index.lines.get(name, ()))
    begins = f"the new owner begins, under a greater fencing token than {lease.token}. At no moment is the job free."
    happens = [
        Sentence("", _holder(lease), f" stops being the owner at once, and {begins}"),
        _when_told(lease, now),
        Sentence(
            "The new owner takes it up by claiming it under that name with resume, by the same access token as now."
            f" If it is not taken up within {span_text(state.until_of(lease) - now.ms)}, it expires."
        ),
    ]
    if lease.bound:
        happens.append(Sentence("The end of the session that holds it now does not end it any more."))
    if waiting:
        stand, go = ("One stands", "goes") if waiting == 1 else (f"{waiting} stand", "go")
        happens.append(Sentence(f"{stand} in line and {go} on waiting."))
    return Offer(TRANSFER, "Hand it to another owner", "Hand over", tuple(happens), lease.token)


def _of_reopening(who: str) -> tuple[Sentence, ...]:
    return (
        Sentence("Nobody remembers any more that ", who, " finished it: whoever claims it next does it again."),
        Sentence("Nobody is told. Those who were answered that it is done have gone."),
    )


def _holder(lease: Lease) -> str:
    return shown_as(lease.principal, lease.metadata) if lease.owner is None else lease.owner


def _when_told(lease: Lease, now: Moment) -> Sentence:
    ago, ttl = span_text(now.wall_ms - lease.beat_wall_ms), span_text(lease.ttl_ms)
    return Sentence(
        "It is told with your reason: at once if it listens for that, else with its next heartbeat. The last one came"
        f" {ago} ago, and without one its lease would end after {ttl}."
    )


def _who_is_next(state: State, name: str, lease: Lease) -> Sentence:
    line = state.presence.lines.get(name)
    closed = f"The job stays closed for {span_text(lease.delay_ms)} then" if lease.delay_ms else ""
    if not line:
        behind = (
            " Those in line are away: the first who comes back in time has it." if name in state.index.lines else ""
        )
        free = f"{closed}. Nobody waits for it." if closed else "Nobody waits for it: it is free then."
        return Sentence(f"{free}{behind}")
    _, ticket_id = next(iter(line))
    ticket = state.tickets[ticket_id]
    who = shown_owner(ticket.terms.owner, ticket.terms.principal)
    others = ", if all else is free that it wants with it" if len(ticket.names) > 1 else ""
    if closed:
        return Sentence(f"{closed}; then ", who, f" has it{others}.")
    return Sentence("", who, f", the first in line, has it at once{others}.")
