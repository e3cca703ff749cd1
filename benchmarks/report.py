"""What was seen, as a table for people and as JSON for programs, and how it stands against our goals."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.clients import ASYNC, RLOCK
from benchmarks.load import BUILTIN
from benchmarks.peers import CLAIMS_PER_CALL

if TYPE_CHECKING:
    from benchmarks.clients import Comparison
    from benchmarks.load import Load
    from benchmarks.machine import Machine
    from benchmarks.memory import Footprint
    from benchmarks.syncs import SyncCheck
    from benchmarks.waiters import Line

OURS = "holdfast"
GOAL_CONNECTIONS = 64
GOAL_RATIOS = {"redis": 0.4, "etcd": 4.0}
GOAL_BYTES_PER_LEASE_MAX = 1_500
GOAL_CLAIMS_PER_SECOND = 100_000
GOAL_BYTES_PER_WAITER_MAX = 40_000
GOAL_WAKE_MS_MAX = 20
GOAL_CLIENTS = {ASYNC: 1.3, RLOCK: 2.5}


@dataclass
class Results:
    """Everything one run of the benchmark found out, in the order it was found."""

    machine: Machine
    titles: dict[str, str]
    versions: dict[str, str]
    missing: dict[str, str]
    loads: dict[tuple[str, int], list[Load]] = field(default_factory=dict)
    syncs: dict[str, SyncCheck] = field(default_factory=dict)
    claims: dict[int, list[Load]] = field(default_factory=dict)
    """Calls of many claims, by connections. What a load calls an acquire is such a call."""
    lines: list[Line] = field(default_factory=list)
    footprint: Footprint | None = None
    clients: list[Comparison] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    def add(self, key: str, load: Load) -> None:
        self.loads.setdefault((key, load.connections), []).append(load)

    def add_claims(self, load: Load) -> None:
        self.claims.setdefault(load.connections, []).append(load)

    def claims_rate(self, connections: int) -> float:
        return CLAIMS_PER_CALL * median(load.acquires_per_second for load in self.claims[connections])

    def all_loads(self) -> list[Load]:
        return [load for loads in (*self.loads.values(), *self.claims.values()) for load in loads]

    def rate(self, key: str, connections: int) -> float | None:
        """The median of the rounds, which one bad round cannot move far."""
        loads = self.loads.get((key, connections))
        return median(load.acquires_per_second for load in loads) if loads else None

    def ratio(self, peer: str, connections: int) -> float | None:
        ours, theirs = self.rate(OURS, connections), self.rate(peer, connections)
        return ours / theirs if ours is not None and theirs else None


@dataclass(frozen=True)
class Goal:
    """One promise, what was measured for it, and whether it holds; None when it could not be measured."""

    promise: str
    measured: str
    is_met: bool | None

    def __str__(self) -> str:
        word = {True: "met", False: "MISSED", None: "not measured"}[self.is_met]
        return f"  {word:<13} {self.promise}: {self.measured}"


def goals(results: Results) -> list[Goal]:
    """Our goals in their order: rates, waits, weights, and that every answer was right."""
    return [
        *(_ratio_goal(results, peer, least) for peer, least in GOAL_RATIOS.items()),
        _claims_goal(results),
        _wake_goal(results),
        _waiter_goal(results),
        _memory_goal(results),
        *(_client_goal(results, key, most) for key, most in GOAL_CLIENTS.items()),
        _soundness_goal(results),
    ]


def _ratio_goal(results: Results, peer: str, least: float) -> Goal:
    ratio = results.ratio(peer, GOAL_CONNECTIONS)
    title = results.titles.get(peer, peer)
    promise = f"at least {least:g} x {title} at {GOAL_CONNECTIONS} connections"
    if ratio is None:
        return Goal(promise, "-", None)
    return Goal(promise, f"{ratio:.2f} x", ratio >= least)


def _claims_goal(results: Results) -> Goal:
    promise = f"at least {GOAL_CLAIMS_PER_SECOND:,} claims per second in calls of {CLAIMS_PER_CALL}"
    if not results.claims:
        return Goal(promise, "-", None)
    best = max(results.claims, key=results.claims_rate)
    rate = results.claims_rate(best)
    return Goal(promise, f"{rate:,.0f} at {best} connections", rate >= GOAL_CLAIMS_PER_SECOND)


def _wake_goal(results: Results) -> Goal:
    promise = f"the next in line woken within {GOAL_WAKE_MS_MAX} ms of a release (p99)"
    if not results.lines:
        return Goal(promise, "-", None)
    worst = max(line.p99_ms for line in results.lines)
    return Goal(promise, f"{worst:.1f} ms", worst <= GOAL_WAKE_MS_MAX)


def _waiter_goal(results: Results) -> Goal:
    promise = f"at most {GOAL_BYTES_PER_WAITER_MAX:,} bytes of memory per waiter"
    if not results.lines:
        return Goal(promise, "-", None)
    weight = max(line.bytes_per_waiter for line in results.lines)
    return Goal(promise, f"{weight:,.0f} bytes", weight <= GOAL_BYTES_PER_WAITER_MAX)


def _memory_goal(results: Results) -> Goal:
    promise = f"at most {GOAL_BYTES_PER_LEASE_MAX:,} bytes of memory per live lease"
    if results.footprint is None:
        return Goal(promise, "-", None)
    weight = results.footprint.bytes_per_lease
    return Goal(promise, f"{weight:,.0f} bytes", weight <= GOAL_BYTES_PER_LEASE_MAX)


def _client_goal(results: Results, key: str, most: float) -> Goal:
    found = next((each for each in results.clients if each.key == key), None)
    if found is None:
        return Goal(f"the {key} client at most {most:g} x the same without it", "-", None)
    return Goal(f"at most {most:g} x: {found.title}", f"{found.ratio:.2f} x", found.ratio <= most)


def _soundness_goal(results: Results) -> Goal:
    promise = "every answer a grant, every grant durable"
    loads = results.all_loads()
    wrong = sum(load.wrong for load in loads) + sum(line.wrong for line in results.lines)
    undurable = [key for key, check in results.syncs.items() if check.is_durable is False]
    troubles = len(results.troubles) + len(undurable)
    troubles += results.footprint is not None and not results.footprint.is_sound
    troubles += any(not line.latencies_us for line in results.lines)
    measured = f"{wrong} wrong answers, {troubles} other troubles"
    return Goal(promise, measured, wrong == 0 and troubles == 0 if loads or results.lines else None)


def as_text(results: Results) -> str:
    """The whole report."""
    parts = [
        _machine_text(results),
        _systems_text(results),
        _table_text(results),
        _claims_text(results),
        _answers_text(results),
        _lines_text(results),
        _footprint_text(results.footprint),
        _clients_text(results),
        _verdict_text(results),
    ]
    return "\n\n".join(part for part in parts if part)


def _machine_text(results: Results) -> str:
    machine = results.machine
    lines = [
        f"{machine.date} · {machine.cores} cores, {machine.cpu} · {machine.memory_gb} GB",
        f"{machine.kernel} · Python {machine.python}",
        f"data on {machine.file_system} ({machine.folder}): {machine.syncs_per_second:,.0f} fdatasync/s",
    ]
    return "\n".join(lines + [f"warning: {text}" for text in machine.warnings()])


def _systems_text(results: Results) -> str:
    lines = []
    for key, title in results.titles.items():
        if key in results.versions:
            sync = f" · {results.syncs[key]}" if key in results.syncs else ""
            lines.append(f"{title} {results.versions[key]}{sync}")
        elif key in results.missing:
            lines.append(f"{title}: NOT MEASURED, {results.missing[key]}")
    return "\n".join(lines)


def _table_text(results: Results) -> str:
    if not results.loads:
        return ""
    head = (
        f"{'connections':>11}  {'system':<28}{'acquires/s':>11}  {'lowest-highest':>16}"
        f"{'p50 ms':>9}{'p99 ms':>9}  {'Holdfast is':>11}"
    )
    lines = ["durable acquires per second (the median of the rounds)", head, "-" * len(head)]
    for connections in sorted({connections for _, connections in results.loads}):
        rows = [key for key in results.titles if (key, connections) in results.loads]
        lines += [_row(results, key, connections) for key in rows]
    if any(load.tool == BUILTIN for loads in results.loads.values() for load in loads):
        lines.append("* pressed by the built-in generator, not wrk: the generator may be the limit here")
    return "\n".join(lines)


def _row(results: Results, key: str, connections: int) -> str:
    loads = results.loads[key, connections]
    rates = [load.acquires_per_second for load in loads]
    ratio = results.ratio(key, connections) if key != OURS else None
    mark = " *" if loads[0].tool == BUILTIN else ""
    return (
        f"{connections:>11}  {results.titles[key] + mark:<28}{median(rates):>11,.0f}"
        f"  {f'{min(rates):,.0f}-{max(rates):,.0f}':>16}"
        f"{median(load.p50_ms for load in loads):>9.2f}{median(load.p99_ms for load in loads):>9.2f}"
        f"  {f'{ratio:.2f} x' if ratio is not None else '':>11}"
    )


def _claims_text(results: Results) -> str:
    if not results.claims:
        return ""
    head = f"{'connections':>11}  {'calls/s':>9}{'claims/s':>11}  {'lowest-highest':>18}{'p50 ms':>9}{'p99 ms':>9}"
    title = f"Holdfast, durable claims per second in calls of {CLAIMS_PER_CALL} (POST /claims, all or none, one record)"
    lines = [title, head, "-" * len(head)]
    for connections, loads in sorted(results.claims.items()):
        rates = [CLAIMS_PER_CALL * load.acquires_per_second for load in loads]
        mark = " *" if loads[0].tool == BUILTIN else ""
        lines.append(
            f"{connections:>11}  {median(rates) / CLAIMS_PER_CALL:>9,.0f}{median(rates):>11,.0f}"
            f"  {f'{min(rates):,.0f}-{max(rates):,.0f}':>18}"
            f"{median(load.p50_ms for load in loads):>9.1f}{median(load.p99_ms for load in loads):>9.1f}{mark}"
        )
    return "\n".join(lines)


def _lines_text(results: Results) -> str:
    lines = []
    for line in results.lines:
        lines.append(f"Holdfast with {line.waiters:,} waiters {line.title}")
        lines.append(f"  memory    {line.bytes_per_waiter:,.0f} bytes per waiter, its connection included")
        lines.append(
            f"  woken     p50 {line.p50_ms:.2f} ms, p99 {line.p99_ms:.2f} ms after the release was sent"
            f" ({len(line.latencies_us):,} hand-overs)"
        )
        if line.wrong:
            lines.append(f"  WRONG     {line.wrong} answers, such as: {line.sample}")
    return "\n".join(lines)


def _answers_text(results: Results) -> str:
    lines = []
    for key, title in results.titles.items():
        loads = [load for (of, _), found in results.loads.items() if of == key for load in found]
        if loads:
            lines.append(_answers_line(title, loads))
    calls = [load for found in results.claims.values() for load in found]
    if calls:
        lines.append(_answers_line(f"Holdfast, calls of {CLAIMS_PER_CALL}", calls))
    lines += [f"trouble: {text}" for text in results.troubles]
    return "\n".join(["answers", *lines]) if lines else ""


def _answers_line(title: str, loads: list[Load]) -> str:
    good, grants = sum(load.answers_2xx for load in loads), sum(load.acquired for load in loads)
    wrong, twice = sum(load.wrong for load in loads), sum(load.names_drawn_twice for load in loads)
    line = f"  {title}: {good:,} good answers, {grants:,} grants"
    line += f", {twice} random names drawn twice" if twice else ""
    if not wrong:
        return line
    sample = next((load.sample for load in loads if load.wrong), "")
    return f"{line}, {wrong:,} WRONG, such as: {sample or 'a broken connection'}"


def _footprint_text(footprint: Footprint | None) -> str:
    if footprint is None:
        return ""
    before, after = footprint.rss_before_bytes / 2**20, footprint.rss_after_bytes / 2**20
    empty = footprint.empty_start_seconds
    lines = [
        f"Holdfast with {footprint.leases:,} live leases",
        f"  memory    {footprint.bytes_per_lease:,.0f} bytes per lease ({before:.1f} → {after:.1f} MB)",
        f"  restart   {footprint.restart_seconds:.2f} s from start to ready after kill -9 (empty: {empty:.2f} s)",
        f"  survived  {footprint.held_after_restart} of {footprint.held_expected} leases asked for",
    ]
    if footprint.wrong:
        lines.append(f"  WRONG     {footprint.wrong} acquires were not granted")
    return "\n".join(lines)


def _clients_text(results: Results) -> str:
    if not results.clients:
        return ""
    lines = ["what our clients add (the median of the turns' ratios)"]
    for each in results.clients:
        ours, theirs = median(each.ours) * 1_000, median(each.theirs) * 1_000
        lines.append(f"  {each.title}: {each.ratio:.2f} x ({ours:,.1f} ms to {theirs:,.1f} ms, {len(each.ours)} turns)")
    return "\n".join(lines)


def _verdict_text(results: Results) -> str:
    found = goals(results)
    states = [goal.is_met for goal in found]
    word = "all goals met" if all(states) else f"{states.count(True)} of {len(states)} goals met"
    if False in states:
        word += f", {states.count(False)} MISSED"
    if None in states:
        word += f", {states.count(None)} not measured"
    return "\n".join([f"verdict: {word}", *map(str, found)])


def as_json(results: Results) -> str:
    """The same, with every round kept apart."""
    document: dict[str, Any] = {
        "machine": asdict(results.machine),
        "versions": results.versions,
        "missing": results.missing,
        "rounds": [
            {"system": key, "acquires_per_second": load.acquires_per_second, **asdict(load)}
            for (key, _), loads in results.loads.items()
            for load in loads
        ],
        "claims_in_calls": [
            {"claims_per_second": CLAIMS_PER_CALL * load.acquires_per_second, **asdict(load)}
            for loads in results.claims.values()
            for load in loads
        ],
        "waiters": [{"p50_ms": line.p50_ms, "p99_ms": line.p99_ms, **asdict(line)} for line in results.lines],
        "syncs": {key: asdict(check) for key, check in results.syncs.items()},
        "footprint": _footprint_json(results.footprint),
        "clients": [{"ratio": each.ratio, **asdict(each)} for each in results.clients],
        "goals": [asdict(goal) for goal in goals(results)],
        "troubles": results.troubles,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _footprint_json(footprint: Footprint | None) -> dict[str, Any] | None:
    if footprint is None:
        return None
    return {**asdict(footprint), "bytes_per_lease": footprint.bytes_per_lease}
