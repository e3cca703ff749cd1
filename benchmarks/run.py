"""The order of events: look around, prove the syncs, press every system in turn, then ours alone, report."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import clients, memory, report, waiters
from benchmarks.load import LoadError
from benchmarks.machine import describe_machine
from benchmarks.peers import CLAIMS_PER_CALL, SYSTEMS, Holdfast, System, Tools
from benchmarks.process import StartError
from benchmarks.syncs import check_syncs
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.report import Results

CLAIMS, WAITERS, MEMORY, CLIENTS = "claims", "waiters", "memory", "clients"
CLAIMS_CONNECTIONS = (1, 8, 64)
SECONDS_MAX = 60
ROUNDS_MAX = 20
CONNECTIONS_MAX = 1_000
LEASES_MAX = 1_000_000
WAITERS_MAX = 100_000
PAIRS_MAX = 100_000
_WARM_CONNECTIONS = 64
_WARM_SECONDS = 1
_INTERRUPTED = 130


@dataclass(frozen=True)
class Options:
    """What the caller asked for."""

    seconds: int
    rounds: int
    connections: tuple[int, ...]
    leases: int
    waiters: int
    pairs: int
    only: frozenset[str]
    json: Path | None
    builtin_load: bool
    must_meet_goals: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; 0 unless --assert was given and a goal was missed or not measured."""
    options = parse_options(argv)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        results = run(options)
    except KeyboardInterrupt:
        say("interrupted; everything that was started is stopped")
        return _INTERRUPTED
    sys.stdout.write("\n" + report.as_text(results) + "\n")
    if options.json is not None:
        options.json.write_text(report.as_json(results), encoding="utf-8")
    are_met = all(goal.is_met for goal in report.goals(results))
    return 1 if options.must_meet_goals and not are_met else 0


def run(options: Options) -> Results:
    """Everything between the options and the report."""
    base = Path(os.environ.get("BENCH_DIR") or Path(__file__).with_name(".scratch"))
    base.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=base, prefix="run-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        tools = Tools.find(builtin_only=options.builtin_load)
        systems, missing = choose(options, tools)
        results = report.Results(
            machine=describe_machine(folder),
            titles={kind.key: kind.title for kind in SYSTEMS},
            versions={system.key: system.version() for system in systems},
            missing=missing,
        )
        _tell_what_is_missing(results, tools)
        _prove_syncs(systems, folder, results)
        _press_all(systems, options, folder, results)
        if Holdfast.key not in missing:
            _ours_alone(tools, options, folder, results)
        return results


def _ours_alone(tools: Tools, options: Options, folder: Path, results: Results) -> None:
    """What no peer can be asked for in the same way."""
    if CLAIMS in options.only:
        _press_claims(Holdfast(tools), options, folder, results)
    if WAITERS in options.only:
        _line_up(tools, options, folder, results)
    if MEMORY in options.only:
        _weigh(Holdfast(tools), options, folder, results)
    if CLIENTS in options.only:
        _compare_clients(Holdfast(tools), options, folder, results)


def choose(options: Options, tools: Tools) -> tuple[list[System], dict[str, str]]:
    """The systems to run, and for each wanted one that cannot be: why, and how to get it."""
    systems, missing = [], {}
    for kind in SYSTEMS:
        system = kind(tools)
        reason = system.missing() if kind.key in options.only or kind is Holdfast else None
        if reason is not None:
            missing[kind.key] = f"{reason}. To get it: {kind.how_to_get}"
        elif kind.key in options.only:
            systems.append(system)
    return systems, missing


def _tell_what_is_missing(results: Results, tools: Tools) -> None:
    for key, reason in results.missing.items():
        say(f"could not find {results.titles[key]}: {reason}")
    if tools.wrk is None:
        reason = "it was asked for" if shutil.which("wrk") else "there is no wrk (apt install wrk)"
        say(f"HTTP is pressed by the built-in generator, whose rates are a floor: {reason}")
    for warning in results.machine.warnings():
        say(f"warning: {warning}")


def _prove_syncs(systems: Sequence[System], folder: Path, results: Results) -> None:
    for system in systems:
        try:
            check = check_syncs(system, folder / f"{system.key}-syncs")
        except (StartError, LoadError, OSError) as error:
            _trouble(results, f"{system.title}, counting syncs: {error}")
            continue
        results.syncs[system.key] = check
        say(f"{system.title}: {check}")


def _press_all(systems: Sequence[System], options: Options, folder: Path, results: Results) -> None:
    """Round by round, each starting with another system, so that slow noise meets all of them."""
    for number in range(options.rounds):
        shift = number % max(1, len(systems))
        for system in [*systems[shift:], *systems[:shift]]:
            label = f"round {number + 1}/{options.rounds}, {system.title}"
            try:
                _press(system, options, folder / f"{system.key}-{number}", label, results)
            except (StartError, LoadError, OSError) as error:
                _trouble(results, f"{label}: {error}")


def _press(system: System, options: Options, folder: Path, label: str, results: Results) -> None:
    with system.running(folder):
        system.press(connections=_WARM_CONNECTIONS, seconds=_WARM_SECONDS)
        for connections in options.connections:
            seen = system.press(connections=connections, seconds=options.seconds)
            results.add(system.key, seen)
            wrong = f", {seen.wrong:,} WRONG: {seen.sample}" if seen.wrong else ""
            say(
                f"{label}, {connections} connections: {seen.acquires_per_second:,.0f}/s"
                f" p50 {seen.p50_ms:.2f} ms p99 {seen.p99_ms:.2f} ms ({seen.tool}){wrong}"
            )


def _press_claims(server: Holdfast, options: Options, folder: Path, results: Results) -> None:
    """Calls of a hundred claims. Each count gets a fresh server: millions of leases in one would measure memory."""
    for number in range(options.rounds):
        for connections in CLAIMS_CONNECTIONS:
            label = f"round {number + 1}/{options.rounds}, calls of {CLAIMS_PER_CALL} claims, {connections} connections"
            try:
                with server.running(folder / f"claims-{number}-{connections}"):
                    server.press_claims(connections=connections, seconds=_WARM_SECONDS)
                    seen = server.press_claims(connections=connections, seconds=options.seconds)
            except (StartError, LoadError, OSError) as error:
                _trouble(results, f"{label}: {error}")
                continue
            results.add_claims(seen)
            wrong = f", {seen.wrong:,} WRONG: {seen.sample}" if seen.wrong else ""
            rate = seen.acquires_per_second * CLAIMS_PER_CALL
            say(f"{label}: {rate:,.0f} claims/s p50 {seen.p50_ms:.1f} ms p99 {seen.p99_ms:.1f} ms{wrong}")


def _line_up(tools: Tools, options: Options, folder: Path, results: Results) -> None:
    say(f"letting {options.waiters:,} stand in line")
    try:
        results.lines = waiters.measure(tools, folder / "waiters", options.waiters, say)
    except (StartError, LoadError, OSError) as error:
        _trouble(results, f"waiters: {error}")


def _weigh(server: Holdfast, options: Options, folder: Path, results: Results) -> None:
    say(f"filling a fresh server with {options.leases:,} leases")
    try:
        results.footprint = memory.measure(server, folder / "memory", options.leases, say)
    except (StartError, LoadError, OSError) as error:
        _trouble(results, f"memory and restart: {error}")


def _compare_clients(server: Holdfast, options: Options, folder: Path, results: Results) -> None:
    say(f"taking turns with the clients, {options.pairs:,} pairs each")
    try:
        results.clients = clients.measure(server, folder / "clients", options.pairs, say)
    except (StartError, OSError, subprocess.CalledProcessError, HoldfastError) as error:
        _trouble(results, f"clients: {error}")


def _trouble(results: Results, text: str) -> None:
    results.troubles.append(text)
    say(f"trouble: {text}")


def say(text: str) -> None:
    """Progress goes to stderr, so that the report can be kept by itself."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def _interrupt(*_: object) -> None:
    # Once is enough: a second Ctrl-C must not break off the stopping of what was started.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def parse_options(argv: Sequence[str] | None = None) -> Options:
    """Read the command line; --quick only changes defaults, so that it can be combined."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Our server and the peers it finds, in one run."
    )
    known = [*(kind.key for kind in SYSTEMS), CLAIMS, WAITERS, MEMORY, CLIENTS]
    add = parser.add_argument
    add("--quick", action="store_true", help="one round of one second, few leases and waiters: a look, not a result")
    add("--seconds", type=_between(1, SECONDS_MAX), help="per system and connection count (default 3)")
    add("--rounds", type=_between(1, ROUNDS_MAX), help="the report takes their median (default 3)")
    add("--connections", type=_numbers, default=(1, 64, 256), help="such as 1,64,256 (default)")
    add("--leases", type=_between(1, LEASES_MAX), help="live leases for memory and restart (default 100000)")
    add("--waiters", type=_between(1, WAITERS_MAX), help="how many stand in line (default 10000)")
    add("--pairs", type=_between(1, PAIRS_MAX), help="claims and releases a client makes in a turn (default 1000)")
    add("--only", type=_words(known), default=frozenset(known), help=f"some of {','.join(known)}")
    add("--skip", type=_words(known), default=frozenset(), help="the others")
    add("--json", type=Path, metavar="FILE", help="write every round to FILE as well")
    add(
        "--builtin-load",
        action="store_true",
        help="press HTTP with the built-in generator even if wrk is there",
    )
    add("--assert", action="store_true", dest="must", help="exit 1 unless every goal is met")
    args = parser.parse_args(argv)
    return Options(
        seconds=args.seconds or (1 if args.quick else 3),
        rounds=args.rounds or (1 if args.quick else 3),
        connections=args.connections,
        leases=args.leases or (20_000 if args.quick else 100_000),
        waiters=args.waiters or (1_000 if args.quick else waiters.WAITERS),
        pairs=args.pairs or (100 if args.quick else clients.PAIRS),
        only=args.only - args.skip,
        json=args.json,
        builtin_load=args.builtin_load,
        must_meet_goals=args.must,
    )


def _between(least: int, most: int) -> Callable[[str], int]:
    """A whole number, refused with both ends named."""

    def whole_number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be {least} to {most}")
        return value

    return whole_number


def _numbers(text: str) -> tuple[int, ...]:
    read = _between(1, CONNECTIONS_MAX)
    return tuple(sorted({read(part) for part in text.split(",")}))


def _words(known: Sequence[str]) -> Callable[[str], frozenset[str]]:
    """A choice of known words, separated by commas."""

    def words(text: str) -> frozenset[str]:
        chosen = frozenset(part.strip() for part in text.split(","))
        if unknown := chosen.difference(known):
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
        return chosen

    return words
