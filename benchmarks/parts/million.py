"""A server with a million leases: what one costs in memory, and how long it takes to come back with all of them.

A fresh server is warmed, weighed, given the leases, and weighed again, with the processes that it started. Then it is
killed as a power cut would, started again on the same data, and asked for leases that were granted before. After
that it is stopped in order and started once more.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.progress import say
from benchmarks.systems.holdfast import Holdfast
from benchmarks.systems.usage import disk_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.parts.common import Row, Work

HELD_SAMPLE = 200
_WARM_SECONDS = 1


def measure(work: Work) -> Row:
    """Fill, weigh, kill, restart, ask; stop, restart, ask."""
    if not work.has(Holdfast()):
        return {}
    folder, leases = work.folder / "million", work.options.leases
    server = Holdfast()
    say(f"filling a fresh server with {leases:,} leases")
    with server.running(folder) as child:
        empty_start_seconds = server.ready_seconds
        # Warmed first: code and buffers that come with the first requests are no part of a lease.
        server.press_plan(server.plan("acquire", connections=64, seconds=_WARM_SECONDS, prefix="warm"))
        server.rest()
        before = server.usage()
        began = time.monotonic()
        held = server.hold("kept", leases)
        filled_seconds = time.monotonic() - began
        # Killed while it still has work to do with what was just written: the worst moment for a restart.
        child.kill()
    killed = _restart(server, folder, held)
    with server.running(folder):
        server.rest()
        after = server.usage()
    stopped = _restart(server, folder, held)
    row = {
        "leases": leases,
        "filled_per_second": round(leases / filled_seconds),
        "own_bytes": after.own_bytes - before.own_bytes,
        "children_bytes": after.children_bytes - before.children_bytes,
        "bytes_per_lease": round((after.bytes - before.bytes) / leases),
        "disk_bytes": disk_bytes(server.data(folder)),
        "empty_start_seconds": round(empty_start_seconds, 3),
        "killed": killed,
        "stopped": stopped,
        "wrong": sum(each["asked"] - each["held"] for each in (killed, stopped)),
    }
    say(
        f"{row['bytes_per_lease']:,} bytes a lease; first answer {killed['answer_seconds']:.2f} s after kill -9,"
        f" {stopped['answer_seconds']:.2f} s after a stop; an empty server {empty_start_seconds:.2f} s"
    )
    return row


def _restart(server: Holdfast, folder: Path, held: dict[str, str]) -> Row:
    """Start again, and ask for names that were granted: each must be held by the lease that was told."""
    sample = list(held)[:: max(1, len(held) // HELD_SAMPLE)]
    began = time.monotonic()
    with server.running(folder):
        server.ask("GET", f"/locks/{sample[0]}")
        answer_seconds = time.monotonic() - began
        found = [server.ask("GET", f"/locks/{name}") for name in sample]
    return {
        "ready_seconds": round(server.ready_seconds, 3),
        "answer_seconds": round(answer_seconds, 3),
        "asked": len(sample),
        "held": sum(each["status"] == "held" for each in found),
    }
