"""The history of one name: its leases and waits, and the timeline drawn from them.

    records ──► job_history_of: the changes of the name ──► timeline_of: leases and waits ──► draw: bars, lanes, ticks

A page of history may begin and end in the middle of a lease: times outside of the page are None. No lease id and no
ticket leaves this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.api.rendering import history_entry
from holdfast.core.events import (
    Ended,
    Granted,
    GrantedMany,
    HistoryEvent,
    Joined,
    Left,
    Record,
    Reopened,
    Transferred,
    events_by_name,
)
from holdfast.wire.replies import shown_as

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.core.values import Lease, Terms
    from holdfast.engine.build import HistoryPage

CHANGES_MAX = 200  # Of a name on one page. One record may have thousands: finished work answers every waiter.
BADLY = frozenset({"expired", "revoked", "session_ended", "failed"})  # Ends that nobody wanted.


class JobHistory(msgspec.Struct, frozen=True):
    events: list[tuple[Record, HistoryEvent]]
    next_before: int | None = None
    next_offset: int = 0  # Changes of record `next_before` that were shown so far; 0: all.


class HistoryRow(msgspec.Struct, frozen=True):
    """One change of the name: an entry of `GET /locks/{name}/history`, and the last note of a lease."""

    seq: int
    at_ms: int
    event: str
    owner: str
    token: int | None
    by: str | None
    reason: str | None
    note: str | None


class TimelineSpan(msgspec.Struct):
    """A lease of the name, or a wait for it. Times are wall times."""

    owner: str
    from_ms: int | None
    to_ms: int | None = None  # None: it goes on, or ended after this page.
    how: str = ""  # How a lease ended, or a wait: `granted`, or why the waiter left.
    token: int | None = None
    by: str | None = None
    reason: str | None = None
    note: str | None = None
    is_live: bool = False

    def end(self, at_ms: int, how: str) -> None:
        # The wall clock may have been set back: nothing ends before it begins.
        self.to_ms, self.how = max(at_ms, self.from_ms or at_ms), how


class JobTimeline(msgspec.Struct, frozen=True):
    held: list[TimelineSpan]
    waited: list[TimelineSpan]
    reopened_ms: list[int] = []


def job_history_of(page: HistoryPage, name: str, *, offset: int = 0, before: int | None = None) -> JobHistory:
    """Return the changes of the name, newest first. The first `offset` of record `before` were on the page before."""
    events: list[tuple[Record, HistoryEvent]] = []
    for record in page.records:
        changes = [each for of, each in events_by_name(record.event) if of == name]
        changes.reverse()
        first = offset if record.seq == before else 0
        for number, each in enumerate(changes[first:], first):
            if len(events) >= CHANGES_MAX:
                return JobHistory(events, record.seq if number else record.seq + 1, number)
            events.append((record, each))
    return JobHistory(events, page.next_before)


def history_row(record: Record, history_event: HistoryEvent) -> HistoryRow:
    change = history_entry(record.seq, record.wall_ms, "", history_event)
    event, reason = change.event, change.reason
    if event == "released" and reason == "failed":
        event, reason = "failed", None
    owner = change.owner
    if owner is None:
        owner = change.shown_as if isinstance(change.shown_as, str) else ""
    note = history_event.note if isinstance(history_event, Ended) else None
    return HistoryRow(record.seq, record.wall_ms, event, owner, change.fencing_token, change.by, reason, note)


def owner_of(claim: Lease | Terms) -> str:
    """Return the display name of a claim's owner, without metadata."""
    return shown_as(claim.principal) if claim.owner is None else claim.owner


def timeline_of(page: JobHistory, live: Lease | None, *, is_newest: bool) -> JobTimeline:
    """Pair beginnings with ends. `live` is the current lease; only the newest page shows it."""
    story = JobTimeline([], [], [])
    lease: TimelineSpan | None = None
    waiting: dict[str | None, TimelineSpan] = {}
    for record, history_event in reversed(page.events):
        row, at_ms = history_row(record, history_event), record.wall_ms
        match history_event:
            case Granted():
                ticket_id = record.event.ticket_id if isinstance(record.event, GrantedMany) else history_event.ticket_id
                if (wait := waiting.pop(ticket_id, None)) is not None:
                    wait.end(at_ms, "granted")
                story.held.append(lease := TimelineSpan(row.owner, at_ms, token=row.token))
            case Transferred():
                if lease is not None:
                    lease.end(at_ms, "transferred")
                    lease.by, lease.reason = row.by, row.reason
                story.held.append(lease := TimelineSpan(row.owner, at_ms, token=row.token))
            case Ended():
                if lease is None or lease.token != history_event.token:
                    story.held.append(lease := TimelineSpan(row.owner, None, token=history_event.token))
                lease.end(at_ms, row.event)
                lease.by, lease.reason, lease.note = row.by, row.reason, row.note
                lease = None
            case Joined():
                if history_event.ticket.ticket_id not in waiting:
                    story.waited.append(wait := TimelineSpan(row.owner, at_ms))
                    waiting[history_event.ticket.ticket_id] = wait
            case Left():
                if (left := waiting.pop(history_event.ticket_id, None)) is None:
                    story.waited.append(left := TimelineSpan(row.owner, None))
                left.end(at_ms, history_event.how)
            case Reopened():
                story.reopened_ms.append(at_ms)
    if is_newest and live is not None:
        if lease is None or lease.token != live.token:
            story.held.append(lease := TimelineSpan(owner_of(live), live.granted_wall_ms, token=live.token))
        lease.is_live, lease.note = True, live.note
    return story


WIDTH = 1_000  # Of the drawing, in units of 0.1 %.
BAR_WIDTH_MIN = 3  # Shorter bars are drawn this wide, so that they can be seen.
WAIT_ROWS_MAX = 8
WAIT_ROW_HEIGHT = 7
BAR_HEIGHT = 26
GAP = 6
AXIS_HEIGHT = 24
TICKS_MAX = 8

_SECOND = 1_000
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)
_STEPS_MS = tuple(_SECOND * step for step in (*_STEPS, *(86_400 * days for days in (2, 7, 14, 30, 91, 365))))


class Bar(msgspec.Struct, frozen=True):
    of: TimelineSpan
    x: float
    y: int
    width: float
    height: int


class TimeTick(msgspec.Struct, frozen=True):
    x: float
    at_ms: int
    step_ms: int  # The template writes times as precisely as this.


class TimelineDrawing(msgspec.Struct, frozen=True):
    bars: list[Bar]
    waits: list[Bar]
    ticks: list[TimeTick]
    from_ms: int
    to_ms: int
    height: int
    axis_y: int
    waits_left_out: int  # Waits without a lane.
    reopened_x: list[float]


class _Scale(msgspec.Struct, frozen=True):
    from_ms: int
    to_ms: int

    def x(self, at_ms: int) -> float:
        inside = min(max(at_ms, self.from_ms), self.to_ms)
        return round((inside - self.from_ms) * WIDTH / (self.to_ms - self.from_ms), 1)

    def bar(self, of: TimelineSpan, y: int, height: int) -> Bar:
        """Return the bar of a span; it extends to the edge where the span leaves the page."""
        x = 0.0 if of.from_ms is None else self.x(of.from_ms)
        end = float(WIDTH) if of.to_ms is None else self.x(of.to_ms)
        width = max(round(end - x, 1), BAR_WIDTH_MIN)
        return Bar(of, min(x, WIDTH - width), y, width, height)


def draw(story: JobTimeline, now_ms: int, *, is_newest: bool) -> TimelineDrawing | None:
    """Return None if there is nothing to draw. Only the newest page extends to now."""
    spans = (*story.held, *story.waited)
    ends = [at_ms for span in spans for at_ms in (span.from_ms, span.to_ms) if at_ms is not None]
    times = [*ends, *story.reopened_ms]
    if is_newest and spans:
        times.append(max([now_ms, *times]))
    if not times:
        return None
    scale = _Scale(min(times), max(*times, min(times) + _SECOND))
    waits, row_count = _stack_waits(story.waited, scale)
    bars_y = row_count * WAIT_ROW_HEIGHT + GAP
    axis_y = bars_y + BAR_HEIGHT + GAP
    return TimelineDrawing(
        [scale.bar(held, bars_y, BAR_HEIGHT) for held in story.held],
        waits,
        _ticks(scale),
        scale.from_ms,
        scale.to_ms,
        axis_y + AXIS_HEIGHT,
        axis_y,
        len(story.waited) - len(waits),
        [scale.x(at_ms) for at_ms in story.reopened_ms],
    )


def _stack_waits(waited: Iterable[TimelineSpan], scale: _Scale) -> tuple[list[Bar], int]:
    """Give each wait the first free lane. Return the bars that found one, and the number of lanes."""
    free_from: list[float] = []
    found: list[Bar] = []
    for each in sorted(waited, key=lambda one: one.from_ms or 0):
        bar = scale.bar(each, 0, WAIT_ROW_HEIGHT - 3)
        row = next((number for number, free in enumerate(free_from) if free <= bar.x), len(free_from))
        if row < WAIT_ROWS_MAX:
            free_from[row : row + 1] = [bar.x + bar.width + 1]
            found.append(msgspec.structs.replace(bar, y=row * WAIT_ROW_HEIGHT))
    return found, len(free_from)


def _ticks(scale: _Scale) -> list[TimeTick]:
    """Return at most about `TICKS_MAX` ticks at round times."""
    length_ms = scale.to_ms - scale.from_ms
    step_ms = next((step for step in _STEPS_MS if length_ms / step <= TICKS_MAX), _STEPS_MS[-1])
    while length_ms / step_ms > TICKS_MAX:
        step_ms *= 10  # A wrong wall clock may span centuries.
    first_ms = -(-scale.from_ms // step_ms) * step_ms
    return [TimeTick(scale.x(at_ms), at_ms, step_ms) for at_ms in range(first_ms, scale.to_ms + 1, step_ms)]
