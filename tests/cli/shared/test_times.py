"""A moment that is over, as people write it on a command line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from datetime import time as time_of_day

import click
import pytest

from holdfast.cli.shared import output
from holdfast.cli.shared.options import PastTime

NOW = datetime(2026, 11, 17, 12, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The reader's zone changes its clocks twice a year."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("clock", "moment", "expected"),
    [
        ((2, 14), NOW, "2026-11-17T01:14:00Z"),
        ((13, 0), NOW, "2026-11-17T12:00:00Z"),
        ((13, 1), NOW, "2026-11-16T12:01:00Z"),
        ((23, 30), NOW, "2026-11-16T22:30:00Z"),
        # On 25 October 2026 the clocks showed 02:14 twice.
        ((2, 14), datetime(2026, 10, 25, 6, tzinfo=UTC), "2026-10-25T01:14:00Z"),
        ((2, 14), datetime(2026, 10, 25, 0, 30, tzinfo=UTC), "2026-10-25T00:14:00Z"),
        # On 29 March 2026 they never did.
        ((2, 14), datetime(2026, 3, 29, 6, tzinfo=UTC), "2026-03-28T01:14:00Z"),
        ((2, 14), datetime(2026, 3, 30, 6, tzinfo=UTC), "2026-03-30T00:14:00Z"),
    ],
)
def test_time_of_day_is_the_last_one_past(clock: tuple[int, int], moment: datetime, expected: str) -> None:
    """It is the last moment at which a clock on the reader's wall showed that time, also where clocks are changed."""
    assert output.last_past(time_of_day(*clock), moment) == datetime.fromisoformat(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("02:14", "2026-11-17T01:14:00.000Z"),
        ("2:14", "2026-11-17T01:14:00.000Z"),
        ("02:14:30", "2026-11-17T01:14:30.000Z"),
        ("2h", "2026-11-17T10:00:00.000Z"),
        ("2 h ago", "2026-11-17T10:00:00.000Z"),
        ("90 min ago", "2026-11-17T10:30:00.000Z"),
        ("1h 30 minutes ago", "2026-11-17T10:30:00.000Z"),
        ("2026-11-16 02:14", "2026-11-16T01:14:00.000Z"),
        ("2026-11-16T02:14:00Z", "2026-11-16T02:14:00.000Z"),
    ],
)
def test_times_are_read_as_people_write_them(monkeypatch: pytest.MonkeyPatch, text: str, expected: str) -> None:
    """A time of day, a date with a time in the reader's zone or another, or how long ago it was."""
    monkeypatch.setattr(output, "now", lambda: NOW)
    assert PastTime().convert(text, None, None) == expected


@pytest.mark.parametrize("text", ["", "soon", "25:00", "02:60", "ago", "yesterday", "2 moons ago"])
def test_invalid_times_are_refused(text: str) -> None:
    """Anything else is a usage error that says what can be written."""
    with pytest.raises(click.BadParameter, match=r"write 02:14"):
        PastTime().convert(text, None, None)
