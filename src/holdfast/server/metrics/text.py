"""The text of `/metrics`: the rows of the table as Prometheus reads them. Made at most once a second.

Where `metrics_open` is set anybody may ask, as often as they like. So it costs them one text a second, and us no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from holdfast.engine.measures import Spread
from holdfast.server.metrics.table import ROWS, look_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.server.metrics.sources import Sources
    from holdfast.server.metrics.table import Row, Value

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
KEPT_MS = 1_000


class Text:
    """The text about one process."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._made_ms: int | None = None
        self._text = b""

    def now(self) -> bytes:
        """Return the text as of now, or of less than a second ago."""
        now_ms = self._sources.clock.monotonic_ms()
        if self._made_ms is None or now_ms - self._made_ms >= KEPT_MS:
            self._text, self._made_ms = generate_latest(self), now_ms
        return self._text

    def collect(self) -> Iterable[Metric]:
        """Return every metric that has something to tell: what `generate_latest` asks for."""
        look = look_at(self._sources)
        return [_family(row, value) for row in ROWS if (value := row.read(look)) is not None]


def _family(row: Row, value: Value) -> Metric:
    labels = [row.label] if row.label else []
    if isinstance(value, Spread):
        return HistogramMetricFamily(row.name, row.help, list(_buckets(value)), value.total)
    family: CounterMetricFamily | GaugeMetricFamily = (
        CounterMetricFamily(row.name, row.help, labels=labels)
        if row.kind == "counter"
        else GaugeMetricFamily(row.name, row.help, labels=labels)
    )
    if isinstance(value, int | float):
        family.add_metric([], value)
    elif value is not None:
        for each, number in value.items():
            family.add_metric([each], number)
    return family


def _buckets(spread: Spread) -> Iterator[tuple[str, float]]:
    """Yield each bound with how many were at or below it."""
    count = 0
    for bound, here in zip((*spread.bounds, float("inf")), spread.counts, strict=True):
        count += here
        yield bound_text(bound), count


def bound_text(bound: float) -> str:
    """Return a bound as the label `le` has it."""
    return "+Inf" if bound == float("inf") else repr(bound)
