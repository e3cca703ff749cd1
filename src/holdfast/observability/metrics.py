"""The metrics of one process, the last hours of them, and the text of `/metrics`.

`Sources` knows where each number is. Each metric is one row of `ROWS`: the text, the docs page and the tests of the
dashboard and the alerts are made from them. A row reads counters and lengths only, and the text is made at most once a
second, so frequent scrapes are cheap. Labels have only the values listed here, never user input. `Series` keeps a
sample every ten seconds for six hours, for the charts of the operators' page.

`python -m holdfast.observability.metrics` prints the table of the guide.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import msgspec
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from holdfast import __version__
from holdfast.core.outcomes import AllHeld, Delayed, Finished, Held, NotHeld
from holdfast.engine.metrics import EngineMetrics, Histogram, Tally
from holdfast.observability.charts import SPANS, STEP_MS, USUAL_SPAN, ChartSet, Sample, draw
from holdfast.wire.problems import KINDS

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.core.state import State
    from holdfast.engine.build import Health
    from holdfast.engine.clock import Clock
    from holdfast.engine.engine import Engine

LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
PROBE_SECONDS = 0.1
SAMPLES_MAX = 6 * 3_600_000 // STEP_MS
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
CACHED_MS = 1_000
STATM = "/proc/self/statm"

# A number, one for each value of the row's label, or a histogram; None: not known.
Value: TypeAlias = "float | Mapping[str, float] | Histogram | None"

_Kind: TypeAlias = Literal["counter", "gauge", "histogram"]

ENDS = ("released", "expired", "revoked", "session_ended", "transferred")
QUEUE_EXITS = ("gone", "withdrawn", "deadlock", "refused", "done", "session_ended", "token_ended")
SESSION_ENDS = ("expired", "deleted", "revoked")
STREAMS = ("watches", "lease_watches", "pages")
# Refusals that are not problems but replies of their own.
REASON_OF_REPLY: dict[type, str] = {
    Held: "held",
    AllHeld: "held",
    NotHeld: "not_held",
    Finished: "done",
    Delayed: "delayed",
}
REASONS = (*dict.fromkeys(REASON_OF_REPLY.values()), *KINDS)


class Counters:
    """What was answered since the process started and left no record; the engine's feed counts what did."""

    __slots__ = ("reacquires", "reasons", "refusal_replies", "refusals")

    def __init__(self) -> None:
        self.reacquires = 0  # Claims given once more to their holder.
        self.refusals = 0  # Decided against: held names, lost leases, full quotas, bad values.
        self.reasons: dict[str, int] = {}  # All problems by code: also what was never decided.
        self.refusal_replies: dict[type, int] = {}  # Refusals that are replies of their own: held, done, delayed.

    def refuse(self, code: str) -> None:
        self.reasons[code] = self.reasons.get(code, 0) + 1


class NodeRole(msgspec.Struct, frozen=True):
    leads: bool
    epoch: int | None = None
    is_linked: bool = False  # To the leader, as a follower.
    links: int = 0  # Of followers to this process.


class Sources:
    """Where the numbers of one process are, over all leader terms."""

    def __init__(self, settings: Settings, clock: Clock, measures: EngineMetrics | None = None) -> None:
        self.settings = settings
        self.clock = clock
        self.started_wall_ms = clock.wall_ms()
        self.measures = measures or EngineMetrics()
        self.counters = Counters()
        self.lags = Histogram(LAG_SECONDS)
        self.takeovers = 0
        self.engine: Engine | None = None  # None on a node that does not lead.
        self.streams: Mapping[str, Any] = {}
        self.connections: Callable[[], int] = int
        self.lines_dropped: Callable[[], int] = int
        self.role: Callable[[], NodeRole] = self._role_alone

    def serve(self, engine: Engine, streams: Mapping[str, Any]) -> None:
        self.engine, self.streams = engine, streams
        self.takeovers += 1

    def stop_serving(self, engine: Engine) -> None:
        """Stop reading from this engine, if it is the current one."""
        if self.engine is engine:
            self.engine, self.streams = None, {}

    def _role_alone(self) -> NodeRole:
        """Return the role of a server with a data directory of its own."""
        engine = self.engine
        return NodeRole(leads=engine is not None, epoch=None if engine is None else engine.state.epoch)


class MetricsSnapshot(msgspec.Struct):
    sources: Sources
    measures: EngineMetrics
    tally: Tally
    role: NodeRole
    engine: Engine | None
    state: State | None
    health: Health | None


def take_snapshot(sources: Sources) -> MetricsSnapshot:
    engine, measures = sources.engine, sources.measures
    state, health = (None, None) if engine is None else (engine.state, engine.journal.health())
    return MetricsSnapshot(sources, measures, measures.tally, sources.role(), engine, state, health)


class MetricRow(msgspec.Struct, frozen=True):
    name: str
    kind: _Kind
    help: str
    read: Callable[[MetricsSnapshot], Value]
    label: str = ""
    values: tuple[str, ...] = ()


def _refusals(snapshot: MetricsSnapshot) -> Mapping[str, float]:
    counters = snapshot.sources.counters
    found = dict.fromkeys(REASONS, 0)
    for code, count in counters.reasons.items():
        found[code] += count
    for kind, count in counters.refusal_replies.items():
        found[REASON_OF_REPLY[kind]] += count
    return found


def _streams(snapshot: MetricsSnapshot) -> Value:
    open_now = snapshot.sources.streams
    return (
        None if snapshot.engine is None else {kind: open_now[kind].count if kind in open_now else 0 for kind in STREAMS}
    )


def _of_state(count: Callable[[State], int]) -> Callable[[MetricsSnapshot], Value]:
    return lambda snapshot: None if snapshot.state is None else count(snapshot.state)


def _of_engine(count: Callable[[Engine], float]) -> Callable[[MetricsSnapshot], Value]:
    return lambda snapshot: None if snapshot.engine is None else count(snapshot.engine)


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _memory_bytes(_look: MetricsSnapshot) -> Value:
    try:
        with open(STATM, encoding="ascii") as statm:  # noqa: PTH123 - a kernel's file
            return int(statm.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return None


def _reader(path: str) -> Callable[[MetricsSnapshot], Value]:
    """Return a reader of an attribute path; its value is None if a part of the path is."""
    names = path.split(".")

    def read(snapshot: MetricsSnapshot) -> Value:
        value: Any = snapshot
        for name in names:
            value = None if value is None else getattr(value, name)
        return cast("Value", value)

    return read


def _row(  # noqa: PLR0917 - a row of the table
    kind: _Kind,
    name: str,
    text: str,
    read: str | Callable[[MetricsSnapshot], Value],
    label: str = "",
    values: tuple[str, ...] = (),
) -> MetricRow:
    return MetricRow(name, kind, text, _reader(read) if isinstance(read, str) else read, label, values)


def _by_label(name: str, text: str, field: str, values: tuple[str, ...], label: str = "how") -> MetricRow:
    """Return a counter of the tally by a label. Values start at 0, so that the first event is an increase."""

    def read(snapshot: MetricsSnapshot) -> Value:
        counts: Mapping[str, int] = getattr(snapshot.tally, field)
        return {value: counts.get(value, 0) for value in values}

    return _row("counter", name, text, read, label, values)


_counter, _gauge, _histogram = partial(_row, "counter"), partial(_row, "gauge"), partial(_row, "histogram")

ROWS: tuple[MetricRow, ...] = (
    _gauge("holdfast_info", "Always 1; says the version.", lambda _: {__version__: 1}, "version", (__version__,)),
    # Durable records.
    _counter("holdfast_grants_total", "Leases granted.", "tally.grants"),
    _counter("holdfast_reacquires_total", "Claims answered with a lease held already.", "sources.counters.reacquires"),
    _counter("holdfast_renewals_total", "Leases renewed, each lease of a session too.", "tally.renewals"),
    _by_label("holdfast_ends_total", "Leases that ended, by how; lost unless released or transferred.", "ends", ENDS),
    _counter("holdfast_queue_joins_total", "Waiters that joined a queue.", "tally.joins"),
    _by_label(
        "holdfast_queue_exits_total", "Waiters that left without a grant, by reason.", "leaves", QUEUE_EXITS, "reason"
    ),
    _counter("holdfast_sessions_opened_total", "Sessions opened.", "tally.sessions"),
    _by_label("holdfast_sessions_ended_total", "Sessions that ended, by how.", "session_ends", SESSION_ENDS),
    # Without a record.
    _counter("holdfast_refusals_total", "Requests refused, by reason or problem code.", _refusals, "reason", REASONS),
    # Durations and sizes.
    _histogram("holdfast_answer_seconds", "From the first request of a batch to its answers.", "measures.answers"),
    _histogram("holdfast_commit_seconds", "Until a batch was durable, or leadership proven.", "measures.commits"),
    _histogram("holdfast_commit_records", "Records per commit.", "measures.batches"),
    _histogram("holdfast_turn_seconds", "Until a turn had decided all its requests.", "measures.ticks"),
    _histogram("holdfast_loop_lag_seconds", "How late the event loop was, ten times a second.", "sources.lags"),
    _histogram("holdfast_wait_seconds", "Waits in queues that ended with a grant.", "measures.waits"),
    _histogram("holdfast_hold_seconds", "How long leases were held, once they ended.", "measures.holds"),
    # The state. A follower does not know it.
    _gauge("holdfast_leases_held", "Held names.", _of_state(lambda state: len(state.index.held))),
    _gauge("holdfast_waiters", "Waiters in queues.", _of_state(lambda state: len(state.tickets))),
    _gauge("holdfast_requests_waiting", "Connected waiters.", _of_state(lambda state: len(state.connected.attached))),
    _gauge("holdfast_sessions_open", "Open sessions.", _of_state(lambda state: len(state.sessions))),
    _gauge("holdfast_names_known", "Held names and known last owners.", _of_state(lambda state: len(state.slots))),
    _gauge("holdfast_retries_remembered", "Idempotency records.", _of_state(lambda state: len(state.remembered))),
    _gauge("holdfast_streams_open", "Open streams, by kind.", _streams, "kind", STREAMS),
    # The store.
    _gauge("holdfast_tail_records", "Records not archived yet.", _of_engine(lambda engine: engine.unarchived[0])),
    _gauge("holdfast_tail_bytes", "Size of the records not archived yet.", "engine.journal.tail_bytes"),
    _gauge(
        "holdfast_tail_bytes_max",
        "Limit of holdfast_tail_bytes; at it new claims are refused (tail_mib_max).",
        lambda snapshot: snapshot.sources.settings.tail_mib_max * 2**20,
    ),
    _gauge("holdfast_archive_failing", "1 if archiving failed last.", _of_engine(lambda engine: engine.unarchived[1])),
    _gauge("holdfast_store_takes_claims", "1 if the store takes new claims.", "health.takes_claims"),
    _gauge("holdfast_store_bytes", "The size of the store.", "health.size_bytes"),
    _gauge("holdfast_store_free_bytes", "Free space on the disk of the store.", "health.free_bytes"),
    # Nodes.
    _gauge("holdfast_leader", "1 if this node leads.", "role.leads"),
    _gauge("holdfast_epoch", "The epoch of the leader that this node knows.", "role.epoch"),
    _counter("holdfast_takeovers_total", "How often this process began to lead.", "sources.takeovers"),
    _gauge("holdfast_linked", "1 if this node follows and has a link to the leader.", "role.is_linked"),
    _gauge("holdfast_links", "Links of followers to this node.", "role.links"),
    # The process.
    _gauge("holdfast_connections", "Open connections.", lambda snapshot: snapshot.sources.connections()),
    _gauge("holdfast_connections_max", "Limit of open connections.", "sources.settings.connections_max"),
    _counter(
        "holdfast_log_lines_dropped_total", "Dropped log lines.", lambda snapshot: snapshot.sources.lines_dropped()
    ),
    _counter("process_cpu_seconds_total", "Processor time of the server's process.", lambda _: processor_seconds()),
    _gauge("process_resident_memory_bytes", "Memory of the server's process.", _memory_bytes),
    _gauge(
        "process_start_time_seconds",
        "Start, in seconds since 1970.",
        lambda snapshot: snapshot.sources.started_wall_ms / 1000,
    ),
)


class MetricsText:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._made_ms: int | None = None
        self._text = b""

    def now(self) -> bytes:
        """Return the text, at most a second old."""
        now_ms = self._sources.clock.monotonic_ms()
        if self._made_ms is None or now_ms - self._made_ms >= CACHED_MS:
            self._text, self._made_ms = generate_latest(self), now_ms
        return self._text

    def collect(self) -> Iterable[Metric]:
        """Return every metric with a value. `generate_latest` calls this."""
        snapshot = take_snapshot(self._sources)
        return [_family(row, value) for row in ROWS if (value := row.read(snapshot)) is not None]


def _family(row: MetricRow, value: Value) -> Metric:
    if isinstance(value, Histogram):
        return HistogramMetricFamily(row.name, row.help, list(_buckets(value)), value.total)
    kind = CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily
    family: CounterMetricFamily | GaugeMetricFamily = kind(row.name, row.help, labels=[row.label] if row.label else [])
    if isinstance(value, int | float):
        family.add_metric([], value)
    elif value is not None:
        for each, number in value.items():
            family.add_metric([each], number)
    return family


def _buckets(spread: Histogram) -> Iterator[tuple[str, float]]:
    count = 0
    for bound, here in zip((*spread.bounds, float("inf")), spread.counts, strict=True):
        count += here
        yield bound_text(bound), count


def bound_text(bound: float) -> str:
    return "+Inf" if bound == float("inf") else repr(bound)


class LoopStalls:
    """Measures how late a timer fires every 0.1 s: long ticks, a slow disk, garbage collection, a busy machine."""

    def __init__(self, clock: Clock, lags: Histogram) -> None:
        self._read_seconds = clock.monotonic_seconds
        self._lags = lags
        self._due_seconds = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._longest_seconds = 0.0

    def start(self) -> None:
        self._due_seconds = self._read_seconds() + PROBE_SECONDS
        self._timer = asyncio.get_running_loop().call_later(PROBE_SECONDS, self._measure)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take_longest(self) -> float:
        longest_seconds, self._longest_seconds = self._longest_seconds, 0.0
        return longest_seconds

    def _measure(self) -> None:
        late_seconds = max(0.0, self._read_seconds() - self._due_seconds)
        self._lags.note(late_seconds)
        self._longest_seconds = max(self._longest_seconds, late_seconds)
        self.start()


class Series:
    def __init__(self, sources: Sources, stalls: LoopStalls) -> None:
        self._sources = sources
        self._stalls = stalls
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        measures = sources.measures
        self._spreads = (measures.waits, measures.commits, measures.answers)
        self._last_ms = sources.clock.monotonic_ms()
        self._last = self._count()
        self._chart_sets: dict[str, ChartSet] = {}  # By span; cleared by each sample.

    def __len__(self) -> int:
        return len(self._samples)

    def tick(self) -> None:
        """Take a sample if one is due. Called about every second."""
        now_ms = self._sources.clock.monotonic_ms()
        if now_ms - self._last_ms >= STEP_MS:
            self._sample((now_ms - self._last_ms) / 1000)
            self._last_ms = now_ms

    def _sample(self, seconds: float) -> None:
        (totals_before, counts_before), (totals, counts) = self._last, self._count()
        self._last = totals, counts
        rates = [(new - old) / seconds for old, new in zip(totals_before, totals, strict=True)]
        quantiles = [
            quantile(spread.bounds, [new - old for old, new in zip(was, is_, strict=True)], part)
            for spread, was, is_ in zip(self._spreads, counts_before, counts, strict=True)
            for part in (0.5, 0.99)
        ]
        state = None if self._sources.engine is None else self._sources.engine.state
        gauges = (0, 0, 0) if state is None else (len(state.index.held), len(state.tickets), len(state.sessions))
        wall_ms, longest = self._sources.clock.wall_ms(), self._stalls.take_longest()
        row: list[float] = [wall_ms, *rates[:5], *gauges, *quantiles, longest, rates[5]]
        self._samples.append(Sample(*row))
        self._chart_sets.clear()

    def last(self, span_ms: int) -> list[Sample]:
        """Return the samples of the last so many milliseconds, oldest first."""
        number = min(len(self._samples), -(-span_ms // STEP_MS))
        return list(self._samples)[len(self._samples) - number :]

    def charts_of(self, span: str) -> ChartSet:
        """Return the charts of one of `SPANS`, else of the usual one."""
        span = span if span in SPANS else USUAL_SPAN
        if span not in self._chart_sets:
            self._chart_sets[span] = draw(self.last(SPANS[span][1]), span)
        return self._chart_sets[span]

    def _count(self) -> tuple[tuple[float, ...], list[list[int]]]:
        tally, counters = self._sources.measures.tally, self._sources.counters
        refusals = sum(counters.reasons.values()) + sum(counters.refusal_replies.values())
        losses = sum(tally.ends.values()) - tally.releases - tally.ends.get("transferred", 0)
        totals = (tally.grants, tally.renewals, tally.releases, losses, refusals, processor_seconds())
        return totals, [list(spread.counts) for spread in self._spreads]


def quantile(bounds: Sequence[float], counts: Sequence[int], part: float) -> float:
    """Estimate a quantile from histogram buckets as Prometheus does; NaN if they are empty."""
    wanted, seen, below = sum(counts) * part, 0, 0.0
    if not wanted:
        return float("nan")
    for bound, count in zip(bounds, counts, strict=False):
        if count and seen + count >= wanted:
            return below + (bound - below) * (wanted - seen) / count
        seen += count
        below = bound
    return below


class Meter:
    """All measurements of one process. `start` begins to measure its event loop."""

    def __init__(self, settings: Settings, clock: Clock, measures: EngineMetrics | None = None) -> None:
        self.sources = Sources(settings, clock, measures)
        stalls = LoopStalls(clock, self.sources.lags)
        self.series = Series(self.sources, stalls)
        self.text = MetricsText(self.sources)
        self.start, self.stop, self.tick = stalls.start, stalls.stop, self.series.tick


def as_markdown() -> str:
    lines = ["| name | kind | tells |", "|---|---|---|"]
    for row in ROWS:
        label = f"{{{row.label}}}" if row.label else ""  # In the code span of the name: two adjacent ones render badly.
        lines.append(f"| `{row.name}{label}` | {row.kind} | {row.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
