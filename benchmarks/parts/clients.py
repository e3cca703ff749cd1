"""Claim and release as a Python user meets them: each way in turns, in one run, with all servers up.

The result of a comparison is the median of the turns' ratios, since noise meets both of a turn. Beside them: what
`rlock` adds to the start of Python.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import holdfast
from benchmarks.parts.contenders import CONTENDERS
from benchmarks.progress import say
from benchmarks.systems.base import HttpSystem, Server, System
from benchmarks.systems.holdfast import TOKEN, Holdfast
from benchmarks.systems.process import StartError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.parts.common import Row, Work
    from benchmarks.parts.contenders import Contender

TURNS = 7
STARTS = 30


def measure(work: Work) -> Row:
    """Start what there is, and take turns."""
    with ExitStack() as stack:
        servers = _start_servers(work, stack)
        if Holdfast.key not in servers:
            return {}
        contenders = _open(work, stack, servers)
        rows: dict[str, Row] = {each.key: {"key": each.key, "title": each.title, "turns": []} for each in contenders}
        for turn in range(TURNS + 1):
            shift = turn % len(contenders)
            for each in [*contenders[shift:], *contenders[:shift]]:
                seen = _turn(work, each, work.options.pairs)
                if turn and seen:  # The first one warms.
                    rows[each.key]["turns"].append(seen)
            say(f"clients: turn {turn} of {TURNS}")
        starts = _starts(servers[Holdfast.key].port, min(STARTS, work.options.pairs))
    return {"pairs": work.options.pairs, "rows": list(rows.values()), "starts": starts}


def _start_servers(work: Work, stack: ExitStack) -> dict[str, Server]:
    kinds = {each.server for each in CONTENDERS if each.server is not None}
    found: dict[str, Server] = {}
    for kind in sorted(kinds, key=lambda kind: kind.key):
        if kind.key not in work.options.systems and issubclass(kind, System):
            continue
        server = kind(work.tools()) if issubclass(kind, System | HttpSystem) else kind()
        if not work.has(server):
            continue
        try:
            stack.enter_context(server.running(work.folder / kind.key))
        except (StartError, OSError) as error:
            work.trouble(f"{server.title}: {error}")
            continue
        found[kind.key] = server
    return found


def _open(work: Work, stack: ExitStack, servers: dict[str, Server]) -> list[Contender]:
    opened = []
    for kind in CONTENDERS:
        reason = kind.missing()
        if kind.server is not None and kind.server.key not in servers:
            reason = reason or f"{kind.server.title} does not run"
        if reason is None:
            try:
                opened.append(kind(stack, servers, work.folder))
            except Exception as error:  # noqa: BLE001 - Whatever another's client raises, the others go on.
                reason = f"it could not connect: {error}"
        if reason is not None:
            work.missing[kind.key] = f"{kind.title}: {reason}"
            say(f"NOT MEASURED, {work.missing[kind.key]}")
    return opened


def _turn(work: Work, contender: Contender, pairs: int) -> Row:
    try:
        seen = sorted(contender.turn(pairs))
    except Exception as error:  # noqa: BLE001 - The same.
        work.trouble(f"{contender.title}: {type(error).__name__}: {error}")
        return {}
    return {
        "seconds": round(sum(seen) / 1_000, 5),
        "p50_ms": round(median(seen), 4),
        "p99_ms": round(seen[min(len(seen) - 1, len(seen) * 99 // 100)], 4),
    }


def ratio(ours: Sequence[Row], theirs: Sequence[Row]) -> float:
    """Return how much longer ours takes than theirs: the median of the turns' ratios."""
    return float(median(mine["seconds"] / other["seconds"] for mine, other in zip(ours, theirs, strict=False)))


def _starts(port: int, count: int) -> Row:
    """Start `rlock` with the server up, and Python with nothing to do."""
    rlock = [str(Path(sys.executable).with_name("rlock")), "bench://rlock"]
    nothing = [sys.executable, "-c", "pass"]
    ours, theirs = [], []
    with holdfast.Holdfast(f"http://127.0.0.1:{port}", token=TOKEN) as client, client.session("bench") as session:
        environment = {**os.environ, **session.environment}
        for _ in range(count):
            ours.append(_start(rlock, environment))
            theirs.append(_start(nothing, environment))
    found = {"rlock_ms": median(ours), "python_ms": median(theirs)}
    found["ratio"] = median(mine / other for mine, other in zip(ours, theirs, strict=True))
    say(f"rlock takes {found['ratio']:.2f} x the time of `python -c pass`")
    return {name: round(value, 3) for name, value in found.items()}


def _start(command: list[str], environment: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1_000
