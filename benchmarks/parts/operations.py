"""Each request of ours at 1 to 1,000 connections: rate, latency, and processor time of the server for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.load.scripts import write_pairs
from benchmarks.load.tools import LoadError
from benchmarks.options import CONNECTIONS
from benchmarks.parts.common import row_of
from benchmarks.systems.holdfast import Holdfast
from benchmarks.systems.process import StartError

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.load.generator import Plan
    from benchmarks.parts.common import Row, Work

OPERATIONS = ("acquire", "acquire as our client", "renew", "release", "status", "claim loop")
LOOP_NAMES = 100_000
HELD = 10_000
_WARM_SECONDS = 1
_RELEASES_PER_SECOND = {1: 5_000}
_RELEASES_PER_SECOND_MANY = 60_000
"""More than there are: a run that has no lease left ends sooner."""


def measure(work: Work) -> Row:
    """Ask everything at each count of connections, on a fresh server for each."""
    rows: list[Row] = []
    if not work.has(Holdfast()):
        return {"rows": rows}
    for number in range(work.options.rounds):
        for connections in work.options.connections or CONNECTIONS:
            folder = work.folder / f"{number}-{connections}"
            try:
                rows += _ask_all(work, folder, connections)
            except (StartError, LoadError, OSError) as error:
                work.trouble(f"{connections} connections: {error}")
    return {"rows": rows}


def _ask_all(work: Work, folder: Path, connections: int) -> list[Row]:
    server = Holdfast()
    rows = []
    with server.running(folder):
        server.press_plan(server.plan("acquire", connections=64, seconds=_WARM_SECONDS, prefix="warm"))
        for operation in OPERATIONS:
            plan = plan_of(server, operation, folder, connections=connections, seconds=work.options.seconds)
            run, spent = server.press_plan(plan)
            rows.append(row_of(run, spent, operation=operation, connections=connections))
    return rows


def plan_of(server: Holdfast, operation: str, folder: Path, *, connections: int, seconds: float) -> Plan:
    """Prepare an operation and return its plan; what it needs is held by then."""
    held = folder / "held"
    match operation:
        case "acquire":
            return server.plan("acquire", connections=connections, seconds=seconds, prefix="new")
        case "acquire as our client":
            return server.plan("acquire", connections=connections, seconds=seconds, prefix="as", as_client=True)
        case "renew" | "status":
            path = write_pairs(held, server.hold(f"held-{operation}", HELD))
            return server.plan(operation, connections=connections, seconds=seconds, held=path)
        case "release":
            rate = _RELEASES_PER_SECOND.get(connections, _RELEASES_PER_SECOND_MANY)
            path = write_pairs(held, server.hold("held-release", int(rate * seconds)))
            return server.plan("release", connections=connections, seconds=seconds, held=path)
        case "session heartbeat":
            path = write_pairs(held, server.open_sessions(100))
            return server.plan("heartbeat", connections=connections, seconds=seconds, held=path)
        case _:
            return server.plan("loop", connections=connections, seconds=seconds, prefix="loop", names=LOOP_NAMES)
