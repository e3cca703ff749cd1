"""Times for people: the clock on their wall, and how long ago or how long still. Every command writes them so."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta

from holdfast.client import clock as clocks

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_DAYS_LOOKED_AT = 8
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS, _LAST_MS = 0, 253_402_214_400_000
"""The last is the last day of the year 9999: every zone can still write it."""


def now() -> datetime:
    """Return this moment, as this machine believes."""
    return datetime.fromtimestamp(clocks.wall_ms() / 1_000, UTC)


def at_ms(wall_ms: int) -> datetime:
    """Return a moment that was noted in milliseconds since 1970. One that is in no calendar is shown as its edge.

    A clock that was out of its mind then must not stop who looks at it now.
    """
    return _EPOCH + timedelta(milliseconds=min(max(wall_ms, _FIRST_MS), _LAST_MS))


def last_past(clock: time, moment: datetime) -> datetime:
    """Return when a clock on the wall here last showed this time, up to a moment.

    Where clocks are changed, a day may have it twice, and then the later one counts, or not at all.
    """
    today = moment.astimezone().date()
    for days in range(_DAYS_LOOKED_AT):
        shown = datetime.combine(today - timedelta(days=days), clock)
        for fold in (1, 0):
            at = shown.replace(fold=fold).astimezone()
            is_shown = at.astimezone(UTC).astimezone().replace(tzinfo=None, fold=0) == shown
            if is_shown and at <= moment:
                return at
    raise ValueError(f"no clock here shows {clock}")


def monotonic_ms() -> int:
    """Return milliseconds that only rise, to tell how long something took."""
    return clocks.monotonic_ms()


def wall_ms(at: datetime) -> int:
    """Return a moment in milliseconds since 1970."""
    return round(at.timestamp() * 1_000)


def span(seconds: float) -> str:
    """Write how long: `56 s`, `4 min`, `2 h 5 min`, `3 d`. A clock that is off makes nothing negative."""
    whole = max(0, round(seconds))
    if whole < 2 * _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min"
    if whole < _DAY:
        return _two(whole // _HOUR, "h", whole % _HOUR // _MINUTE, "min")
    return _two(whole // _DAY, "d", whole % _DAY // _HOUR, "h")


def clock(at: datetime, today: datetime) -> str:
    """Write when, in local time; with its date where that is not today's."""
    local = at.astimezone()
    same_day = local.date() == today.astimezone().date()
    return local.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M:%S")


def minute(at: datetime, today: datetime) -> str:
    """Write the minute of what is known to the minute only."""
    return clock(at, today)[: -len(":00")]


def since(at: datetime, moment: datetime) -> str:
    """Write when something began and how long it lasts: `02:10:05 (4 min)`."""
    return f"{clock(at, moment)} ({span((moment - at).total_seconds())})"


def ago(at: datetime, moment: datetime) -> str:
    """Write how long it is over: `3 s ago`."""
    return f"{span((moment - at).total_seconds())} ago"


def _two(much: int, unit: str, little: int, small_unit: str) -> str:
    return f"{much} {unit}" + (f" {little} {small_unit}" if little else "")
