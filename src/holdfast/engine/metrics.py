"""Counters and histograms of an authority, for as long as the process lives.

`Tally` counts durable records. Each append adds to four histograms: the time of the iteration, of the append, the
number of records, and the time to its answers, which are given together, so one clock reading serves all. On a node of
several, one `EngineMetrics` outlives every term, so counters only rise.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable

from holdfast.core.events import (
    Ended,
    Event,
    Granted,
    Joined,
    Left,
    Record,
    Renewed,
    SessionEnded,
    SessionOpened,
    SessionRenewed,
    TokenEnded,
    Transferred,
    parts_of,
)

# 0.05 is the budget of a tick.
_FINE_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_LONG_SECONDS = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0)
_LONG_MS = tuple(round(bound * 1000) for bound in _LONG_SECONDS)
_RECORDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 5_000.0)

ENDING = frozenset({Ended, Transferred, SessionEnded, TokenEnded})


class Histogram:
    """A histogram. A bound belongs to the bucket below it."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last one for values beyond the last bound
        self.total = 0.0

    def note(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def observe_all_ms(self, spans_ms: list[int]) -> None:
        """Count durations in a histogram of seconds. They seem negative if a clock was set back."""
        counts = self.counts
        for span_ms in spans_ms:
            counts[bisect_left(_LONG_MS, span_ms)] += 1
        self.total += sum(max(0, span_ms) for span_ms in spans_ms) / 1000


class Tally:
    def __init__(self) -> None:
        self.grants = 0
        self.renewals = 0
        self.ends: dict[str, int] = defaultdict(int)
        self.joins = 0
        self.leaves: dict[str, int] = defaultdict(int)  # tickets that ended without a grant, by how
        self.sessions = 0
        self.session_ends: dict[str, int] = defaultdict(int)

    @property
    def releases(self) -> int:
        return self.ends.get("released", 0)

    def count(self, records: Iterable[Record]) -> None:
        for record in records:
            event = record.event
            # Not `isinstance`, which asks the metaclass if the type does not match.
            kind = type(event)
            if kind is Granted:
                self.grants += 1
            elif kind is Renewed:
                self.renewals += 1
            elif kind is Ended and not event.left:  # type: ignore[union-attr]
                self.ends[event.how] += 1  # type: ignore[union-attr]
            else:
                self._count_parts(event)

    def _count_parts(self, event: Event) -> None:
        match event:
            case SessionRenewed():
                self.renewals += len(event.leases)
            case SessionOpened():
                self.sessions += 1
            case SessionEnded():
                self.session_ends[event.how] += 1
            case TokenEnded():
                for session in event.sessions:
                    self.session_ends[session.how] += 1
            case _:
                pass
        for part in parts_of(event):
            match part:
                case Granted():
                    self.grants += 1
                case Transferred():
                    self.ends["transferred"] += 1
                case Ended():
                    self.ends[part.how] += 1
                case Left():
                    self.leaves[part.how] += 1
                case Joined():
                    self.joins += 1
                case _:
                    pass


class EngineMetrics:
    def __init__(self) -> None:
        self.tally = Tally()
        self.ticks = Histogram(_FINE_SECONDS)  # seconds per loop iteration: no other request is served meanwhile
        self.commits = Histogram(_FINE_SECONDS)  # seconds until an append was durable, or leadership proven
        self.batches = Histogram(_RECORDS)
        self.answers = Histogram(_FINE_SECONDS)  # from the first request of a batch to its answers, once for each
        self.waits = Histogram(_LONG_SECONDS)
        self.holds = Histogram(_LONG_SECONDS)
