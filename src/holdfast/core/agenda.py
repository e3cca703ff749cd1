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

if TYPE_CHECKING:
    from holdfast.core.values import Session, Slot

EDGES_MAX = 10_000
"""How many edges a search for a circle may look at; so may all searches of one settling together (D1)."""
EDGES_FOR_A_NAME = 20
"""How many each name that is handed over adds to that, so that small circles are found however much is settled."""
ALARMS_SPARE = 1_000
"""How many alarms of what is over may stand in a heap before it is cleared of them."""


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
        self.lease_alarms: list[tuple[int, int, str]] = []
        """When a lease may end, its token, its name."""
        self.session_alarms: list[tuple[int, str]] = []
        self.opening_alarms: list[tuple[int, str]] = []
        """When a closed name opens (L6)."""
        self.opened_until_ms = 0
        """Names whose delay was over by then are open: their alarms have rung."""
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
        self.done_alarms: list[tuple[int, str]] = []
        """When finished work is no longer remembered (L5)."""
        self.fade_at_ms = 0

    def build(self, slots: dict[str, Slot], sessions: dict[str, Session]) -> None:
        """Set an alarm for everything that has a deadline."""
        for name, slot in slots.items():
            if slot.closed_until_ms:
                self.opening_alarms.append((slot.closed_until_ms, name))
            if slot.done is not None:
                self.done_alarms.append((slot.done.until_ms, name))
            if slot.lease is not None:
                self.lease_alarms.append((slot.lease.until_ms, slot.lease.token, name))
        self.session_alarms = [(session.until_ms, session.session_id) for session in sessions.values()]
        heapq.heapify(self.lease_alarms)
        heapq.heapify(self.opening_alarms)
        heapq.heapify(self.session_alarms)
        heapq.heapify(self.done_alarms)

    def next_alarms_ms(self) -> list[int]:
        """Return the earliest alarm of each kind."""
        heaps = (self.lease_alarms, self.session_alarms, self.opening_alarms)
        return [alarms[0][0] for alarms in heaps if alarms]

    def has_lines_to_settle(self) -> bool:
        """Tell whether somebody may have a turn, or close a circle."""
        return bool(self.candidates or self.names_with_new_holder)

    # A lease of a day that was released at once must not keep its alarm for a day.

    def tidy_lease_alarms(self, slots: dict[str, Slot], live: int) -> None:
        """Keep the first alarm of each live lease and no other, once too many are for nothing."""
        if len(self.lease_alarms) <= 2 * live + ALARMS_SPARE:
            return
        first: dict[int, tuple[int, int, str]] = {}
        for alarm in self.lease_alarms:
            slot = slots.get(alarm[2])
            if slot is not None and slot.lease is not None and slot.lease.token == alarm[1]:
                first[alarm[1]] = min(alarm, first.get(alarm[1], alarm))
        self.lease_alarms = list(first.values())
        heapq.heapify(self.lease_alarms)

    def tidy_done_alarms(self, slots: dict[str, Slot], done: int) -> None:
        """Keep the alarms of work that is remembered as done, once too many are for nothing."""
        if len(self.done_alarms) <= 2 * done + ALARMS_SPARE:
            return
        alarms = {
            alarm
            for alarm in self.done_alarms
            if (slot := slots.get(alarm[1])) is not None and slot.done is not None and slot.done.until_ms == alarm[0]
        }
        self.done_alarms = list(alarms)
        heapq.heapify(self.done_alarms)

    def tidy_session_alarms(self, sessions: dict[str, Session]) -> None:
        """Keep the alarms of live sessions, once too many are for nothing."""
        if len(self.session_alarms) > 2 * len(sessions) + ALARMS_SPARE:
            self.session_alarms = [alarm for alarm in self.session_alarms if alarm[1] in sessions]
            heapq.heapify(self.session_alarms)
