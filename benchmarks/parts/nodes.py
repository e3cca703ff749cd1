"""Acquires of several nodes on PostgreSQL: beside one node with its own disk, etcd, and a lock table by hand, in turns.

Through a follower beside the leader itself. Each acquire is durable in its store before it is answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.parts.peers import press_all
from benchmarks.systems.etcd import Etcd
from benchmarks.systems.holdfast import Holdfast
from benchmarks.systems.nodes import OnPostgres, ThroughFollower
from benchmarks.systems.postgres import Postgres

if TYPE_CHECKING:
    from benchmarks.parts.common import Row, Work
    from benchmarks.systems.base import System

SYSTEMS: tuple[type[System], ...] = (Holdfast, OnPostgres, ThroughFollower, Etcd, Postgres)
CONNECTIONS = (64, 256)


def measure(work: Work) -> Row:
    """Press each in turns."""
    tools = work.tools()
    wanted = [kind(tools) for kind in SYSTEMS]
    systems = [system for system in wanted if work.has(system)]
    return {
        "titles": {system.key: system.title for system in wanted},
        "rows": press_all(systems, work, work.options.connections or CONNECTIONS),
    }
