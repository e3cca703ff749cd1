"""The history of one name: its leases and waits with their beginnings and ends, and the timeline drawn from them.

A page of history may begin in the middle of a lease, and end in the middle of another. A beginning or an end outside of
it is None, and the drawing says so. Plain functions of records; no lease id and no ticket leaves this module.

    records ──► page_of: what they say of the name ──► story_of: leases and waits ──► draw: bars, lanes, ticks

Bars are as far apart as their times. A bar shorter than a few units is drawn that wide, so that it can be seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.core.events import Ended, Granted, GrantedMany, Joined, Left, Record, Reopened, Transferred
from holdfast.server.streams.happenings import Told, concerned
from holdfast.wire.holders import shown_as

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.core.values import Lease
    from holdfast.engine.build import HistoryPage

# Leases and waits.


CHANGES_MAX = 200
"""How many changes of a name are on one page. One record may have thousands: finished work answers every waiter."""
BADLY = frozenset({"expired", "revoked", "session_ended", "failed"})
"""Ends that nobody wanted."""


class Page(msgspec.Struct, frozen=True):
    """Some of what happened to a name, newest first, and where the next page begins."""

    told: list[tuple[Record, Told]]
    next_before: int | None = None
    next_offset: int = 0
    """How many changes of record `next_before` are on this page; 0: all."""


class Held(msgspec.Struct):
    """One lease of the name."""

    owner: str
    token: int | None
    from_ms: int | None
    """Wall time. None: it began before this page."""
    to_ms: int | None = None
    """None: it lives, or ended after this page."""
    how: str = ""
    """`released`, `done`, `failed`, `expired`, `revoked`, `session_ended` or `transferred`."""
    by: str | None = None
    reason: str | None = None
    note: str | None = None
    """The last that its holder said."""
    is_live: bool = False

    @property
    def ended_badly(self) -> bool:
        """Whether the end was unwanted."""
        return self.how in BADLY


class Waited(msgspec.Struct):
    """One wait for the name."""

    owner: str
    from_ms: int | None
    to_ms: int | None = None
    how: str = ""
    """`granted`, or why it was left. Empty: it is still there, or ended after this page."""


class Happened(msgspec.Struct, frozen=True):
    """One change of the name, for the table: what `GET /locks/{name}/history` tells, and the last note of a lease."""

    seq: int
    at_ms: int
    event: str
    owner: str
    token: int | None = None
    by: str | None = None
    reason: str | None = None
    note: str | None = None

    @property
    def is_bad(self) -> bool:
        """Whether something ended that nobody wanted to end."""
        return self.event in BADLY


class Story(msgspec.Struct, frozen=True):
    """What one page of history comes to, oldest first."""

    held: tuple[Held, ...]
    waited: tuple[Waited, ...]
    reopened_ms: tuple[int, ...] = ()


def page_of(page: HistoryPage, name: str, *, offset: int = 0, before: int | None = None) -> Page:
    """Return the changes of the name, newest first. The first `offset` of record `before` were on the page before."""
    told: list[tuple[Record, Told]] = []
    for record in page.records:
        said = [each for of, each in concerned(record.event) if of == name]
        said.reverse()
        first = offset if record.seq == before else 0
        for number, each in enumerate(said[first:], first):
            if len(told) >= CHANGES_MAX:
                return Page(told, record.seq if number else record.seq + 1, number)
            told.append((record, each))
    return Page(told, page.next_before)


def story_of(page: Page, live: Lease | None, *, is_newest: bool) -> Story:
    """Pair beginnings with ends. `live` is the lease of the name now; it counts on the newest page alone."""
    gathered = _Gathered()
    for record, told in reversed(page.told):
        gathered.tell(record, told)
    if is_newest:
        gathered.know_live(live)
    return Story(tuple(gathered.held), tuple(gathered.waited), tuple(gathered.reopened_ms))


def happened(record: Record, told: Told) -> Happened:
    """Return one row of the table."""
    seq, at_ms, owner = record.seq, record.wall_ms, owner_in(told)
    match told:
        case Granted(lease=lease):
            return Happened(seq, at_ms, "granted", owner, lease.token, lease.principal)
        case Transferred(lease=lease):
            return Happened(seq, at_ms, "transferred", owner, lease.token, told.by, told.reason)
        case Ended():
            how = how_ended(told)
            reason = None if how == "failed" else told.reason
            return Happened(seq, at_ms, how, owner, told.token, told.by, reason, told.note)
        case Joined():
            return Happened(seq, at_ms, "waiting", owner, by=told.ticket.terms.principal)
        case Left():
            return Happened(seq, at_ms, "left", owner, reason=told.how)
        case Reopened():
            return Happened(seq, at_ms, "reopened", owner, by=told.by, reason=told.reason)


def owner_in(told: Told) -> str:
    """Return the owner that a change is about, as people are shown it."""
    match told:
        case Granted(lease=lease) | Transferred(lease=lease):
            return shown_owner(lease.owner, lease.principal)
        case Ended() | Left():
            return shown_owner(told.owner, told.principal)
        case Joined():
            return shown_owner(told.ticket.terms.owner, told.ticket.terms.principal)
        case Reopened():
            return ""


def shown_owner(owner: str | None, principal: str | None) -> str:
    """Return an owner as people are shown it, without metadata."""
    return shown_as(principal) if owner is None else owner


def how_ended(ended: Ended) -> str:
    """Return the one word for an end."""
    if ended.done is not None:
        return "done"
    return "failed" if ended.how == "released" and ended.reason == "failed" else ended.how


class _Gathered:
    """A story while it is gathered, oldest first."""

    def __init__(self) -> None:
        self.held: list[Held] = []
        self.waited: list[Waited] = []
        self.reopened_ms: list[int] = []
        self._open: Held | None = None
        self._places: dict[str, Waited] = {}
        """Who waits, by ticket."""

    def tell(self, record: Record, told: Told) -> None:
        at_ms = record.wall_ms
        match told:
            case Granted(lease=lease):
                event = record.event
                self._leave(event.ticket_id if isinstance(event, GrantedMany) else told.ticket_id, at_ms)
                self._begin(lease, at_ms)
            case Transferred(lease=lease):
                self._end(at_ms, "transferred", by=told.by, reason=told.reason)
                self._begin(lease, at_ms)
            case Ended():
                self._take_end(told, at_ms)
            case Joined():
                ticket = told.ticket
                if ticket.ticket_id not in self._places:
                    waited = Waited(owner_in(told), at_ms)
                    self._places[ticket.ticket_id] = waited
                    self.waited.append(waited)
            case Left():
                self._leave(told.ticket_id, at_ms, told)
            case Reopened():
                self.reopened_ms.append(at_ms)

    def know_live(self, live: Lease | None) -> None:
        """Enter what is so now: the newest page ends with it."""
        if live is None:
            return
        if self._open is None or self._open.token != live.token:
            self._begin(live, live.granted_wall_ms)
        if self._open is not None:
            self._open.is_live, self._open.note = True, live.note

    def _begin(self, lease: Lease, at_ms: int) -> None:
        self._open = Held(shown_owner(lease.owner, lease.principal), lease.token, at_ms)
        self.held.append(self._open)

    def _take_end(self, ended: Ended, at_ms: int) -> None:
        if self._open is None or self._open.token != ended.token:
            self._open = Held(owner_in(ended), ended.token, None)
            self.held.append(self._open)
        reason = None if ended.reason == "failed" else ended.reason
        self._end(at_ms, how_ended(ended), by=ended.by, reason=reason, note=ended.note)

    def _end(
        self, at_ms: int, how: str, *, by: str | None = None, reason: str | None = None, note: str | None = None
    ) -> None:
        held, self._open = self._open, None
        if held is None:
            # The lease that was handed on began before this page, and nothing here says whose it was.
            return
        held.to_ms, held.how, held.by, held.reason, held.note = at_ms, how, by, reason, note
        if held.from_ms is not None:
            # The wall clock may have been set back in between: nothing ends before it begins.
            held.to_ms = max(at_ms, held.from_ms)

    def _leave(self, ticket_id: str | None, at_ms: int, left: Left | None = None) -> None:
        if ticket_id is None:
            return
        waited = self._places.pop(ticket_id, None)
        if waited is None:
            if left is None:
                # It was granted, and the lease itself says to whom.
                return
            waited = Waited(owner_in(left), None)
            self.waited.append(waited)
        waited.to_ms = at_ms if waited.from_ms is None else max(at_ms, waited.from_ms)
        waited.how = "granted" if left is None else left.how


# The timeline.


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
