"""Claim and release as a Python user meets them: each way in turns, in one run, with all servers up.

The result of a comparison is the median of the turns' ratios, since noise meets both of a turn. Beside them: what
`rlock` and a hook of the guard add to the start of Python.
"""

from __future__ import annotations

import json
import os
import resource
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
        count = min(STARTS, work.options.pairs)
        starts = _starts(servers[Holdfast.key].port, count)
        hooks = hook_calls(servers[Holdfast.key].port, count, work.folder / "hooks")
    return {"pairs": work.options.pairs, "rows": list(rows.values()), "starts": starts, "hooks": hooks}


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


def hook_calls(port: int, count: int, folder: Path) -> Row:
    """Measure the CPU time of a guard hook, and of Python with nothing to do, in turns.

    One hook call is for a file that no rule names, the other for a file whose job the agent already has.
    """
    repository = folder / "repository"
    repository.mkdir(parents=True)
    (repository / "holdfast-guard.toml").write_text('[[rule]]\npaths = "src/**"\njob = "bench:src"\n')
    holdfast_program = str(Path(sys.executable).with_name("holdfast"))
    hook = [holdfast_program, "guard", "hook", "--host", "claude"]
    environment = {
        "HOME": str(folder), "PATH": os.environ.get("PATH", ""), "HOLDFAST_URL": f"http://127.0.0.1:{port}",
        "HOLDFAST_TOKEN": TOKEN, "HOLDFAST_GUARD_HOST_PID": str(os.getpid()),
    }  # fmt: skip
    calls = {
        "python": ([sys.executable, "-c", "pass"], b""),
        "no_rule": (hook, _edit_of(repository / "README.md")),
        "held": (hook, _edit_of(repository / "src/a.py")),
    }
    seen: dict[str, list[float]] = {name: [] for name in calls}
    try:
        for turn in range(count + 1):
            for name, (command, data) in calls.items():
                spent = _cpu_ms(command, data, environment)
                if turn:  # The first one claims the job and starts the keeper.
                    seen[name].append(spent)
    finally:
        release = [holdfast_program, "guard", "release", "--all"]
        subprocess.run(release, env=environment, check=False, stdout=subprocess.DEVNULL)
    found = {f"{name}_cpu_ms": median(values) for name, values in seen.items()}
    for name in ("no_rule", "held"):
        found[f"{name}_ratio"] = found[f"{name}_cpu_ms"] / found["python_cpu_ms"]
        say(f"a guard hook ({name}) uses {found[f'{name}_ratio']:.2f} x the CPU time of `python -c pass`")
    return {name: round(value, 3) for name, value in found.items()}


def _edit_of(file: Path) -> bytes:
    fields = {"hook_event_name": "PreToolUse", "session_id": "bench", "cwd": str(file.parent), "tool_name": "Edit",
              "tool_input": {"file_path": str(file)}}  # fmt: skip
    return json.dumps(fields).encode()


def _cpu_ms(command: list[str], data: bytes, environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, input=data, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1_000
