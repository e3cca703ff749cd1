"""Find the host process, and whether it still lives.

A process's key has its PID, start time, boot and PID namespace, so that a reused PID is not the same process.

A host usually starts its hooks through `sh -c`, so the host is the nearest ancestor that is not such a shell.
`HOLDFAST_GUARD_HOST_PID` overrides this, for hosts whose launcher of hooks exits before the hook.
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
    def __init__(self, key: str, parent: int, words: list[str]) -> None:
        self.key, self.parent = key, parent
        self.name = os.path.basename(words[0]).lstrip("-") if words else ""
        runs_script = any(word[:1] == "-" and "c" in word and word[:2] != "--" for word in words[1:3])
        # Started only to start another program: a shell with `-c`, `env` and so on.
        self.is_launcher = self.name in _LAUNCHERS or (self.name in _SHELLS and runs_script)


def read_process(pid: int) -> Process | None:
    """Read a process; None if there is none, or it is a zombie."""
    return _in_proc(pid) if HAS_PROC else _by_ps(pid)


def _in_proc(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as opened:
            # The name is in parentheses and may contain any character.
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
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as opened:
            return f"{opened.read().strip()}.{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def can_judge(key: str) -> bool:
    """Tell whether `is_alive` is reliable here: not for a process of this boot in another PID namespace."""
    boot_id, _, namespace = key.rpartition(":")[2].partition(".")
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


def is_alive(key: str) -> bool:
    pid = key.partition(":")[0]
    return pid.isdecimal() and process_key(int(pid)) == key


def ancestors() -> list[Process]:
    found: list[Process] = []
    pid = os.getppid()
    while pid > 0 and len(found) < _ABOVE_MAX and (process := read_process(pid)):
        found.append(process)
        pid = process.parent
    return found


def host_key(environment: Mapping[str, str]) -> str:
    named = environment.get(VARIABLE, "")
    if named.isdecimal():
        return process_key(int(named))
    return next((process.key for process in ancestors() if not process.is_launcher), "")


def process_key(pid: int) -> str:
    process = read_process(pid)
    return process.key if process else ""


def proven_host(environment: Mapping[str, str]) -> str:
    """Return the host's key if the kernel shows it among our ancestors; else ""."""
    key = host_key(environment)
    return key if any(process.key == key for process in ancestors()) else ""
