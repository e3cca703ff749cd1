"""The costliest request of each kind, and what it costs while others keep little, much and very much: it must be flat.

    make bench ARGS="costliest --others 1000,100000 --only retry"

The cost of deciding one request must not grow with what others keep. A row that does is marked with `GROWS`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.costly_requests import REQUESTS
from benchmarks.in_process import server_with
from benchmarks.others import KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.in_process import InProcessServer

    Costs = dict[str, list[float]]
    """Milliseconds for each number of things that others keep, by request."""

OTHERS = (1_000, 100_000, 1_000_000)
TIMES = 5
SECONDS_MAX = 3
"""What takes so long, its preparation included, is not asked again: once is enough to see it."""
GROWTH_MAX = 2.0
NOISE_MS = 0.5
"""Less than this tells nothing: a machine that others use too is never quiet."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table; 1 if --assert was given and a request was not flat."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks costliest", description="What the costliest requests cost."
    )
    parser.add_argument(
        "--others", default=",".join(map(str, OTHERS)), help="how much others keep, such as 1000,100000"
    )
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"what they keep: some of {','.join(KINDS)}")
    parser.add_argument("--only", default="", help="requests whose names begin so, with commas between")
    parser.add_argument("--assert", action="store_true", dest="must", help="exit 1 unless every request is flat")
    arguments = parser.parse_args(argv)
    counts = [int(count) for count in arguments.others.split(",")]
    names = [name for name in REQUESTS if name.startswith(tuple(arguments.only.split(",")))]
    is_flat = True
    sys.stdout.write(head(counts) + "\n")
    for kind in arguments.kinds.split(","):
        costs: Costs = {}
        for count in counts:
            asyncio.run(_measure(kind, count, names, costs))
        sys.stdout.write(rows(kind, costs) + "\n")
        sys.stdout.flush()
        is_flat = is_flat and not any(map(grows, costs.values()))
    return 0 if is_flat or not arguments.must else 1


async def _measure(kind: str, count: int, names: Sequence[str], costs: Costs) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} others keep {count:,} {KINDS[kind]}\n")
    with tempfile.TemporaryDirectory() as folder:
        async with server_with(kind, count, Path(folder) / "data") as server:
            for name in names:
                costs.setdefault(name, []).append(1_000 * await _cost(server, name))


async def _cost(server: InProcessServer, name: str) -> float:
    """Return the processor time of one request, in seconds: the median of a few."""
    await REQUESTS["claim"](server)
    began = time.process_time()
    seen: list[float] = []
    while len(seen) < TIMES and time.process_time() < began + SECONDS_MAX:
        seen.append(await REQUESTS[name](server))
    return median(seen)


def grows(costs_ms: Sequence[float]) -> bool:
    """Tell whether a cost rises with what others keep."""
    return costs_ms[-1] - costs_ms[0] > NOISE_MS and costs_ms[-1] > GROWTH_MAX * costs_ms[0]


def head(counts: Sequence[int]) -> str:
    """Return what stands over the table."""
    columns = "".join(f"{count:>13,}" for count in counts)
    return (
        f"Processor time of one request in ms, by how much others keep\n\n{'request':<26}{'others keep':<12}{columns}"
    )


def rows(kind: str, costs: Costs) -> str:
    """Return the rows of the table for one kind of what others keep."""
    return "\n".join(
        f"{name:<26}{kind:<12}" + "".join(f"{cost:>13.2f}" for cost in row) + ("  GROWS" if grows(row) else "")
        for name, row in costs.items()
    )
