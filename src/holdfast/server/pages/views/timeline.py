"""A job's story as a drawing: one lane of leases, thin lines for those who waited above it, an axis below.

    waits   ──────────        ───────              at most `WAIT_LANES`; the others are counted
    leases  ▐████████▌▐███████████▌  ▐█████▶       one lane: a name has one owner at a time
    axis    ┬─────────┬─────────┬─────────┬

Plain functions of times: the template writes what they return as SVG, and knows no arithmetic. Positions are attributes
and colours are classes, because the page allows no inline style. Time runs from left to right, in proportion; what is
shorter than a few units is drawn that wide, so that it can be seen and pointed at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.server.pages.views.told import Held, Story, Waited

WIDTH = 1_000
"""Of the drawing, in its own units. The page stretches it."""
BAR_WIDTH_MIN = 3
LABEL_WIDTH_MIN = 48
"""A narrower bar has its owner only on hover, and in the table."""
WAIT_LANES = 8
LANE_HEIGHT = 7
BAR_HEIGHT = 26
GAP = 6
AXIS_HEIGHT = 24
TICKS_MAX = 8

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_STEPS_MS = (
    *(number * _SECOND for number in (1, 2, 5, 10, 15, 30)),
    *(number * _MINUTE for number in (1, 2, 5, 10, 15, 30)),
    *(number * _HOUR for number in (1, 2, 3, 6, 12)),
    *(number * _DAY for number in (1, 2, 7, 14, 30, 91, 365)),
)


class Bar(msgspec.Struct, frozen=True):
    """A lease or a wait, with its place."""

    of: Held | Waited
    x: float
    y: int
    width: float
    height: int
    is_open_left: bool
    """It began before what is drawn."""
    is_open_right: bool
    """It goes on after what is drawn."""

    @property
    def has_label(self) -> bool:
        """Whether there is room for a word."""
        return self.width >= LABEL_WIDTH_MIN

    @property
    def end_x(self) -> float:
        """Where it ends."""
        return round(self.x + self.width, 1)


class Tick(msgspec.Struct, frozen=True):
    """A mark of the axis. `step_ms` says how much of the time is worth writing."""

    x: float
    at_ms: int
    step_ms: int


class Drawing(msgspec.Struct, frozen=True):
    """All that stands in the drawing."""

    bars: tuple[Bar, ...]
    waits: tuple[Bar, ...]
    ticks: tuple[Tick, ...]
    from_ms: int
    to_ms: int
    height: int
    axis_y: int
    waits_left_out: int
    """How many waits there was no lane for."""
    reopened_x: tuple[float, ...] = ()
    width: int = WIDTH


class _Scale(msgspec.Struct, frozen=True):
    """Where a time stands."""

    from_ms: int
    to_ms: int

    def x(self, at_ms: int) -> float:
        inside = min(max(at_ms, self.from_ms), self.to_ms)
        return round((inside - self.from_ms) * WIDTH / (self.to_ms - self.from_ms), 1)

    def span(self, from_ms: int | None, to_ms: int | None) -> tuple[float, float]:
        """Return the place and the width of what lasted so long. None reaches the edge."""
        x = 0.0 if from_ms is None else self.x(from_ms)
        end = float(WIDTH) if to_ms is None else self.x(to_ms)
        width = max(round(end - x, 1), BAR_WIDTH_MIN)
        return min(x, WIDTH - width), width


def draw(story: Story, now_ms: int, *, is_newest: bool) -> Drawing | None:
    """Return the drawing of a story, or None if there is nothing to draw. Only the newest page reaches up to now."""
    times = sorted(_times(story))
    if is_newest and (story.held or story.waited):
        times.append(max(now_ms, times[-1] if times else now_ms))
    if not times:
        return None
    scale = _Scale(times[0], max(times[-1], times[0] + _SECOND))
    waits, lanes, left_out = _lanes(story.waited, scale)
    bars_y = lanes * LANE_HEIGHT + GAP
    bars = tuple(_bar(held, scale, bars_y, BAR_HEIGHT) for held in story.held)
    axis_y = bars_y + BAR_HEIGHT + GAP
    return Drawing(
        bars,
        waits,
        _ticks(scale),
        scale.from_ms,
        scale.to_ms,
        axis_y + AXIS_HEIGHT,
        axis_y,
        left_out,
        tuple(map(scale.x, story.reopened_ms)),
    )


def _times(story: Story) -> Iterable[int]:
    those: tuple[Held | Waited, ...] = (*story.held, *story.waited)
    for each in those:
        yield from (at_ms for at_ms in (each.from_ms, each.to_ms) if at_ms is not None)
    yield from story.reopened_ms


def _bar(of: Held | Waited, scale: _Scale, y: int, height: int) -> Bar:
    x, width = scale.span(of.from_ms, of.to_ms)
    return Bar(of, x, y, width, height, of.from_ms is None, of.to_ms is None)


def _lanes(waited: Iterable[Waited], scale: _Scale) -> tuple[tuple[Bar, ...], int, int]:
    """Give each wait the first lane that is free; return the lines, how many lanes there are, who found none."""
    free_from: list[float] = []
    found: list[Bar] = []
    left_out = 0
    for each in sorted(waited, key=lambda one: one.from_ms or 0):
        x, width = scale.span(each.from_ms, each.to_ms)
        lane = next((number for number, free in enumerate(free_from) if free <= x), len(free_from))
        if lane >= WAIT_LANES:
            left_out += 1
            continue
        free_from[lane : lane + 1] = [x + width + 1]
        found.append(_bar(each, scale, lane * LANE_HEIGHT, LANE_HEIGHT - 3))
    return tuple(found), len(free_from), left_out


def _ticks(scale: _Scale) -> tuple[Tick, ...]:
    """Return marks at round times: seconds, minutes, hours or days, whichever are few enough."""
    length_ms = scale.to_ms - scale.from_ms
    step_ms = next((step for step in _STEPS_MS if length_ms / step <= TICKS_MAX), _STEPS_MS[-1])
    while length_ms / step_ms > TICKS_MAX:
        # A wall clock that is out of its mind may span centuries.
        step_ms *= 10
    first_ms = -(-scale.from_ms // step_ms) * step_ms
    return tuple(Tick(scale.x(at_ms), at_ms, step_ms) for at_ms in range(first_ms, scale.to_ms + 1, step_ms))
