"""What falls due by itself: sessions that missed their keepalive, leases past their end, memories past their time.

There is no other expiry check anywhere (T3): what is due is ended by a record before anything else is decided.
"""

from __future__ import annotations

import heapq
from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.core.decision import end_of
from holdfast.core.events import Event, Forgotten, SessionEnded
from holdfast.core.sessions import ends_with
from holdfast.core.state import EMPTY, forgettable

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.core.values import Limits

FORGET_EVERY_MS = 1_000
FORGET_MAX = 2_000
"""How many remembered things one record may drop: it bounds the time of one turn."""


def settle(state: State, now_ms: int, limits: Limits) -> Event | None:
    """Return the next event that fell due by `now_ms`, or None. Called again and again until there is none."""
    alarms = state.session_alarms
    while alarms and alarms[0][0] <= now_ms:
        due_ms, session_id = alarms[0]
        session = state.sessions.get(session_id)
        if session is None:
            heapq.heappop(alarms)
        elif session.until_ms > due_ms:
            heapq.heapreplace(alarms, (session.until_ms, session_id))
        else:
            heapq.heappop(alarms)
            return SessionEnded(session_id, "expired", ends_with(state, session_id, now_ms, None))
    return _expired_lease(state, now_ms) or _overdue_memory(state, now_ms, limits)


def _expired_lease(state: State, now_ms: int) -> Event | None:
    alarms = state.lease_alarms
    while alarms and alarms[0][0] <= now_ms:
        due_ms, token, name = alarms[0]
        slot = state.slots.get(name, EMPTY)
        lease = slot.lease
        if lease is None or lease.token != token or slot.alarm_ms != due_ms:
            heapq.heappop(alarms)
        elif lease.until_ms > due_ms:
            heapq.heapreplace(alarms, (lease.until_ms, token, name))
            state.slots[name] = replace(slot, alarm_ms=lease.until_ms)
        else:
            heapq.heappop(alarms)
            return end_of(name, lease, "expired", now_ms)
    return None


def _overdue_memory(state: State, now_ms: int, limits: Limits) -> Event | None:
    """Drop the oldest of what is only remembered, at most once a second unless a limit is passed."""
    over = len(state.remembered) - limits.retry_keys_max
    over_names = state.free_names - limits.ended_names_max
    if now_ms < state.forget_at_ms and over <= 0 and over_names <= 0:
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
        return Forgotten(due, names)
    state.forget_at_ms = now_ms + FORGET_EVERY_MS
    return None
