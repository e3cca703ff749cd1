"""Looks at the machine while a load runs: what its disk and its host do meanwhile is not the server's doing.

A stall is the disk's if a sync of a small file beside the data hung for half of it, and the host's if a virtual machine
had no processor for half of it. Both are counted apart, and said.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    Span = tuple[float, float]
    """When something ended, in seconds, and how long it took, in ms."""

SHARE = 0.5
"""What was there for half of a stall makes it its own."""
_SYNC_REST_SECONDS = 0.025
_SYNC_BYTES = 4_096
_LOOK_REST_SECONDS = 0.005
_TICK_MS = 1_000 / os.sysconf("SC_CLK_TCK")
_STOLEN_FIELD = 8


def is_the_disks(ended_at: float, ms: float, syncs: Sequence[Span]) -> bool:
    """Tell whether one sync hung for half of a stall or longer. Times are when each ended."""
    return max((_shared_ms(ended_at, ms, sync) for sync in syncs), default=0.0) >= SHARE * ms


def is_the_hosts(ended_at: float, ms: float, stolen: Sequence[Sequence[Span]]) -> bool:
    """Tell whether one processor was taken away for half of a stall or longer. `stolen` is by processor.

    The kernel counts in ticks, and a tick when it is over: so a tick that began in the stall counts whole.
    """
    until, span_ms = ended_at + _TICK_MS / 1_000, ms + _TICK_MS
    taken = (sum(_shared_ms(until, span_ms, span) for span in spans) for spans in stolen)
    return max(taken, default=0.0) >= SHARE * ms


def _shared_ms(ended_at: float, ms: float, span: Span) -> float:
    at, took_ms = span
    return 1_000 * max(0.0, min(at, ended_at) - max(at - took_ms / 1_000, ended_at - ms / 1_000))


class Probe(ABC):
    """Looks again and again, in a thread of its own, until it is left."""

    rest_seconds: float

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._is_over.wait(self.rest_seconds):
            self.look()

    @abstractmethod
    def look(self) -> None:
        """Look once."""


class DiskProbe(Probe):
    """Syncs a small file, and keeps when each sync ended and how long it took."""

    rest_seconds = _SYNC_REST_SECONDS

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.syncs: list[Span] = []
        self._file = path.open("wb", buffering=0)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._file.close()

    def look(self) -> None:
        began = time.monotonic()
        os.pwrite(self._file.fileno(), b"x" * _SYNC_BYTES, 0)
        os.fdatasync(self._file.fileno())
        ended = time.monotonic()
        self.syncs.append((ended, (ended - began) * 1_000))


class HostProbe(Probe):
    """Asks the kernel how long each processor was taken away by the host. A machine of its own is asked in vain."""

    rest_seconds = _LOOK_REST_SECONDS

    def __init__(self, path: str = "/proc/stat") -> None:
        super().__init__()
        self._path = Path(path)
        self._seen = self._ticks()
        self.stolen: list[list[Span]] = [[] for _ in self._seen]
        self._began = time.monotonic()

    def look(self) -> None:
        now = time.monotonic()
        ticks = self._ticks()
        for spans, before, after in zip(self.stolen, self._seen, ticks, strict=True):
            if after > before:
                spans.append((now, (after - before) * _TICK_MS))
        self._seen = ticks

    def _ticks(self) -> list[int]:
        try:
            lines = self._path.read_text().splitlines()
        except OSError:
            return []
        rows = [line.split() for line in lines if line.startswith("cpu") and line[3:4].isdigit()]
        return [int(row[_STOLEN_FIELD]) for row in rows if len(row) > _STOLEN_FIELD]

    def share(self) -> float:
        """Return which part of the processors' time was taken away since the beginning."""
        seconds = (time.monotonic() - self._began) * max(1, len(self.stolen))
        return sum(ms for spans in self.stolen for _, ms in spans) / 1_000 / seconds
