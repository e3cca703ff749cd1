"""The last hours as a series of samples: what the page of numbers draws. One every ten seconds, six hours of them.

It is kept in memory alone, takes under a megabyte, and begins anew with the process. Whoever wants more has Prometheus.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.server.metrics.sources import Sources
    from holdfast.server.metrics.stalls import Stalls

STEP_MS = 10_000
KEPT_MS = 6 * 3_600_000
SAMPLES_MAX = KEPT_MS // STEP_MS


class Sample(msgspec.Struct, frozen=True):
    """What happened in one step, and what was so at its end. Rates are for one second."""

    wall_ms: float
    grants: float
    renewals: float
    releases: float
    losses: float
    refusals: float
    held: float
    waiting: float
    sessions: float
    wait_p50: float
    wait_p99: float
    commit_p50: float
    commit_p99: float
    answer_p50: float
    answer_p99: float
    lag_max: float
    processor: float
    """Of one processor, in this process."""


class _Counts(msgspec.Struct, frozen=True):
    """What only rises, as of a sample."""

    read_ms: int
    totals: tuple[float, ...]
    spreads: tuple[tuple[int, ...], ...]


class Series:
    """The samples of one process."""

    def __init__(self, sources: Sources, stalls: Stalls) -> None:
        self._sources = sources
        self._stalls = stalls
        self._samples: deque[array[float]] = deque(maxlen=SAMPLES_MAX)
        measures = sources.measures
        self._spreads = (measures.waits, measures.commits, measures.answers)
        self._last = self._count()
        self.taken = 0
        """How many samples were ever taken: another number, another picture."""

    def __len__(self) -> int:
        return len(self._samples)

    def tick(self) -> None:
        """Take a sample if it is time for one. Called every second or so."""
        if self._sources.clock.monotonic_ms() - self._last.read_ms >= STEP_MS:
            self.sample()

    def sample(self) -> None:
        """Take a sample of all since the last one."""
        before, now = self._last, self._count()
        self._last = now
        seconds = max(0.001, (now.read_ms - before.read_ms) / 1000)
        rates = [(new - old) / seconds for old, new in zip(before.totals, now.totals, strict=True)]
        quantiles = [
            quantile(spread.bounds, [new - old for old, new in zip(was, is_, strict=True)], part)
            for spread, was, is_ in zip(self._spreads, before.spreads, now.spreads, strict=True)
            for part in (0.5, 0.99)
        ]
        state = None if self._sources.engine is None else self._sources.engine.state
        gauges = (0, 0, 0) if state is None else (len(state.index.held), len(state.tickets), len(state.sessions))
        wall_ms = self._sources.clock.wall_ms()
        row = (wall_ms, *rates[:5], *gauges, *quantiles, self._stalls.take_longest(), rates[5])
        self._samples.append(array("d", row))
        self.taken += 1

    def last(self, span_ms: int) -> list[Sample]:
        """Return the samples of the last so many milliseconds, oldest first."""
        number = min(len(self._samples), -(-span_ms // STEP_MS))
        chosen = list(self._samples)[len(self._samples) - number :]
        return [Sample(*row) for row in chosen]

    def _count(self) -> _Counts:
        tally, counters = self._sources.measures.tally, self._sources.counters
        kept = tally.releases + tally.ends.get("transferred", 0)
        refusals = sum(counters.reasons.values()) + sum(counters.shown.values())
        losses = sum(tally.ends.values()) - kept
        used = self._sources.processor_seconds()
        totals = (tally.grants, tally.renewals, tally.releases, losses, refusals, used)
        spreads = tuple(tuple(spread.counts) for spread in self._spreads)
        return _Counts(self._sources.clock.monotonic_ms(), totals, spreads)


def quantile(bounds: Sequence[float], counts: Sequence[int], part: float) -> float:
    """Return about which value so large a part of all was at or below; as Prometheus reckons it. NaN if there was none.

    Between two bounds it is taken to be spread evenly. What is beyond the last bound is told as that bound.
    """
    wanted, seen, below = sum(counts) * part, 0, 0.0
    if not wanted:
        return float("nan")
    for bound, count in zip(bounds, counts, strict=False):
        if count and seen + count >= wanted:
            return below + (bound - below) * (wanted - seen) / count
        seen += count
        below = bound
    return below
