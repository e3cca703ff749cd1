"""Reads what a query of Prometheus speaks of: metrics, labels and their values. It knows as much as ours need.

A name that is neither a function nor a word of the language is a metric. What is in braces or behind `by` is a label.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

WORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "group_left", "group_right", "bool", "offset"}
FUNCTIONS = {
    "avg",
    "count",
    "histogram_quantile",
    "increase",
    "label_values",
    "max",
    "min",
    "predict_linear",
    "rate",
    "sum",
    "time",
}
_STRING = r'"(?:[^"\\]|\\.)*"'
_MATCHER = re.compile(rf"\s*([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*({_STRING})\s*")
_SELECTOR = re.compile(rf"([a-zA-Z_:][\w:]*)\s*(?:\{{((?:[^{{}}\"]|{_STRING})*)\}})?")
_GROUPED = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
_RANGE = re.compile(r"\[[^\]]*\]")


@dataclass
class Spoken:
    """What one query speaks of."""

    metrics: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    """By name: the values that each of its labels must have."""
    grouped: set[str] = field(default_factory=set)
    """The labels by which it is grouped."""


def spoken_of(query: str) -> Spoken:
    """Read a query. What it cannot read it refuses."""
    spoken = Spoken()
    rest = _RANGE.sub("", query)
    if rest.startswith("label_values("):
        # Grafana's own, for its variables: a metric, and the label whose values are wanted.
        metric, _, label = rest.removeprefix("label_values(").removesuffix(")").rpartition(",")
        spoken.grouped.add(label.strip())
        rest = metric
    for labels in _GROUPED.findall(rest):
        spoken.grouped |= {label.strip() for label in labels.split(",") if label.strip()}
    rest = _GROUPED.sub(" ", rest)
    for found in _SELECTOR.finditer(rest):
        name, matchers = found[1], found[2]
        if name in WORDS | FUNCTIONS:
            assert matchers is None, f"{name} is no metric: {query}"
            continue
        values = spoken.metrics.setdefault(name, {})
        for label, _, value in _read_matchers(matchers or "", query):
            values.setdefault(label, set()).update(value[1:-1].split("|"))
    assert spoken.metrics, f"speaks of nothing: {query}"
    assert query.count("(") == query.count(")") and query.count("{") == query.count("}"), query
    return spoken


def _read_matchers(text: str, query: str) -> list[tuple[str, str, str]]:
    found = [(each[1], each[2], each[3]) for each in _MATCHER.finditer(text)]
    assert ",".join("".join(each) for each in found) == text.replace(" ", ""), f"cannot be read: {text!r} in {query}"
    return found
