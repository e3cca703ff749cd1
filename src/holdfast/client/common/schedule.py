"""What is to be done when: an ordered list of moments in milliseconds. Knows no clock and runs nothing."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")

DEAD_MIN = 64


class Entry(Generic[T]):
    """Something to be done, until it is taken or cancelled."""

    __slots__ = ("item",)

    def __init__(self, item: T) -> None:
        self.item: T | None = item


class Schedule(Generic[T]):
    """The entries that are still to come."""

    def __init__(self) -> None:
        # By time, and among equals by who came first. Two numbers in front, so that no code of ours runs while they are
        # compared: there the garbage collector, or a signal, might change what is being ordered.
        self._heap: list[tuple[int, int, Entry[T]]] = []
        self._numbers = count()
        self._dead = 0

    def __len__(self) -> int:
        return len(self._heap) - self._dead

    def add(self, due_ms: int, item: T) -> Entry[T]:
        """Note something to be done; keep the entry to be able to cancel it."""
        entry = Entry(item)
        heappush(self._heap, (due_ms, next(self._numbers), entry))
        return entry

    def cancel(self, entry: Entry[T]) -> None:
        """Forget it; harmless when it was taken or cancelled before."""
        if entry.item is None:
            return
        entry.item = None
        self._dead += 1
        if self._dead > DEAD_MIN and self._dead * 2 > len(self._heap):
            self._heap = [each for each in self._heap if each[2].item is not None]
            heapify(self._heap)
            self._dead = 0

    def take(self, now_ms: int) -> list[T]:
        """Return what is due, in order."""
        taken: list[T] = []
        while self._heap and (self._heap[0][2].item is None or self._heap[0][0] <= now_ms):
            entry = heappop(self._heap)[2]
            if entry.item is None:
                self._dead -= 1
            else:
                taken.append(entry.item)
                entry.item = None
        return taken

    def next_due_ms(self) -> int | None:
        """Return when the next entry is due; None if there is none."""
        while self._heap and self._heap[0][2].item is None:
            heappop(self._heap)
            self._dead -= 1
        return self._heap[0][0] if self._heap else None
