"""Times for people: local clock times, spans and ages."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, time, timedelta

from holdfast.client import clock as clocks

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS = 253_402_214_400_000
"""The last day of the year 9999, which every zone can show."""
_DAYS_SEARCHED = 3


def now() -> datetime:
    return datetime.fromtimestamp(clocks.wall_ms() / 1_000, UTC)


def at_ms(wall_ms: int) -> datetime:
    """Return a recorded moment. A clock that was far off is clamped to the calendar."""
    return _EPOCH + timedelta(milliseconds=min(max(wall_ms, 0), _LAST_MS))


def last_past(clock: time, moment: datetime) -> datetime:
    """Return when clocks here last showed this time of day, up to a moment.

    Where clocks are changed, a day may have it twice, and then the later one counts, or not at all.
    """
    today = moment.astimezone().date()
    for days, fold in itertools.product(range(_DAYS_SEARCHED), (1, 0)):
        at = datetime.combine(today - timedelta(days=days), clock.replace(fold=fold)).astimezone(UTC)
        if at <= moment and at.astimezone().time() == clock:
            return at.astimezone()
    raise ValueError(f"no clock here shows {clock}")


def monotonic_ms() -> int:
    return clocks.monotonic_ms()


def wall_ms(at: datetime) -> int:
    return round(at.timestamp() * 1_000)


def span(seconds: float) -> str:
    """Return a duration as `56 s`, `4 min`, `2 h 5 min` or `3 d`. A clock that is off makes nothing negative."""
    total = max(0, round(seconds))
    if total < 2 * _MINUTE:
        return f"{total} s"
    if total < _HOUR:
        return f"{total // _MINUTE} min"
    if total < _DAY:
        return _two(total // _HOUR, "h", total % _HOUR // _MINUTE, "min")
    return _two(total // _DAY, "d", total % _DAY // _HOUR, "h")


def _two(much: int, unit: str, little: int, small_unit: str) -> str:
    return f"{much} {unit}" + (f" {little} {small_unit}" if little else "")


def clock(at: datetime, today: datetime) -> str:
    """Return the local time, with its date unless that is today's."""
    local = at.astimezone()
    same_day = local.date() == today.astimezone().date()
    return local.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M:%S")


def since(at: datetime, moment: datetime) -> str:
    """Return when something began and how long it lasts: `02:10:05 (4 min)`."""
    return f"{clock(at, moment)} ({span((moment - at).total_seconds())})"


def ago(at: datetime, moment: datetime) -> str:
    return f"{span((moment - at).total_seconds())} ago"
