"""What `/metrics` says, read with the parser of Prometheus' own client."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from holdfast.observability.metrics import MetricRow

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples_in(text: bytes) -> Samples:
    """Every sample by its name and labels."""
    families = text_string_to_metric_families(text.decode())
    return {(each.name, frozenset(each.labels.items())): each.value for family in families for each in family.samples}


def value(text: bytes, name: str, **labels: str) -> float:
    """One sample."""
    return samples_in(text)[name, frozenset(labels.items())]


def samples_of(row: MetricRow) -> tuple[str, ...]:
    """The names under which Prometheus knows a metric."""
    if row.kind == "histogram":
        return f"{row.name}_bucket", f"{row.name}_count", f"{row.name}_sum"
    return (row.name,)
