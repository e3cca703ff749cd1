"""The wait queue of a name: joining it, coming back to it, and who is granted next (W1–W5, M2).

A ticket is in the queue of every name it wants. It is served completely or passed over, and of all that can be served
the first to join is served first (I12):

    name     its queue         t1 wants a and b, t2 wants c, t3 wants b and c.
    a        t1                t1 joined first, t3 last. If b and c are free and a is held,
    b        t1 t3             t1 cannot be served and is passed over; t2 is served, since it
    c        t2 t3             joined before t3; then t3 waits for c.

A ticket is attached while a request waits with it. A detached one keeps its order and is passed over, until its holder
comes back with the ticket or with the same idempotency key:

    join ──► attached ─────────────► served: a lease for every name it wants
               ▲  │                  refused: no longer allowed when it is checked again (W5), or the search for a
        attach │  │ detach                    cycle exceeds its limit
               │  ▼                  answered `done` or `deadlock`
             detached ─── 60 s ────► gone

**The invariant.** *Once all grants are made, no free name has an attached waiter that could be served.* Grants are made
before every decision (T3) and after every decision that touched a queue. So when `leases.acquire` finds a name free,
every waiter in its queue is detached or lacks another name: a plain claim need not check the queue and never overtakes
(W1).

**Who is next.** The cost depends on what changed, not on how many wait for how much.

- *A name opens* (it was released, or its delay is over): the first ticket for it alone becomes a candidate. Each ticket
  of several names in its queue lacks one name less, and becomes a candidate when it lacks none.
- *A name closes* (it was granted): each ticket of several names in its queue lacks one more.
- *A ticket attaches*: its own names are checked, and it becomes a candidate if it lacks none.
- *A ticket leaves*: if it wanted one name and that is open, the next ticket for that name alone becomes a candidate.

So every ticket that could be served is a candidate, except those behind another for a single name. The candidates are a
heap in the order of joining. `grant_first_ready` serves the first that lacks nothing and drops those that lack
something, which become candidates again when their names open.

**A cycle at a handover.** A grant or a transfer can close a cycle when the new holder waits elsewhere:
`cycle_at_handover` finds the wait that closes it. All grants that are made together share one budget for these
searches. When it is spent, a new holder's own waits are ended instead, so that no waiter is held up through it.
"""

from __future__ import annotations

from heapq import heappop

from msgspec.structs import replace

from holdfast.core import outcomes, values
from holdfast.core.commands import Acquire, ClaimAll, Leave
from holdfast.core.connected_waiters import QueuePosition
from holdfast.core.deadlock import closing_waits, find_cycle
from holdfast.core.decision import Decision, Due, left, refuse, why_no_grant, why_no_ticket
from holdfast.core.events import Granted, GrantedMany, Joined, Left, TicketReassigned
from holdfast.core.names import has_dot_segment, why_unreadable
from holdfast.core.outcomes import Acquired, AcquiredMany, Answer, MustWait, Refusal, Withdrawn
from holdfast.core.state import EMPTY, State
from holdfast.core.timers import EDGES_FOR_A_NAME, EDGES_MAX
from holdfast.core.values import Instant, Limits, Ticket, holder_of_lease, holder_of_ticket, lease_from, may_touch


def ticket_for(command: Acquire | ClaimAll, state: State, now: Instant) -> Ticket:
    terms = command.terms
    return Ticket(
        command.new_ticket, command.names, command.lease_ids, terms, terms.principal in state.tokens, now.wall_ms
    )


def join(state: State, ticket: Ticket, wait_ms: int, now: Instant, limits: Limits) -> Decision:
    if (own := own_ticket(state, ticket)) is not None:
        return resume_wait(state, replace(own, terms=ticket.terms), wait_ms, now)
    if (full := why_no_ticket(state, ticket, limits)) is not None:
        return refuse(full)
    if (endless := find_cycle(state, holder_of_ticket(ticket), ticket.names, now.ms)) is not None:
        return refuse(endless)
    return Decision((Joined(ticket),), MustWait(ticket.ticket_id, wait_ms))


def own_ticket(state: State, ticket: Ticket) -> Ticket | None:
    """Return the ticket that this holder has already for just these names, in any order (W3)."""
    those = state.index.tickets_by_names.get((holder_of_ticket(ticket), frozenset(ticket.names)))
    return None if those is None else state.tickets[next(iter(those))]


def withdraw_own_ticket(state: State, ticket: Ticket) -> tuple[Left, ...]:
    """End the ticket of a holder that gets its names without it; the ticket's key is remembered (C5)."""
    own = own_ticket(state, ticket)
    return () if own is None else (left(own, "withdrawn"),)


def resume_wait(state: State, asked: Ticket, wait_ms: int, now: Instant) -> Decision:
    """Wait with a ticket one has; a cycle that closed meanwhile is reported, and ends the wait (D1).

    Only a change of terms is made durable. A key leads to the ticket only for the request that has it, so two requests
    of one holder never both own the result (C3). The earlier key is remembered: it makes nothing else (C5).
    """
    ticket_id = asked.ticket_id
    if (endless := find_cycle(state, holder_of_ticket(asked), asked.names, now.ms)) is None:
        change = () if asked == state.tickets[ticket_id] else (TicketReassigned(ticket_id, asked.terms),)
        return Decision(change, MustWait(ticket_id, wait_ms))
    if isinstance(endless, outcomes.DeadlockSearchExceeded):
        return refuse(endless)  # The ticket stays valid: its holder may come back when fewer wait.
    return Decision((left(asked, "deadlock"),), endless, ((ticket_id, endless),))


def resume_ticket(state: State, command: Acquire | ClaimAll, ticket_id: str, now: Instant) -> Decision:
    """Come back with a ticket, or with a key that leads to it: the caller's own, for just these names (W3)."""
    if (ticket := state.tickets.get(ticket_id)) is None:
        # Finished work answered every ticket, also absent ones whose clients did not hear it (L5).
        finished = None if command.terms.redo else _finished_work(state, command.names, now.ms)
        return refuse(finished or outcomes.TicketGone())
    current, asked = ticket.terms, command.terms
    if (
        set(ticket.names) != set(command.names)
        or current.owner != asked.owner
        or current.bound != asked.bound
        or (current.bound and current.session != asked.session)
        or not may_touch(current, asked.principal, command.as_session)
    ):
        return refuse(outcomes.TicketGone())
    terms = replace(current, key=asked.key, fingerprint=asked.fingerprint)
    return resume_wait(state, replace(ticket, terms=terms), command.wait_ms, now)


def _finished_work(state: State, names: tuple[str, ...], now_ms: int) -> outcomes.Finished | None:
    for name in names:
        if (done := state.slots.get(name, EMPTY).done) is not None and done.until_ms > now_ms:
            return outcomes.Finished(name, done)
    return None


def leave(state: State, command: Leave) -> Decision:
    ticket = state.tickets.get(command.ticket_id)
    if ticket is None or not may_touch(ticket.terms, command.principal, command.as_session):
        return refuse(outcomes.TicketGone())
    notices = ((command.ticket_id, outcomes.TicketGone()),)
    return Decision((left(ticket, "withdrawn"),), Withdrawn(), notices)


def grant_first_ready(state: State, now: Instant, limits: Limits) -> Due | None:
    candidates = state.timers.candidates
    while candidates:
        ticket = state.tickets.get(heappop(candidates)[1])
        if ticket is not None and state.connected.can_be_granted(ticket):
            return _grant(state, ticket, now, limits)
    return None


def _grant(state: State, ticket: Ticket, now: Instant, limits: Limits) -> Due:
    if (refusal := _lacking(state, ticket, now, limits)) is not None:
        return Due(left(ticket, "refused"), ((ticket.ticket_id, refusal),))
    grants, claims = grant_each(state, ticket, now)
    answer: Answer = claims[0][1] if len(claims) == 1 else AcquiredMany(claims)
    event: Granted | GrantedMany
    if len(grants) == 1:
        event = Granted(grants[0].name, grants[0].lease, ticket.terms.fingerprint, ticket.ticket_id)
    else:
        event = GrantedMany(grants, ticket.ticket_id)
    return Due(event, ((ticket.ticket_id, answer),))


def _lacking(state: State, ticket: Ticket, now: Instant, limits: Limits) -> Refusal | None:
    """Return why a waiter may not have what it waited for (W5)."""
    terms = ticket.terms
    refusal = unreadable_name(ticket.names) or why_no_grant(state, terms, ticket.names, limits)
    if refusal is not None:
        return refusal
    if ticket.token_in_journal and not _may_claim(state.tokens.get(terms.principal), ticket.names, now.wall_ms):
        return outcomes.NotAllowedAnyMore()
    return None


def unreadable_name(names: tuple[str, ...]) -> outcomes.BadName | None:
    """Return why no lease and no wait may begin under one of these names (N3). Existing ones go on."""
    for name in names:
        why = None if name.isascii() else why_unreadable(name)
        if why is not None:
            return outcomes.BadName(why)
    return None


def _may_claim(token: values.AccessToken | None, names: tuple[str, ...], wall_ms: int) -> bool:
    if token is None or "claim" not in token.scopes:
        return False
    if token.expires_wall_ms is not None and token.expires_wall_ms <= wall_ms:
        return False
    prefix = token.prefix
    return prefix is None or all(name.startswith(prefix) and not has_dot_segment(name) for name in names)


def grant_each(
    state: State, ticket: Ticket, now: Instant
) -> tuple[tuple[Granted, ...], tuple[tuple[str, Acquired], ...]]:
    """Return a grant of every name of a ticket, with rising tokens, and the answer for its holder."""
    grants: list[Granted] = []
    claims: list[tuple[str, Acquired]] = []
    for number, (name, lease_id) in enumerate(zip(ticket.names, ticket.lease_ids, strict=True), 1):
        slot = state.slots.get(name, EMPTY)
        lease = lease_from(ticket.terms, lease_id, state.last_token + number, now)
        grants.append(Granted(name, lease, ticket.terms.fingerprint))
        claims.append((name, Acquired(lease, state.until_of(lease), slot.last_end, slot.attempts + 1)))
    return tuple(grants), tuple(claims)


def cycle_at_handover(state: State, now_ms: int) -> Due | None:
    """Return the end of the wait with which a grant or a transfer closed a cycle, if any (D1)."""
    handed_over, budget = state.timers.names_with_new_holder, state.timers.handover_budget
    searched: values.Holder | None = None
    closing: dict[str, QueuePosition] | outcomes.DeadlockSearchExceeded = {}
    while handed_over:
        name = handed_over[0]
        lease = state.lease_of(name)
        holder = None if lease is None else holder_of_lease(lease)
        if holder is not None and holder in state.connected.tickets_by_holder:
            if holder != searched:
                searched, closing = holder, closing_waits(state, holder, budget)
            if isinstance(closing, outcomes.DeadlockSearchExceeded):
                return _end_own_wait(state, holder, closing)
            if name in closing:
                ticket = state.tickets[closing[name][1]]
                cycle = find_cycle(state, holder_of_ticket(ticket), ticket.names, now_ms, budget=budget)
                if not isinstance(cycle, outcomes.Deadlock):
                    return _end_own_wait(state, holder, outcomes.DeadlockSearchExceeded(EDGES_MAX))
                return Due(left(ticket, "deadlock"), ((ticket.ticket_id, cycle),))
        handed_over.popleft()
        budget.edges = max(0, budget.edges) + EDGES_FOR_A_NAME
    return None


def _end_own_wait(state: State, holder: values.Holder, refusal: outcomes.DeadlockSearchExceeded) -> Due:
    """End one of a new holder's own waits. When none is left, no cycle goes through what it holds."""
    ticket = state.tickets[next(iter(state.connected.tickets_by_holder[holder]))]
    return Due(left(ticket, "refused"), ((ticket.ticket_id, refusal),))
