"""Acquires, ours beside those of other systems: in turns, on one machine, each durable before it is answered."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from benchmarks.load.tools import LoadError
from benchmarks.options import PEER_CONNECTIONS
from benchmarks.progress import say
from benchmarks.systems.all import SYSTEMS
from benchmarks.systems.process import StartError
from benchmarks.systems.syncs import check_syncs
from benchmarks.systems.usage import usage_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.parts.common import Row, Work
    from benchmarks.systems.base import System

_WARM_CONNECTIONS = 64
_WARM_SECONDS = 1


def measure(work: Work) -> Row:
    """Prove the syncs, then press each system in turns."""
    tools = work.tools()
    if tools.wrk is None:
        say("HTTP is pressed by our own generator: there is no wrk (apt install wrk)")
    wanted = [kind(tools) for kind in SYSTEMS if kind.key in work.options.systems]
    systems = [system for system in wanted if work.has(system)]
    return {
        "titles": {system.key: system.title for system in wanted},
        "syncs": _prove_syncs(systems, work),
        "rows": press_all(systems, work, work.options.connections or PEER_CONNECTIONS),
    }


def _prove_syncs(systems: Sequence[System], work: Work) -> Row:
    found = {}
    for system in systems:
        try:
            check = check_syncs(system, work.folder / f"{system.key}-syncs")
        except (StartError, LoadError, OSError) as error:
            work.trouble(f"{system.title}, counting syncs: {error}")
            continue
        found[system.key] = asdict(check)
        say(f"{system.title}: {check}")
    return found


def press_all(systems: Sequence[System], work: Work, connections: Sequence[int]) -> list[Row]:
    """Round by round, each starting with another system, so that slow noise meets all of them."""
    rows: list[Row] = []
    rounds = work.options.rounds
    for number in range(rounds):
        shift = number % max(1, len(systems))
        for system in [*systems[shift:], *systems[:shift]]:
            label = f"round {number + 1}/{rounds}, {system.title}"
            try:
                rows += _press(system, work, work.folder / f"{system.key}-{number}", label, connections)
            except (StartError, LoadError, OSError) as error:
                work.trouble(f"{label}: {error}")
    return rows


def _press(system: System, work: Work, folder: Path, label: str, counts: Sequence[int]) -> list[Row]:
    rows = []
    with system.running(folder) as child:
        system.press(connections=_WARM_CONNECTIONS, seconds=_WARM_SECONDS)
        for connections in counts:
            before = usage_of(child.pid).seconds
            seen = system.press(connections=connections, seconds=work.options.seconds)
            cpu_us = 1_000_000 * (usage_of(child.pid).seconds - before) / max(1, seen.answers + seen.probed)
            rows.append(
                {
                    "system": system.key,
                    "connections": connections,
                    "tool": seen.tool,
                    "per_second": round(seen.acquires_per_second, 1),
                    "p50_ms": seen.p50_ms,
                    "p99_ms": seen.p99_ms,
                    "cpu_us": round(cpu_us, 2),
                    "answers": seen.answers,
                    "wrong": seen.wrong,
                    "sample": seen.sample if seen.wrong else "",
                }
            )
            wrong = f", {seen.wrong:,} WRONG: {seen.sample}" if seen.wrong else ""
            say(
                f"{label}, {connections} connections: {seen.acquires_per_second:,.0f}/s, {cpu_us:.1f} µs of processor,"
                f" p50 {seen.p50_ms:.2f} ms p99 {seen.p99_ms:.2f} ms ({seen.tool}){wrong}"
            )
    return rows
