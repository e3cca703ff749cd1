"""One connection: how much an acquire takes above one `fdatasync` of the same disk, in turns."""

from __future__ import annotations

import os
import time
from contextlib import closing
from itertools import count
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.parts.bare import BareSocket
from benchmarks.progress import say
from benchmarks.systems.holdfast import Holdfast

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.parts.common import Row, Work

TURNS = 9
REQUESTS = 500
_SYNC_BYTES = 4_096
"""What the smallest commit of a journal writes."""


def measure(work: Work) -> Row:
    """Acquire, then sync: turn by turn, since the disk has better and worse minutes."""
    if not work.has(Holdfast()):
        return {}
    server = Holdfast()
    folder = work.folder / "one"
    turns: list[Row] = []
    numbers = count()
    with server.running(folder), closing(BareSocket(server.port, server.authorization)) as bare:
        for turn in range(TURNS + 1):
            acquired = [_timed(bare, f"one-{next(numbers):07d}") for _ in range(REQUESTS)]
            appended, overwrite = syncs_of(folder / "probe", grows=True), syncs_of(folder / "probe", grows=False)
            if turn:  # The first one warms.
                turns.append(
                    {
                        "acquire_p50_ms": round(median(acquired), 4),
                        "acquire_p99_ms": round(sorted(acquired)[len(acquired) * 99 // 100], 4),
                        "sync_p50_ms": round(median(appended), 4),
                        "sync_in_place_p50_ms": round(median(overwrite), 4),
                    }
                )
    above = median(turn["acquire_p50_ms"] - turn["sync_p50_ms"] for turn in turns)
    say(f"one connection: acquire {above:.3f} ms above one fdatasync (p50)")
    return {"turns": turns, "above_ms": round(above, 4)}


def _timed(bare: BareSocket, name: str) -> float:
    began = time.perf_counter()
    bare.acquire(name)
    return (time.perf_counter() - began) * 1_000


def syncs_of(path: Path, *, grows: bool) -> list[float]:
    """Return how long each of many syncs took, in ms, of a file that grows or of one that is written over."""
    seen = []
    with path.open("wb", buffering=0) as file:
        for number in range(REQUESTS):
            began = time.perf_counter()
            os.pwrite(file.fileno(), b"x" * _SYNC_BYTES, _SYNC_BYTES * number if grows else 0)
            os.fdatasync(file.fileno())
            seen.append((time.perf_counter() - began) * 1_000)
    return seen
