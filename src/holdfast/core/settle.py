"""What falls due by itself: sessions that missed their keepalive, leases past their end, turns in a line, memories.

There is no other expiry check anywhere (T3): what is due is ended by a record before anything else is decided.
"""

from __future__ import annotations

import heapq
from itertools import islice
from typing import TYPE_CHECKING

from holdfast.core.decision import Due, end_of, left
from holdfast.core.events import Forgotten, SessionEnded
from holdfast.core.evolve import forgettable
from holdfast.core.line import circle_at_handover, next_turn
from holdfast.core.refusals import SessionLapsed, TicketGone
from holdfast.core.sessions import ends_with, places_in
from holdfast.core.values import ABSENT_MS_MAX

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.core.values import Limits, Moment

FORGET_EVERY_MS = 1_000
FORGET_MAX = 2_000
"""How many remembered things one record may drop: it bounds the time of one turn."""


def settle(state: State, now: Moment, limits: Limits) -> Due | None:
    """Return the next thing that fell due by `now`, or None. Called again and again until there is none."""
    return (
        _lapsed_session(state, now.ms)
        or _expired_lease(state, now.ms)
        or _lapsed_ticket(state, now.ms)
        or settle_line(state, now, limits)
        or _overdue_memory(state, now.ms, limits)
    )


def settle_line(state: State, now: Moment, limits: Limits) -> Due | None:
    """Return the next thing that is due in the lines since the last decision: a circle to break, a turn to give."""
    _open_names(state, now.ms)
    return circle_at_handover(state, now.ms) or next_turn(state, now, limits)


def _lapsed_session(state: State, now_ms: int) -> Due | None:
    alarms = state.agenda.session_alarms
    while alarms and alarms[0][0] <= now_ms:
        due_ms, session_id = alarms[0]
        session = state.sessions.get(session_id)
        if session is None:
            heapq.heappop(alarms)
        elif session.until_ms > due_ms:
            heapq.heapreplace(alarms, (session.until_ms, session_id))
        else:
            heapq.heappop(alarms)
            places = places_in(state, session_id)
            event = SessionEnded(session_id, "expired", ends_with(state, session_id, now_ms, None), left=places)
            return Due(event, tuple((each.ticket_id, SessionLapsed()) for each in places))
    return None


def _lapsed_ticket(state: State, now_ms: int) -> Due | None:
    """Return the end of the place whose holder has been away for too long (W2)."""
    for ticket_id, since_ms in state.presence.absent_since.items():
        is_due = since_ms + ABSENT_MS_MAX <= now_ms
        return Due(left(state.tickets[ticket_id], "gone"), ((ticket_id, TicketGone()),)) if is_due else None
    return None


def _open_names(state: State, now_ms: int) -> None:
    """Look at the lines of names whose delay is over, so that whoever stands there gets its turn (L6)."""
    alarms = state.agenda.opening_alarms
    while alarms and alarms[0][0] <= now_ms:
        _, name = heapq.heappop(alarms)
        if name in state.index.lines:
            state.agenda.names_to_serve[name] = None


def _expired_lease(state: State, now_ms: int) -> Due | None:
    alarms = state.agenda.lease_alarms
    while alarms and alarms[0][0] <= now_ms:
        due_ms, token, name = alarms[0]
        lease = state.lease_of(name)
        if lease is None or lease.token != token:
            heapq.heappop(alarms)
        elif lease.until_ms > due_ms:
            heapq.heapreplace(alarms, (lease.until_ms, token, name))
        else:
            heapq.heappop(alarms)
            return Due(end_of(name, lease, "expired", now_ms))
    return None


def _overdue_memory(state: State, now_ms: int, limits: Limits) -> Due | None:
    """Drop the oldest of what is only remembered, at most once a second unless a limit is passed."""
    over = len(state.remembered) - limits.retry_keys_max
    over_names = state.free_names - limits.ended_names_max
    if now_ms < state.agenda.forget_at_ms and over <= 0 and over_names <= 0:
        return None
    due = 0
    for thing in islice(state.remembered.values(), FORGET_MAX):
        if thing.at_ms > now_ms - limits.retry_memory_ms:
            break
        due += 1
    # A hundredth of the limit at a time: taking the first of a long dictionary one by one is slow.
    if over > 0:
        due = max(due, over + min(limits.retry_keys_max // 100, FORGET_MAX))
    names = 0
    if over_names > 0:
        wanted = over_names + min(limits.ended_names_max // 100, FORGET_MAX)
        names = sum(1 for _ in islice(forgettable(state, now_ms), wanted))
    if due or names:
        return Due(Forgotten(due, names))
    state.agenda.forget_at_ms = now_ms + FORGET_EVERY_MS
    return None
