"""What becomes of an error: a line that says what to do next, an object for programs, an exit code."""

from __future__ import annotations

import os
from typing import Any

from holdfast.cli.shared import output, times
from holdfast.errors import (
    Deadlock,
    HoldfastError,
    JobDone,
    JobHeld,
    LeaseLost,
    NotAllowed,
    NotInTime,
    Refused,
    SettingsError,
    Unreachable,
)

OPTIONS = {
    "ttl_seconds": "--ttl",
    "wait_seconds": "--wait",
    "remember_seconds": "--remember",
    "expires_in_seconds": "--expires",
}
"""What a server calls a field is called so on the command line."""
AROUND = "the `holdfast run` around this command"
"""Who stands in the circle of a run that waits for the job of the run that started it."""
LIMIT_CODES = ("quota_exceeded", "lock_limit_exceeded", "capacity_exceeded")
"""The request is fine and the server is there: somebody has as much as the settings allow."""

SECRET_PREFIXES = ("holdc_", "holds_")
"""How the secrets of claims and sessions begin."""


def exit_code(error: HoldfastError) -> int:
    """Tell the exit code of an error."""
    match error:
        case SettingsError():
            return output.USAGE
        case NotInTime():
            return output.NOT_IN_TIME
        case JobHeld():
            return output.HELD
        case JobDone():
            return output.DONE
        case Deadlock():
            return output.DEADLOCK
        case LeaseLost() | Refused(code="outcome_unknown" | "session_expired"):
            return output.LOST
        case Refused(code=code) if code in LIMIT_CODES:
            return output.LIMIT
        case NotAllowed():
            return output.NOT_ALLOWED
        case Unreachable() | Refused(status=408 | 429 | 502 | 503 | 504):
            return output.UNREACHABLE
        case Refused(status=status) if 400 <= status < 500:  # noqa: PLR2004 - the range in which the request is wrong
            return output.USAGE
        case _:
            return output.UNEXPECTED


def sentence(error: HoldfastError) -> str:
    """Say what went wrong and what to do next, in one line."""
    match error:
        case JobHeld():
            return f"{_held(error)}; {_what_now(error)}"
        case JobDone():
            return f"{_done(error)}; to do it again, add --redo"
        case Deadlock(cycle=[owner, job]):
            advice = _what_now_with_ones_own(job)
            return f"you hold {job} yourself, as {owner}, and would wait for ever; {advice}"
        case Deadlock(cycle=[_, job, around]) if around == AROUND:
            return f"{AROUND} holds {job} already, and waits for this one: leave out the inner `holdfast run`"
        case Deadlock():
            circle = " -> ".join([*error.cycle, *error.cycle[:1]])
            return (
                f"waiting would never end: {circle or error}; release what you hold, then claim again (or all at once)"
            )
        case LeaseLost(job_id=str(job)) if job:
            return f"{error}. Whose it is now: holdfast owner {quoted(job)}"
        case Unreachable(hint=""):
            return f"{error}; is the server running? Start it with `holdfast serve`, or name another with HOLDFAST_URL"
        case NotAllowed(code="authentication_required"):
            return f"the server wants an access token, and there is none for it here.{_token_advice(error)}"
        case NotAllowed(status=401 | 429):
            return f"{error}{_token_advice(error)}"
        case Refused(code="not_leader"):
            again = "try again in some seconds; if that does not help, `holdfast nodes` shows what each node says"
            return f"no node leads right now, and nothing was changed; {again}"
        case Refused(error="Session not found" | "Session expired"):
            return f"{error} Begin one with `holdfast session start`, or leave it out: unset HOLDFAST_SESSION"
        case Refused(request_id=str(request_id)):
            return f"{_with_options(str(error))} (request {request_id})"
        case _:
            return str(error)


def _token_advice(error: NotAllowed) -> str:
    """Say where another access token goes. The command of a run has a secret, and nobody gives it another."""
    if error.token_file is not None:
        return " Put the access token there that is valid now."
    if os.environ.get("HOLDFAST_TOKEN", "").startswith(SECRET_PREFIXES):
        return ""
    return " Put one of this server into HOLDFAST_TOKEN, or its file into HOLDFAST_TOKEN_FILE."


def _with_options(text: str) -> str:
    for field, option in OPTIONS.items():
        text = text.replace(field, option)
    return text


def as_object(error: HoldfastError) -> dict[str, Any]:
    """Say the same to a program. `status` is what to look at."""
    return {"status": _status(error), **_fields(error), "text": str(error), "exit_code": exit_code(error)}


def quoted(word: str) -> str:
    """Write a word so that a shell takes it as one."""
    import shlex

    return shlex.quote(word)


def _status(error: HoldfastError) -> str:
    match error:
        case NotInTime():
            return "not_in_time"
        case JobHeld():
            return "held"
        case JobDone():
            return "done"
        case Deadlock():
            return "deadlock"
        case LeaseLost() | Refused(code="session_expired"):
            return "lost"
        case Refused(code="outcome_unknown"):
            return "uncertain"
        case NotAllowed(code=code) if code not in LIMIT_CODES:
            return "not_allowed"
        case Refused():
            return "refused"
        case Unreachable():
            return "unreachable"
        case SettingsError():
            return "usage"
        case _:
            return "error"


def _fields(error: HoldfastError) -> dict[str, Any]:
    match error:
        case JobHeld():
            return _held_fields(error)
        case JobDone():
            return {
                "job_id": error.job_id,
                "owner": error.owner,
                "token": error.token,
                "completed_at": error.completed_at,
                "result": error.result,
                "shown_as": error.shown_as,
            }
        case LeaseLost():
            return {"job_id": error.job_id, "reason": error.reason, "by": error.by, "why": error.why}
        case Refused():
            told = {"code": error.code, "error": error.error, "details": error.details, "request_id": error.request_id}
            more = {"cycle": error.cycle} if isinstance(error, Deadlock) else {"retry_after": error.retry_after}
            return told | more
        case Unreachable():
            return {"url": error.url, "problem": error.problem}
        case SettingsError():
            return {"setting": error.setting, "origin": error.origin, "problem": error.problem}
        case _:
            return {}


def _held_fields(error: JobHeld) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "job_id": error.job_id,
        "owner": error.owner,
        "metadata": error.metadata,
        "labels": error.labels,
        "note": error.note,
        "claimed_at": error.claimed_at,
        "last_heartbeat_at": error.last_heartbeat_at,
        "expires_at": error.expires_at,
        "same_owner": error.same_owner,
        "waiting": error.waiting,
        "retry_after": error.retry_after,
        "shown_as": error.shown_as,
    }
    if error.others:
        fields["others"] = [_held_fields(each) for each in error.others]
    return fields


def _held(error: JobHeld) -> str:
    if error.claimed_at is None:
        is_said = not isinstance(error, NotInTime) or "not acquired" in str(error)
        return str(error) if is_said else f"not acquired in time: {error}"
    now = times.now()
    whose = f"{error.job_id} is held by {error.shown_as}"
    if error.same_owner:
        whose = f"you hold {error.job_id} yourself, as {error.shown_as},"
    text = f"{whose} since {times.since(error.claimed_at, now)}"
    if isinstance(error, NotInTime):
        text = f"not acquired in time: {text}"
    if error.last_heartbeat_at is not None:
        text += f", last heartbeat {times.ago(error.last_heartbeat_at, now)}"
    return text + (f"; note: {error.note}" if error.note else "")


def _what_now(error: JobHeld) -> str:
    ask = f"ask `holdfast why {quoted(error.job_id)}`"
    if error.same_owner:
        return _what_now_with_ones_own(error.job_id)
    if isinstance(error, NotInTime):
        return f"wait longer with -w, or {ask}"
    after = "" if error.retry_after is None else f" in {times.span(error.retry_after)}"
    return f"try again{after}, wait with -w, or {ask}"


def _what_now_with_ones_own(job: str) -> str:
    return (
        f"take it back with `holdfast claim {quoted(job)} --resume`;"
        " if another worker has it under your name, give each its own --owner"
    )


def _done(error: JobDone) -> str:
    text = f"{error.job_id} is done: by {error.shown_as}"
    if error.completed_at is not None:
        now = times.now()
        text += f" at {times.clock(error.completed_at, now)} ({times.ago(error.completed_at, now)})"
    return text + (f"; result: {error.result}" if error.result else "")
