"""Does the fsync really happen? strace counts the syncs of a server while it grants leases one by one.

With one request in flight nothing can share a sync, so a server that answers only what is durable makes at
least one sync per grant. This is a check beside the contest: nothing is timed while strace looks on.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.systems.usage import descendants

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.systems.base import System

ACQUIRES = 50
_ATTACH_SECONDS_MAX = 5.0
_SYNC = re.compile(r"\b(?:fsync|fdatasync|msync)\(")


@dataclass(frozen=True)
class SyncCheck:
    """How many syncs so many grants cost; no syncs at all when nobody could look, and then why."""

    acquires: int
    syncs: int | None
    note: str = ""

    @property
    def is_durable(self) -> bool | None:
        return None if self.syncs is None else self.syncs >= self.acquires > 0

    def __str__(self) -> str:
        if self.syncs is None:
            return f"not checked: {self.note}"
        verdict = "one each or more" if self.is_durable else "TOO FEW: answers are not durable"
        return f"{self.syncs} syncs for {self.acquires} acquires on one connection ({verdict})"


def check_syncs(system: System, folder: Path) -> SyncCheck:
    """Start the system and count."""
    strace = shutil.which("strace")
    if strace is None:
        return SyncCheck(0, None, "no `strace` on the PATH (apt install strace)")
    with system.running(folder) as child:
        system.press_exactly(ACQUIRES)  # Files are created and first pages written before we count.
        return _count(strace, system, child.pid, folder / "strace")


def _count(strace: str, system: System, pid: int, out: Path) -> SyncCheck:
    command = [strace, "-f", "-qq", "-e", "trace=fsync,fdatasync,msync", "-o", str(out)]
    # Every process of it: PostgreSQL syncs in those that the first one started.
    pids = [pid, *descendants(pid)]
    command += [word for each in pids for word in ("-p", str(each))]
    tracer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        if not _is_attached(tracer, pids):
            return SyncCheck(0, None, "strace may not attach here")
        seen = system.press_exactly(ACQUIRES)
    finally:
        complaint = _end(tracer)
    if not out.exists():
        return SyncCheck(0, None, f"strace wrote nothing: {complaint[-200:]}")
    return SyncCheck(seen.acquired, len(_SYNC.findall(out.read_text())))


def _is_attached(tracer: subprocess.Popen[str], pids: Sequence[int]) -> bool:
    """The kernel says who traces whom, which is surer than waiting for a message."""
    deadline = time.monotonic() + _ATTACH_SECONDS_MAX
    while time.monotonic() < deadline and tracer.poll() is None:
        if all(_tracer_pids(pid) == {tracer.pid} for pid in pids):
            return True
        time.sleep(0.02)
    return False


def _tracer_pids(pid: int) -> set[int]:
    """Every thread's tracer: a server that syncs in a thread must be seen there too."""
    statuses = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return {int(found[1]) for text in statuses if (found := re.search(r"TracerPid:\s+(\d+)", text))}


def _end(tracer: subprocess.Popen[str]) -> str:
    if tracer.poll() is None:
        tracer.send_signal(signal.SIGINT)  # On SIGINT strace lets go of the server and writes its file.
    try:
        return tracer.communicate(timeout=5)[1]
    except subprocess.TimeoutExpired:
        tracer.kill()
        return tracer.communicate()[1]
