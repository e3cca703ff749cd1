"""Errors as one line that says what to do next, as an object for programs, and as an exit code."""

from __future__ import annotations

import os
from typing import Any

from holdfast import errors
from holdfast.cli.shared import output

OPTIONS = {
    "ttl_seconds": "--ttl",
    "wait_seconds": "--wait",
    "remember_seconds": "--remember",
    "expires_in_seconds": "--expires",
}
"""The options for the fields that a server names."""
AROUND = "the `holdfast run` around this command"
"""The outer run in the cycle of a run that waits for a job of the one that started it."""
LIMIT_CODES = ("quota_exceeded", "lock_limit_exceeded", "capacity_exceeded")
SECRET_PREFIXES = ("holdc_", "holds_")
"""The secrets of claims and sessions."""


def exit_code(error: errors.HoldfastError) -> int:
    return _outcome(error)[1]


def as_object(error: errors.HoldfastError) -> dict[str, Any]:
    """Return an error for programs: its `status`, and everything that it knows."""
    status, code = _outcome(error)
    told = {"status": status, "text": str(error), "exit_code": code}
    return {"status": status} | _fields(error) | told  # First for readers, and last over the one of HTTP.


def _outcome(error: errors.HoldfastError) -> tuple[str, int]:
    """Return the status and the exit code of an error."""
    match error:
        case errors.SettingsError():
            return "usage", output.USAGE
        case errors.NotInTime():
            return "not_in_time", output.NOT_IN_TIME
        case errors.JobHeld():
            return "held", output.HELD
        case errors.JobDone():
            return "done", output.DONE
        case errors.Deadlock():
            return "deadlock", output.DEADLOCK
        case errors.LeaseLost() | errors.Refused(code="session_expired"):
            return "lost", output.LOST
        case errors.Refused(code="outcome_unknown"):
            return "uncertain", output.LOST
        case errors.Refused(code=code) if code in LIMIT_CODES:
            return "refused", output.LIMIT
        case errors.NotAllowed():
            return "not_allowed", output.NOT_ALLOWED
        case errors.Unreachable():
            return "unreachable", output.UNREACHABLE
        case errors.Refused(status=408 | 429 | 502 | 503 | 504):
            return "refused", output.UNREACHABLE
        case errors.Refused(status=status):
            return "refused", output.USAGE if status // 100 == 4 else output.UNEXPECTED  # noqa: PLR2004 - 4xx
        case _:
            return "error", output.UNEXPECTED


def _fields(error: errors.HoldfastError) -> dict[str, Any]:
    # With the defaults of its class: programs find the same fields in every error of a kind.
    defaults = {name: value for kind in reversed(type(error).__mro__) if kind.__module__ == errors.__name__
                for name, value in vars(kind).items() if not callable(value)}  # fmt: skip
    fields = {name: value for name, value in (defaults | vars(error)).items() if not name.startswith("_")}
    if others := fields.pop("others", ()):
        fields["others"] = [_fields(each) for each in others]
    return fields


def sentence(error: errors.HoldfastError) -> str:
    """Return what went wrong and what to do next, in one line."""
    match error:
        case errors.JobHeld():
            return f"{_held(error)}; {_advice(error)}"
        case errors.JobDone():
            return f"{_done(error)}; to do it again, add --redo"
        case errors.Deadlock(cycle=[owner, job]):
            advice = _advice_for_own_claim(job)
            return f"you hold {job} yourself, as {owner}, and would wait for ever; {advice}"
        case errors.Deadlock(cycle=[_, job, around]) if around == AROUND:
            return f"{AROUND} holds {job} already, and waits for this one: leave out the inner `holdfast run`"
        case errors.Deadlock():
            cycle = " -> ".join([*error.cycle, *error.cycle[:1]])
            return (
                f"waiting would never end: {cycle or error}; release what you hold, then claim again (or all at once)"
            )
        case errors.LeaseLost(job_id=str(job)) if job:
            return f"{error}. Whose it is now: holdfast owner {quoted(job)}"
        case errors.Unreachable(hint=""):
            return f"{error}; is the server running? Start it with `holdfast serve`, or name another with HOLDFAST_URL"
        case errors.NotAllowed(code="authentication_required"):
            return f"the server wants an access token, and there is none for it here.{_token_advice(error)}"
        case errors.NotAllowed(status=401 | 429):
            return f"{error}{_token_advice(error)}"
        case errors.Refused(code="not_leader"):
            again = "try again in some seconds; if that does not help, `holdfast nodes` shows what each node says"
            return f"no node leads right now, and nothing was changed; {again}"
        case errors.Refused(error="Session not found" | "Session expired"):
            return f"{error} Begin one with `holdfast session start`, or leave it out: unset HOLDFAST_SESSION"
        case errors.Refused(request_id=str(request_id)):
            text = str(error)
            for field, option in OPTIONS.items():
                text = text.replace(field, option)
            return f"{text} (request {request_id})"
        case _:
            return str(error)


def _token_advice(error: errors.NotAllowed) -> str:
    """Say where to put another access token; nothing to the command of a run, which has a secret."""
    if error.token_file is not None:
        return " Put the access token there that is valid now."
    if os.environ.get("HOLDFAST_TOKEN", "").startswith(SECRET_PREFIXES):
        return ""
    return " Put one of this server into HOLDFAST_TOKEN, or its file into HOLDFAST_TOKEN_FILE."


def quoted(word: str) -> str:
    """Quote a word for a shell."""
    import shlex

    return shlex.quote(word)


def _held(error: errors.JobHeld) -> str:
    if error.claimed_at is None:
        is_said = not isinstance(error, errors.NotInTime) or "not acquired" in str(error)
        return str(error) if is_said else f"not acquired in time: {error}"
    now = output.now()
    whose = f"{error.job_id} is held by {error.shown_as}"
    if error.same_owner:
        whose = f"you hold {error.job_id} yourself, as {error.shown_as},"
    text = f"{whose} since {output.since(error.claimed_at, now)}"
    if isinstance(error, errors.NotInTime):
        text = f"not acquired in time: {text}"
    if error.last_heartbeat_at is not None:
        text += f", last heartbeat {output.ago(error.last_heartbeat_at, now)}"
    return text + (f"; note: {error.note}" if error.note else "")


def _advice(error: errors.JobHeld) -> str:
    ask = f"ask `holdfast why {quoted(error.job_id)}`"
    if error.same_owner:
        return _advice_for_own_claim(error.job_id)
    if isinstance(error, errors.NotInTime):
        return f"wait longer with -w, or {ask}"
    after = "" if error.retry_after is None else f" in {output.span(error.retry_after)}"
    return f"try again{after}, wait with -w, or {ask}"


def _advice_for_own_claim(job: str) -> str:
    return (
        f"take it back with `holdfast claim {quoted(job)} --resume`;"
        " if another worker has it under your name, give each its own --owner"
    )


def _done(error: errors.JobDone) -> str:
    text = f"{error.job_id} is done: by {error.shown_as}"
    if error.completed_at is not None:
        now = output.now()
        text += f" at {output.clock(error.completed_at, now)} ({output.ago(error.completed_at, now)})"
    return text + (f"; result: {error.result}" if error.result else "")
