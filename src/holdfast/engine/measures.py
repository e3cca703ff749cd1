"""Counters and histograms of an authority, for as long as the process lives.

Nothing here decides anything or walks over the state. `Tally` counts durable records, `Spans` looks up how long a lease
was held before it is gone, and each append notes four histograms: the time of the turn, the append, its records, and
the time to its answers. No claim is timed by itself: all answers of an append are given together, so one look at the
clock serves them all. On a node of several, one `Measures` outlives every term, so counters only rise.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from holdfast.core.events import (
    Ended,
    Granted,
    GrantedMany,
    Joined,
    Left,
    Renewed,
    SessionEnded,
    SessionOpened,
    SessionRenewed,
    TokenEnded,
    Transferred,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.core.events import Event, Record
    from holdfast.core.state import State

_FINE_SECONDS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
)
"""For what the machine does. 0.05 is the budget of a turn."""
_LONG_SECONDS = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0)
"""For what people and agents do."""
_LONG_MS = tuple(round(bound * 1000) for bound in _LONG_SECONDS)
_RECORDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 5_000.0)

ENDING = frozenset({Ended, Transferred, SessionEnded, TokenEnded})
"""Events that end leases."""
_IN_PARTS = frozenset({Ended, GrantedMany, Transferred, SessionRenewed, SessionEnded, TokenEnded, Left})
"""Events that count more than once, or as something else."""


class Spread:
    """A histogram. A bound belongs to the bucket below it."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """The last is for all that is beyond the last bound."""
        self.total = 0.0

    def note(self, value: float, times: int = 1) -> None:
        """Count a value, so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def note_all(self, spans_ms: list[int]) -> None:
        """Count durations, which may seem negative if a clock was set back. Every batch with a release comes here."""
        counts = self.counts
        for span_ms in spans_ms:
            counts[bisect_left(_LONG_MS, span_ms)] += 1
        self.total += sum(spans_ms if min(spans_ms) >= 0 else [max(0, span_ms) for span_ms in spans_ms]) / 1000


class Tally:
    """Counters of durable records since the process started."""

    __slots__ = ("_kinds", "ends", "grants", "leaves", "renewals", "session_ends")

    def __init__(self) -> None:
        self.grants = 0
        """Leases that were granted; transfers do not count."""
        self.renewals = 0
        """Leases that got a new deadline, each of a session's too."""
        self.ends: dict[str, int] = {}
        """Leases that ended, by how."""
        self.leaves: dict[str, int] = {}
        """Places in queues that were lost or given up, by how; not those that were granted."""
        self.session_ends: dict[str, int] = {}
        """Sessions that ended, by how."""
        self._kinds: dict[type[Event], int] = {}
        """All other records, by kind."""

    @property
    def releases(self) -> int:
        """Leases that their holders gave back."""
        return self.ends.get("released", 0)

    @property
    def joins(self) -> int:
        """Places in line that were taken."""
        return self._kinds.get(Joined, 0)

    @property
    def sessions(self) -> int:
        """Sessions that were opened."""
        return self._kinds.get(SessionOpened, 0)

    def count(self, records: Iterable[Record]) -> None:
        grants = renewals = 0
        for record in records:
            event = record.event
            # Not `isinstance`: of a type that does not fit, it asks the metaclass.
            kind = type(event)
            if kind is Granted:
                grants += 1
            elif kind is Renewed:
                renewals += 1
            elif kind is Ended and not event.left:  # type: ignore[union-attr]
                how: str = event.how  # type: ignore[union-attr]
                self.ends[how] = self.ends.get(how, 0) + 1
            else:
                self._kinds[kind] = self._kinds.get(kind, 0) + 1
                if kind in _IN_PARTS:
                    self._count_parts(event)
        self.grants += grants
        self.renewals += renewals

    def _count_parts(self, event: Event) -> None:
        match event:
            case GrantedMany():
                self.grants += len(event.grants)
            case SessionRenewed():
                self.renewals += len(event.leases)
            case Transferred():
                _add(self.ends, "transferred")
            case Left():
                _add(self.leaves, event.how)
            case Ended():
                _add(self.ends, event.how)
                for place in event.left:
                    _add(self.leaves, place.how)
            case SessionEnded():
                _add(self.session_ends, event.how)
                for part in event.leases:
                    self._count_parts(part)
                for place in event.left:
                    self._count_parts(place)
            case TokenEnded():
                for session in event.sessions:
                    self._count_parts(session)
                for place in event.left:
                    self._count_parts(place)


def _add(counts: dict[str, int], how: str) -> None:
    counts[how] = counts.get(how, 0) + 1


class Measures:
    """The measurements of all engines of one process."""

    __slots__ = ("answers", "batches", "commits", "holds", "tally", "turns", "waits")

    def __init__(self) -> None:
        self.tally = Tally()
        self.turns = Spread(_FINE_SECONDS)
        """Seconds per round of decisions: no other request is served meanwhile."""
        self.commits = Spread(_FINE_SECONDS)
        """Seconds until an append was durable, or the seat proven."""
        self.batches = Spread(_RECORDS)
        """Records of an append."""
        self.answers = Spread(_FINE_SECONDS)
        """Seconds from the first request of a batch to its answers, once for each answer."""
        self.waits = Spread(_LONG_SECONDS)
        """Seconds in the queue, of those who were granted what they waited for."""
        self.holds = Spread(_LONG_SECONDS)
        """Seconds for which a lease was held."""

    def committed(self, seconds: float, records: int) -> None:
        """Note the duration and size of an append. One without records is a proof of the seat."""
        self.commits.note(seconds)
        if records:
            self.batches.note(records)

    def ended(self, holds_ms: list[int], waits_ms: list[int]) -> None:
        """Note the holds and waits that a durable batch has ended."""
        if holds_ms:
            self.holds.note_all(holds_ms)
        if waits_ms:
            self.waits.note_all(waits_ms)


class Spans:
    """How long ended leases were held and granted places waited, collected per batch.

    By the wall clock, which is all that a lease and a place keep of their beginning.
    """

    __slots__ = ("_holds_ms", "_waits_ms")

    def __init__(self) -> None:
        self._holds_ms: list[int] = []
        """Of the leases that the current batch ends."""
        self._waits_ms: list[int] = []
        """Of the places that it grants something to."""

    def end(self, event: Event, state: State, wall_ms: int) -> None:
        """Note how long the leases were held that an event ends."""
        # Not `isinstance`, as in the tally: every release comes here.
        kind = type(event)
        if kind is Ended or kind is Transferred:
            slot = state.slots.get(event.name)  # type: ignore[union-attr]
            if slot is not None and slot.lease is not None:
                self._holds_ms.append(wall_ms - slot.lease.granted_wall_ms)
        elif isinstance(event, SessionEnded):
            for part in event.leases:
                self.end(part, state, wall_ms)
        elif isinstance(event, TokenEnded):
            for each in event.sessions:
                self.end(each, state, wall_ms)

    def grant(self, event: Event, state: State, wall_ms: int) -> None:
        """Note the wait of a granted place."""
        kind = type(event)
        if kind is Granted or kind is GrantedMany:
            ticket = state.tickets.get(event.ticket_id or "")  # type: ignore[union-attr]
            if ticket is not None and ticket.joined_wall_ms:
                self._waits_ms.append(wall_ms - ticket.joined_wall_ms)

    def take(self) -> tuple[list[int], list[int]]:
        """Return the holds and waits of the batch."""
        taken = self._holds_ms, self._waits_ms
        if self._holds_ms:
            self._holds_ms = []
        if self._waits_ms:
            self._waits_ms = []
        return taken

    def forget(self) -> None:
        """Forget the batch: the state was read again."""
        self._holds_ms, self._waits_ms = [], []
