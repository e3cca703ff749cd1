"""What the client gives back of the past: who had which job at a moment, as far as the kept history knows."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from msgspec import UNSET

from holdfast.client.values.records import labels_of, time_of
from holdfast.wire.holders import shown_as
from holdfast.wire.replies import LockThen


class JobThen(msgspec.Struct, frozen=True):
    """Who had a job at a moment: the claim as it was made. Heartbeats are not kept, nor what they changed."""

    job_id: str
    owner: str | None
    token: int
    claimed_at: datetime
    ttl: float
    """Seconds, as claimed. Until when it was renewed at that moment is not known."""
    session: str | None
    record: int
    """The number of the record that granted it; 0 if it is older than all numbers."""
    labels: dict[str, str] = {}
    shown_as: str = ""
    """The owner for people: its name, or the access token's in brackets if no owner was given."""


class JobsThen(msgspec.Struct, frozen=True):
    """Who had what at a moment, ordered by name."""

    at: datetime | None
    """The moment that was asked for."""
    record: int
    """The last record by then: it is exact to this one."""
    jobs: list[JobThen]


def job_then(reply: LockThen) -> JobThen:
    """Say who had a job."""
    return JobThen(
        reply.name,
        reply.owner,
        reply.fencing_token,
        time_of(reply.claimed_at),
        reply.ttl_ms / 1_000,
        reply.session,
        reply.record,
        labels_of(reply.labels),
        reply.owner or (shown_as(None) if reply.shown_as is UNSET else reply.shown_as),
    )


def moment_text(at: datetime | str) -> str:
    """Return a moment as it is sent. One without a zone is local time, as everywhere in Python; text is RFC 3339."""
    if isinstance(at, str):
        return at
    if not isinstance(at, datetime):
        raise TypeError(f"at is {at!r:.50}; give a datetime, or a text in RFC 3339")
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
