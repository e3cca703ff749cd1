"""Minutes of steady load beside short bursts: what lasts, what it takes on disk, and when the server stands still.

The load is the claim loop over 100,000 names at 64 connections, with the history kept as by default. A burst is the
same loop on a fresh server, for a few seconds: what a short benchmark would show. Bursts are made before and after.

A stall is a gap of more than 20 ms in which no connection got an answer while all of them waited for one. The disk and
the host of a virtual machine have stalls of their own, so both are looked at all the time (`probes`).
"""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.load.press import Press
from benchmarks.parts.common import row_of
from benchmarks.parts.operations import LOOP_NAMES
from benchmarks.parts.probes import DiskProbe, HostProbe, is_the_disks, is_the_hosts
from benchmarks.progress import say
from benchmarks.systems.holdfast import Holdfast
from benchmarks.systems.usage import disk_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.load.generator import Run
    from benchmarks.parts.common import Row, Work
    from benchmarks.parts.probes import Span

CONNECTIONS = 64
WINDOW_SECONDS = 5
BURSTS_EACH = 2


def measure(work: Work) -> Row:
    """Bursts, the steady load, bursts again."""
    if not work.has(Holdfast()):
        return {}
    bursts = [_burst(work, number) for number in range(BURSTS_EACH)]
    steady = _steady(work)
    bursts += [_burst(work, number) for number in range(BURSTS_EACH, 2 * BURSTS_EACH)]
    return {"connections": CONNECTIONS, "names": LOOP_NAMES, "bursts": bursts, **steady}


def _burst(work: Work, number: int) -> Row:
    server = Holdfast()
    with server.running(work.folder / f"burst-{number}"):
        warm = server.plan("loop", connections=CONNECTIONS, seconds=1, prefix="warm", names=LOOP_NAMES)
        server.press_plan(warm)
        seconds = work.options.seconds
        plan = server.plan("loop", connections=CONNECTIONS, seconds=seconds, prefix="loop", names=LOOP_NAMES)
        return row_of(*server.press_plan(plan), burst=f"burst {number + 1}")


def _steady(work: Work) -> Row:
    server = Holdfast()
    folder = work.folder / "steady"
    seconds = 60 * work.options.minutes
    say(f"{work.options.minutes:g} minutes of steady load")
    with server.running(folder):
        plan = server.plan(
            "loop",
            connections=CONNECTIONS,
            seconds=seconds,
            prefix="loop",
            names=LOOP_NAMES,
            window_seconds=WINDOW_SECONDS,
        )
        before = server.usage()
        with DiskProbe(folder / "probe") as disk, HostProbe() as host, Press(plan) as press:
            samples = _sample(server, folder, seconds)
            run = press.result()
            stolen_share = host.share()
        after = server.usage()
    spent_us = 1_000_000 * (after.seconds - before.seconds) / max(1, run.answers)
    return {
        "minutes": work.options.minutes,
        "windows": windows_of(run, samples, disk.syncs, host.stolen),
        "records": run.answers,
        "retained_records": server.retained_records(folder),
        "disk_bytes": disk_bytes(server.data(folder)),
        "per_second": round(run.per_second, 1),
        "p50_ms": run.latencies.percentile_ms(50),
        "p99_ms": run.latencies.percentile_ms(99),
        "worst_ms": run.latencies.worst_ms,
        "cpu_us": round(spent_us, 2),
        "cpu_children_us": round(
            1_000_000 * (after.children_seconds - before.children_seconds) / max(1, run.answers), 2
        ),
        "wrong": run.wrong + run.errors,
        "sample": run.sample,
        "generator_share": round(run.generator_share, 2),
        "stolen_share": round(stolen_share, 4),
        "sync_p50_ms": round(median(ms for _, ms in disk.syncs), 3),
        "sync_worst_ms": round(max(ms for _, ms in disk.syncs), 2),
    }


def _sample(server: Holdfast, folder: Path, seconds: float) -> list[Row]:
    """Look at the server at the end of each window, while the load goes on."""
    began = time.monotonic()
    samples = []
    for number in range(1, int(seconds // WINDOW_SECONDS) + 1):
        time.sleep(max(0.0, began + number * WINDOW_SECONDS - time.monotonic()))
        usage = server.usage()
        samples.append(
            {
                "own_seconds": usage.own_seconds,
                "children_seconds": usage.children_seconds,
                "own_bytes": usage.own_bytes,
                "children_bytes": usage.children_bytes,
                "disk_bytes": disk_bytes(server.data(folder)),
            }
        )
        if number % 12 == 0:
            say(
                f"{number * WINDOW_SECONDS} s: {usage.bytes / 2**20:,.0f} MiB of memory,"
                f" {samples[-1]['disk_bytes'] / 2**20:,.0f} MiB on disk"
            )
    return samples


def windows_of(run: Run, samples: Sequence[Row], syncs: Sequence[Span], stolen: Sequence[Sequence[Span]]) -> list[Row]:
    """Put together what was seen of each window: by the generator, of the server, of the disk and of the host.

    The last window is left out if it is not whole.
    """
    rows = []
    for number, (window, sample) in enumerate(zip(run.windows, samples, strict=False)):
        earlier = samples[number - 1] if number else None
        not_disks = [(at, ms) for at, ms in window.stalls if not is_the_disks(run.began_at + at, ms, syncs)]
        ours = [ms for at, ms in not_disks if not is_the_hosts(run.began_at + at, ms, stolen)]
        start = run.began_at + number * WINDOW_SECONDS
        during = [ms for at, ms in syncs if start <= at < start + WINDOW_SECONDS]
        rows.append(
            {
                "at_seconds": (number + 1) * WINDOW_SECONDS,
                "per_second": round(window.answers / WINDOW_SECONDS, 1),
                "p50_ms": window.latencies.percentile_ms(50),
                "p99_ms": window.latencies.percentile_ms(99),
                "worst_ms": window.latencies.worst_ms,
                "stalls": len(ours),
                "stall_worst_ms": max(ours, default=0.0),
                "disk_stalls": len(window.stalls) - len(not_disks),
                "host_stalls": len(not_disks) - len(ours),
                "sync_worst_ms": round(max(during, default=0.0), 2),
                "cpu_own": _share(sample, earlier, "own_seconds"),
                "cpu_children": _share(sample, earlier, "children_seconds"),
                "memory_own_bytes": sample["own_bytes"],
                "memory_children_bytes": sample["children_bytes"],
                "disk_bytes": sample["disk_bytes"],
            }
        )
    return rows


def _share(sample: Row, earlier: Row | None, name: str) -> float | None:
    """Return how much of one core was used in a window; None for the first, whose beginning nobody saw."""
    return None if earlier is None else round((sample[name] - earlier[name]) / WINDOW_SECONDS, 3)
