"""What a live lease costs in memory, and how long our server takes to come back with all of them.

A fresh server is warmed, measured, given the leases, measured again; then it is killed as a power cut
would, started again on the same data, and asked whether the leases are still held.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.httpload import Names
    from benchmarks.peers import HttpSystem

WARM_LEASES = 1_000
HELD_SAMPLE = 200
_CONNECTIONS = 64
_SETTLE_SECONDS = 2.0


@dataclass(frozen=True)
class Footprint:
    """The numbers. `leases` is what was granted between the two measurements of memory."""

    leases: int
    rss_before_bytes: int
    rss_after_bytes: int
    empty_start_seconds: float
    restart_seconds: float
    held_after_restart: int
    held_expected: int
    wrong: int

    @property
    def bytes_per_lease(self) -> float:
        return (self.rss_after_bytes - self.rss_before_bytes) / max(1, self.leases)

    @property
    def is_sound(self) -> bool:
        return self.wrong == 0 and self.held_after_restart == self.held_expected


def measure(server: HttpSystem, folder: Path, leases: int, say: Callable[[str], None]) -> Footprint:
    """Fill, weigh, kill, restart, ask."""
    with server.running(folder) as child:
        names = server.next_names()
        empty_start_seconds = server.ready_seconds
        # Warmed first: code and buffers that come with the first requests are no part of a lease.
        server.press_exactly(WARM_LEASES, connections=_CONNECTIONS)
        before = _settled_rss_bytes(child.pid)
        filled = server.press_names(names, leases, connections=_CONNECTIONS)
        after = _settled_rss_bytes(child.pid)
        say(f"{filled.acquired:,} leases held; kill -9 and start again")
        child.kill()
    with server.running(folder):
        held = _held(server, names)
        restart_seconds = server.ready_seconds
    return Footprint(
        leases=filled.acquired,
        rss_before_bytes=before,
        rss_after_bytes=after,
        empty_start_seconds=empty_start_seconds,
        restart_seconds=restart_seconds,
        held_after_restart=held,
        held_expected=min(HELD_SAMPLE, leases),
        wrong=filled.wrong + (leases - filled.answers),
    )


def _held(server: HttpSystem, names: Names) -> int:
    """Ask for names that were granted before the kill: every answer must be a refusal, none a grant."""
    seen = server.press_names(names, HELD_SAMPLE)
    return seen.answers_2xx - seen.acquired


def _settled_rss_bytes(pid: int) -> int:
    time.sleep(_SETTLE_SECONDS)
    return rss_bytes(pid)


def rss_bytes(pid: int) -> int:
    """The resident memory of a process and of every process it started."""
    status = Path(f"/proc/{pid}/status").read_text()
    own = next((line for line in status.splitlines() if line.startswith("VmRSS:")), "VmRSS: 0 kB")
    return int(own.split()[1]) * 1_024 + sum(rss_bytes(child) for child in _children(pid))


def _children(pid: int) -> list[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in lists for child in path.read_text().split()]
