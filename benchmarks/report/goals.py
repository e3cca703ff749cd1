"""What we promise of speed, and whether the documents show it. A goal that nothing was measured for is never met."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.load.generator import STALL_MS
from benchmarks.load.scripts import CALL_NAMES
from benchmarks.parts.clients import ratio
from benchmarks.report.tables import Row, grouped, middle

if TYPE_CHECKING:
    from collections.abc import Callable

PEER_RATIOS = {"redis": 0.62, "etcd": 4.5}
CALLS_RATIO = 2.0
STEADY_RATE, STEADY_P99 = 0.9, 2.0
ABOVE_SYNC_MS = 0.22
CLIENT_OVER_BARE, CLIENT_OF_REDIS = 1.15, 0.6
CLIENT_OVER_AIOHTTP, RLOCK_OVER_PYTHON, HOOK_OVER_PYTHON = 1.3, 2.5, 3.0
RESTART_SECONDS, GROWTH = 5.0, 1.1
WAKE_MS, WAITER_BYTES, LEASE_BYTES = 20, 40_000, 1_500
FAILOVER_SECONDS = {"kill": 3.0, "stop": 3.0, "term": 0.7, "cut from the store": 4.0, "store restart": 3.0}
OF_ONE_NODE, OF_THE_LEADER = 0.7, 0.6
LOOK_SECONDS, LOOK_HOLD_MS = 0.5, 20.0
ROW_MS, ROWS_MOST, PAGES_P99 = 300, 60, 1.2
_CONNECTIONS = 64
_MANY_CONNECTIONS = 256
_NOISE = 0.03
"""Of a rate. Two rates that are nearer to each other than that are one."""


@dataclass(frozen=True)
class Goal:
    """One promise, what was measured for it, and whether it holds; None when it could not be measured."""

    promise: str
    measured: str
    is_met: bool | None

    def __str__(self) -> str:
        word = {True: "met", False: "MISSED", None: "not measured"}[self.is_met]
        return f"  {word:<13} {self.promise}: {self.measured}"


def goals_of(documents: dict[str, Row]) -> list[Goal]:
    """Return our goals in their order; each is looked for in the documents that are there."""
    data = {part: document["data"] for part, document in documents.items() if document["data"]}
    return [_try(promise, look, data) for promise, look in _GOALS.items()] + [_soundness(documents)]


def _try(promise: str, look: Callable[[dict[str, Row]], tuple[str, bool]], data: dict[str, Row]) -> Goal:
    try:
        measured, is_met = look(data)
    except (KeyError, StopIteration, ValueError, ZeroDivisionError):
        return Goal(promise, "–", None)
    return Goal(promise, measured, is_met)


def _rate(data: dict[str, Row], system: str, connections: int, part: str = "peers") -> float:
    return middle(grouped(data[part]["rows"], "system", "connections")[system, connections], "per_second")


def _beside(peer: str, least: float) -> Callable[[dict[str, Row]], tuple[str, bool]]:
    def look(data: dict[str, Row]) -> tuple[str, bool]:
        found = _rate(data, "holdfast", _CONNECTIONS) / _rate(data, peer, _CONNECTIONS)
        return f"{found:.2f} ×", found >= least

    return look


def _many_connections(data: dict[str, Row]) -> tuple[str, bool]:
    found = _rate(data, "holdfast", _MANY_CONNECTIONS) / _rate(data, "holdfast", _CONNECTIONS)
    return f"{found:.2f} ×", found >= 1 - _NOISE


def _calls(data: dict[str, Row]) -> tuple[str, bool]:
    rows = grouped((row for row in data["calls"]["rows"] if row["call"] == "all"), "connections").values()
    best = max(CALL_NAMES * middle(rounds, "per_second") for rounds in rows)
    found = best / _rate(data, "redis", _CONNECTIONS)
    return f"{found:.2f} ×, {best:,.0f} a second", found >= CALLS_RATIO


def _steady_rate(data: dict[str, Row]) -> tuple[str, bool]:
    found = data["steady"]["per_second"] / middle(data["steady"]["bursts"], "per_second")
    return f"{found:.2f} ×", found >= STEADY_RATE


def _steady_p99(data: dict[str, Row]) -> tuple[str, bool]:
    found = data["steady"]["p99_ms"] / middle(data["steady"]["bursts"], "p99_ms")
    return f"{found:.2f} ×", found <= STEADY_P99


def _stalls(data: dict[str, Row]) -> tuple[str, bool]:
    windows = data["steady"]["windows"]
    count, worst = sum(row["stalls"] for row in windows), max(row["stall_worst_ms"] for row in windows)
    return f"{count}, longest {worst:.0f} ms", count == 0


def _one(data: dict[str, Row]) -> tuple[str, bool]:
    above = data["one"]["above_ms"]
    return f"{above:.3f} ms", above <= ABOVE_SYNC_MS


def _turns(data: dict[str, Row], key: str) -> list[Row]:
    turns: list[Row] = next(row["turns"] for row in data["clients"]["rows"] if row["key"] == key)
    return turns


def _client(ours: str, theirs: str, most: float) -> Callable[[dict[str, Row]], tuple[str, bool]]:
    def look(data: dict[str, Row]) -> tuple[str, bool]:
        found = ratio(_turns(data, ours), _turns(data, theirs))
        return f"{found:.2f} ×", found <= most

    return look


def _of_redis(data: dict[str, Row]) -> tuple[str, bool]:
    found = 1 / ratio(_turns(data, "holdfast"), _turns(data, "redis-py"))
    return f"{found:.2f} ×", found >= CLIENT_OF_REDIS


def _rlock(data: dict[str, Row]) -> tuple[str, bool]:
    found = data["clients"]["starts"]["ratio"]
    return f"{found:.2f} ×", found <= RLOCK_OVER_PYTHON


def _hook(data: dict[str, Row]) -> tuple[str, bool]:
    found = max(data["clients"]["hooks"][name] for name in ("no_rule_ratio", "held_ratio"))
    return f"{found:.2f} ×", found <= HOOK_OVER_PYTHON


def _restart(data: dict[str, Row]) -> tuple[str, bool]:
    seconds = max(data["million"][how]["answer_seconds"] for how in ("killed", "stopped"))
    return f"{seconds:.2f} s with {data['million']['leases']:,}", seconds <= RESTART_SECONDS


def _growth(data: dict[str, Row]) -> tuple[str, bool]:
    found = grouped((row for row in data["growth"]["rows"] if row["operation"] == "acquire"), "leases")
    sizes = sorted(size for (size,) in found)
    pairs = zip(found[sizes[-1],], found[sizes[0],], strict=False)
    grown = median(large["cpu_us"] / small["cpu_us"] for large, small in pairs)
    return f"{grown:.2f} × with {sizes[-1]:,}", grown <= GROWTH


def _wake(data: dict[str, Row]) -> tuple[str, bool]:
    worst = max(row["p99_ms"] for row in data["waiters"]["rows"])
    return f"{worst:.1f} ms", worst <= WAKE_MS


def _waiter(data: dict[str, Row]) -> tuple[str, bool]:
    weight = max(row["bytes_per_waiter"] for row in data["waiters"]["rows"])
    return f"{weight:,} bytes", weight <= WAITER_BYTES


def _lease(data: dict[str, Row]) -> tuple[str, bool]:
    weight = data["million"]["bytes_per_lease"]
    return f"{weight:,} bytes", weight <= LEASE_BYTES


def _lost(data: dict[str, Row]) -> tuple[str, bool]:
    lost = data["renewals"]["wrong"]
    return f"{lost:,} of {data['renewals']['leases']:,}", lost == 0


def _look(data: dict[str, Row]) -> tuple[str, bool]:
    seconds, records = data["looking"]["worst_seconds"], data["looking"]["records"]
    return f"{seconds:.2f} s of {records:,} records", seconds <= LOOK_SECONDS


def _look_hold(data: dict[str, Row]) -> tuple[str, bool]:
    held_ms = data["looking"]["asker_worst_ms"]
    return f"{held_ms:.1f} ms, {data['looking']['quiet_worst_ms']:.1f} ms without", held_ms <= LOOK_HOLD_MS


def _claim_to_row(data: dict[str, Row]) -> tuple[str, bool]:
    seen = data["page"]["claim_to_row"]
    return f"{seen['p50_ms']:.0f} ms, p95 {seen['p95_ms']:.0f} ms", seen["p50_ms"] <= ROW_MS


def _rows(data: dict[str, Row]) -> tuple[str, bool]:
    most = data["page"]["scroll"]["rows_most"]
    return f"{most}", most <= ROWS_MOST


def _pages(data: dict[str, Row]) -> tuple[str, bool]:
    found = data["page"]["p99_ratio"]
    return f"{found:.2f} ×", found <= PAGES_P99


def _node(system: str, other: str, least: float) -> Callable[[dict[str, Row]], tuple[str, bool]]:
    def look(data: dict[str, Row]) -> tuple[str, bool]:
        found = _rate(data, system, _CONNECTIONS, "nodes") / _rate(data, other, _CONNECTIONS, "nodes")
        return f"{found:.2f} ×", found >= least

    return look


def _gap(fault: str) -> Callable[[dict[str, Row]], tuple[str, bool]]:
    def look(data: dict[str, Row]) -> tuple[str, bool]:
        row = next(row for row in data["failover"]["rows"] if row["fault"] == fault)
        return f"{row['p99_seconds']:.2f} s of {row['rounds']} times", row["p99_seconds"] <= FAILOVER_SECONDS[fault]

    return look


_GOALS: dict[str, Callable[[dict[str, Row]], tuple[str, bool]]] = {
    "at least 0.62 × Redis at 64 connections": _beside("redis", PEER_RATIOS["redis"]),
    "at least 4.5 × etcd at 64 connections": _beside("etcd", PEER_RATIOS["etcd"]),
    "at 256 connections not slower than at 64": _many_connections,
    "in calls of 100 at least 2 × the single sets of Redis": _calls,
    "steady load at least 0.9 × the bursts": _steady_rate,
    "p99 under steady load at most 2 × that of the bursts": _steady_p99,
    f"no stall over {STALL_MS} ms but the disk's and the host's own": _stalls,
    "one connection: at most 0.22 ms above one fdatasync (p50)": _one,
    "`Holdfast` in at most 1.15 × the time of a bare socket": _client("holdfast", "bare", CLIENT_OVER_BARE),
    "`Holdfast` at least 0.6 × the pairs of redis-py's `Lock`": _of_redis,
    "`AsyncHoldfast` in at most 1.3 × the time of aiohttp": _client("async", "aiohttp", CLIENT_OVER_AIOHTTP),
    "`rlock` in at most 2.5 × the time of `python -c pass`": _rlock,
    "a guard hook in at most 3 × the CPU time of `python -c pass`": _hook,
    "restart to the first answer in at most 5 s": _restart,
    "acquire at most 1.1 × its processor time at 1,000 leases": _growth,
    "the next in line woken within 20 ms of a release (p99)": _wake,
    "at most 40,000 bytes of memory per waiter": _waiter,
    "at most 1,500 bytes of memory per live lease": _lease,
    "no lease of 100,000 lost that is renewed in time": _lost,
    "a page of 1,000 names at a moment of the past within 0.5 s": _look,
    "meanwhile nobody else waits for more than 20 ms": _look_hold,
    "a claim is a row of the operators' page within 300 ms (p50)": _claim_to_row,
    "of 10,000 jobs at most 60 rows are in the document": _rows,
    "with 50 pages open the p99 at most 1.2 × that without": _pages,
    "on PostgreSQL at least 0.7 × one node at 64 connections": _node("store", "holdfast", OF_ONE_NODE),
    "through a follower at least 0.6 × its leader": _node("follower", "store", OF_THE_LEADER),
    "leader killed: an answer within 3 s (p99)": _gap("kill"),
    "leader stopped: an answer within 3 s (p99)": _gap("stop"),
    "leader told to stop: an answer within 0.7 s (p99)": _gap("term"),
    "leader cut off from the store: an answer within 4 s (p99)": _gap("cut from the store"),
    "store restarted: an answer within 3 s (p99)": _gap("store restart"),
}


def _soundness(documents: dict[str, Row]) -> Goal:
    """Every answer right, every grant synced, and nothing went wrong on the way."""
    wrong, troubles, undurable = 0, 0, 0
    for document in documents.values():
        data = document["data"]
        troubles += len(document["troubles"])
        wrong += data.get("wrong", 0) + sum(
            row.get("wrong", 0) for row in [*data.get("rows", ()), *data.get("bursts", ())]
        )
        checks = data.get("syncs", {}).values()
        undurable += sum(check["syncs"] is not None and check["syncs"] < check["acquires"] for check in checks)
    measured = f"{wrong} wrong answers, {undurable} systems without syncs, {troubles} troubles"
    return Goal(
        "every answer right, every grant synced", measured, wrong + undurable + troubles == 0 if documents else None
    )
