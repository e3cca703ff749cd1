"""The line: joining it, coming back to it, and whose turn it is (W1–W5, M2).

A ticket stands in the line of each name it wants. It is met whole or passed over; among tickets that can be met, the
one that joined first is met first. One whose holder is not there keeps its order and blocks nobody.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.core import refusals
from holdfast.core.answers import Acquired, AcquiredMany, Later, Withdrawn
from holdfast.core.deadlock import blockers_of, find_circle, holder_of_lease, holder_of_ticket
from holdfast.core.decision import Decision, Due, left, refuse
from holdfast.core.events import Granted, GrantedMany, Joined
from holdfast.core.rights import may_touch
from holdfast.core.sessions import missing
from holdfast.core.state import EMPTY
from holdfast.core.values import TOKEN_MAX, Ticket, lease_from

if TYPE_CHECKING:
    from holdfast.core.answers import Answer
    from holdfast.core.commands import Acquire, ClaimAll, Leave
    from holdfast.core.refusals import Refusal
    from holdfast.core.state import State
    from holdfast.core.values import AccessToken, Limits, Moment


def ticket_for(command: Acquire | ClaimAll, state: State, now: Moment) -> Ticket:
    """Return the ticket that a claim gets if it has to wait."""
    terms = command.terms
    return Ticket(
        command.new_ticket, command.names, command.lease_ids, terms, terms.principal in state.tokens, now.wall_ms
    )


def join(state: State, ticket: Ticket, now: Moment, limits: Limits) -> Decision:
    """Stand in line, at the place the holder has already if it has one (W3)."""
    known = own_ticket(state, ticket)
    if known is not None:
        place = state.tickets[known]
        asked = replace(ticket, ticket_id=known, lease_ids=place.lease_ids, joined_wall_ms=place.joined_wall_ms)
        return come_back(state, asked, now)
    if state.tickets_by.get(ticket.terms.principal, 0) >= limits.tickets_per_principal_max:
        return refuse(refusals.TooManyTickets(limits.tickets_per_principal_max))
    if any(len(state.lines.get(name, ())) >= limits.line_max for name in ticket.names):
        return refuse(refusals.LineFull(limits.line_max))
    path = find_circle(state, holder_of_ticket(ticket), ticket.names, now.ms)
    if path is not None:
        return refuse(refusals.Deadlock(path))
    return Decision((Joined(ticket),), Later(ticket.ticket_id))


def own_ticket(state: State, ticket: Ticket) -> str | None:
    """Return the place that this holder has already for just these names."""
    holder = holder_of_ticket(ticket)
    if holder[0] == "alone":
        return None
    # Whichever is shorter: the places of this holder, or the line.
    those = state.tickets_of.get(holder, {})
    line = state.lines.get(ticket.names[0], {})
    for ticket_id in those if len(those) <= len(line) else line:
        known = state.tickets[ticket_id]
        if known.names == ticket.names and holder_of_ticket(known) == holder:
            return ticket_id
    return None


def come_back(state: State, asked: Ticket, now: Moment) -> Decision:
    """Wait at a place one has; a circle that closed while one was away is told, and ends the wait (D1).

    What differs from the place as it was is made durable: a key leads to the place only for the request that has it,
    so that of two requests of one holder never both are told that they own what comes of it (C3).
    """
    ticket_id = asked.ticket_id
    path = find_circle(state, holder_of_ticket(asked), asked.names, now.ms)
    if path is None:
        return Decision(() if asked == state.tickets[ticket_id] else (Joined(asked),), Later(ticket_id))
    deadlock = refusals.Deadlock(path)
    return Decision((left(asked, "deadlock"),), deadlock, ((ticket_id, deadlock),))


def return_to(state: State, command: Acquire | ClaimAll, now: Moment) -> Decision:
    """Come back with a ticket: it must be this caller's, for just these names (W3)."""
    ticket = state.tickets.get(command.ticket or "")
    if ticket is None:
        # Finished work answered all in line, also those who were not there to hear it (L5).
        finished = None if command.terms.redo else _finished(state, command.names, now.ms)
        return refuse(finished or refusals.TicketGone())
    kept, asked = ticket.terms, command.terms
    if (
        ticket.names != command.names
        or kept.owner != asked.owner
        or kept.bound != asked.bound
        or (kept.bound and kept.session != asked.session)
        or not may_touch(kept, asked.principal, command.via)
    ):
        return refuse(refusals.TicketGone())
    return come_back(state, replace(ticket, terms=replace(kept, key=asked.key, fingerprint=asked.fingerprint)), now)


def _finished(state: State, names: tuple[str, ...], now_ms: int) -> refusals.Finished | None:
    for name in names:
        done = state.slots.get(name, EMPTY).done
        if done is not None and done.until_ms > now_ms:
            return refusals.Finished(name, done)
    return None


def leave(state: State, command: Leave) -> Decision:
    """Give a place up; whoever waits at it is told that it is gone."""
    ticket = state.tickets.get(command.ticket_id)
    if ticket is None or not may_touch(ticket.terms, command.principal, command.via):
        return refuse(refusals.TicketGone())
    notices = ((command.ticket_id, refusals.TicketGone()),)
    return Decision((left(ticket, "withdrawn"),), Withdrawn(), notices)


def next_turn(state: State, now: Moment, limits: Limits) -> Due | None:
    """Return the grant to whoever has its turn, if anybody has: of all who can be met, the one that joined first.

    Only where something changed can somebody have a turn. The first of each such line that can be met is a candidate;
    when all are known, the one on top has nobody before it that could take one of its names.
    """
    while state.stirred or state.turns:
        while state.stirred:
            _find_candidate(state, state.stirred.popitem()[0], now.ms)
        if not state.turns:
            return None
        ticket = state.tickets.get(heappop(state.turns)[1])
        if ticket is None:
            continue
        if ticket.ticket_id in state.there and _can_be_met(state, ticket, now.ms):
            return _grant(state, ticket, now, limits)
        # Another took one of its names: whoever stands behind it at the others may be met instead.
        state.stirred.update(dict.fromkeys(ticket.names))
    return None


def _find_candidate(state: State, name: str, now_ms: int) -> None:
    """Note the first in a line that can be met. In the line of a name that somebody holds nobody is looked at."""
    if _is_open(state, name, now_ms):
        for place in state.there_in.get(name, ()):
            if _can_be_met(state, state.tickets[place[1]], now_ms):
                heappush(state.turns, place)
                return


def _is_open(state: State, name: str, now_ms: int) -> bool:
    slot = state.slots.get(name, EMPTY)
    return slot.lease is None and slot.closed_until_ms <= now_ms


def _can_be_met(state: State, ticket: Ticket, now_ms: int) -> bool:
    """Tell whether a ticket finds all it wants free."""
    if not all(_is_open(state, name, now_ms) for name in ticket.names):
        return False
    return ticket.terms.redo or _finished(state, ticket.names, now_ms) is None


def _grant(state: State, ticket: Ticket, now: Moment, limits: Limits) -> Due:
    """Judge the waiter again and let it have its turn (W5)."""
    refusal = _lacking(state, ticket, now, limits)
    if refusal is not None:
        return Due(left(ticket, "refused"), ((ticket.ticket_id, refusal),))
    grants, claims = grant_each(state, ticket, now)
    answer: Answer = claims[0][1] if len(claims) == 1 and not ticket_is_many(ticket) else AcquiredMany(claims)
    event: Granted | GrantedMany
    if len(grants) == 1:
        event = Granted(grants[0].name, grants[0].lease, ticket.terms.fingerprint, ticket.ticket_id)
    else:
        event = GrantedMany(grants, ticket.ticket_id)
    return Due(event, ((ticket.ticket_id, answer),))


def _lacking(state: State, ticket: Ticket, now: Moment, limits: Limits) -> Refusal | None:
    """Return why a waiter may not have what it waited for: its session, its quota, its rights."""
    terms = ticket.terms
    if terms.session is not None:
        lacking = missing(state, terms.session, terms.principal)
        if lacking is not None:
            return lacking
    if state.leases_of.get(terms.principal, 0) + len(ticket.names) > limits.leases_per_principal_max:
        return refusals.TooManyLeases(limits.leases_per_principal_max)
    if ticket.token_in_journal and not _may_claim(state.tokens.get(terms.principal), ticket.names, now.wall_ms):
        return refusals.NotAllowedAnyMore()
    if state.last_token + len(ticket.names) > TOKEN_MAX:
        return refusals.TokensExhausted()
    return None


def _may_claim(token: AccessToken | None, names: tuple[str, ...], wall_ms: int) -> bool:
    if token is None or "claim" not in token.scopes:
        return False
    if token.expires_wall_ms is not None and token.expires_wall_ms <= wall_ms:
        return False
    prefix = token.prefix
    return prefix is None or all(name.startswith(prefix) for name in names)


def ticket_is_many(ticket: Ticket) -> bool:
    """Tell whether a ticket asked for several names at once."""
    return len(ticket.names) > 1


def grant_each(
    state: State, ticket: Ticket, now: Moment
) -> tuple[tuple[Granted, ...], tuple[tuple[str, Acquired], ...]]:
    """Return a grant of every name of a ticket, with rising tokens, and what its holder is told."""
    grants: list[Granted] = []
    claims: list[tuple[str, Acquired]] = []
    for number, (name, lease_id) in enumerate(zip(ticket.names, ticket.lease_ids, strict=True), 1):
        slot = state.slots.get(name, EMPTY)
        lease = lease_from(ticket.terms, lease_id, state.last_token + number, now)
        grants.append(Granted(name, lease, ticket.terms.fingerprint))
        claims.append((name, Acquired(lease, state.until_of(lease), slot.last_end, slot.attempts + 1)))
    return tuple(grants), tuple(claims)


def circle_at_handover(state: State, now_ms: int) -> Due | None:
    """Return the end of the wait that a grant or a transfer closed a circle with, if there is one (D1)."""
    while state.handed:
        name = next(iter(state.handed))
        lease = state.lease_of(name)
        holder = None if lease is None else holder_of_lease(lease)
        if holder is not None and holder in state.tickets_of and name in state.there_in:
            blockers = blockers_of(state, holder, now_ms)
            for _, ticket_id in state.there_in[name]:
                ticket = state.tickets[ticket_id]
                waiter = holder_of_ticket(ticket)
                path = find_circle(state, waiter, ticket.names, now_ms) if waiter in blockers else None
                if path is not None:
                    return Due(left(ticket, "deadlock"), ((ticket_id, refusals.Deadlock(path)),))
        del state.handed[name]
    return None
