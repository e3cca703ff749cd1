"""Output of the commands: results on standard output, one line per error on standard error, and the exit codes."""

from __future__ import annotations

import itertools
import os
import sys
from datetime import UTC, datetime, time, timedelta
from itertools import zip_longest
from typing import TYPE_CHECKING

import click

from holdfast.client import clock as clocks
from holdfast.sanitize import in_json
from holdfast.sanitize import plain as plain  # noqa: PLC0414 - commands use it from here

if TYPE_CHECKING:
    from holdfast import JobOwner, Metadata, Previous

FOLDED_CELLS_MIN = 10
"""Folded columns are not narrower."""

OK = 0
HELD = 1
"""Only for `claim` and `run`."""
NEGATIVE = 1
"""Only for `owner` and `check`: the answer is no."""
FAILED = 2
"""What was asked for was not done, or was found wanting. Never 1, which a script may take for a held job."""
NOT_IN_TIME = 11
DONE = 12
DEADLOCK = 13
LOST = 20
USAGE = 64
UNREACHABLE = 69
UNEXPECTED = 70
LIMIT = 75
NOT_ALLOWED = 77
INTERRUPTED = 130
PIPE_CLOSED = 141


def say(text: str, colour: str | None = None) -> None:
    """Write a line of the result."""
    click.echo(click.style(text, fg=colour) if colour else text, color=wants_colour())


def hint(text: str) -> None:
    """Write a line for people to standard error, so that a pipe has the result alone."""
    click.echo(plain(text), err=True)


def progress(text: str) -> None:
    """On a terminal, replace the progress line of a long command; with an empty text, remove it."""
    if sys.stderr.isatty():
        click.echo(f"\r{text}\x1b[K", err=True, nl=False)


def complain(text: str) -> None:
    """Write an error as one line."""
    click.echo(f"holdfast: {plain(text)}", err=True)


def fail(error: Exception) -> int:
    """Write the error of a long command, with its remedies if it knows any; return the exit code."""
    progress("")
    complain(getattr(error, "in_one_line", str(error)))
    return FAILED


def say_json(value: object) -> None:
    """Write a result for programs."""
    import msgspec

    click.echo(in_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))


def say_json_line(value: object) -> None:
    """Write one of many results for programs."""
    import msgspec

    click.echo(in_json(msgspec.json.encode(value).decode()))


def is_terminal() -> bool:
    return sys.stdout.isatty()


def wants_colour() -> bool | None:
    """Return False if NO_COLOR or a dumb terminal forbids it; None leaves it to click."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def say_fields(rows: list[tuple[str, str]]) -> None:
    """Write a name and a value in each line."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        say(f"  {click.style(f'{name:{width}}', dim=True)}  {plain(value)}")


def say_table(heads: list[str], rows: list[list[str]], *, folded: tuple[str, ...] = ()) -> None:
    """Write a table. On a terminal the `folded` columns are wrapped to the width that the others leave.

    Rows become fields if that is too narrow to read. In a pipe nothing is wrapped.
    """
    table = [heads, *([plain(cell) for cell in row] for row in rows)]
    widths = [max(map(cells, column)) for column in zip(*table, strict=True)]
    if is_terminal():
        import shutil

        too_wide = sum(widths) + 2 * (len(widths) - 1) - shutil.get_terminal_size().columns
        for _ in range(too_wide):
            width, widest = max((width if heads[at] in folded else 0, -at) for at, width in enumerate(widths))
            if width <= FOLDED_CELLS_MIN:
                return _say_blocks(heads, table[1:])
            widths[-widest] -= 1
    lines = [line for row in table for line in _row_lines(row, widths)]
    if is_terminal():
        lines[0] = click.style(lines[0], bold=True)
    return say("\n".join(lines))


def _row_lines(row: list[str], widths: list[int]) -> list[str]:
    """Return the lines of one row: several if a cell is wider than its column."""
    wrapped = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
    return [
        "  ".join(cell + " " * (width - cells(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in zip_longest(*wrapped, fillvalue="")
    ]


def _wrapped(text: str, width: int) -> list[str]:
    if cells(text) <= width:
        return [text]
    from wcwidth import wrap

    return wrap(text, width, break_on_hyphens=False)


def cells(text: str) -> int:
    """Return how many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from wcwidth import wcswidth

    return max(0, wcswidth(text))


def _say_blocks(heads: list[str], rows: list[list[str]]) -> None:
    """Write each row as lines of its own: its first cell, then what else is known."""
    for first, *others in rows:
        say(click.style(first, bold=True))
        fields = zip(heads[1:], others, strict=True)
        say_fields([(head.lower(), cell) for head, cell in fields if cell not in {"", "-"}])


def size(size_bytes: int) -> str:
    if size_bytes < 64 * 1024:
        return f"{size_bytes / 1024:.1f} KiB"
    return f"{size_bytes / 1024**2:.1f} MiB" if size_bytes < 1024**3 else f"{size_bytes / 1024**3:.1f} GiB"


def previous_words(previous: Previous, now: datetime, attempts: int = 0) -> str:
    """Describe the previous owner. With `attempts` since the job last ended well, its release was a failure."""
    is_failed = attempts > 0 and previous.ended == "released"
    ended = "released as failed" if is_failed else previous.ended.replace("_", " ")
    text = f"{previous.shown_as}, {ended} {ago(previous.at, now)}"
    return text + (f"; its note: {previous.note}" if previous.note else "")


def answered_at(owner: JobOwner) -> datetime:
    """Return when the server answered, by its own clock, so that no age depends on ours."""
    return owner.expires_at - timedelta(seconds=owner.expires_in)


def metadata_words(metadata: Metadata) -> str:
    """Return text as it is, and fields as key=value."""
    import msgspec

    if metadata is None or isinstance(metadata, str):
        return metadata or ""
    fields = {
        key: value if isinstance(value, str) else msgspec.json.encode(value).decode() for key, value in metadata.items()
    }
    return ", ".join(f"{key}={value}" for key, value in fields.items())


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
