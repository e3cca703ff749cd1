"""How commands speak: results on standard output, errors as one line on standard error, nothing acts on a terminal."""

from __future__ import annotations

import os
import sys
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click

from holdfast.harmless import in_json
from holdfast.harmless import plain as plain  # noqa: PLC0414 - whoever speaks here has it at hand

if TYPE_CHECKING:
    from holdfast import JobOwner, Metadata, Previous

FOLDED_CELLS_MIN = 10
"""A column in which a text is folded is no use if it is narrower."""

OK = 0
FAILED = 1
HELD = 1
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
    """Write a line for people beside the result, so that a pipe carries the result alone."""
    click.echo(text, err=True)


def progress(text: str) -> None:
    """Write how far a long command has come, over what it said before, where a person looks; empty at its end."""
    if sys.stderr.isatty():
        click.echo(f"\r{text}\x1b[K", err=True, nl=False)


def complain(text: str) -> None:
    """Write an error: one line that says what to do next."""
    click.echo(f"holdfast: {plain(text)}", err=True)


def say_json(value: object) -> None:
    """Write a result for programs."""
    import msgspec

    click.echo(in_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))


def is_terminal() -> bool:
    """Does a person read standard output?"""
    return sys.stdout.isatty()


def wants_colour() -> bool | None:
    """False where NO_COLOR forbids it; None leaves it to whether this is a terminal."""
    return False if os.environ.get("NO_COLOR") else None


def say_json_line(value: object) -> None:
    """Write one of many results for programs, on a line of its own."""
    import msgspec

    click.echo(in_json(msgspec.json.encode(value).decode()))


def say_fields(rows: list[tuple[str, str]]) -> None:
    """Write what there is to say of one thing: a name and a value in each line."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        say(f"  {click.style(f'{name:{width}}', dim=True)}  {plain(value)}")


def say_table(heads: list[str], rows: list[list[str]], *, folded: tuple[str, ...] = ()) -> None:
    """Write a table that fits the terminal; elsewhere nothing is cut. `folded` columns take what the others leave.

    Where they leave next to nothing, each row is written as the fields of one thing.
    """
    cells = [[plain(cell) for cell in row] for row in rows]
    if not is_terminal():
        return _say_columns([heads, *cells])
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if _cells_min([heads, *cells], folded) > console.width:
        return _say_blocks(heads, cells)
    table = Table(box=None, pad_edge=False, header_style="" if wants_colour() is False else "bold")
    for head in heads:
        table.add_column(head, overflow="fold", no_wrap=head not in folded)
    for row in cells:
        table.add_row(*map(Text, row))
    return console.print(table)


def _cells_min(rows: list[list[str]], folded: tuple[str, ...]) -> int:
    """Tell how wide a terminal must be at least for a table that can be read."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    least = [
        min(width, FOLDED_CELLS_MIN) if head in folded else width for head, width in zip(rows[0], widths, strict=True)
    ]
    return sum(least) + 2 * (len(least) - 1)


def _say_blocks(heads: list[str], rows: list[list[str]]) -> None:
    """Write each row as lines of its own: its first cell, then what else is known."""
    for first, *others in rows:
        say(click.style(first, bold=True))
        fields = zip(heads[1:], others, strict=True)
        say_fields([(head.lower(), cell) for head, cell in fields if cell not in {"", "-"}])


def _say_columns(rows: list[list[str]]) -> None:
    """Write a table for whoever reads a pipe: soon, as wide as it is, without blanks at the end of a line."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    click.echo("\n".join(lines))


# Words that several commands use.


def size(size_bytes: int) -> str:
    """Write how large something is."""
    if size_bytes < 64 * 1024:
        return f"{size_bytes / 1024:.1f} KiB"
    return f"{size_bytes / 1024**2:.1f} MiB" if size_bytes < 1024**3 else f"{size_bytes / 1024**3:.1f} GiB"


def previous_words(previous: Previous, now: datetime, attempts: int = 0) -> str:
    """Say who had a job before, how that ended, and what that one said last.

    `attempts` is how many claims there were since the job last ended well. If there was any, the last one failed.
    """
    from holdfast.cli.shared import times

    is_failed = attempts > 0 and previous.ended == "released"
    ended = "released as failed" if is_failed else previous.ended.replace("_", " ")
    text = f"{previous.shown_as}, {ended} {times.ago(previous.at, now)}"
    return text + (f"; its note: {previous.note}" if previous.note else "")


def answered_at(owner: JobOwner) -> datetime:
    """Return when the server said this, by its own clock, so that no age depends on ours."""
    return owner.expires_at - timedelta(seconds=owner.expires_in)


def metadata_words(metadata: Metadata) -> str:
    """Write what was attached: text as it is, fields as key=value."""
    if metadata is None or isinstance(metadata, str):
        return metadata or ""
    return ", ".join(f"{key}={_in_words(value)}" for key, value in metadata.items())


def _in_words(value: object) -> str:
    """Write a value of metadata: text as it is, all else as the JSON that was sent."""
    import msgspec

    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
