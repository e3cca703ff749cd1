"""The last hours as charts: geometry that the metrics page writes as SVG, drawn once per sample.

    samples, one every ten seconds ──► at most `POINTS_MAX` points a line ──► the path of a line, and a round scale

Charts have no names, so all readers get the same. A line has gaps where nothing was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

import msgspec

STEP_MS = 10_000
WIDTH, HEIGHT = 420, 150
LEFT, RIGHT, TOP, BOTTOM = 52, 414, 8, 124  # The area of the lines, without scale and times.
POINTS_MAX = 180
TICKS = 4
SPANS: dict[str, tuple[str, int]] = {
    "15m": ("15 minutes", 900_000),
    "1h": ("1 hour", 3_600_000),
    "6h": ("6 hours", 21_600_000),
}
USUAL_SPAN = "1h"
_NAN = float("nan")
_UNITS = ((3_600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (0.0, "µs"))


class Sample(msgspec.Struct, frozen=True):
    """Rates per second over one step, and the state at its end."""

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
    processor: float  # The part of one processor that this process used.


class Curve(msgspec.Struct, frozen=True):
    style: str
    label: str
    path: str
    last: str
    highest: str


class AxisMark(msgspec.Struct, frozen=True):
    at: float
    text: str = ""  # Of the scale.
    wall_ms: int = 0  # Of the time axis.


class Chart(msgspec.Struct, frozen=True):
    key: str
    title: str
    about: str
    lines: list[Curve]
    scale: list[AxisMark]
    marks: list[AxisMark]


class Stat(msgspec.Struct, frozen=True):
    key: str
    value: str
    label: str


class ChartSet(msgspec.Struct, frozen=True):
    span: str
    since_wall_ms: int | None  # The first sample of the span; None without samples.
    stats: list[Stat]
    charts: list[Chart]


class _Plan(msgspec.Struct, frozen=True):
    key: str
    title: str
    about: str
    write: Callable[[float], str]
    lines: tuple[tuple[str, str, str], ...]  # Style, label and field of `Sample`.


def rate_text(value: float) -> str:
    return f"{count_text(value)}/s"


def count_text(value: float) -> str:
    if math.isnan(value):
        return "–"
    if value == 0 or value >= 100 or value == int(value):  # noqa: PLR2004 - three digits
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 else "<0.001"  # noqa: PLR2004 - less is next to nothing


def seconds_text(value: float) -> str:
    """Return a duration in the unit that fits: 350 µs, 1.2 ms, 3 s, 4 min."""
    if math.isnan(value):
        return "–"
    if value == 0:
        return "0 s"
    limit, unit = next(each for each in _UNITS if value >= each[0])
    return f"{value / (limit or 1e-6):.3g} {unit}"


def share_text(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.3g} %"


PLANS: tuple[_Plan, ...] = (
    _Plan(
        "claims",
        "Claims",
        "Claims, heartbeats and releases in a second.",
        rate_text,
        (("first", "claims", "grants"), ("second", "heartbeats", "renewals"), ("third", "releases", "releases")),
    ),
    _Plan(
        "losses",
        "Lost and refused",
        "Claims that ended otherwise than by their holders, and requests that were refused, in a second.",
        rate_text,
        (("bad", "lost", "losses"), ("second", "refused", "refusals")),
    ),
    _Plan(
        "held",
        "Held and waiting",
        "Held jobs, waiters in queues, and sessions.",
        count_text,
        (("first", "held", "held"), ("second", "waiting", "waiting"), ("third", "sessions", "sessions")),
    ),
    _Plan(
        "waits",
        "Wait in the queue",
        "How long granted claims had waited in a queue.",
        seconds_text,
        (("first", "half", "wait_p50"), ("second", "99 in 100", "wait_p99")),
    ),
    _Plan(
        "answers",
        "Answers",
        "From the first request of a batch to all of its answers; waits in queues are not in it.",
        seconds_text,
        (("first", "half", "answer_p50"), ("second", "99 in 100", "answer_p99")),
    ),
    _Plan(
        "commits",
        "Commits",
        "How long it took until a batch was durable.",
        seconds_text,
        (("first", "half", "commit_p50"), ("second", "99 in 100", "commit_p99")),
    ),
    _Plan(
        "stalls",
        "Stalls of the loop",
        "The longest time for which nobody was served.",
        seconds_text,
        (("bad", "longest", "lag_max"),),
    ),
    _Plan(
        "processor",
        "Processor",
        "How much of one processor the server took. It can use no more than one.",
        share_text,
        (("first", "used", "processor"),),
    ),
)
_SHOWN_BY_MAXIMUM = frozenset(
    {"wait_p99", "commit_p99", "answer_p99", "lag_max"}
)  # Points show the maximum, others the mean.


def draw(samples: Sequence[Sample], span: str) -> ChartSet:
    if not samples:
        return ChartSet(span, None, [], [])
    times = _points([sample.wall_ms for sample in samples], max)
    since, length_ms = times[0], max(times[-1] - times[0], 1)
    x = [round(LEFT + min(1.0, max(0.0, (wall_ms - since) / length_ms)) * (RIGHT - LEFT), 1) for wall_ms in times]
    parts = [number / TICKS for number in range(TICKS + 1)]
    marks = [AxisMark(round(LEFT + part * (RIGHT - LEFT), 1), wall_ms=int(since + part * length_ms)) for part in parts]
    return ChartSet(span, int(since), _stats(samples), [_chart(plan, samples, x, marks) for plan in PLANS])


def _chart(plan: _Plan, samples: Sequence[Sample], x: list[float], marks: list[AxisMark]) -> Chart:
    columns = [
        _points([getattr(sample, field) for sample in samples], max if field in _SHOWN_BY_MAXIMUM else fmean)
        for _, _, field in plan.lines
    ]
    top = round_up(_maximum([value for values in columns for value in values]))

    def y(value: float) -> float:
        return round(BOTTOM - min(1.0, value / top) * (BOTTOM - TOP), 1)

    lines = [
        Curve(style, label, _path(values, x, y), plan.write(values[-1]), plan.write(_maximum(values)))
        for (style, label, _), values in zip(plan.lines, columns, strict=True)
    ]
    scale = [AxisMark(y(top * part), plan.write(top * part)) for part in (0.0, 0.5, 1.0)]
    return Chart(plan.key, plan.title, plan.about, lines, scale, marks)


def _maximum(values: list[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=_NAN)


def _path(values: list[float], x: list[float], y: Callable[[float], float]) -> str:
    """Return an SVG path through all values, with gaps at NaN. A single value is a short dash."""
    parts: list[str] = []
    is_drawn = False
    for at, value in zip(x, values, strict=True):
        if not math.isnan(value):
            parts.append(f"L{at:g} {y(value):g}" if is_drawn else f"M{at:g} {y(value):g}h1")
        is_drawn = not math.isnan(value)
    return "".join(parts)


def _points(values: Sequence[float], together: Callable[[list[float]], float]) -> list[float]:
    size = -(-len(values) // POINTS_MAX)
    pieces = (values[at : at + size] for at in range(0, len(values), size))
    groups = ([value for value in piece if not math.isnan(value)] for piece in pieces)
    return [together(group) if group else _NAN for group in groups]


def round_up(value: float) -> float:
    """Return the next of 1, 2 and 5 times a power of ten."""
    if value <= 0 or math.isnan(value):
        return 1.0
    size: float = 10.0 ** math.floor(math.log10(value))
    return next(times * size for times in (1.0, 2.0, 5.0, 10.0) if times * size >= value * (1 - 1e-9))


def _stats(samples: Sequence[Sample]) -> list[Stat]:
    last = samples[-1]
    lost = round(sum(sample.losses for sample in samples) * STEP_MS / 1000)
    return [
        Stat("grants", rate_text(last.grants), "claims now"),
        Stat("held", count_text(last.held), "jobs held"),
        Stat("waiting", count_text(last.waiting), "waiters"),
        Stat("lost", count_text(lost), "claims lost in this time"),
        Stat("commit", seconds_text(_maximum([sample.commit_p99 for sample in samples])), "slowest commits, 99 in 100"),
        Stat("stall", seconds_text(max(sample.lag_max for sample in samples)), "longest stall"),
    ]
