"""Looks in the journal of a stopped server for what must never be: one name with two owners at a time (I1, I2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.journal.sqlite.inspect import dump


def granted_twice(data: Path) -> Iterator[str]:
    """Yield each grant of a name that was held, and each fencing token that did not rise."""
    held: dict[str, str] = {}
    last_token = 0
    for record in dump(data):
        for name, lease_id in _ends(record):
            if held.pop(name, lease_id) != lease_id:
                yield f"record {record['seq']}: {name} had another lease than the one that ended"
        for name, lease in _grants(record):
            if name in held:
                yield f"record {record['seq']}: {name} was granted while it was held"
            if lease["token"] <= last_token:
                yield f"record {record['seq']}: the token {lease['token']} of {name} came after {last_token}"
            held[name], last_token = lease["lease_id"], lease["token"]


def _ends(record: dict[str, Any]) -> list[tuple[str, str]]:
    match record["event"]:
        case "ended":
            return [(record["name"], record["lease_id"])]
        case "session_ended" | "token_ended":
            return [(each["name"], each["lease_id"]) for each in _all_ends(record)]
        case "transferred":
            return [(record["name"], record["old_lease_id"])]
        case _:
            return []


def _all_ends(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from record.get("leases", ())
    for session in record.get("sessions", ()):
        yield from session.get("leases", ())


def _grants(record: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    match record["event"]:
        case "granted" | "transferred":
            return [(record["name"], record["lease"])]
        case "granted_many":
            return [(each["name"], each["lease"]) for each in record["grants"]]
        case _:
            return []
