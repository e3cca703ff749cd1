"""The last hours as samples: rates between two of them, quantiles of what was noted, and how many are kept."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from holdfast.config import Settings
from holdfast.observability.charts import STEP_MS
from holdfast.observability.metrics import SAMPLES_MAX, Meter, quantile
from holdfast.testing.clock import ManualClock
from tests.engine.harness import acquire, release, run, serving
from tests.support.memory_journal import MemoryJournal


def meter_on(clock: ManualClock) -> Meter:
    return Meter(Settings(data=Path("unused")), clock)


@pytest.mark.parametrize(
    ("counts", "part", "expected"),
    [
        ([4, 0, 0], 0.5, 0.5),
        ([2, 2, 0], 0.5, 1.0),
        ([2, 2, 0], 0.75, 1.5),
        ([0, 0, 3], 0.5, 2.0),
        ([1, 0, 0], 0.99, 0.99),
    ],
)
def test_quantile_matches_prometheus(counts: list[int], part: float, expected: float) -> None:
    """Evenly between two bounds, and what is beyond the last is told as the last."""
    assert quantile((1.0, 2.0), counts, part) == pytest.approx(expected)


def test_quantile_of_empty_histogram_is_nan() -> None:
    """Where nothing was noted there is no number, not a zero that looks like a very fast commit."""
    assert math.isnan(quantile((1.0, 2.0), [0, 0, 0], 0.5))


def test_sample_has_rates_since_previous_sample() -> None:
    """Rates are for one second, whatever the step was; what was before the last sample counts no more."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            meter = Meter(Settings(data=Path("unused")), clock, engine.metrics)
            meter.sources.serve(engine, {})
            for number in range(30):
                await engine.ask(acquire(f"job/{number}", ttl_ms=3_600_000))
            await engine.ask(release("job/0"))
            clock.advance(STEP_MS)
            meter.tick()
            clock.advance(2 * STEP_MS)
            await engine.ask(acquire("late", ttl_ms=3_600_000))
            meter.tick()
            first, second = meter.series.last(3_600_000)
            assert (first.grants, first.releases, first.held) == (3.0, 0.1, 29)
            assert second.grants == pytest.approx(0.05)
            assert (second.releases, second.held) == (0.0, 30)
            assert first.wall_ms < second.wall_ms
            assert math.isnan(second.wait_p50)

    run(test)


def test_a_sample_is_taken_when_it_is_time() -> None:
    """Ticks come every second, samples every ten."""
    clock = ManualClock(monotonic_ms=1_000)
    meter = meter_on(clock)
    for _ in range(35):
        clock.advance(1_000)
        meter.tick()
    assert len(meter.series) == 3


def test_series_retains_six_hours() -> None:
    """After a day there are as many samples as after six hours, and they are the last ones."""
    clock = ManualClock()
    meter = meter_on(clock)
    for _ in range(SAMPLES_MAX + 100):
        clock.advance(STEP_MS)
        meter.tick()
    assert len(meter.series) == SAMPLES_MAX == 2_160
    assert meter.series.last(86_400_000)[-1].wall_ms == clock.wall_ms()
    assert len(meter.series.last(3_600_000)) == 360
    assert meter.series.last(0) == []
