"""Alarms in the order of their time, of which some are for nothing, and these are cleared away a few at a time.

A lease of a day that was released at once must not keep its alarm for a day. So when too many alarms are for nothing,
they are sifted. To sift all of them at once would take as long as all that others hold, in one turn. So the heap is set
aside, and each later call takes a few from its end. What is still needed goes into a new heap.

    heap     what was set since sifting began, and what was sifted and is still needed
    aside    what has not been sifted yet; empty most of the time

A heap stays a heap when its last item is taken away: so both can be asked for their first alarm all the while.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

Alarm = TypeVar("Alarm", bound=tuple[Any, ...])
ALARMS_SPARE = 1_000
"""How many alarms may be for nothing, beside as many as are needed, before they are sifted."""
SIFTED_AT_ONCE = 10
"""How many are looked at by one call: more than one call can set, so that sifting comes to an end."""


class Alarms(Generic[Alarm]):
    """Tuples that begin with a time in milliseconds and with what the alarm is for."""

    __slots__ = ("_kept", "aside", "heap")

    def __init__(self) -> None:
        self.heap: list[Alarm] = []
        self.aside: list[Alarm] = []
        self._kept: set[Hashable] = set()
        """What has an alarm already, of that which was sifted: one is enough."""

    def __len__(self) -> int:
        return len(self.heap) + len(self.aside)

    def __iter__(self) -> Iterator[Alarm]:
        yield from self.heap
        yield from self.aside

    def fill(self, alarms: list[Alarm]) -> None:
        """Set all alarms of a state that has none yet."""
        heapq.heapify(alarms)
        self.heap = alarms

    def earlier(self) -> list[Alarm]:
        """Return the heap that has the first alarm on top; it is empty if there is none."""
        if self.aside and (not self.heap or self.aside[0] < self.heap[0]):
            return self.aside
        return self.heap

    def sift(self, needed: int, renew: Callable[[Alarm], Alarm | None]) -> None:
        """Look at a few alarms if too many are for nothing. `renew` returns what is needed in the place of one."""
        if not self.aside:
            if len(self.heap) <= 2 * needed + ALARMS_SPARE:
                return
            self.aside, self.heap = self.heap, []
        for _ in range(min(SIFTED_AT_ONCE, len(self.aside))):
            alarm = renew(self.aside.pop())
            if alarm is not None and alarm[1] not in self._kept:
                self._kept.add(alarm[1])
                heapq.heappush(self.heap, alarm)
        if not self.aside:
            self._kept = set()
