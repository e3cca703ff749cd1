"""CPU time of a request on every supported Python of this machine.

    make bench ARGS=pythons
    make bench ARGS=pythons PYTHONS=/path/to/python3.14

The interpreters are those of `make pythons`, each with a clone of the last commit in `.pythons`. Their servers run side
by side and take turns with the same requests, so that a busy machine affects all of them alike.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.check import REQUESTS, ROUNDS, WARM_REQUESTS, CheckError, Side
from benchmarks.load.tools import LoadError
from benchmarks.options import between
from benchmarks.progress import say
from benchmarks.run import interruptible
from benchmarks.systems.base import SCRATCH
from benchmarks.systems.process import StartError
from tests.support import pythons

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OPERATIONS = ("acquire", "acquire with a key", "renew", "release")
_USAGE, _INTERRUPTED = 2, 130

Costs = dict[str, dict[str, list[float]]]
"""CPU time of a request in microseconds, turn by turn: by Python version, then by operation."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 2 if that is not possible here."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks pythons", description="CPU time on every Python.")
    parser.add_argument("--rounds", type=between(3, 99), default=ROUNDS, help="turns of each, default %(default)s")
    parser.add_argument(
        "--requests", type=between(100, 1_000_000), default=REQUESTS, help="in a turn, default %(default)s"
    )
    arguments = parser.parse_args(argv)
    try:
        with interruptible():
            trees = prepared(os.environ.get("PYTHONS", "").split())
            costs = measure(trees, arguments.rounds, arguments.requests)
    except (CheckError, StartError, LoadError, OSError) as error:
        say(f"not measured: {error}")
        return _USAGE
    except KeyboardInterrupt:
        say("interrupted; everything that was started is stopped")
        return _INTERRUPTED
    sys.stdout.write("\n" + table(costs) + "\n")
    return 0


def prepared(given: Sequence[str]) -> dict[str, Path]:
    """Return a tree with its own environment for each interpreter, by version."""
    trees = {}
    for interpreter in pythons.find(given):
        say(f"preparing Python {interpreter.version}")
        pythons.clone(interpreter)
        with pythons.make(interpreter, "install-run") as process:
            output, _ = process.communicate()
        if process.returncode != 0:
            raise CheckError(f"make install-run fails on Python {interpreter.version}: {output.strip()[-600:]}")
        trees[interpreter.version] = interpreter.clone
    if not trees:
        raise CheckError("no supported Python was found; name one in PYTHONS")
    return trees


def measure(trees: Mapping[str, Path], rounds: int, requests: int) -> Costs:
    """Take turns with every operation on every Python."""
    costs: Costs = {version: {operation: [] for operation in OPERATIONS} for version in trees}
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=SCRATCH, prefix="pythons-", ignore_cleanup_errors=True) as scratch,
        ExitStack() as stack,
    ):
        sides = [Side(version, tree, stack, Path(scratch)) for version, tree in trees.items()]
        for side in sides:
            for operation in OPERATIONS:
                side.cost_us(operation, -1, min(WARM_REQUESTS, requests))
        for turn in range(rounds):
            # Another one is first each time, so that none always follows the same neighbour's load.
            for side in sides[turn % len(sides) :] + sides[: turn % len(sides)]:
                for operation in OPERATIONS:
                    costs[side.name][operation].append(side.cost_us(operation, turn, requests))
            say(f"turn {turn + 1} of {rounds}")
    return costs


def table(costs: Costs) -> str:
    """Return the medians, and the ratio to the oldest Python."""
    first = next(iter(costs.values()))
    lines = ["CPU time of a request in µs, and its ratio to the first row", f"{'Python':<9}"]
    lines[1] += "".join(f"{operation:>22}" for operation in OPERATIONS)
    for version, seen in costs.items():
        cells = []
        for operation in OPERATIONS:
            ratio = median(ours / base for ours, base in zip(seen[operation], first[operation], strict=True))
            cells.append(f"{median(seen[operation]):>12.1f}  {ratio:>6.2f} x")
        lines.append(f"{version:<9}" + "".join(cells))
    return "\n".join(lines)
