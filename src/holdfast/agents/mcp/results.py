"""Results of the tools, made from what the client returns or raises.

Text of others is untrusted, so every text is made `plain`: on one line, with everything escaped that is invisible, or
turns or hides the text next to it. What the model has to know has fields of its own, never a part of somebody's text.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeAlias

from holdfast import Deadlock, JobClaim, JobDone, JobHeld, JobOwner, JobStatus, LeaseLost
from holdfast.client.records import Previous, packed
from holdfast.sanitize import plain

Result: TypeAlias = dict[str, Any]

NOTE_CHARS_IN_LISTS = 200
HELD_SHOWN_MAX = 10


class ToolRefusedError(Exception):
    """The call was not carried out. The text says why, and what to do."""


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
    """Round a remaining time down, so that nobody relies on it for too long."""
    return max(0.0, int(value * 10) / 10)


def acquired(claim: JobClaim, expires_in: float, *, already: bool = False) -> Result:
    """Report a claim. If the session had it `already`, a subagent that shares the session may be working on it."""
    return {
        "status": "acquired",
        "job": claim.job_id,
        "already_yours": True if already or claim.reacquired else None,
        "still_held": True,
        "expires_in": seconds(expires_in),
        "owner": claim.owner,
        "fencing_token": claim.fencing_token,
        "attempts": claim.attempts,
        "previous": previous(claim.previous, claim.attempts - 1),
    }


def held(error: JobHeld) -> Result:
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


def waiting(job: str, position: int | None, owner: JobOwner | None) -> Result:
    return {**_holder(owner), "status": "waiting", "job": job, "still_held": False, "place": position}


def done(error: JobDone) -> Result:
    return {
        "status": "done",
        "job": error.job_id,
        "still_held": False,
        "owner": error.shown_as,
        "completed_at": time_text(error.completed_at),
        "result": error.result,
    }


def not_yours(job: str, status: JobStatus) -> Result:
    owner = None if status.owner is None else status.owner.shown_as
    return {"status": "not_yours", "job": job, "still_held": False, "owner": owner}


def deadlock(job: str, error: Deadlock) -> Result:
    return {"status": "deadlock", "job": job, "still_held": False, "cycle": error.cycle, "told": error.details}


def ended(job: str, error: LeaseLost) -> Result:
    return {"job": job, "reason": error.reason, "by": error.by, "why": error.why}


def lost(job: str, error: LeaseLost) -> Result:
    return {"status": "lost", "still_held": False, **ended(job, error)}


def found(status: JobStatus) -> Result:
    return {
        **_holder(status.owner),
        "status": status.status,
        "job": status.job_id,
        "waiting": status.waiting,
        "attempts": status.attempts,
        "owner": status.shown_as,
        "available_at": time_text(status.available_at),
        "completed_at": time_text(status.completed_at),
        "result": status.result,
        "previous": previous(status.previous, status.attempts - (status.owner is not None)),
    }


def _holder(holder: JobOwner | JobHeld | None) -> Result:
    if holder is None:
        return {}
    return {
        "owner": holder.shown_as,
        "since": time_text(holder.claimed_at),
        "until": time_text(holder.expires_at),
        "last_heartbeat": time_text(holder.last_heartbeat_at),
        "note": holder.note,
        "metadata": packed(holder.metadata),  # As text, so that no field of it looks like one of ours.
        "has_your_name": True if isinstance(holder, JobHeld) and holder.same_owner else None,
    }


def listed(owners: Sequence[JobOwner], limit: int) -> Result:
    """List jobs and their owners; one more than `limit` was requested, to know whether there are more."""
    jobs = [
        {
            "job": each.job_id,
            "owner": each.shown_as,
            "since": time_text(each.claimed_at),
            "until": time_text(each.expires_at),
            "note": each.note and each.note[:NOTE_CHARS_IN_LISTS] + "…" * (len(each.note) > NOTE_CHARS_IN_LISTS),
            "waiting": each.waiting or None,
        }
        for each in owners[:limit]
    ]
    return {"status": "listed", "jobs": jobs, "more": len(owners) > limit or None}


def previous(before: Previous | None, attempts: int) -> Result | None:
    """Report the previous owner. With failed `attempts`, its release was a failure."""
    if before is None:
        return None
    return {
        "owner": before.shown_as,
        "ended": before.ended,
        "failed": (attempts > 0 and before.ended == "released") or None,
        "at": time_text(before.at),
        "note": before.note,
    }


def time_text(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds").replace("+00:00", "Z")
