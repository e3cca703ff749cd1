"""What the client tells, as results of the tools: plain objects, and nothing in them that acts on whoever reads them.

Text of others is data from strangers, so every text is made `plain` on its way out: on one line, and what cannot be
seen, or turns or hides what stands beside it, is written out. What the model has to know comes in fields of its own,
never inside of somebody's text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from holdfast import Deadlock, JobClaim, JobDone, JobHeld, JobOwner, JobStatus, LeaseLost
from holdfast.client.values.records import Metadata, Previous, packed
from holdfast.harmless import plain

Result: TypeAlias = dict[str, Any]

NOTE_CHARS_IN_LISTS = 200
HELD_SHOWN_MAX = 10


class RefusedError(Exception):
    """A desk does not do what it was asked. The text says why, and what to do."""


def clean(value: Any) -> Any:  # noqa: ANN401 - whatever a result is made of
    """Return a result in which every text is plain and nothing is None."""
    match value:
        case str():
            return plain(value)
        case dict():
            return {plain(str(key)): clean(each) for key, each in value.items() if each is not None}
        case list() | tuple():
            return [clean(each) for each in value]
        case _:
            return value


def seconds(value: float) -> float:
    """Round a time that is left: down, so that nobody believes in it for too long."""
    return max(0.0, int(value * 10) / 10)


def acquired(claim: JobClaim, expires_in: float, *, already: bool = False) -> Result:
    """Say that a job is the caller's. One that was so `already` may be at work for somebody who shares this desk."""
    return {
        "status": "acquired",
        "job": claim.job_id,
        "already_yours": True if already or claim.reacquired else None,
        "still_held": True,
        "expires_in": seconds(expires_in),
        "owner": claim.owner,
        "fencing_token": claim.token,
        "attempts": claim.attempts,
        "previous": previous(claim.previous, claim.attempts - 1),
    }


def held(error: JobHeld) -> Result:
    """Say who has a job that was asked for; of several, of the first few."""
    if error.others:
        shown = [_holder(each) | {"job": each.job_id} for each in error.others[:HELD_SHOWN_MAX]]
        more = len(error.others) - len(shown)
        return {"status": "held", "still_held": False, "held": shown, "more": more or None}
    return {
        "status": "held",
        "job": error.job_id,
        "still_held": False,
        **_holder(error),
        "waiting": error.waiting,
        "place": error.waiting + 1,
    }


def _holder(error: JobHeld) -> Result:
    return {
        "owner": error.shown_as,
        "since": moment(error.claimed_at),
        "until": moment(error.expires_at),
        "last_heartbeat": moment(error.last_heartbeat_at),
        "note": error.note,
        "metadata": said(error.metadata),
        "has_your_name": True if error.same_owner else None,
    }


def waiting(job: str, place: int | None, owner: JobOwner | None) -> Result:
    """Say where in the line one stands, and who has the job meanwhile."""
    now = {} if owner is None else holder(owner)
    return {**now, "status": "waiting", "job": job, "still_held": False, "place": place}


def done(error: JobDone) -> Result:
    """Say that a job is finished."""
    return {
        "status": "done",
        "job": error.job_id,
        "still_held": False,
        "owner": error.shown_as,
        "completed_at": moment(error.completed_at),
        "result": error.result,
    }


def not_yours(job: str, status: JobStatus) -> Result:
    """Say that a job is not the caller's to renew or give back."""
    return {
        "status": "not_yours",
        "job": job,
        "still_held": False,
        "owner": None if status.owner is None else status.owner.shown_as,
    }


def deadlock(job: str, error: Deadlock) -> Result:
    """Say that a wait would never end."""
    return {"status": "deadlock", "job": job, "still_held": False, "cycle": error.cycle, "told": error.details}


def ended(job: str, error: LeaseLost) -> Result:
    """Say how a job was lost, for the list of those."""
    return {"job": job, "reason": error.reason, "by": error.by, "why": error.why}


def lost(job: str, error: LeaseLost) -> Result:
    """Say that the very job that was asked about is lost."""
    return {"status": "lost", "still_held": False, **ended(job, error)}


def found(status: JobStatus) -> Result:
    """Say who has a job, if anybody has."""
    now = {} if status.owner is None else holder(status.owner)
    return {
        **now,
        "status": status.status,
        "job": status.job_id,
        "waiting": status.waiting,
        "attempts": status.attempts,
        "owner": status.shown_as,
        "available_at": moment(status.available_at),
        "completed_at": moment(status.completed_at),
        "result": status.result,
        "previous": previous(status.previous, status.attempts - (status.owner is not None)),
    }


def holder(owner: JobOwner) -> Result:
    """Say who has a job, and how alive that one looks."""
    return {
        "owner": owner.shown_as,
        "since": moment(owner.claimed_at),
        "until": moment(owner.expires_at),
        "last_heartbeat": moment(owner.last_heartbeat_at),
        "note": owner.note,
        "metadata": said(owner.metadata),
    }


def row(owner: JobOwner) -> Result:
    """Say the same in a list, more briefly."""
    note = owner.note
    return {
        "job": owner.job_id,
        "owner": owner.shown_as,
        "since": moment(owner.claimed_at),
        "until": moment(owner.expires_at),
        "note": note if note is None or len(note) <= NOTE_CHARS_IN_LISTS else f"{note[:NOTE_CHARS_IN_LISTS]}…",
        "waiting": owner.waiting or None,
    }


def listed(owners: Sequence[JobOwner], limit: int) -> Result:
    """List who has what; one more than `limit` was asked for, to know whether there are more."""
    return {"status": "listed", "jobs": [row(each) for each in owners[:limit]], "more": len(owners) > limit or None}


def previous(before: Previous | None, attempts: int) -> Result | None:
    """Say who had a job before. After `attempts` that did not end well, one that released it gave it back as failed."""
    if before is None:
        return None
    failed = attempts > 0 and before.ended == "released"
    return {
        "owner": before.shown_as,
        "ended": before.ended,
        "failed": failed or None,
        "at": moment(before.at),
        "note": before.note,
    }


def moment(at: datetime | None) -> str | None:
    """Write a time to the second."""
    return None if at is None else at.isoformat(timespec="seconds").replace("+00:00", "Z")


def said(metadata: Metadata) -> str | None:
    """Write metadata as it travels: as text, so that no field of it looks like one of ours."""
    return packed(metadata)


def names(jobs: Iterable[str]) -> str:
    """Write names for people."""
    return ", ".join(plain(job) for job in jobs)
