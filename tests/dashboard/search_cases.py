"""Searches and what they find, for both who read them: the server and the page's script."""

from __future__ import annotations

from typing import Any

ROWS: list[dict[str, Any]] = [
    {"name": "github://acme/app/issues/42", "owner": "agent-3", "note": "Tests pass", "labels": {"team": "web"}},
    {"name": "github://acme/app/issues/43", "owner": "Agent-31", "labels": {"team": "data", "env": "prod"}},
    {"name": "deploy-main", "owner": "build bot", "fields": [["model", "opus"], ["trace", "af3"]]},
    {"name": "nightly-report", "owner": "(access token cron)", "note": "größer <b>", "labels": {"team": "web:eu"}},
    {"name": 'quote"d', "owner": "x"},
]
"""By their places in what is found below."""

CASES: list[tuple[str, list[int]]] = [
    ("", [0, 1, 2, 3, 4]),
    ("   ", [0, 1, 2, 3, 4]),
    ("prefix:github://acme", [0, 1]),
    ("prefix:github://ACME", []),
    ("prefix:github://acme/app prefix:github://", [0, 1]),
    ("prefix:github:// prefix:deploy", []),
    ("owner:agent-3", [0, 1]),
    ("owner:AGENT-31", [1]),
    ("owner:gent", []),
    ('owner:"build bot"', [2]),
    ('owner:"build', [2]),
    ("owner:build bot", [2]),
    ("label:team:web", [0]),
    ("label:team:web:eu", [3]),
    ("label:team", [0, 1, 3]),
    ("label:team label:env:prod", [1]),
    ("label:toString", []),
    ("label:constructor", []),
    ("tests", [0]),
    ('"Tests pass"', [0]),
    ("pass tests", [0]),
    ("team:data", [1]),
    ("model=opus", [2]),
    ("opus af3", [2]),
    ("GRÖSSER", []),
    ("GRÖßER", [3]),
    ("<b>", [3]),
    ("issues/42", [0]),
    ("agent-3 owner:agent label:team:web prefix:git 42", [0]),
    ("prefix:", [0, 1, 2, 3, 4]),
    ("owner: issues", [0, 1]),
    ('owner:""', [0, 1, 2, 3, 4]),
    ("prefix:nightly owner:(access", [3]),
    ("no such thing", []),
    ("\\", []),
    ("(", [3]),
]

NAMED: list[tuple[str, str]] = [
    ("deploy-main", "deploy-main"),
    (" github://acme/app/issues/42 ", "github://acme/app/issues/42"),
    ("prefix:Deploy-Main", "Deploy-Main"),
    ('"deploy-main"', "deploy-main"),
    ("owner:agent-3", ""),
    ("label:team:web", ""),
    ("two words", ""),
    ("", ""),
]
"""Searches, and the one name that was typed."""

SORTED: list[tuple[str, list[str]]] = [
    ("name", ["a", "b", "c"]),
    ("-name", ["c", "b", "a"]),
    ("owner", ["c", "a", "b"]),
    ("held", ["b", "a", "c"]),
    ("-held", ["c", "a", "b"]),
    ("heartbeat", ["c", "a", "b"]),
    ("time_left", ["a", "c", "b"]),
    ("-time_left", ["b", "c", "a"]),
    ("queue", ["b", "a", "c"]),
    ("nonsense", ["a", "b", "c"]),
    ("-nonsense", ["a", "b", "c"]),
]
"""Orders, and how they put `TO_SORT`."""

TO_SORT: list[dict[str, Any]] = [
    {"name": "a", "owner": "y", "since": 20, "beat": 200, "until": 1_000, "line": 0},
    {"name": "b", "owner": "z", "since": 10, "beat": 300, "until": 3_000, "line": 5},
    {"name": "c", "owner": "x", "since": 30, "beat": 100, "until": 2_000, "line": 0},
]


def filled(row: dict[str, Any]) -> dict[str, Any]:
    """A row with everything that it has not."""
    usual = {"token": 1, "since": 0, "beat": 0, "until": 0, "ttl": 0, "line": 0, "note": "", "labels": {}, "fields": []}
    return {**usual, **row}
