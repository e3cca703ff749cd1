"""Charts of the last hours: round scales, gaps where nothing was, at most so many points, made once for all."""

from __future__ import annotations

import math
import re
from pathlib import Path

import msgspec
import pytest

from holdfast.config import Settings
from holdfast.observability import charts
from holdfast.observability.charts import (
    BOTTOM,
    LEFT,
    POINTS_MAX,
    RIGHT,
    SPANS,
    STEP_MS,
    TOP,
    Sample,
    draw,
    round_up,
)
from holdfast.observability.metrics import Meter
from holdfast.testing.clock import ManualClock

NAN = float("nan")
FIELDS = [field for field in Sample.__struct_fields__ if field != "wall_ms"]


def sample(number: int, **values: float) -> Sample:
    fields = dict.fromkeys(FIELDS, 0.0) | values
    return Sample(wall_ms=1_750_000_000_000 + number * STEP_MS, **fields)


def line(drawn: charts.ChartSet, chart: str, label: str) -> charts.Curve:
    (found,) = [line for each in drawn.charts if each.key == chart for line in each.lines if line.label == label]
    return found


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]


@pytest.mark.parametrize(
    ("value", "expected"), [(0, 1), (0.3, 0.5), (1, 1), (1.1, 2), (4.9, 5), (51, 100), (0.00012, 0.0002), (NAN, 1)]
)
def test_a_scale_ends_with_a_round_number(value: float, expected: float) -> None:
    """1, 2 or 5 times a power of ten, and never below what is drawn."""
    assert round_up(value) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (charts.rate_text, 1234.5, "1,234/s"),
        (charts.rate_text, 0.1234, "0.123/s"),
        (charts.count_text, 7, "7"),
        (charts.count_text, 0.0001, "<0.001"),
        (charts.seconds_text, 0.00035, "350 µs"),
        (charts.seconds_text, 0.0012, "1.2 ms"),
        (charts.seconds_text, 2.5, "2.5 s"),
        (charts.seconds_text, 90, "1.5 min"),
        (charts.seconds_text, 7_200, "2 h"),
        (charts.seconds_text, 0, "0 s"),
        (charts.seconds_text, NAN, "–"),
        (charts.share_text, 0.256, "25.6 %"),
    ],
)
def test_values_are_written_for_people(write: object, value: float, text: str) -> None:
    """In the unit that fits, with three digits at most that count, and a dash where there is none."""
    assert callable(write) and write(value) == text


def test_a_line_goes_through_its_values() -> None:
    """From left to right by time, and the highest value stands at the place that the scale gives it."""
    drawn = draw([sample(0, grants=0), sample(1, grants=5), sample(2, grants=10)], "1h")
    claims = line(drawn, "claims", "claims")
    assert points(claims.path) == [(LEFT, BOTTOM), ((LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2), (RIGHT, TOP)]
    assert (claims.last, claims.highest) == ("10/s", "10/s")
    assert [tick.text for tick in drawn.charts[0].scale] == ["0/s", "5/s", "10/s"]


def test_chart_shows_gap_without_samples() -> None:
    """A step without a commit breaks the line: it is not drawn as a commit that took no time."""
    samples = [sample(number, commit_p50=NAN if number == 2 else 0.001) for number in range(5)]
    half = line(draw(samples, "1h"), "commits", "half")
    assert (half.path.count("M"), len(points(half.path))) == (2, 4)
    nothing = line(draw([sample(0, commit_p50=NAN), sample(1, commit_p50=NAN)], "1h"), "commits", "half")
    assert (nothing.path, nothing.last, nothing.highest) == ("", "–", "–")


def test_many_samples_are_few_points() -> None:
    """Six hours are drawn with at most 180 points a line; of the worst nothing is smoothed away."""
    samples = [sample(number, lag_max=1.7 if number == 1_000 else 0.001, grants=1) for number in range(2_160)]
    drawn = draw(samples, "6h")
    assert all(len(points(each.path)) <= POINTS_MAX for chart in drawn.charts for each in chart.lines)
    assert line(drawn, "stalls", "longest").highest == "1.7 s"
    assert {stat.key: stat.value for stat in drawn.stats}["stall"] == "1.7 s"
    assert len(msgspec.json.encode(drawn)) < 60_000


def test_chart_counts_losses_from_first_sample() -> None:
    """Half a claim a second for ten seconds is five, also if there is only one sample yet."""
    for number in (1, 3):
        drawn = draw([sample(each, losses=0.5) for each in range(number)], "1h")
        assert {stat.key: stat.value for stat in drawn.stats}["lost"] == str(5 * number)


def test_every_chart_is_about_fields_that_samples_have() -> None:
    """Each line of each plan reads a field of a sample, and the keys of the charts are their own."""
    assert {field for plan in charts.PLANS for _, _, field in plan.lines} <= set(FIELDS)
    assert len({plan.key for plan in charts.PLANS}) == len(charts.PLANS)


def test_chart_without_samples_is_empty() -> None:
    """In the first ten seconds there is nothing to see, and it says so."""
    assert draw([], "1h") == charts.ChartSet("1h", None, [], [])


def test_a_chart_is_made_once_for_all() -> None:
    """Between two samples everybody gets the same; there are no more of them than spans, whatever is asked for."""
    clock = ManualClock()
    meter = Meter(Settings(data=Path("unused")), clock)
    clock.advance(STEP_MS)
    meter.tick()
    first = meter.series.charts_of("1h")
    assert meter.series.charts_of("1h") is first and meter.series.charts_of("no such span") is first
    for span in (*SPANS, "7y", "", "1h ", "<b>"):
        meter.series.charts_of(span)
    assert set(meter.series._chart_sets) == set(SPANS)
    clock.advance(STEP_MS)
    meter.tick()
    assert meter.series.charts_of("1h") is not first
    assert not math.isnan(first.since_wall_ms or 0)
