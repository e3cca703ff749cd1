"""Prints the table of the metrics as the guide has it: python -m holdfast.server.metrics."""

from __future__ import annotations

import sys

from holdfast.server.metrics.table import ROWS, Row


def as_markdown() -> str:
    """Return the table of the guide."""
    return "\n".join(["| name | kind | tells |", "|---|---|---|", *map(_line, ROWS)]) + "\n"


def _line(row: Row) -> str:
    # One span of code: two that touch are shown with their backticks.
    label = f"{{{row.label}}}" if row.label else ""
    return f"| `{row.name}{label}` | {row.kind} | {row.help} |"


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
