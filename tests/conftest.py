"""Counts are told at the end of a run: whatever tests put on record as `count: …` is added up and printed."""

from __future__ import annotations

from collections import Counter

import pytest

COUNT = "count: "


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Add up the counts of all tests, whichever process ran them, and print a line for each."""
    counts: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, value in report.user_properties:
                    if name.startswith(COUNT) and isinstance(value, int):
                        counts[name.removeprefix(COUNT)] += value
    if counts:
        terminalreporter.section("counts")
        for name, value in sorted(counts.items()):
            terminalreporter.write_line(f"{value:>12,}  {name}")
