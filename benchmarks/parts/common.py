"""What the parts share: their options, where they work, and how a run of the generator becomes plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.progress import say
from benchmarks.systems.base import Tools

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.load.generator import Run
    from benchmarks.options import Options
    from benchmarks.systems.base import Server
    from benchmarks.systems.usage import Usage

Row = dict[str, Any]
"""Plain values, as they stand in the JSON of a result."""


@dataclass
class Work:
    """One part under way: what was asked for, a folder that is thrown away, and what went wrong so far."""

    options: Options
    folder: Path
    missing: dict[str, str] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def tools(self) -> Tools:
        return Tools.find(builtin_only=self.options.builtin_load)

    def trouble(self, text: str) -> None:
        """Note what went wrong, aloud; the other measurements go on."""
        self.troubles.append(text)
        say(f"trouble: {text}")

    def has(self, server: Server) -> bool:
        """Tell whether a system can be run; if not, why is said aloud and kept."""
        reason = server.missing()
        if reason is None:
            self.versions[server.key] = server.version()
            return True
        self.missing[server.key] = f"{server.title}: {reason}. To get it: {server.how_to_get}"
        say(f"NOT MEASURED, {self.missing[server.key]}")
        return False


def row_of(run: Run, spent: Usage, **labels: Any) -> Row:  # noqa: ANN401 - labels are plain values
    """Return one run as plain values, and say it."""
    latencies = run.latencies
    row = {
        **labels,
        "per_second": round(run.per_second, 1),
        "p50_ms": latencies.percentile_ms(50),
        "p99_ms": latencies.percentile_ms(99),
        "worst_ms": latencies.worst_ms,
        "cpu_us": round(1_000_000 * spent.seconds / max(1, run.answers), 2),
        "cpu_children_us": round(1_000_000 * spent.children_seconds / max(1, run.answers), 2),
        "answers": run.answers,
        "wrong": run.wrong + run.errors,
        "sample": run.sample,
        "generator_share": round(run.generator_share, 2),
    }
    named = ", ".join(f"{value} {name}" if isinstance(value, int) else str(value) for name, value in labels.items())
    wrong = f", {row['wrong']} WRONG: {run.sample}" if row["wrong"] else ""
    say(
        f"{named}: {run.per_second:,.0f}/s, {row['cpu_us']:.1f} µs of processor,"
        f" p50 {row['p50_ms']:.2f} p99 {row['p99_ms']:.2f} worst {row['worst_ms']:.1f} ms{wrong}"
    )
    return row
