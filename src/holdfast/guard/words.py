"""What the guard says to an agent, which must know what to do instead, and to people.

Names and notes were written by others. They are escaped, cut and quoted, so that they read as what they are.
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


def _quoted(text: object) -> str:
    return f'"{shown(text)}"' if text else "none"


def _span(milliseconds: object) -> str:
    if not isinstance(milliseconds, int):
        return "an unknown time"
    minutes, seconds = divmod(max(milliseconds // 1_000, 0), _MINUTE_SECONDS)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def held(found: Held, what: str, hint: str = "") -> str:
    """Refuse because another has the job; a hint says why a claim of the agent's own does not count."""
    job, fields, status = shown(found.job), found.fields, found.fields.get("status")
    begin = f"{shown(what)} belongs to the job {job}, which"
    if status == "done":
        return (
            f"{begin} is done: by {shown(fields.get('owner'))}, result: {_quoted(fields.get('result'))}. Do not do it"
            f" again. If it must be: `holdfast reopen {job}`."
        )
    if status == "delayed":
        return (
            f"{begin} is closed for another {_span(fields.get('retry_after_ms'))} after its last owner. Wait for so"
            " long and try again, or work on something else."
        )
    owner = shown(fields.get("owner") or fields.get("shown_as") or "one that gave no name")
    note = f"; its note: {_quoted(fields.get('note'))}" if fields.get("note") else ""
    return (
        f"{begin} another has: owner {owner}, since {shown(fields.get('claimed_at'))},"
        f" {_span(fields.get('expires_in_ms'))} left unless it is renewed{note}. Do not change it in another way."
        " Instead: work on something that another job covers, or wait and try again;"
        f" `holdfast why {job}` says who has it and who waits." + (f" {hint}" if hint else "")
    )


def taken_over(had: Had) -> str:
    """Tell a new owner the note of the one before it; "" if there is none."""
    previous = had.previous
    if not had.is_fresh or not previous.get("note"):
        return ""
    return (
        f"You have the job {shown(had.job)} now. Its last owner, {shown(previous.get('owner'))}"
        f" ({shown(previous.get('ended'))}), left a note: {_quoted(previous.get('note'))}"
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


def asks(jobs: Mapping[str, str], unable: str = "") -> str:
    """Ask a person; a host that is unable to shows this to its agent, and so does a host without a terminal."""
    named = ", ".join(f"{shown(job)} for {shown(what)}" for job, what in jobs.items())
    middle = (
        f", which {unable} cannot ask from a hook. The job is kept for you meanwhile. Ask"
        if unable
        else "; no other agent gets it until the session ends. If there is no terminal to ask at, ask"
    )
    agree = "; ".join(f"holdfast guard agree {shown(job)}" for job in jobs)
    return (
        f"a person must agree that this agent claims {named}{middle} the person you work for to run: {agree}. Then try"
        " again."
    )
