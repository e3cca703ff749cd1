"""Timers: deadlines of everything that may fall due, and the waiters that may be granted.

They are hints: a deadline that has moved costs one check, and only a missing entry would be a bug. `evolve` and
`attach` add entries, `next_due` takes them. Every live lease has an entry at its deadline or before. A renewal that
moves the deadline later leaves the entry, which is set again when it is reached.

`DeadlineHeap` is a heap with lazy deletion. Stale entries are removed when they outnumber the live ones: a lease of a
day that was released immediately must not keep its entry for a day. Removing all in one tick would take too long. So
the heap is set aside (`draining`), and each later call moves a few of its entries, from the end, into the new heap if
they are still needed. A heap stays a heap when its last item is removed, so both heaps know their first entry.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.core.values import Session, Slot

Deadline = TypeVar("Deadline", bound=tuple[Any, ...])
DEADLINES_SPARE = 1_000
COMPACTED_PER_CALL = 10  # more than one call can add, so that sifting comes to an end


class DeadlineHeap(Generic[Deadline]):
    """Tuples of a time in milliseconds, what it is for, and maybe more."""

    __slots__ = ("_moved", "draining", "heap")

    def __init__(self) -> None:
        self.heap: list[Deadline] = []
        self.draining: list[Deadline] = []
        self._moved: set[Hashable] = set()  # what has an entry in the new heap already: one is enough

    def fill(self, deadlines: list[Deadline]) -> None:
        heapq.heapify(deadlines)
        self.heap = deadlines

    def first_heap(self) -> list[Deadline]:
        """Return the heap with the first entry; it is empty if there is none."""
        if self.draining and (not self.heap or self.draining[0] < self.heap[0]):
            return self.draining
        return self.heap

    def compact(self, needed: int, renew: Callable[[Deadline], Deadline | None]) -> None:
        """Check a few entries if too many are stale. `renew` returns the entry that replaces one, or None."""
        if not self.draining:
            if len(self.heap) <= 2 * needed + DEADLINES_SPARE:
                return
            self.draining, self.heap = self.heap, []
        for _ in range(min(COMPACTED_PER_CALL, len(self.draining))):
            deadline = renew(self.draining.pop())
            if deadline is not None and deadline[1] not in self._moved:
                self._moved.add(deadline[1])
                heapq.heappush(self.heap, deadline)
        if not self.draining:
            self._moved = set()


EDGES_MAX = 10_000  # that one cycle search, or all grants of one tick together, may visit (D1)
EDGES_FOR_A_NAME = 20  # added by each handed-over name, so that small cycles are always found


class Budget(msgspec.Struct):
    edges: int = EDGES_MAX

    def spend(self) -> bool:
        self.edges -= 1
        return self.edges >= 0


class Timers:
    def __init__(self) -> None:
        self.lease_deadlines: DeadlineHeap[tuple[int, int, str]] = DeadlineHeap()
        self.session_deadlines: DeadlineHeap[tuple[int, str]] = DeadlineHeap()
        self.opening_deadlines: list[tuple[int, str]] = []
        self.opened_until_ms = 0  # Names whose delay was over by then are open: their entries were handled.
        self.last_opened_ms = 0  # the last end of a delay that was handled: a record must be as late (T3a)
        self.candidates: list[tuple[int, str]] = []  # heap of (join number, ticket); empty when all grants are made
        self.names_with_new_holder: deque[str] = deque()  # with attached waiters: a cycle may be closed (D1)
        self.handover_budget = Budget()  # what is left for those cycles until all grants are made
        self.forget_at_ms = 0
        self.cut_memory_at_ms = 0  # when more may be evicted: retry memory, free names
        self.cut_names_at_ms = 0
        self.done_deadlines: DeadlineHeap[tuple[int, str]] = DeadlineHeap()
        self.expire_done_at_ms = 0
        self.lapsed = 0  # tickets that ended for an absent holder, and when the next may
        self.lapse_at_ms = 0

    def build(self, slots: dict[str, Slot], sessions: dict[str, Session]) -> None:
        leases: list[tuple[int, int, str]] = []
        dones: list[tuple[int, str]] = []
        for name, slot in slots.items():
            lease, done = slot.lease, slot.done
            if slot.closed_until_ms:
                self.opening_deadlines.append((slot.closed_until_ms, name))
            if done is not None:
                dones.append((done.until_ms, name))
            if lease is not None:
                leases.append((lease.until_ms, lease.token, name))
        heapq.heapify(self.opening_deadlines)
        self.lease_deadlines.fill(leases)
        self.done_deadlines.fill(dones)
        self.session_deadlines.fill([(session.until_ms, session.session_id) for session in sessions.values()])

    def compact_lease_deadlines(self, slots: dict[str, Slot], live: int) -> None:
        deadlines = self.lease_deadlines
        if deadlines.draining or len(deadlines.heap) > 2 * live + DEADLINES_SPARE:
            deadlines.compact(live, lambda deadline: _deadline_of_lease(slots, deadline))

    def compact_done_deadlines(self, slots: dict[str, Slot], done: int) -> None:
        def renew(deadline: tuple[int, str]) -> tuple[int, str] | None:
            slot = slots.get(deadline[1])
            return (
                deadline if slot is not None and slot.done is not None and slot.done.until_ms == deadline[0] else None
            )

        self.done_deadlines.compact(done, renew)

    def compact_session_deadlines(self, sessions: dict[str, Session]) -> None:
        self.session_deadlines.compact(len(sessions), lambda deadline: deadline if deadline[1] in sessions else None)


def _deadline_of_lease(slots: dict[str, Slot], deadline: tuple[int, int, str]) -> tuple[int, int, str] | None:
    """Return the entry that a lease needs: at its deadline, however often that has moved."""
    _, token, name = deadline
    if (slot := slots.get(name)) is None or slot.lease is None or slot.lease.token != token:
        return None
    return (slot.lease.until_ms, token, name)
