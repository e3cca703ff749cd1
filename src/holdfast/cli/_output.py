"""How commands speak: results on standard output, errors as one line on standard error, nothing acts on a terminal."""

from __future__ import annotations

import os
import sys

import click

OK = 0
FAILED = 1
USAGE = 64
UNREACHABLE = 69
UNEXPECTED = 70
NOT_ALLOWED = 77
INTERRUPTED = 130
PIPE_CLOSED = 141


def say(text: str, colour: str | None = None) -> None:
    """Write a line of the result."""
    click.echo(click.style(text, fg=colour) if colour else text, color=wants_colour())


def hint(text: str) -> None:
    """Write a line for people beside the result, so that a pipe carries the result alone."""
    click.echo(text, err=True)


def complain(text: str) -> None:
    """Write an error: one line that says what to do next."""
    click.echo(f"holdfast: {plain(text)}", err=True)


def say_json(value: object) -> None:
    """Write a result for programs."""
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def wants_colour() -> bool | None:
    """False where NO_COLOR forbids it; None leaves it to whether this is a terminal."""
    return False if os.environ.get("NO_COLOR") else None


def plain(text: str) -> str:
    """Make a text from elsewhere harmless: one line, without anything that acts on a terminal."""
    return "".join(char if char.isprintable() else " " if char.isspace() else f"\\x{ord(char):02x}" for char in text)


def say_table(heads: list[str], rows: list[list[str]]) -> None:
    """Write a table that fits the terminal; elsewhere nothing is cut."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    Console(highlight=False, width=None if sys.stdout.isatty() else 1_000).print(table)
