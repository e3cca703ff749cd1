"""The last hours as charts: plain geometry, which the page of numbers writes as SVG. Made once for each sample.

    samples, one every ten seconds ──► at most `POINTS_MAX` points a line ──► the path of a line, and a round scale

All who may read see the same, for there is no name in it. So a chart is made once, whoever asks and however often.
Where nothing was measured a line has a gap: no commit is not a commit of no time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

STEP_MS = 10_000
"""A sample is taken so often."""
WIDTH, HEIGHT = 420, 150
LEFT, RIGHT, TOP, BOTTOM = 52, 414, 8, 124
"""Where the lines stand in it; beside and below them are the scale and the times."""
POINTS_MAX = 180
TICKS = 4
SPANS: dict[str, tuple[str, int]] = {
    "15m": ("15 minutes", 900_000),
    "1h": ("1 hour", 3_600_000),
    "6h": ("6 hours", 21_600_000),
}
"""What can be looked at: by name, in words, in milliseconds."""
USUAL_SPAN = "1h"
_NAN = float("nan")
_UNITS = ((1.0, "s", 1), (1e-3, "ms", 1_000), (0.0, "µs", 1_000_000))


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


class Line(msgspec.Struct, frozen=True):
    """One line of a chart."""

    style: str
    """Its class: `first`, `second`, `third` or `bad`."""
    label: str
    path: str
    last: str
    """Its last value, in words."""
    highest: str


class Tick(msgspec.Struct, frozen=True):
    """A mark of a scale: where it stands, and what is written beside it."""

    at: float
    text: str


class Mark(msgspec.Struct, frozen=True):
    """A mark of the axis of time."""

    at: float
    wall_ms: int


class Chart(msgspec.Struct, frozen=True):
    """One chart."""

    key: str
    title: str
    about: str
    lines: tuple[Line, ...]
    scale: tuple[Tick, ...]
    marks: tuple[Mark, ...]


class Stat(msgspec.Struct, frozen=True):
    """One number, and what it is."""

    key: str
    value: str
    label: str


class Drawn(msgspec.Struct, frozen=True):
    """All that the page shows of one span."""

    span: str
    since_wall_ms: int | None
    """The first sample there is of the span; None: there is none yet."""
    stats: tuple[Stat, ...]
    charts: tuple[Chart, ...]


class _Plan(msgspec.Struct, frozen=True):
    """What a chart shows: its lines by style, word and field, and how a value is written."""

    key: str
    title: str
    about: str
    write: Callable[[float], str]
    lines: tuple[tuple[str, str, str], ...]


def rate_text(value: float) -> str:
    """Return how often in a second."""
    return f"{count_text(value)}/s"


def count_text(value: float) -> str:
    """Return a number with three digits that count."""
    if math.isnan(value):
        return "–"
    if value == 0 or value >= 100 or value == int(value):  # noqa: PLR2004 - three digits
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 else "<0.001"  # noqa: PLR2004 - less is next to nothing


def seconds_text(value: float) -> str:
    """Return a time in the unit that fits: 350 µs, 1.2 ms, 3 s, 4 min."""
    if math.isnan(value):
        return "–"
    for limit, unit, size in ((3_600.0, "h", 3_600), (60.0, "min", 60)):
        if value >= limit:
            return f"{value / size:.3g} {unit}"
    limit, unit, times = next(each for each in _UNITS if value >= each[0])
    return "0 s" if value == 0 else f"{value * times:.3g} {unit}"


def share_text(value: float) -> str:
    """Return a part of one in percent."""
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
        "Held and in line",
        "Jobs that somebody owns, places in line, and sessions.",
        count_text,
        (("first", "held", "held"), ("second", "in line", "waiting"), ("third", "sessions", "sessions")),
    ),
    _Plan(
        "waits",
        "Wait in line",
        "How long those waited who were granted what they waited for.",
        seconds_text,
        (("first", "half", "wait_p50"), ("second", "99 in 100", "wait_p99")),
    ),
    _Plan(
        "answers",
        "Answers",
        "From the first request of a batch to all of its answers; waits in line are not in it.",
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
_WORST = frozenset({"wait_p99", "commit_p99", "answer_p99", "lag_max"})
"""Of several samples in one point the worst is shown; of all others the mean."""


def draw(samples: Sequence[Sample], span: str) -> Drawn:
    """Draw the samples of a span, oldest first."""
    if not samples:
        return Drawn(span, None, (), ())
    times = _points([sample.wall_ms for sample in samples], max)
    columns = {
        field: _points([getattr(sample, field) for sample in samples], max if field in _WORST else _mean)
        for plan in PLANS
        for _, _, field in plan.lines
    }
    since_wall_ms, until_wall_ms = times[0], max(times[-1], times[0] + 1)
    place = _Place(since_wall_ms, until_wall_ms)
    charts = tuple(_chart(plan, columns, times, place) for plan in PLANS)
    return Drawn(span, int(since_wall_ms), _stats(samples), charts)


class _Place(msgspec.Struct, frozen=True):
    """Where a moment stands."""

    since: float
    until: float

    def x(self, wall_ms: float) -> float:
        part = min(1.0, max(0.0, (wall_ms - self.since) / (self.until - self.since)))
        return round(LEFT + part * (RIGHT - LEFT), 1)

    def marks(self) -> tuple[Mark, ...]:
        step = (self.until - self.since) / TICKS
        moments = [self.since + number * step for number in range(TICKS + 1)]
        return tuple(Mark(self.x(moment), int(moment)) for moment in moments)


def _chart(plan: _Plan, columns: dict[str, list[float]], times: list[float], place: _Place) -> Chart:
    top = round_up(_most([value for _, _, field in plan.lines for value in columns[field]]))

    def y(value: float) -> float:
        return round(BOTTOM - min(1.0, value / top) * (BOTTOM - TOP), 1)

    lines = tuple(
        Line(style, label, _path(values, times, place, y), plan.write(values[-1]), plan.write(_most(values)))
        for style, label, values in ((style, label, columns[field]) for style, label, field in plan.lines)
    )
    scale = tuple(Tick(y(top * part), plan.write(top * part)) for part in (0.0, 0.5, 1.0))
    return Chart(plan.key, plan.title, plan.about, lines, scale, place.marks())


def _most(values: list[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=_NAN)


def _path(values: list[float], times: list[float], place: _Place, y: Callable[[float], float]) -> str:
    """Return a line through all values; where there is none it begins anew. A value alone is a short dash."""
    parts: list[str] = []
    is_drawn = False
    for value, moment in zip(values, times, strict=True):
        if math.isnan(value):
            is_drawn = False
            continue
        x = place.x(moment)
        parts.append(f"L{x:g} {y(value):g}" if is_drawn else f"M{x:g} {y(value):g}h1")
        is_drawn = True
    return "".join(parts)


def _points(values: Sequence[float], together: Callable[[list[float]], float]) -> list[float]:
    """Return at most `POINTS_MAX` points: of several values that fall together, what is made of them."""
    size = -(-len(values) // POINTS_MAX)
    if size == 1:
        return list(values)
    pieces = (values[at : at + size] for at in range(0, len(values), size))
    groups = ([value for value in piece if not math.isnan(value)] for piece in pieces)
    return [together(group) if group else _NAN for group in groups]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def round_up(value: float) -> float:
    """Return the next of 1, 2 and 5 times a power of ten: where a scale ends."""
    if value <= 0 or math.isnan(value):
        return 1.0
    size: float = 10.0 ** math.floor(math.log10(value))
    return next(times * size for times in (1.0, 2.0, 5.0, 10.0) if times * size >= value * (1 - 1e-9))


def _stats(samples: Sequence[Sample]) -> tuple[Stat, ...]:
    last = samples[-1]
    worst = max(sample.lag_max for sample in samples)
    commits = [sample.commit_p99 for sample in samples if not math.isnan(sample.commit_p99)]
    lost = round(sum(sample.losses for sample in samples) * STEP_MS / 1000)
    return (
        Stat("grants", rate_text(last.grants), "claims now"),
        Stat("held", count_text(last.held), "jobs held"),
        Stat("waiting", count_text(last.waiting), "places in line"),
        Stat("lost", count_text(lost), "claims lost in this time"),
        Stat("commit", seconds_text(max(commits, default=_NAN)), "slowest commits, 99 in 100"),
        Stat("stall", seconds_text(worst), "longest stall"),
    )
