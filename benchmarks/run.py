"""The order of events: each part in its turn, its result kept as soon as it is there, the report at the end."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.load.tools import LoadError
from benchmarks.options import Options, parse_options
from benchmarks.parts import (
    calls,
    clients,
    failover,
    growth,
    history_queries,
    million,
    nodes,
    one,
    operations,
    page,
    peers,
    renewals,
    steady,
    waiters,
)
from benchmarks.parts.common import Work
from benchmarks.progress import say
from benchmarks.report import text
from benchmarks.report.goals import goals_of
from benchmarks.report.machine import describe_machine
from benchmarks.systems.all import SYSTEMS
from benchmarks.systems.base import SCRATCH
from benchmarks.systems.process import StartError, allow_open_files
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.parts.common import Row

PARTS: dict[str, Callable[[Work], Row]] = {
    "peers": peers.measure,
    "operations": operations.measure,
    "one": one.measure,
    "clients": clients.measure,
    "calls": calls.measure,
    "waiters": waiters.measure,
    "renewals": renewals.measure,
    "growth": growth.measure,
    "million": million.measure,
    "looking": history_queries.measure,
    "page": page.measure,
    "steady": steady.measure,
    "nodes": nodes.measure,
    "failover": failover.measure,
}
_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; 0 unless --assert was given and a goal was missed or not measured."""
    options = parse_options(list(PARTS), [kind.key for kind in SYSTEMS], argv)
    try:
        with interruptible():
            allow_open_files()
            for part in options.parts:
                keep(options.results, measure(part, options))
    except KeyboardInterrupt:
        say("interrupted; everything that was started is stopped, and what was measured is kept")
        return _INTERRUPTED
    found = load(options.results, options.parts)
    sys.stdout.write("\n" + text.as_text(found) + "\n")
    are_met = all(goal.is_met for goal in goals_of(found))
    return 1 if options.must_meet_goals and not are_met else 0


def measure(part: str, options: Options) -> Row:
    """Run one part in a folder that is thrown away; return its document."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SCRATCH, prefix="run-", ignore_cleanup_errors=True) as scratch:
        work = Work(options, Path(scratch))
        machine = describe_machine(Path(scratch))
        say(f"{part} begins")
        for warning in machine.warnings():
            say(f"warning: {warning}")
        began = time.monotonic()
        data: Row = {}
        try:
            data = PARTS[part](work)
        except (StartError, LoadError, OSError, HoldfastError) as error:
            work.trouble(f"{part}: {error}")
        return {
            "part": part,
            "machine": {**asdict(machine), "warnings": machine.warnings()},
            "versions": work.versions,
            "missing": work.missing,
            "troubles": work.troubles,
            "options": {name: getattr(options, name) for name in ("seconds", "rounds")},
            "took_seconds": round(time.monotonic() - began),
            "data": data,
        }


def keep(folder: Path, document: Row) -> None:
    """Write a document where the report finds it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{document['part']}.json"
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    say(f"{document['part']} took {document['took_seconds']} s; kept in {path.name}")


def load(folder: Path, parts: Sequence[str] = tuple(PARTS)) -> dict[str, Row]:
    """Read the documents that are there, in the order of the parts."""
    paths = {part: folder / f"{part}.json" for part in parts}
    return {part: json.loads(path.read_text(encoding="utf-8")) for part, path in paths.items() if path.exists()}


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise `KeyboardInterrupt` for Ctrl-C and SIGTERM, once: a second one must not break off the stopping."""

    def interrupt(*_: object) -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
