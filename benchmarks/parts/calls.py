"""Claims in calls of a hundred names: all of them, or the first one that is free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.load.scripts import ANY_HELD, write_pairs
from benchmarks.load.tools import LoadError
from benchmarks.parts.common import row_of
from benchmarks.systems.holdfast import Holdfast
from benchmarks.systems.process import StartError

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.parts.common import Row, Work

CONNECTIONS = (1, 8, 64)
_WARM_SECONDS = 1


def measure(work: Work) -> Row:
    """Each count gets a fresh server: millions of leases in one would measure memory."""
    rows: list[Row] = []
    if not work.has(Holdfast()):
        return {"rows": rows}
    for number in range(work.options.rounds):
        for connections in work.options.connections or CONNECTIONS:
            for kind in ("all", "any"):
                try:
                    rows.append(_calls(work, work.folder / f"{kind}-{number}-{connections}", kind, connections))
                except (StartError, LoadError, OSError) as error:
                    work.trouble(f"calls of {kind} at {connections} connections: {error}")
    return {"rows": rows}


def _calls(work: Work, folder: Path, kind: str, connections: int) -> Row:
    server = Holdfast()
    with server.running(folder):
        held = {"held": write_pairs(folder / "held", server.hold("held", ANY_HELD))} if kind == "any" else {}
        plan = server.plan(kind, connections=connections, seconds=work.options.seconds, prefix="new", **held)
        server.press_plan(server.plan(kind, connections=connections, seconds=_WARM_SECONDS, prefix="warm", **held))
        return row_of(*server.press_plan(plan), call=kind, connections=connections)
