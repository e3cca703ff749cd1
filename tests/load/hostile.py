"""The hostile mix: a server under attack by strangers or by one user, and what another user feels of it.

    python -m tests.load.hostile --seconds 600            all attacks at once, against this project's server
    python -m tests.load.hostile --only "held bodies"     one of them; several are separated by commas
    python -m tests.load.hostile --each                   one after the other, a line for each
    python -m tests.load.hostile --first                  on a machine that others use too; needs root
    python -m tests.load.hostile --user --seconds 600     the attacks of one user with a token, all at once

| who | is | does |
|---|---|---|
| the attackers (`attackers.py`) | a process for each row of `attacks.py`, nice | attacks, from all of 127.0.0.0/8 |
| the user (`bystander.py`) | a process with a token and a kept connection | claims, renews, releases: 50 a second |
| the monitor | this process | reads the server's memory, and asks `/readyz` on a new connection four times a second |

What must hold on two cores for 600 s is in `TARGETS`. A test asserts what is not about speed; the latency of the user
is printed, and looked at by people. The user and the server come first at the processor: the attackers are nice and get
what is left, so that the numbers are the server's. Three of them tell how far the machine itself can be believed: the
line *echo*, a user of a process that only echoes, measured between two requests; how long the server stood in the queue
for the processor; and how long the machine, if it is a guest of another, was kept waiting by its host. The line *host
at rest* leaves out the claims that were under way at such a time.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.load.attackers import STARTING_SECONDS_MAX, give_way
from tests.load.attacks import ATTACKS
from tests.load.bystander import Sample
from tests.load.crowd import raise_file_limit, rss_bytes
from tests.load.journal_judge import granted_twice
from tests.load.user_attacks import USER_ATTACKS
from tests.support import callers
from tests.support.http import Connection
from tests.support.server import PROJECT, ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

QUIET_SECONDS = 2
"""How long the user is alone before the attack, to see what the machine and its disk give."""
AFTER_SECONDS = 2
ENDING_SECONDS_MAX = 90
MONITOR_SECONDS = 0.25
STOLEN_SECONDS_MIN = 0.02
RECOVERY_SECONDS = 0.25
"""What the host took between two looks that counts as a disturbance, and how long its effects are felt."""
NICER = 10
"""By how much the attackers are nicer than the server and its user."""

WRONG_MAX = 100
VERBS = ("claim", "renew", "release", "retry", "late retry")

TARGETS = {"claims p99": "50 ms", "memory": "512 MiB", "log": "1 MiB"}
MIB = 1 << 20
MEMORY_BYTES_MAX = 512 * MIB
LOG_BYTES_MAX = MIB


@dataclass
class Report:
    """What was seen."""

    seconds: float
    latency_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    """By what was asked: how many, p50, p99, p99.9 and the most."""
    wrong: list[str] = field(default_factory=list)
    """What the user was told that was not right, or that it was told nothing."""
    asked: int = 0
    user_connections: int = 0
    not_ready: list[str] = field(default_factory=list)
    """New connections on which `/readyz` was not answered with 200 in time."""
    memory_bytes: int = 0
    """The most that the server ever had."""
    memory_bytes_after: int = 0
    server_processor_seconds: float = 0
    server_queued_seconds: float = 0
    """How long it wanted the processor and others had it: what of the latency is not the server's own."""
    stolen_seconds: float = 0
    """How long a virtual machine, all its processors together, was kept waiting by its host."""
    log_bytes: int = 0
    tracebacks: int = 0
    granted_twice: list[str] = field(default_factory=list)
    """Grants in the journal of a name that was held, or with a fencing token that did not rise."""
    attacks: dict[str, dict[str, float]] = field(default_factory=dict)
    log: str = field(default="", repr=False)

    def as_json(self) -> str:
        return json.dumps({name: value for name, value in vars(self).items() if name != "log"})

    def as_line(self) -> str:
        """The targets, and what tells whether the machine was to be believed."""
        claim, echo = self.latency_ms["claim"], self.latency_ms["echo, without the server"]
        return (
            f"claims p50 {claim['p50']:.1f} p99 {claim['p99']:.1f} most {claim['most']:.1f} ms"
            f" (echo p99 {echo['p99']:.1f}), memory {self.memory_bytes / MIB:.0f} MiB,"
            f" log {self.log_bytes} bytes, {self.tracebacks} tracebacks, {len(self.wrong)} wrong,"
            f" {len(self.not_ready)} not ready, processor {self.server_processor_seconds:.1f} s,"
            f" queued {self.server_queued_seconds:.1f} s, stolen {self.stolen_seconds:.1f} s"
        )

    def as_table(self) -> str:
        lines = [f"{'':<28}{'count':>9}{'p50 ms':>9}{'p99 ms':>9}{'p99.9 ms':>9}{'most ms':>9}"]
        for what, row in self.latency_ms.items():
            numbers = "".join(f"{row[each]:>9.1f}" for each in ("p50", "p99", "p999", "most"))
            lines.append(f"{what:<28}{row['count']:>9.0f}{numbers}")
        lines += [
            "",
            f"wrong answers to the user: {len(self.wrong)} of {self.asked}, on {self.user_connections} connections",
            f"new connections without 200 of /readyz: {len(self.not_ready)}",
            f"memory: {self.memory_bytes / MIB:.0f} MiB at most, {self.memory_bytes_after / MIB:.0f} MiB at the end",
            f"granted twice, as the journal tells: {len(self.granted_twice)}",
            f"log: {self.log_bytes} bytes, {self.tracebacks} tracebacks",
            f"processor: the server had {self.server_processor_seconds:.1f} s",
            f"it stood in the queue for the processor for {self.server_queued_seconds:.1f} s",
            f"the machine, as a guest of another, was kept waiting for {self.stolen_seconds:.1f} s",
            f"must hold on two cores for 600 s: {', '.join(f'{what} < {most}' for what, most in TARGETS.items())}",
            "",
            f"{'attack':<28}{'opened':>9}{'refused':>9}{'closed':>9}{'sent MB':>9}{'read MB':>9}{'cpu s':>9}",
        ]
        for name, row in self.attacks.items():
            lines.append(
                f"{name:<28}{row['opened']:>9}{row['not_opened']:>9}{row['closed_by_server']:>9}"
                f"{row['sent_bytes'] / 1e6:>9.1f}{row['received_bytes'] / 1e6:>9.1f}{row['processor_seconds']:>9.1f}"
            )
        return "\n".join(lines)


def run(data: Path, seconds: float, names: list[str], *, first: bool = False) -> Report:
    """Start a server, attack it, and report. `first`: server and user come before all others at the processor."""
    raise_file_limit()
    report = Report(seconds)
    with contextlib.ExitStack() as together:
        server = together.enter_context(ServerProcess.start(data, tokens=callers.TOKENS))
        # Where strangers attack, the user is as it ever was; where a user does, it counts on its retries too.
        by_user = bool(set(names) & set(USER_ATTACKS))
        user = _start("bystander", server, callers.ALICE, *(["keys"] if by_user else []))
        if first:
            for pid in (server.pid, user.pid):
                give_way(pid, -NICER)
            together.enter_context(_packets_first())
        time.sleep(QUIET_SECONDS)
        attackers = _start("attackers", server, str(seconds), str(0 if first else NICER), *names)
        over = threading.Event()
        ready_ms: list[float] = []
        monitor = threading.Thread(target=_monitor, args=(server, report, ready_ms, over), daemon=True)
        monitor.start()
        try:
            done = _read_message(attackers, STARTING_SECONDS_MAX + seconds + ENDING_SECONDS_MAX)
            time.sleep(AFTER_SECONDS)
            seen = _read_message(user, ENDING_SECONDS_MAX)
        finally:
            over.set()
            monitor.join()
            for process in (attackers, user):
                process.kill()
                process.communicate()
        report.memory_bytes_after = rss_bytes(server.pid)
        report.server_processor_seconds, report.server_queued_seconds = _scheduled_seconds(server.pid)
        report.log = server.log
    if by_user:
        report.granted_twice = list(itertools.islice(granted_twice(data), WRONG_MAX))
    report.attacks, began = done["attacks"], done["began"]
    samples = [Sample(*each) for each in seen["samples"]]
    report.asked = len(samples)
    report.user_connections = seen["connections"]
    report.wrong = [f"{each.verb}: {each.wrong}" for each in samples if each.wrong]
    report.log_bytes = len(report.log.encode())
    report.tracebacks = report.log.count("Traceback")
    report.stolen_seconds = seen["echoes"][-1][2] - seen["echoes"][0][2]
    disturbances = _disturbances(seen["echoes"])
    until = began + seconds
    attacked = [each for each in samples if began <= each.due < until]
    rows = {
        "claim, before the attack": [
            each.latency_ms for each in samples if each.verb == "claim" and each.due < samples[0].due + QUIET_SECONDS
        ],
        **{verb: [each.latency_ms for each in attacked if each.verb == verb] for verb in VERBS},
        "claim, host at rest": [
            each.latency_ms for each in attacked if each.verb == "claim" and _is_undisturbed(each, disturbances)
        ],
        "renew, host at rest": [
            each.latency_ms for each in attacked if each.verb == "renew" and _is_undisturbed(each, disturbances)
        ],
        "/readyz, new connection": ready_ms,
        "echo, without the server": [latency_ms for sent, latency_ms, _ in seen["echoes"] if began <= sent < until],
    }
    report.latency_ms = {what: _percentiles(times) for what, times in rows.items()}
    return report


@contextlib.contextmanager
def _packets_first() -> Iterator[None]:
    """Let the kernel's threads that carry packets come first too.

    Whoever comes before them keeps them from the processor, and waits for its own packets then: up to half a second.
    """
    carriers: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if entry.read_text(encoding="utf-8").startswith("ksoftirqd/"):
                pid = int(entry.parent.name)
                carriers[pid] = os.getpriority(os.PRIO_PROCESS, pid)
                os.setpriority(os.PRIO_PROCESS, pid, -NICER)
    try:
        yield
    finally:
        for pid, before in carriers.items():
            os.setpriority(os.PRIO_PROCESS, pid, before)


def _start(module: str, server: ServerProcess, *arguments: str) -> subprocess.Popen[str]:
    # A session of its own, as the server has: where Linux groups sessions, each is a group.
    command = [sys.executable, "-m", f"tests.load.{module}", server.host, str(server.port), *arguments]
    return subprocess.Popen(
        command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def _read_message(process: subprocess.Popen[str], seconds_max: float) -> dict[str, Any]:
    output, _ = process.communicate(timeout=seconds_max)
    message: dict[str, Any] = json.loads(output)
    return message


def _monitor(server: ServerProcess, report: Report, ready_ms: list[float], over: threading.Event) -> None:
    while not over.wait(MONITOR_SECONDS) and server.is_running():
        with contextlib.suppress(OSError):
            report.memory_bytes = rss_bytes(server.pid, most=True)
        began = time.monotonic()
        try:
            with Connection(server.host, server.port, timeout_seconds=10) as connection:
                status = connection.request("GET", "/readyz").status
        except OSError as error:
            report.not_ready.append(f"{type(error).__name__}: {error}")
            continue
        ready_ms.append(1000 * (time.monotonic() - began))
        if status != 200:
            report.not_ready.append(str(status))


def _scheduled_seconds(pid: int) -> tuple[float, float]:
    """How long the main thread of a process had the processor, and how long it stood in the queue for it."""
    had_ns, queued_ns, _ = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()
    return int(had_ns) / 1e9, int(queued_ns) / 1e9


def _disturbances(echoes: list[list[float]]) -> list[tuple[float, float]]:
    """When the host kept the machine waiting: from, until. What was late then may have been late because of that."""
    pairs = itertools.pairwise(echoes)
    return [(before[0], after[0]) for before, after in pairs if after[2] - before[2] >= STOLEN_SECONDS_MIN]


def _is_undisturbed(sample: Sample, disturbances: list[tuple[float, float]]) -> bool:
    ended = sample.due + sample.latency_ms / 1000
    return not any(begin <= ended and sample.due <= end + RECOVERY_SECONDS for begin, end in disturbances)


def _percentiles(times_ms: list[float]) -> dict[str, float]:
    ordered = sorted(times_ms) or [0.0]
    at = {name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] for name, share in SHARES.items()}
    return {"count": len(times_ms), **at, "most": ordered[-1]}


SHARES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}


def main() -> None:
    """Run it by hand. Told to stop, it stops all that it started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(description="Attack a server of its own, and show what its user feels of it.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--only", help="names of attacks, separated by commas")
    parser.add_argument("--user", help="the attacks of one user with a token", action="store_true")
    parser.add_argument(
        "--first", help="server and user before all else on this machine; needs root", action="store_true"
    )
    parser.add_argument("--each", help="each attack alone, a line for each", action="store_true")
    arguments = parser.parse_args()
    every = USER_ATTACKS if arguments.user else tuple(ATTACKS)
    names = list(every) if arguments.only is None else [name.strip() for name in arguments.only.split(",")]
    for together in [[name] for name in names] if arguments.each else [names]:
        with tempfile.TemporaryDirectory() as directory:
            report = run(Path(directory) / "data", arguments.seconds, together, first=arguments.first)
        if arguments.each:
            print(f"{together[0]:<24}{report.as_line()}", flush=True)
        else:
            print(report.as_table())
            print(report.as_json())
        for what in [*report.wrong[:3], *report.not_ready[:3], *report.granted_twice[:3]]:
            print(what[:300], flush=True)


if __name__ == "__main__":
    main()
