"""All attacks at once, a process for each: `python -m tests.load.attackers HOST PORT SECONDS NICE NAME…` prints JSON.

The attackers take only what the server and its user leave of the processor: they are nice, and so is their session,
because where Linux groups sessions, being nice counts only inside of one. Otherwise the latencies would tell of the
scheduler and not of the server.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
import time
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

from tests.load.attacks import ATTACKS
from tests.load.swarm import Counts, Swarm
from tests.load.user_attacks import SCHEMES, SWARMS, Schemer

STARTING_SECONDS_MAX = 60


def give_way(pid: int, nice: int) -> None:
    """Let a process and its session be so nice."""
    os.setpriority(os.PRIO_PROCESS, pid, nice)
    with contextlib.suppress(FileNotFoundError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice), encoding="ascii")


def _attack(name: str, address: tuple[str, int], seconds: float, all_are_here: Barrier, results: Connection) -> None:
    all_are_here.wait(STARTING_SECONDS_MAX)
    until = time.monotonic() + seconds
    counts = _scheme(name, address, until) if name in SCHEMES else Swarm(address, (ATTACKS | SWARMS)[name]).run(until)
    results.send({**asdict(counts), "processor_seconds": round(time.process_time(), 1)})


def _scheme(name: str, address: tuple[str, int], until: float) -> Counts:
    """Let one who looks at the answers do step after step, on a new connection if the server has closed the last."""
    counts = Counts()
    schemer = Schemer(*address)
    while time.monotonic() < until:
        try:
            SCHEMES[name](schemer)
        except OSError:
            counts.closed_by_server += 1
            time.sleep(0.1)
    return replace(counts, opened=1 + counts.closed_by_server, sends=schemer.asked)


def main(host: str, port: str, seconds: str, nice: str, *names: str) -> None:
    """Attack, and tell when it began and what was done."""
    give_way(os.getpid(), int(nice))
    forked = multiprocessing.get_context("fork")
    all_are_here = forked.Barrier(len(names) + 1)
    running = []
    for name in names:
        ours, theirs = forked.Pipe(duplex=False)
        arguments = (name, (host, int(port)), float(seconds), all_are_here, theirs)
        process = forked.Process(target=_attack, args=arguments, daemon=True)
        process.start()
        theirs.close()
        running.append((name, process, ours))
    all_are_here.wait(STARTING_SECONDS_MAX)
    began = time.monotonic()
    print(json.dumps({"began": began, "attacks": {name: ours.recv() for name, _, ours in running}}))
    for _, process, _ in running:
        process.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
