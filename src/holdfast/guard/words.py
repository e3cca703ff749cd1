"""What the guard says: to an agent, which must know what to do instead, and to people.

Names and notes were written by others. They are escaped, cut and put in quotes, so that they read as what they are.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.guard.claims import Had, Held
from holdfast.harmless import plain

TEXT_CHARS_MAX = 400
_MINUTE_SECONDS = 60


def shown(text: object) -> str:
    """Show a text of another: on one line, nothing in it acts, and not too long."""
    found = plain(str(text))
    return found if len(found) <= TEXT_CHARS_MAX else found[:TEXT_CHARS_MAX] + "…"


def span(milliseconds: object) -> str:
    if not isinstance(milliseconds, int):
        return "an unknown time"
    seconds = max(milliseconds // 1_000, 0)
    return (
        f"{seconds} s"
        if seconds < _MINUTE_SECONDS
        else f"{seconds // _MINUTE_SECONDS} min {seconds % _MINUTE_SECONDS} s"
    )


def held(found: Held, what: str, hint: str = "") -> str:
    job, fields = shown(found.job), found.fields
    if fields.get("status") == "done":
        return (
            f"{shown(what)} belongs to the job {job}, which is done: by {shown(fields.get('owner'))}, result:"
            f" {quoted(fields.get('result'))}. Do not do it again. If it must be: `holdfast reopen {job}`."
        )
    if fields.get("status") == "delayed":
        return (
            f"{shown(what)} belongs to the job {job}, which is closed for another {span(fields.get('retry_after_ms'))}"
            " after its last owner. Wait for so long and try again, or work on something else."
        )
    owner = shown(fields.get("owner") or fields.get("shown_as") or "one that gave no name")
    note = f"; its note: {quoted(fields.get('note'))}" if fields.get("note") else ""
    return (
        f"{shown(what)} belongs to the job {job}, which another has: owner {owner}, since"
        f" {shown(fields.get('claimed_at'))}, {span(fields.get('expires_in_ms'))} left unless it is renewed{note}. Do"
        f" not change it in another way. Instead: work on something that another job covers, or wait and try again;"
        f" `holdfast why {job}` says who has it and who waits." + (f" {hint}" if hint else "")
    )


def quoted(text: object) -> str:
    return f'"{shown(text)}"' if text else "none"


def taken_over(had: Had) -> str:
    previous = had.previous
    if not had.is_fresh or not previous.get("note"):
        return ""
    return (
        f"You have the job {shown(had.job)} now. Its last owner, {shown(previous.get('owner'))}"
        f" ({shown(previous.get('ended'))}), left a note: {quoted(previous.get('note'))}"
    )


def away(what: str, job: str, reason: str) -> str:
    return (
        f"{shown(what)} belongs to the job {shown(job)}, and the Holdfast server cannot be asked who has it:"
        f" {shown(reason)}. Nothing that a rule names passes until it answers. Wait and try again, or work on something"
        " that no rule names; `holdfast doctor` looks for the reason."
    )


def let_pass(whats: Mapping[str, str], reason: str) -> str:
    jobs = ", ".join(f"{shown(job)} ({shown(what)})" for job, what in whats.items())
    return (
        f"passed WITHOUT a claim, because the Holdfast server cannot be asked and the rule says let-pass: {jobs}."
        f" Another may be at work on it: {shown(reason)}"
    )


def cannot(what: str, job: str, reason: str) -> str:
    return f"{shown(what)} belongs to the job {shown(job)}, which could not be claimed: {shown(reason)}"


def unclear(what: str, reason: str) -> str:
    return f"{shown(what)}: {shown(reason)}"


def asks(jobs: Mapping[str, str]) -> str:
    """Ask a person; a host without a terminal shows this to the agent instead."""
    return (
        f"a person must agree that this agent claims {_named(jobs)}; no other agent gets it until the session ends. If"
        f" there is no terminal to ask at, ask the person you work for to run: {_agree(jobs)}. Then try again."
    )


def asks_elsewhere(jobs: Mapping[str, str], host: str) -> str:
    return (
        f"a person must agree that this agent claims {_named(jobs)}, which {host} cannot ask from a hook. The job is"
        f" kept for you meanwhile. Ask the person you work for to run: {_agree(jobs)}. Then try again."
    )


def _named(jobs: Mapping[str, str]) -> str:
    return ", ".join(f"{shown(job)} for {shown(what)}" for job, what in jobs.items())


def _agree(jobs: Mapping[str, str]) -> str:
    return "; ".join(f"holdfast guard agree {shown(job)}" for job in jobs)
