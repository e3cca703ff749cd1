"""Where settling has to look: alarms for what may fall due, and the waiters who may have a turn.

It never says what is so. An alarm that rings for nothing, or a candidate that has no turn, costs one look; only a
missing entry would be a bug, and the properties look for that. `evolve` and `arrive` add entries, `settle` takes them.

Every live lease has an alarm at its deadline or before. A renewal that moves the deadline later leaves the alarm where
it is: when it rings it is set again. Only a deadline that moves earlier needs an alarm of its own.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING

from holdfast.core.alarms import ALARMS_SPARE, Alarms

if TYPE_CHECKING:
    from holdfast.core.values import Session, Slot

EDGES_MAX = 10_000
"""How many edges a search for a circle may look at; so may all searches of one settling together (D1)."""
EDGES_FOR_A_NAME = 20
"""How many each name that is handed over adds to that, so that small circles are found however much is settled."""


class Budget:
    """How many edges of the graph of waits may still be looked at."""

    __slots__ = ("edges",)

    def __init__(self, edges: int = EDGES_MAX) -> None:
        self.edges = edges

    def spend(self) -> bool:
        """Count one edge; tell whether it may be looked at."""
        self.edges -= 1
        return self.edges >= 0


class Agenda:
    """What to look at next."""

    def __init__(self) -> None:
        self.lease_alarms: Alarms[tuple[int, int, str]] = Alarms()
        """When a lease may end, its token, its name."""
        self.session_alarms: Alarms[tuple[int, str]] = Alarms()
        self.opening_alarms: list[tuple[int, str]] = []
        """When a closed name opens (L6)."""
        self.opened_until_ms = 0
        """Names whose delay was over by then are open: their alarms have rung."""
        self.rang_at_ms = 0
        """The end of the last delay whose alarm has rung: a record must be as late (T3a)."""
        self.candidates: list[tuple[int, str]] = []
        """Who may have a turn (join number, ticket), the one that joined first on top. Empty when all is settled."""
        self.names_with_new_holder: deque[str] = deque()
        """Somebody present waits there, so a circle of waits may be closed (D1)."""
        self.handover_budget = Budget()
        """What is left for those circles until all is settled."""
        self.forget_at_ms = 0
        """When to look again at what of the retry memory is overdue."""
        self.cut_memory_at_ms = 0
        """When the next slice of what is over a limit may go: of the retry memory, and of the free names."""
        self.cut_names_at_ms = 0
        self.done_alarms: Alarms[tuple[int, str]] = Alarms()
        """When finished work is no longer remembered (L5)."""
        self.fade_at_ms = 0
        self.lapsed = 0
        """How many places have ended because nobody came back to them; and when the next may."""
        self.lapse_at_ms = 0

    def build(self, slots: dict[str, Slot], sessions: dict[str, Session]) -> None:
        """Set an alarm for everything that has a deadline."""
        leases: list[tuple[int, int, str]] = []
        dones: list[tuple[int, str]] = []
        for name, slot in slots.items():
            lease, done = slot.lease, slot.done
            if slot.closed_until_ms:
                self.opening_alarms.append((slot.closed_until_ms, name))
            if done is not None:
                dones.append((done.until_ms, name))
            if lease is not None:
                leases.append((lease.until_ms, lease.token, name))
        heapq.heapify(self.opening_alarms)
        self.lease_alarms.fill(leases)
        self.done_alarms.fill(dones)
        self.session_alarms.fill([(session.until_ms, session.session_id) for session in sessions.values()])

    def next_alarms_ms(self) -> list[int]:
        """Return the earliest alarm of each kind."""
        heaps = (self.lease_alarms.earlier(), self.session_alarms.earlier(), self.opening_alarms)
        return [alarms[0][0] for alarms in heaps if alarms]

    # What is over needs no alarm (alarms.py).

    def tidy_lease_alarms(self, slots: dict[str, Slot], live: int) -> None:
        """Drop some alarms of leases that are over, if there are too many."""
        alarms = self.lease_alarms
        if alarms.aside or len(alarms.heap) > 2 * live + ALARMS_SPARE:
            alarms.sift(live, lambda alarm: _alarm_of_lease(slots, alarm))

    def tidy_done_alarms(self, slots: dict[str, Slot], done: int) -> None:
        """Drop some alarms of work that is no longer remembered as done, if there are too many."""
        self.done_alarms.sift(done, lambda alarm: _alarm_of_done(slots, alarm))

    def tidy_session_alarms(self, sessions: dict[str, Session]) -> None:
        """Drop some alarms of sessions that are over, if there are too many."""
        self.session_alarms.sift(len(sessions), lambda alarm: alarm if alarm[1] in sessions else None)


def _alarm_of_lease(slots: dict[str, Slot], alarm: tuple[int, int, str]) -> tuple[int, int, str] | None:
    """Return the alarm that a lease needs: at its deadline, however often that has moved."""
    _, token, name = alarm
    slot = slots.get(name)
    if slot is None or slot.lease is None or slot.lease.token != token:
        return None
    return (slot.lease.until_ms, token, name)


def _alarm_of_done(slots: dict[str, Slot], alarm: tuple[int, str]) -> tuple[int, str] | None:
    slot = slots.get(alarm[1])
    return alarm if slot is not None and slot.done is not None and slot.done.until_ms == alarm[0] else None
