"""How commands speak: results on standard output, errors as one line on standard error, nothing acts on a terminal."""

from __future__ import annotations

import os
import sys
from datetime import datetime, timedelta
from itertools import zip_longest
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
    """False where NO_COLOR or a dumb terminal forbids it; None leaves it to whether this is a terminal."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


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
    """Write a table. On a terminal the `folded` columns are wrapped to the width that the others leave.

    If that is next to nothing, each row is written as fields instead. Elsewhere nothing is wrapped.
    """
    table = [heads, *([plain(cell) for cell in row] for row in rows)]
    widths = [max(map(cells, column)) for column in zip(*table, strict=True)]
    if is_terminal():
        import shutil

        fitting = _fold_widths(widths, [head in folded for head in heads], shutil.get_terminal_size().columns)
        if fitting is None:
            return _say_blocks(heads, table[1:])
        widths = fitting
    lines = [line for row in table for line in _row_lines(row, widths)]
    if is_terminal():
        lines[0] = click.style(lines[0], bold=True)
    return say("\n".join(lines))


def _fold_widths(widths: list[int], is_folded: list[bool], width: int) -> list[int] | None:
    """Return the widths of columns such that the table fits; None if a folded column would be too narrow to read."""
    found = list(widths)
    left = width - 2 * (len(widths) - 1) - sum(each for each, folds in zip(widths, is_folded, strict=True) if not folds)
    narrowest_first = sorted((each, column) for column, each in enumerate(widths) if is_folded[column])
    for done, (natural, column) in enumerate(narrowest_first):
        found[column] = min(natural, left // (len(narrowest_first) - done))
        if found[column] < min(natural, FOLDED_CELLS_MIN):
            return None
        left -= found[column]
    return found if left >= 0 else None


def _row_lines(row: list[str], widths: list[int]) -> list[str]:
    """Return the lines of one row: several if a cell is wider than its column."""
    wrapped = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
    return [
        "  ".join(cell + " " * (width - cells(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in zip_longest(*wrapped, fillvalue="")
    ]


def _wrapped(text: str, width: int) -> list[str]:
    """Break a text into lines of at most this width: between words, or within a word that is longer."""
    if cells(text) <= width:
        return [text]
    lines, line = [], ""
    for word in text.split(" "):
        if line and cells(f"{line} {word}") <= width:
            line = f"{line} {word}"
            continue
        if line:
            lines.append(line)
        line = word
        while cells(line) > width:
            start = beginning(line, width)
            lines.append(start)
            line = line[len(start) :]
    return [*lines, line]


def cells(text: str) -> int:
    """Return how many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from wcwidth import wcswidth

    return max(0, wcswidth(text))


def beginning(text: str, width: int) -> str:
    """Return as much of a text as fits this many cells, but at least one character."""
    end = 1
    while end < len(text) and cells(text[: end + 1]) <= width:
        end += 1
    return text[:end]


def _say_blocks(heads: list[str], rows: list[list[str]]) -> None:
    """Write each row as lines of its own: its first cell, then what else is known."""
    for first, *others in rows:
        say(click.style(first, bold=True))
        fields = zip(heads[1:], others, strict=True)
        say_fields([(head.lower(), cell) for head, cell in fields if cell not in {"", "-"}])


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
