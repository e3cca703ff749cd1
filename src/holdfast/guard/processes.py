"""Which process is the host, and whether it still lives.

A process is marked by its number, the moment of its start, the boot and the PID namespace, so that a reused number is
not taken for the same process.

A hook is started by the host, mostly through `sh -c`. The host is the nearest process above that is not such a shell.
`HOLDFAST_GUARD_HOST_PID` names another one, for hosts that start their hooks by something that ends before them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

VARIABLE = "HOLDFAST_GUARD_HOST_PID"
_ABOVE_MAX = 64
_LAUNCHERS = frozenset({"env", "timeout", "nice", "setsid", "uv", "uvx", "pipx"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish"})
HAS_PROC = os.path.exists("/proc/self/stat")


class Process:
    def __init__(self, mark: str, parent: int, words: list[str]) -> None:
        self.mark, self.parent = mark, parent
        self.name = os.path.basename(words[0]).lstrip("-") if words else ""
        runs_script = any(word[:1] == "-" and "c" in word and word[:2] != "--" for word in words[1:3])
        self.is_between = self.name in _LAUNCHERS or (self.name in _SHELLS and runs_script)
        """Whether it was started only to start another: a shell with `-c`, `env` and the like."""


def look(pid: int) -> Process | None:
    """Look at a process; None if there is none of this number, or it has ended and waits for its parent."""
    return _in_proc(pid) if HAS_PROC else _by_ps(pid)


def _in_proc(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as opened:
            # The name stands in parentheses, and may have any character in it.
            fields = opened.read().rpartition(b")")[2].split()
        with open(f"/proc/{pid}/cmdline", "rb") as opened:
            words = opened.read(65_536).split(b"\0")
    except OSError:
        return None
    state, parent, start = fields[0], int(fields[1]), fields[19].decode()
    if state in {b"Z", b"X"}:
        return None
    return Process(f"{pid}:{start}:{_boot()}", parent, [os.fsdecode(word) for word in words])


def _boot() -> str:
    """Return the boot and the PID namespace in which process numbers mean something."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as opened:
            return f"{opened.read().strip()}.{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def is_judged_here(mark: str) -> bool:
    """Tell whether this process can know if the marked process lives: not if it is of another PID namespace or boot."""
    boot_id, _, namespace = mark.rpartition(":")[2].partition(".")
    here_id, _, here_namespace = (_boot() if HAS_PROC else "").partition(".")
    return boot_id != here_id or namespace == here_namespace


def _by_ps(pid: int) -> Process | None:
    import subprocess

    done = subprocess.run(  # noqa: S603 - a number is all that varies
        ["ps", "-o", "stat=,ppid=,lstart=,command=", "-p", str(pid)],  # noqa: S607 - where it is differs
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
    )
    words = done.stdout.split()
    if len(words) < 8 or words[0].startswith("Z"):  # noqa: PLR2004 - state, parent, the five words of a date, a program
        return None
    return Process(f"{pid}:{'-'.join(words[2:7])}:", int(words[1]), words[7:])


def lives(mark: str) -> bool:
    pid = mark.partition(":")[0]
    return pid.isdecimal() and mark_of(int(pid)) == mark


def above() -> list[Process]:
    found: list[Process] = []
    pid = os.getppid()
    while pid > 0 and len(found) < _ABOVE_MAX and (process := look(pid)):
        found.append(process)
        pid = process.parent
    return found


def host_mark(environment: Mapping[str, str]) -> str:
    named = environment.get(VARIABLE, "")
    if named.isdecimal():
        return mark_of(int(named))
    return next((process.mark for process in above() if not process.is_between), "")


def mark_of(pid: int) -> str:
    process = look(pid)
    return process.mark if process else ""


def proven_host(environment: Mapping[str, str]) -> str:
    """Return the mark of the host if it is an ancestor of this process; "" if the kernel does not show that it is."""
    mark = host_mark(environment)
    return mark if any(process.mark == mark for process in above()) else ""
