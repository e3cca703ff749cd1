"""A table: written once as values, shown as text on a terminal and as Markdown in the guide."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Row = dict[str, Any]


@dataclass
class Table:
    """Columns and rows of short texts; the first column is left-aligned, all others are numbers."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_text(self) -> str:
        columns, *rows = ([_plain(cell) for cell in cells] for cells in (self.columns, *self.rows))
        widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]

        def line(cells: Sequence[str]) -> str:
            first, *others = cells
            return "  ".join([first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(others, widths[1:], strict=True))])

        head = line(columns)
        return "\n".join([_plain(self.title), head, "-" * len(head), *map(line, rows), *map(_plain, self.notes)])

    def as_markdown(self) -> str:
        lines = [_cells(self.columns), _cells(["---", *["---:"] * (len(self.columns) - 1)])]
        lines += [_cells(row) for row in self.rows]
        return "\n".join([f"**{self.title}**", "", *lines, *(f"\n{note}" for note in self.notes)])


def _plain(text: str) -> str:
    """Return a text without the marks that only Markdown needs."""
    return text.replace("`", "").replace("\\*", "*")


def _cells(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def grouped(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """Return the rows by the values of some of their fields, in the order in which those came."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


def middle(rows: Iterable[Row], name: str) -> float:
    """Return the median of a field: one bad round cannot move it far."""
    return float(median(row[name] for row in rows))


def matrix(
    title: str, rows: Sequence[Row], down: str, across: str, cell: Callable[[list[Row]], str], head: str = ""
) -> Table:
    """Return a table with one field down, another across, and a text made of the rounds in each cell."""
    found = grouped(rows, down, across)
    columns = sorted({row[across] for row in rows})
    table = Table(title, [head or down, *(f"{column:,}" for column in columns)])
    for each in dict.fromkeys(row[down] for row in rows):
        texts = [cell(found[each, column]) if (each, column) in found else "–" for column in columns]
        table.rows.append([str(each), *texts])
    return table


def ms(value: float) -> str:
    """Milliseconds with as many places as mean something."""
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def mib(value: float) -> str:
    return f"{value / 2**20:,.0f} MiB"
