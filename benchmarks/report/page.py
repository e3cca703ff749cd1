"""`python -m benchmarks report`: the report again, from the results that are kept; with --write into the guide.

What was measured stands in the guide between two marks, and in two pictures. Nobody edits them by hand: the documents
they were made of are kept in `benchmarks/results`, and a test compares.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import run
from benchmarks.options import RESULTS
from benchmarks.progress import say
from benchmarks.report import text
from benchmarks.report.contents import tables_of
from benchmarks.report.goals import goals_of
from benchmarks.report.svg import Panel, Plot, Series
from benchmarks.report.tables import Row, grouped, middle
from benchmarks.systems.base import BENCHMARKS, ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

STORED_RESULTS = BENCHMARKS / "results"
GUIDE = ROOT / "docs" / "guide" / "benchmarks.md"
PICTURES = ROOT / "docs" / "pictures" / "measured"
BEGIN, END = "<!-- measured: written by `python -m benchmarks report --write` -->", "<!-- measured: end -->"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report; with --write also keep the results and draw the guide anew."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks report", description="The report of kept results.")
    parser.add_argument("results", nargs="?", type=Path, default=RESULTS, help="their folder, default the last run's")
    parser.add_argument("--write", action="store_true", help="keep them in the repository, and draw the guide anew")
    arguments = parser.parse_args(argv)
    documents = run.load(arguments.results)
    if not documents:
        say(f"there are no results in {arguments.results}")
        return 2
    sys.stdout.write(text.as_text(documents) + "\n")
    if arguments.write:
        write(arguments.results, documents)
    return 0


def write(results: Path, documents: dict[str, Row]) -> None:
    """Keep the results, and put what they show into the guide. What is kept of other parts stays."""
    STORED_RESULTS.mkdir(exist_ok=True)
    for part in documents:
        if results.resolve() != STORED_RESULTS.resolve():
            shutil.copyfile(results / f"{part}.json", STORED_RESULTS / f"{part}.json")
    stored = run.load(STORED_RESULTS)
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, content in pictures_of(stored).items():
        (PICTURES / name).write_text(content, encoding="utf-8")
    GUIDE.write_text(inserted(GUIDE.read_text(encoding="utf-8"), as_markdown(stored)), encoding="utf-8")
    say("the guide is written")


def inserted(page: str, measured: str) -> str:
    """Return the page with another text between the marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the guide has no place for what was measured")
    return f"{before}{BEGIN}\n\n{measured}\n\n{END}{after}"


def as_markdown(documents: dict[str, Row]) -> str:
    """Return what was measured as the guide shows it."""
    if not documents:
        return "No results are kept yet."
    parts = [text.machine_text(documents).replace("\n", "  \n"), *pictures_shown(documents)]
    parts += [table.as_markdown() for table in tables_of(documents)]
    missing = [f"- Not measured: {each}" for each in text.missing_of(documents)]
    missing += [f"- Trouble: {each}" for each in text.troubles_of(documents)]
    parts += ["\n".join(missing)] if missing else []
    goals = ["| goal | measured | |", "|---|---:|---|"]
    words = {True: "met", False: "**missed**", None: "not measured"}
    goals += [f"| {goal.promise} | {goal.measured} | {words[goal.is_met]} |" for goal in goals_of(documents)]
    return "\n\n".join([*parts, "**Goals**", "\n".join(goals)])


def pictures_shown(documents: dict[str, Row]) -> list[str]:
    """Return the lines that show the pictures, with words for those who cannot see them."""
    shown = []
    names = pictures_of(documents)
    if "peers.svg" in names:
        words = "Acquires a second by connections: a line for Holdfast and one for each peer; the table has the numbers"
        shown.append(f"![{words}](../pictures/measured/peers.svg)")
    if "steady.svg" in names:
        words = "Steady load over time: requests a second, p99 and worst latency, disk, memory and processor"
        shown.append(f"![{words}](../pictures/measured/steady.svg)")
    return shown


def pictures_of(documents: dict[str, Row]) -> dict[str, str]:
    """Return both pictures, if there is something to draw."""
    found = {}
    if documents.get("peers", {}).get("data", {}).get("rows"):
        found["peers.svg"] = _peers_plot(documents["peers"]["data"]).draw()
    if documents.get("steady", {}).get("data", {}).get("windows"):
        found["steady.svg"] = _steady_plot(documents["steady"]["data"]).draw()
    return found


def _peers_plot(data: Row) -> Plot:
    found = grouped(data["rows"], "system", "connections")
    counts = sorted({connections for _, connections in found})
    rates, processor = Panel("durable acquires a second"), Panel("processor time of the server for one, µs")
    for system, title in data["titles"].items():
        rows = [(count, found[system, count]) for count in counts if (system, count) in found]
        if rows:
            name = title.partition(",")[0]
            rates.lines.append(Series(name, [(count, middle(each, "per_second")) for count, each in rows]))
            processor.lines.append(Series(name, [(count, middle(each, "cpu_us")) for count, each in rows]))
    return Plot("Acquires a second by connections", "connections", [rates, processor], counts)


def _steady_plot(data: Row) -> Plot:
    windows = data["windows"]

    def series(name: str, field: str, scale: float = 1.0) -> Series:
        points = [(row["at_seconds"] / 60, row[field]) for row in windows if row[field] is not None]
        return Series(name, [(at, value * scale) for at, value in points])

    ends = [windows[0]["at_seconds"] / 60, windows[-1]["at_seconds"] / 60]
    burst = [
        Series(name, [(at, middle(data["bursts"], field)) for at in ends], is_dashed=True)
        for name, field in (("bursts", "per_second"), ("p99 of bursts", "p99_ms"))
    ]
    return Plot(
        f"{data['minutes']:g} minutes of steady load",
        "minutes",
        [
            Panel("requests a second", [series("steady load", "per_second"), burst[0]]),
            Panel("latency, ms", [series("p99", "p99_ms"), burst[1], series("worst", "worst_ms")]),
            Panel("on disk, MiB", [series("data directory", "disk_bytes", 1 / 2**20)]),
            Panel(
                "memory, MiB",
                [
                    series("server", "memory_own_bytes", 1 / 2**20),
                    series("its children", "memory_children_bytes", 1 / 2**20),
                ],
            ),
            Panel("processor, cores", [series("server", "cpu_own"), series("its children", "cpu_children")]),
        ],
    )
