"""The tools that press on a system (wrk, redis-benchmark, pgbench, our own) and one shape for what they saw.

wrk, redis-benchmark and pgbench each press from one thread over keep-alive connections without pipelining, so that
their numbers can stand in one column.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.load.generator import Run
    from benchmarks.load.http import Names, Target

WRK = "wrk"
REDIS_BENCHMARK = "redis-benchmark"
PGBENCH = "pgbench"
BUILTIN = "built-in"

_SCRIPT = Path(__file__).with_name("acquire.lua")
_WRK_TIMEOUT_SECONDS = 10
_EXTRA_SECONDS_MAX = 60.0
_REDIS_NAMES = 2_000_000_000
_REDIS_PROBE_REQUESTS = 500
_REDIS_PROBE_REQUESTS_PER_CONNECTION = 50
_REDIS_REQUESTS_MAX = 50_000_000


class LoadError(Exception):
    """The load generator itself failed, so there is no number."""


@dataclass(frozen=True)
class Load:
    """What one run saw. A run is right when every answer was a grant and no connection broke."""

    tool: str
    connections: int
    seconds: float
    answers: int
    answers_2xx: int
    acquired: int
    errors: int
    p50_ms: float
    p99_ms: float
    sample: str = ""
    names_drawn_twice: int = 0
    probed: int = 0
    """Answers to a probe beforehand, which cost the server time too."""

    @property
    def acquires_per_second(self) -> float:
        return self.acquired / self.seconds if self.seconds > 0 else 0.0

    @property
    def wrong(self) -> int:
        return self.answers - self.acquired - self.names_drawn_twice + self.errors


def by_wrk(wrk: str, target: Target, names: Names, *, connections: int, seconds: int) -> Load:
    """Press with wrk, whose script counts the grants among the answers."""
    command = [wrk, "-t1", f"-c{connections}", f"-d{seconds}s", f"--timeout={_WRK_TIMEOUT_SECONDS}s"]
    command += ["-s", str(_SCRIPT), f"http://127.0.0.1:{target.port}/"]
    script_input = {
        "BENCH_TEMPLATE": target.template,
        "BENCH_MARKER": target.marker,
        "BENCH_NAME_PREFIX": names.prefix,
        "BENCH_USER_FIRST": str(names.user_first),
        "BENCH_LEASES_PER_USER": str(names.leases_per_user),
    }
    out = _run(command, seconds=seconds, env={**os.environ, **script_input})
    return parse_wrk(out, connections)


def parse_wrk(out: str, connections: int) -> Load:
    """Read the one line that our script prints; wrk's own text is for people and rounds too much."""
    for line in out.splitlines():
        if line.startswith("BENCH "):
            return _wrk_load(json.loads(line.removeprefix("BENCH ")), connections)
    raise LoadError(f"wrk printed no result: {out.strip()[-400:]}")


def _wrk_load(seen: dict[str, Any], connections: int) -> Load:
    return Load(
        tool=WRK,
        connections=connections,
        seconds=seen["duration_us"] / 1_000_000,
        answers=seen["answers"],
        answers_2xx=seen["answers_2xx"],
        acquired=seen["acquired"],
        errors=seen["errors"],
        p50_ms=seen["p50_us"] / 1_000,
        p99_ms=seen["p99_us"] / 1_000,
        sample=seen["sample"],
    )


@dataclass(frozen=True)
class RedisPress:
    """redis-benchmark against one server. It does not judge the answers; the growth of the key space does."""

    tool: str
    port: int
    keys_now: Callable[[], int]

    def for_seconds(self, prefix: str, *, connections: int, seconds: float) -> Load:
        """Press for about `seconds`. The tool only takes a count, so a short probe says how many that are."""
        least = max(_REDIS_PROBE_REQUESTS, connections * _REDIS_PROBE_REQUESTS_PER_CONNECTION)
        probe = self.exactly(f"{prefix}p", connections=connections, requests=least)
        requests = max(least, min(int(probe.acquires_per_second * seconds), _REDIS_REQUESTS_MAX))
        return replace(self.exactly(prefix, connections=connections, requests=requests), probed=probe.answers)

    def exactly(self, prefix: str, *, connections: int, requests: int) -> Load:
        """Send an exact number.

        Every run has a prefix of its own: the tool seeds its random names with `time ^ pid`, so two runs close
        to each other often draw the very same names, and the second would only be refused, which needs no sync.
        """
        keys_before = self.keys_now()
        command = [self.tool, "-h", "127.0.0.1", "-p", str(self.port), "-k", "1", "-P", "1", "--csv"]
        command += ["-c", str(connections), "-n", str(requests), "-r", str(_REDIS_NAMES)]
        command += ["SET", f"lock:{prefix}:__rand_int__", "token", "NX", "PX", "3600000"]
        out = _run(command, seconds=_EXTRA_SECONDS_MAX)
        return parse_redis(out, connections, requests=requests, acquired=self.keys_now() - keys_before)


def parse_redis(out: str, connections: int, *, requests: int, acquired: int) -> Load:
    """Read the CSV. Its names are random, so a few come twice and are rightly refused: about n²/2r."""
    rows = list(csv.DictReader(line for line in out.splitlines() if line.startswith('"')))
    if len(rows) != 1 or float(rows[0]["rps"]) <= 0:
        raise LoadError(f"redis-benchmark printed no result: {out.strip()[-400:]}")
    expected = requests * requests / (2 * _REDIS_NAMES)
    refused = requests - acquired
    return Load(
        tool=REDIS_BENCHMARK,
        connections=connections,
        seconds=requests / float(rows[0]["rps"]),
        answers=requests,
        answers_2xx=requests,
        acquired=acquired,
        errors=0,
        p50_ms=float(rows[0]["p50_latency_ms"]),
        p99_ms=float(rows[0]["p99_latency_ms"]),
        sample=f"{refused} keys fewer than requests",
        names_drawn_twice=refused if 0 <= refused <= 10 + 50 * expected else 0,
    )


def parse_pgbench(out: str, log: Sequence[str], connections: int, *, acquired: int) -> Load:
    """Read what pgbench printed, and its log: client, number, microseconds, and more, in each line."""
    rate = re.search(r"^tps = ([\d.]+)", out, re.MULTILINE)
    failed = re.search(r"^number of failed transactions: (\d+)", out, re.MULTILINE)
    latencies = sorted(int(line.split()[2]) for line in log)
    if rate is None or not latencies:
        raise LoadError(f"pgbench printed no result: {out.strip()[-400:]}")
    refused = len(latencies) - acquired
    expected = len(latencies) ** 2 / (2 * _REDIS_NAMES)
    return Load(
        tool=PGBENCH,
        connections=connections,
        seconds=len(latencies) / float(rate[1]),
        answers=len(latencies),
        answers_2xx=len(latencies),
        acquired=acquired,
        errors=int(failed[1]) if failed else 0,
        p50_ms=percentile(latencies, 50) / 1_000,
        p99_ms=percentile(latencies, 99) / 1_000,
        sample=f"{refused} rows fewer than transactions",
        names_drawn_twice=refused if 0 <= refused <= 10 + 50 * expected else 0,
    )


def of_run(run: Run, connections: int) -> Load:
    """Return what our own generator saw, in the same shape."""
    latencies = run.latencies
    return Load(
        tool=BUILTIN,
        connections=connections,
        seconds=run.elapsed_seconds,
        answers=run.answers,
        answers_2xx=run.answers,
        acquired=run.answers - run.wrong,
        errors=run.errors,
        p50_ms=latencies.percentile_ms(50),
        p99_ms=latencies.percentile_ms(99),
        sample=run.sample,
    )


def percentile(ordered: Sequence[int], percent: int) -> float:
    """The nearest rank; 0 for an empty run, whose errors are told elsewhere."""
    if not ordered:
        return 0.0
    return float(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)])


def _run(command: Sequence[str], *, seconds: float, env: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds + _EXTRA_SECONDS_MAX,
            check=False,
            env=env,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LoadError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise LoadError(f"{command[0]} ended with {done.returncode}: {done.stdout.strip()[-400:]}")
    return done.stdout
