"""`make bench-check`: does a request cost more processor time than it did at another commit?

    make bench-check BASE=v0.1.0

The other commit gets a work tree with an environment of its own. Both servers run at once, each on its own data, and
take turns: the same requests to the one, then to the other. What counts is the processor time of a server and of all
that it started, for one request. Each turn gives a ratio, and the median of the turns is judged, so a busy machine
slows the check down and hardly changes what it says. A row over the limit gets as many turns again before it is judged.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.load.scripts import write_pairs
from benchmarks.load.tools import LoadError
from benchmarks.options import between
from benchmarks.progress import say
from benchmarks.run import interruptible
from benchmarks.systems.base import ROOT, SCRATCH
from benchmarks.systems.holdfast import Holdfast
from benchmarks.systems.process import StartError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.load.generator import Plan

LIMIT = 1.05
ROUNDS = 9
REQUESTS = 10_000
CONNECTIONS = 64
WARM_REQUESTS = 3_000
OPERATIONS = (
    "acquire",
    "acquire with a key",
    "renew",
    "release",
    "status",
    "session heartbeat",
    "claim loop, archived",
)
ARCHIVED = OPERATIONS[-1]
SNAPSHOT_RECORDS = 10_000
"""So small that every turn of the archived loop has several snapshots in it. The other rows have none."""
NEVER = 1_000_000_000
LOOP_NAMES = 5_000
_SESSIONS = 64
_TURN_SECONDS_MAX = {ARCHIVED: 8.0}
_TURN_SECONDS_MAX_USUAL = 3.0
"""On a very busy machine a turn makes fewer requests, rather than taking for ever."""
_USAGE, _INTERRUPTED = 2, 130


@dataclass
class Cost:
    """What an operation costs, before and after: microseconds of processor time for one request, turn by turn."""

    operation: str
    old_us: list[float] = field(default_factory=list)
    new_us: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Return the median of the turns' ratios: noise meets both of a turn."""
        return median(new / old for old, new in zip(self.old_us, self.new_us, strict=True))

    def is_dearer(self, limit: float) -> bool:
        return self.ratio > limit

    def __str__(self) -> str:
        ratios = sorted(new / old for old, new in zip(self.old_us, self.new_us, strict=True))
        return (
            f"{self.operation:<22}{median(self.old_us):>10.1f}{median(self.new_us):>10.1f}{self.ratio:>9.3f} x"
            f"   {f'{ratios[0]:.2f}-{ratios[-1]:.2f}':>11}{len(ratios):>7}"
        )


class CheckError(Exception):
    """The check cannot be made here."""


class Side:
    """One of the two: a server whose rows have no snapshots in them, and one that has many."""

    def __init__(self, name: str, tree: Path | None, stack: ExitStack, folder: Path) -> None:
        self.name = name
        self._folder = folder / name
        self._plain = Holdfast(settings={"snapshot_records": NEVER}, tree=tree)
        self._archiving = Holdfast(settings={"snapshot_records": SNAPSHOT_RECORDS}, tree=tree)
        for server, data_name in ((self._plain, "plain"), (self._archiving, "archiving")):
            stack.enter_context(server.running(self._folder / data_name))
        self._held = str(self._folder / "held")
        self._leases_file = write_pairs(self._folder / "kept", self._plain.hold("kept", 1_000))
        self._sessions = write_pairs(self._folder / "sessions", self._plain.open_sessions(_SESSIONS))

    def cost_us(self, operation: str, turn: int, requests: int) -> float:
        """Make the requests; return the processor time of one."""
        server = self._archiving if operation == ARCHIVED else self._plain
        plan = self._plan(server, operation, turn, requests)
        run, spent = server.press_plan(plan, until_quiet=operation == ARCHIVED)
        if run.wrong or run.errors or not run.answers:
            raise LoadError(f"{self.name}, {operation}: {run.wrong + run.errors} wrong answers: {run.sample}")
        return 1_000_000 * spent.seconds / run.answers

    def _plan(self, server: Holdfast, operation: str, turn: int, requests: int) -> Plan:
        script: str
        given: dict[str, Any]
        match operation:
            case "acquire":
                script, given = "acquire", {"prefix": f"plain-{turn}", "keep": self._held}
            case "acquire with a key":
                script, given = "acquire", {"prefix": f"keyed-{turn}", "as_client": True}
            case "renew":
                script, given = "renew", {"held": self._leases_file}
            case "release":
                script, given = "release", {"held": self._held}
            case "status":
                script, given = "status", {"held": self._leases_file}
            case "session heartbeat":
                script, given = "heartbeat", {"held": self._sessions}
            case _:
                script, given = "loop", {"prefix": f"loop-{turn}", "names": LOOP_NAMES}
        count = requests * (4 if operation == ARCHIVED else 1)
        seconds = _TURN_SECONDS_MAX.get(operation, _TURN_SECONDS_MAX_USUAL)
        return server.plan(script, connections=CONNECTIONS, seconds=seconds, count=count, **given)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare and print; 1 if a request has become dearer, 2 if it cannot be compared."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks check", description="Is a request dearer than before?")
    add = parser.add_argument
    add("--base", default="", help="the commit to compare with, default the last tag")
    add("--rounds", type=between(3, 99), default=ROUNDS, help="turns of each, default %(default)s")
    add("--requests", type=between(100, 1_000_000), default=REQUESTS, help="requests in a turn, default %(default)s")
    add("--limit", type=float, default=LIMIT, help="the ratio beyond which it fails, default %(default)s")
    arguments = parser.parse_args(argv)
    try:
        with interruptible():
            base = commit_of(arguments.base)
            costs = compare(tree_of(base), arguments)
    except (CheckError, StartError, LoadError, OSError) as error:
        say(f"not compared: {error}")
        return _USAGE
    except KeyboardInterrupt:
        say("interrupted; everything that was started is stopped")
        return _INTERRUPTED
    sys.stdout.write("\n" + table(base, costs, arguments.limit) + "\n")
    return 1 if any(cost.is_dearer(arguments.limit) for cost in costs) else 0


def compare(tree: Path, arguments: argparse.Namespace) -> list[Cost]:
    """Take turns with every operation; once more with those that seem dearer."""
    costs = [Cost(operation) for operation in OPERATIONS]
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=SCRATCH, prefix="check-", ignore_cleanup_errors=True) as scratch,
        ExitStack() as stack,
    ):
        old, new = (Side(name, where, stack, Path(scratch)) for name, where in (("old", tree), ("new", None)))
        for cost in costs:
            for side in (old, new):
                side.cost_us(cost.operation, -1, min(WARM_REQUESTS, arguments.requests))
        for turn in range(arguments.rounds):
            _turn(costs, old, new, turn, arguments.requests)
        dearer = [cost for cost in costs if cost.is_dearer(arguments.limit)]
        if dearer:
            say(f"over the limit so far: {', '.join(cost.operation for cost in dearer)}; as many turns again")
            # The names that are released are acquired before, so both are asked again together.
            again = [cost for cost in costs if cost in dearer or (cost.operation == "acquire" and _releases(dearer))]
            for turn in range(arguments.rounds, 2 * arguments.rounds):
                _turn(again, old, new, turn, arguments.requests)
    return costs


def _releases(costs: Sequence[Cost]) -> bool:
    return any(cost.operation == "release" for cost in costs)


def _turn(costs: Sequence[Cost], old: Side, new: Side, turn: int, requests: int) -> None:
    """Ask both for each operation, now the one first and now the other."""
    for cost in costs:
        sides = [(old, cost.old_us), (new, cost.new_us)]
        for side, seen in sides if turn % 2 == 0 else reversed(sides):
            seen.append(side.cost_us(cost.operation, turn, requests))
    say("turn " + f"{turn + 1}: " + ", ".join(f"{cost.operation} {cost.ratio:.2f}" for cost in costs))


def table(base: str, costs: Sequence[Cost], limit: float) -> str:
    """Return the result for people."""
    head = f"{'operation':<22}{'before':>10}{'now':>10}{'ratio':>11}   {'turns':>11}{'':>7}"
    lines = [f"processor time of one request in µs, {base} beside this tree, {CONNECTIONS} connections", head]
    lines += [f"{cost}{'  DEARER' if cost.is_dearer(limit) else ''}" for cost in costs]
    dearer = [cost.operation for cost in costs if cost.is_dearer(limit)]
    verdict = f"dearer by more than {limit - 1:.0%}: {', '.join(dearer)}" if dearer else f"none beyond {limit:g} x"
    return "\n".join([*lines, verdict])


def commit_of(base: str) -> str:
    """Return the commit to compare with: the one that was named, else the last tag."""
    named = base or _git("describe", "--tags", "--abbrev=0")
    try:
        _git("rev-parse", "--verify", "--quiet", f"{named}^{{commit}}")
    except CheckError:
        raise CheckError(f"there is no commit {named!r} here; a shallow clone has none but its own") from None
    return named


def tree_of(base: str) -> Path:
    """Return a work tree of a commit with its own environment; made once, and used again."""
    commit = _git("rev-parse", f"{base}^{{commit}}")
    tree = SCRATCH / "trees" / commit[:12]
    if not (tree / "Makefile").exists():
        _git("worktree", "prune")
        _git("worktree", "add", "--detach", "--force", str(tree), commit)
    say(f"preparing the environment of {base}")
    done = subprocess.run(["make", "-C", str(tree), ".venv/run.stamp"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CheckError(f"the environment of {base} cannot be made: {done.stderr.strip()[-600:]}")
    return tree


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CheckError(f"git {' '.join(arguments[:2])}: {done.stderr.strip()[-300:] or 'no answer'}")
    return done.stdout.strip()
