"""All attacks at once: `python -m tests.load.mob HOST PORT SECONDS NAME…`, a process for each, counts as JSON.

The mob takes only what the server and its user leave of the processor: it is nice, and so is its session, because where
Linux groups sessions, being nice counts only inside of one. Otherwise the latencies would tell of the scheduler and not
of the server.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
import time
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path

from tests.load.attacks import ATTACKS
from tests.load.swarm import Swarm

NICE = 10
START_SECONDS = 0.5


def _attack(name: str, place: tuple[str, int], until: float, told: Connection) -> None:
    counts = Swarm(place, ATTACKS[name]).run(until)
    told.send({**asdict(counts), "processor_seconds": round(time.process_time(), 1)})


def main(host: str, port: str, seconds: str, *names: str) -> None:
    """Attack, and tell what was done."""
    os.nice(NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICE), encoding="ascii")
    until = time.monotonic() + START_SECONDS + float(seconds)
    forked = multiprocessing.get_context("fork")
    running = []
    for name in names:
        ours, theirs = forked.Pipe(duplex=False)
        process = forked.Process(target=_attack, args=(name, (host, int(port)), until, theirs), daemon=True)
        process.start()
        theirs.close()
        running.append((name, process, ours))
    print(json.dumps({name: ours.recv() for name, _, ours in running}))
    for _, process, _ in running:
        process.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
