"""Where the numbers were measured: without it they mean nothing."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs"}
_PROBE_SECONDS = 0.5


@dataclass(frozen=True)
class Machine:
    """One machine at one time."""

    date: str
    cpu: str
    cores: int
    memory_gb: float
    kernel: str
    python: str
    file_system: str
    syncs_per_second: float
    load_average: float

    def warnings(self) -> list[str]:
        found = []
        if self.file_system.split()[0] in _MEMORY_FILE_SYSTEMS:
            found.append("the data lies in memory, where fsync does nothing: set BENCH_DIR to a real disk")
        if self.load_average > self.cores / 2:
            found.append(f"other programs are busy (load {self.load_average:.1f}): expect noise")
        return found


def describe_machine(folder: Path) -> Machine:
    """Look around, and ask the disk how many syncs it makes: no durable system is faster on one connection."""
    return Machine(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        cpu=_first_value("/proc/cpuinfo", "model name") or platform.machine(),
        cores=os.cpu_count() or 1,
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        file_system=_file_system(folder),
        syncs_per_second=_syncs_per_second(folder / "sync-probe"),
        load_average=round(os.getloadavg()[0], 2),
    )


def _syncs_per_second(path: Path) -> float:
    count, started_at = 0, time.perf_counter()
    with path.open("wb", buffering=0) as file:
        while time.perf_counter() - started_at < _PROBE_SECONDS:
            file.write(b"x" * 256)
            os.fdatasync(file.fileno())
            count += 1
    return round(count / (time.perf_counter() - started_at))


def _file_system(folder: Path) -> str:
    """The type and device of the deepest mount above the folder."""
    best, answer = -1, "unknown"
    for line in _lines("/proc/self/mountinfo"):
        mount, _, source = line.partition(" - ")
        point = mount.split()[4]
        if folder.resolve().is_relative_to(point) and len(point) >= best:
            best, answer = len(point), " on ".join(source.split()[:2])
    return answer


def _first_value(path: str, key: str) -> str:
    return next((line.partition(":")[2].strip() for line in _lines(path) if line.startswith(key)), "")


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
