"""What a server takes: processor time, memory and disk, those of the processes that it started included."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_NS_PER_SECOND = 1_000_000_000
_BLOCK_BYTES = 512


@dataclass(frozen=True)
class Usage:
    """Processor time since the start, user and system together, and resident memory."""

    own_seconds: float
    children_seconds: float
    own_bytes: int
    children_bytes: int

    @property
    def seconds(self) -> float:
        return self.own_seconds + self.children_seconds

    @property
    def bytes(self) -> int:
        return self.own_bytes + self.children_bytes


def usage_of(pid: int) -> Usage:
    """Look at a process and at all that it started, those that have ended included."""
    children = descendants(pid)
    return Usage(
        own_seconds=_own_seconds(pid),
        children_seconds=_ended_seconds(pid) + sum(_own_seconds(each) + _ended_seconds(each) for each in children),
        own_bytes=rss_bytes(pid),
        children_bytes=sum(map(rss_bytes, children)),
    )


def descendants(pid: int) -> list[int]:
    """Return every process below one, at any depth."""
    found: list[int] = []
    ahead = [pid]
    while ahead:
        children = _children(ahead.pop())
        found += children
        ahead += children
    return found


def rss_bytes(pid: int) -> int:
    """Return the resident memory of one process; 0 if it has gone."""
    line = next((line for line in _text(f"/proc/{pid}/status").splitlines() if line.startswith("VmRSS:")), "VmRSS: 0")
    return int(line.split()[1]) * 1_024


def disk_bytes(folder: Path) -> int:
    """Return what a folder takes on disk: blocks, not lengths, since files may have holes."""
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += (Path(root) / name).lstat().st_blocks * _BLOCK_BYTES
            except OSError:  # Gone between being listed and being looked at.
                continue
    return total


def _own_seconds(pid: int) -> float:
    """Return the time of all threads in nanoseconds, where the kernel tells it; else in ticks of 10 ms."""
    parts = [path.read_text() for path in _tasks(pid) if path.exists()]
    if parts and all(part.split()[0] != "0" for part in parts[:1]):
        return sum(int(part.split()[0]) for part in parts) / _NS_PER_SECOND
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND if fields else 0.0


def _ended_seconds(pid: int) -> float:
    """Return the time of children that have ended and were waited for."""
    fields = _stat(pid)
    return (int(fields[13]) + int(fields[14])) / _TICKS_PER_SECOND if fields else 0.0


def _stat(pid: int) -> list[str]:
    return _text(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _tasks(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").glob("*/schedstat"))


def _children(pid: int) -> list[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in lists for child in _text(str(path)).split()]


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
