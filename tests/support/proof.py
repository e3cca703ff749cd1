"""How much a run tries: every count that is larger in a proof than in `make test`.

| run | HOLDFAST_PROOF | for |
|---|---|---|
| `make test` | not set | everybody, after every change; small counts that still find planted bugs |
| `make prove` | `ci` | every change that is taken in, in under an hour on two cores |
| `make prove-release` | `release` | a release; takes hours |

Counts stand here and nowhere else, so that what a run proves is read on one page. A test asks for its own by name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

VARIABLE = "HOLDFAST_PROOF"
RUNS = {"": "make test", "ci": "make prove", "release": "make prove-release"}


class Counts(NamedTuple):
    """One number for each run."""

    test: int
    ci: int
    release: int


COUNTS = {
    # The core alone: no clock, no disk, no network.
    "core: examples of 100 steps, each setting": Counts(150, 2_000, 20_000),
    "core: depth of all sequences with leases": Counts(6, 6, 7),
    "core: depth of all sequences with keys": Counts(6, 7, 8),
    "core: depth of all sequences with sessions": Counts(6, 7, 8),
    "line: walks": Counts(400, 20_000, 20_000),
    "line: walks beside the naive model": Counts(150, 2_000, 5_000),
    "deadlock: one in so many graphs of 4 × 4": Counts(5, 1, 1),
    "deadlock: graphs drawn": Counts(20_000, 100_000, 1_000_000),
    # The journal on a file system that forgets and fails.
    "journal: examples of records": Counts(100, 1_000, 5_000),
    "journal: bytes changed": Counts(2_000, 5_000, 20_000),
    "power: cuts": Counts(2_400, 8_000, 100_000),
    "I/O errors: positions": Counts(50, 50, 500),
    # The engine with a clock and a journal of the test's own.
    "engine: examples": Counts(100, 1_000, 5_000),
    # Files of hosts of agents, edited by position.
    "skills: documents": Counts(100, 2_000, 20_000),
    # Connections, byte by byte.
    "wire: histories imagined": Counts(2_000, 20_000, 100_000),
    "wire: histories": Counts(3_000, 100_000, 1_000_000),
    # Real servers.
    "crash: eras": Counts(1, 8, 40),
    "crash: crashes of an era": Counts(26, 26, 50),
    "crash: eras of those who wait": Counts(1, 2, 20),
    "crash: random crashes of those who wait": Counts(5, 5, 20),
    "history: operations": Counts(2_000, 1_000_000, 1_000_000),
    "history: imagined ones for each bug": Counts(10, 100, 200),
    "stores: kills of a move": Counts(4, 20, 100),
    "lost replies": Counts(1_000, 10_000, 10_000),
    "lost replies: restarts": Counts(2, 10, 40),
    "one server: rounds": Counts(2, 10, 40),
    "events: thousands missed by a reader": Counts(3, 10, 10),
    "clocks: steps of the wall": Counts(40, 500, 10_000),
    "deadlines: seconds": Counts(0, 5, 60),
    "hostile mix: seconds": Counts(4, 30, 600),
    "hostile mix by a user: seconds": Counts(4, 30, 600),
    # The client for threads, interrupted at every step of what it does.
    "interrupts: steps of each scenario, at most": Counts(120, 1_000_000, 1_000_000),
    "interrupts: real ones": Counts(60, 1_500, 10_000),
    # Two agents under the guard, each with a host of its own.
    "guard: times that two agents edit at once": Counts(10, 100, 1_000),
    # Two real agent hosts; only in `make hosts`.
    "hosts: rounds of two agents in two hosts": Counts(3, 30, 300),
    # Several nodes: the model of the seat, which needs nothing.
    "model: thousand states of each large world": Counts(15, 1_000, 4_000),
    # Several nodes on a real PostgreSQL.
    "nodes: appends with lost answers": Counts(150, 3_000, 100_000),
    "nodes: takeovers during a step of the archive": Counts(12, 100, 1_000),
    "nodes: steps of the archive that prune": Counts(25, 300, 2_000),
    "nodes: steps of the archive with lost answers": Counts(25, 300, 5_000),
    "nodes: writers stopped at the fence": Counts(6, 60, 500),
    "nodes: looks in a row of the watcher": Counts(5, 6, 7),
    "nodes: statements beside the model": Counts(400, 5_000, 50_000),
    "nodes: failovers of each kind": Counts(1, 9, 72),
    "nodes: cuts of each kind in network namespaces": Counts(0, 5, 50),
    "nodes: promotions of each kind": Counts(1, 5, 50),
    "nodes: failovers with leases on the way": Counts(1, 20, 500),
    "nodes: leaders woken with requests in their sockets": Counts(2, 60, 500),
    # With nginx and HAProxy in front; 0 leaves these tests out.
    "proxies: ways to cut a request": Counts(0, 2, 10),
    "proxies: seconds of a wait": Counts(0, 3, 50),
    # In namespaces of this machine, as root; 0 leaves this test out.
    "containers: turns of the workers": Counts(0, 3, 20),
}


def run_of(environment: Mapping[str, str]) -> str:
    """Which run it is. Raises `ValueError` for a value that is none."""
    run = environment.get(VARIABLE, "")
    if run not in RUNS:
        known = ", ".join(f"{value or 'not set'} ({command})" for value, command in RUNS.items())
        raise ValueError(f"{VARIABLE}={run} means nothing here; it can be: {known}")
    return run


def count(name: str) -> int:
    """How much this run tries of what has that name."""
    return COUNTS[name][list(RUNS).index(run_of(os.environ))]
