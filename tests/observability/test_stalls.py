"""How late the loop is: noted ten times a second, whatever kept it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from holdfast.engine.metrics import Histogram
from holdfast.observability.metrics import LAG_SECONDS, LoopStalls
from tests.engine.harness import run

if TYPE_CHECKING:
    from holdfast.testing.clock import ManualClock


def test_stalls_measure_blocked_loop() -> None:
    """Ten looks a second of a loop that is on time; one that was held for 300 ms is that late, and is the longest."""

    async def test(clock: ManualClock) -> None:
        lags = Histogram(LAG_SECONDS)
        stalls = LoopStalls(clock, lags)
        stalls.start()
        await asyncio.sleep(1.05)
        assert (sum(lags.counts), lags.counts[0]) == (10, 10)
        clock.advance(300)  # Whoever does this to the loop of a server computes, or waits for a disk.
        await asyncio.sleep(0.2)
        late = sum(count for bound, count in zip(LAG_SECONDS, lags.counts, strict=False) if bound > 0.1)
        assert late == 1
        assert stalls.take_longest() == pytest.approx(0.25, abs=0.06)
        assert stalls.take_longest() == 0.0, "it is told once"
        stalls.stop()
        before = sum(lags.counts)
        await asyncio.sleep(1)
        assert sum(lags.counts) == before

    run(test)
