"""The entry points of the core: `decide` for commands, `next_due` for what falls due by itself.

Both are functions of state and time that change nothing durable: `evolve` applies the events of a decision. What is due
is ended by a record before anything else is decided; there is no other expiry check (T3).

The end of a delay needs a record too (T3a), or a restart, which goes on at the time of the last record, would close a
name again that was reported free. Any record of that time or later will do; `TimePassed` is written if there is none.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import islice
from typing import Any

from holdfast.core import commands, leases, queue, sessions, tokens
from holdfast.core.commands import Command
from holdfast.core.decision import Decision, Due, end_of, left
from holdfast.core.events import DoneExpired, Forgotten, SessionEnded, TimePassed, UsageEvicted
from holdfast.core.evolve import may_go
from holdfast.core.outcomes import SessionLapsed, TicketGone
from holdfast.core.queue import cycle_at_handover, grant_first_ready
from holdfast.core.sessions import end_leases_of, end_tickets_of
from holdfast.core.state import State
from holdfast.core.timers import EDGES_MAX
from holdfast.core.usage import UsageLedger, planned_evictions
from holdfast.core.values import DETACHED_MS_MAX, Instant, Limits

FORGET_EVERY_MS = 1_000
FORGET_MAX = 2_000  # entries of each kind that one tick may check, which bounds its time
EXPIRE_DONE_MAX = 1_000
LAPSE_MAX = 500


def next_due(state: State, now: Instant, limits: Limits) -> Due | None:
    """Return the next thing that fell due by `now`, or None. Called again until there is none."""
    return (
        _lapsed_session(state, now.ms)
        or _expired_lease(state, now.ms)
        or _lapsed_ticket(state, now.ms)
        or next_grant(state, now, limits)
        or _retention_due(state, now.ms, limits)
        # Last: most often another record of this tick says already that a delay is over (T3a).
        or (Due(TimePassed()) if state.timers.last_opened_ms > state.now_ms else None)
    )


def next_grant(state: State, now: Instant, limits: Limits) -> Due | None:
    """Return the next thing that is due in the queues since the last decision: a cycle to break, a waiter to grant."""
    _open_names(state, now.ms)
    timers = state.timers
    due = None
    if timers.names_with_new_holder or timers.candidates:
        due = cycle_at_handover(state, now.ms) or grant_first_ready(state, now, limits)
    if due is None:
        timers.handover_budget.edges = EDGES_MAX
    return due


def _lapsed_session(state: State, now_ms: int) -> Due | None:
    of_sessions = state.timers.session_deadlines
    while (heap := of_sessions.first_heap() if of_sessions.draining else of_sessions.heap) and heap[0][0] <= now_ms:
        due_ms, session_id = heap[0]
        if (session := state.sessions.get(session_id)) is None:
            heapq.heappop(heap)
        elif session.until_ms > due_ms:
            heapq.heapreplace(heap, (session.until_ms, session_id))
        else:
            heapq.heappop(heap)
            ended_tickets = end_tickets_of(state, session_id)
            ends = end_leases_of(state, session_id, now_ms, None)
            event = SessionEnded(session_id, "expired", ends, left=ended_tickets, principal=session.principal)
            return Due(event, tuple((each.ticket_id, SessionLapsed()) for each in ended_tickets))
    return None


def _lapsed_ticket(state: State, now_ms: int) -> Due | None:
    """Return the end of a ticket whose holder has been away for too long (W2).

    After a restart all waiters have been away since then, so the ends are spread over ticks. A late end is harmless.
    """
    timers, detached_since = state.timers, state.connected.detached_since
    if not detached_since:
        return None
    for ticket_id, since_ms in detached_since.items():
        if since_ms + DETACHED_MS_MAX > now_ms or now_ms < timers.lapse_at_ms:
            break
        timers.lapsed += 1
        if timers.lapsed % LAPSE_MAX == 0:
            timers.lapse_at_ms = now_ms + 1
        return Due(left(state.tickets[ticket_id], "gone"), ((ticket_id, TicketGone()),))
    return None


def _open_names(state: State, now_ms: int) -> None:
    timers = state.timers
    timers.opened_until_ms = now_ms
    while timers.opening_deadlines and timers.opening_deadlines[0][0] <= now_ms:
        timers.last_opened_ms, name = heapq.heappop(timers.opening_deadlines)
        state.update_open(name)


def _expired_lease(state: State, now_ms: int) -> Due | None:
    of_leases = state.timers.lease_deadlines
    while (deadlines := of_leases.first_heap() if of_leases.draining else of_leases.heap) and deadlines[0][0] <= now_ms:
        due_ms, token, name = deadlines[0]
        if (lease := state.lease_of(name)) is None or lease.token != token:
            heapq.heappop(deadlines)
        elif lease.until_ms > due_ms:
            heapq.heapreplace(deadlines, (lease.until_ms, token, name))
        else:
            heapq.heappop(deadlines)
            return Due(end_of(name, lease, "expired", now_ms))
    return None


def _retention_due(state: State, now_ms: int, limits: Limits) -> Due | None:
    timers, memory, free = state.timers, state.index.retry_usage, state.index.free_usage
    if now_ms >= timers.forget_at_ms and (overdue := _overdue_memory(state, now_ms, limits)) is not None:
        return overdue
    is_any_done = timers.done_deadlines.heap or timers.done_deadlines.draining
    if is_any_done and now_ms >= timers.expire_done_at_ms and (expired := _expired_done(state, now_ms)) is not None:
        return expired
    if memory.weight > limits.retry_bytes_max and (cut := _too_much_memory(state, now_ms, limits)) is not None:
        return cut
    return _too_many_names(state, now_ms, limits) if free.weight > limits.ended_bytes_max else None


def _expired_done(state: State, now_ms: int) -> Due | None:
    timers = state.timers
    expired: dict[str, None] = {}
    while (
        (deadlines := timers.done_deadlines.first_heap())
        and deadlines[0][0] <= now_ms
        and len(expired) < EXPIRE_DONE_MAX
    ):
        _, name = heapq.heappop(deadlines)
        slot = state.slots.get(name)
        if slot is not None and slot.done is not None and slot.done.until_ms <= now_ms:
            expired[name] = None
    if len(expired) == EXPIRE_DONE_MAX:
        timers.expire_done_at_ms = now_ms + 1
    return Due(DoneExpired(tuple(expired))) if expired else None


def _overdue_memory(state: State, now_ms: int, limits: Limits) -> Due | None:
    """Drop entries of the retry memory that are old enough. Runs once a second."""
    due = 0
    for thing in islice(state.remembered.values(), FORGET_MAX):
        if thing.at_ms > now_ms - limits.retry_memory_ms:
            break
        due += 1
    # If there may be more, the next tick goes on.
    state.timers.forget_at_ms = now_ms + (1 if due == FORGET_MAX else FORGET_EVERY_MS)
    return Due(Forgotten(due)) if due else None


def _too_much_memory(state: State, now_ms: int, limits: Limits) -> Due | None:
    if now_ms < state.timers.cut_memory_at_ms:
        return None
    cuts, remaining, _ = _oldest(state.index.retry_usage, limits.retry_bytes_max, lambda _: True)
    # If there may be more, the next tick goes on: the cost of one tick is bounded.
    state.timers.cut_memory_at_ms = 0 if remaining else now_ms + 1
    return Due(UsageEvicted(remembered=cuts))


def _too_many_names(state: State, now_ms: int, limits: Limits) -> Due | None:
    """Drop the oldest free names of the largest accounts, if they are over a limit. Some may have to stay."""
    if now_ms < state.timers.cut_names_at_ms:
        return None
    cuts, remaining, found = _oldest(
        state.index.free_usage, limits.ended_bytes_max, lambda name: may_go(state, name, state.slots[name], now_ms)
    )
    # Names that must stay now may go later: checking again before that gains nothing.
    state.timers.cut_names_at_ms = now_ms + FORGET_EVERY_MS if not found else 0 if remaining else now_ms + 1
    # If there are others after those that must stay, the record puts them in front.
    return Due(UsageEvicted(names=cuts)) if found or not remaining else None


def _oldest(
    ledger: UsageLedger, limit: int, may_go: Callable[[str], bool]
) -> tuple[tuple[tuple[str, str | None, int], ...], int, int]:
    """Return how many of the oldest of each large account to look at, how many more could be, and what is gained."""
    cuts: list[tuple[str, str | None, int]] = []
    remaining, gained = FORGET_MAX, 0
    for principal, session, wanted in planned_evictions(ledger, limit):
        examined = found = 0
        for item, weight in islice(ledger.account(principal, session).items.items(), remaining):
            examined += 1
            if may_go(item):
                found += weight
            if found >= wanted:
                break
        cuts.append((principal, session, examined))
        remaining -= examined
        gained += found
        if not remaining:
            break
    return tuple(cuts), remaining, gained


Decide = Callable[["State", Any, "Instant", "Limits"], "Decision"]

DECISIONS: dict[type, Decide] = {
    commands.Acquire: leases.acquire,
    commands.Renew: leases.renew,
    commands.Release: leases.release,
    commands.ClaimAny: leases.claim_any,
    commands.ClaimAll: leases.claim_all,
    commands.Leave: lambda state, command, _now, _limits: queue.leave(state, command),
    commands.Transfer: leases.transfer,
    commands.Revoke: lambda state, command, now, _limits: leases.revoke(state, command, now),
    commands.Reopen: lambda state, command, now, _limits: leases.reopen(state, command, now),
    commands.KeepSession: lambda state, command, now, _limits: sessions.keep(state, command, now),
    commands.RenewSession: lambda state, command, now, _limits: sessions.keep(state, command, now),
    commands.OpenSession: sessions.open_,
    commands.EndSession: lambda state, command, now, _limits: sessions.end(state, command, now),
    commands.CreateToken: tokens.create,
    commands.RevokeToken: lambda state, command, now, _limits: tokens.revoke(state, command, now),
    commands.RotateToken: lambda state, command, now, _limits: tokens.rotate(state, command, now),
    commands.RecordUses: lambda state, command, _now, _limits: tokens.record_uses(state, command),
}


def decide(state: State, command: Command, now: Instant, limits: Limits) -> Decision:
    """Decide one command. `next_due` must have found nothing due at `now` before (T3)."""
    return DECISIONS[type(command)](state, command, now, limits)
