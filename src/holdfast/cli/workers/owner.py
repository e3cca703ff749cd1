"""`holdfast owner` and `holdfast jobs`: who owns a job, who owns what, and how alive each owner looks."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.shared import completion, options, output
from holdfast.cli.shared.refusals import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast import JobOwner, JobStatus, PastJobOwner, PastJobOwners


@click.command(short_help="Say who owns a job.")
@options.names_job
@options.as_json
@options.asks_server
def owner(*, job: str) -> int:
    """Say who owns JOB, since when, and how alive that one looks.

    It ends with 0 when somebody owns it, with 1 when nobody does, and with 12 when it is done.
    """
    with options.client() as server:
        status = server.job(job)
    if options.wants_json():
        output.say_json(status)
    elif status.owner is not None:
        _say_held(status, status.owner)
    else:
        _say_not_held(status)
    if status.owner is not None:
        return output.OK
    return output.DONE if status.status == "done" else output.NEGATIVE


@click.command(short_help="List the claimed jobs.")
@click.argument("prefix", required=False, shell_complete=completion.claimed_jobs)
@click.option("--owner", metavar="NAME", help="Only what NAME owns.")
@click.option("--session", metavar="ID", help="Only what is bound to this session.")
@options.labels("Only what has this label; of several, all of them.")
@click.option(
    "--at",
    type=options.PastTime(),
    help="Who had what then, from the history: 02:14 (the last one past), 2026-11-15T02:14:00Z, or 2h (ago).",
)
@options.as_json
@options.asks_server
def jobs(
    *, prefix: str | None, owner: str | None, session: str | None, labels: tuple[str, ...], at: str | None
) -> None:
    """List the claimed jobs, all or those that begin with PREFIX, in order of name: now, or at a moment."""
    wanted: dict[str, Any] = {"owner": owner, "session": session, "labels": options.labels_of(labels)}
    kind = " like this" if prefix or owner or session or labels else ""
    with options.client() as server:
        if at is not None:
            _say_past_owners(server.list_claimed_jobs_at(at, prefix, **wanted), kind)
            return
        found = server.list_claimed_jobs(prefix, **wanted)
    if options.wants_json():
        output.say_json({"jobs": found})
    elif found:
        heads = ["JOB", "OWNER", "AGE", "HEARTBEAT", "LEFT", "WAITING", "NOTE"]
        _say_jobs(heads, found, [_row(each) for each in found])
    else:
        output.hint(f"no job{kind} is claimed")


def _say_jobs(heads: list[str], found: Sequence[JobOwner | PastJobOwner], rows: list[list[str]]) -> None:
    """Write the table, with a column for labels if there are any."""
    if any(each.labels for each in found):
        heads = [*heads, "LABELS"]
        rows = [[*row, output.metadata_words(each.labels)] for row, each in zip(rows, found, strict=True)]
    output.say_table(heads, rows, folded=("JOB", "OWNER", "NOTE", "LABELS"))


def _say_past_owners(past: PastJobOwners, kind: str) -> None:
    if options.wants_json():
        output.say_json(past)
        return
    now = output.now()
    at = past.at or now
    if past.jobs:
        rows = [
            [
                each.job_id,
                each.shown_as,
                output.clock(each.claimed_at, now),
                output.span((at - each.claimed_at).total_seconds()),
                output.span(each.ttl),
                str(each.fencing_token),
            ]
            for each in past.jobs
        ]
        _say_jobs(["JOB", "OWNER", "SINCE", "AGE", "TTL", "FENCING TOKEN"], past.jobs, rows)
        output.hint(
            f"as of {output.clock(at, now)} ({output.ago(at, now)}), record {past.record}; times to live as claimed"
        )
    else:
        output.hint(
            f"no job{kind} was claimed at {output.clock(at, now)} ({output.ago(at, now)}), record {past.record}"
        )


def _row(job: JobOwner) -> list[str]:
    now = output.answered_at(job)
    return [
        job.job_id,
        job.shown_as,
        output.span((now - job.claimed_at).total_seconds()),
        output.ago(job.last_heartbeat_at, now),
        output.span(job.expires_in),
        str(job.waiting),
        job.note or "",
    ]


def _say_held(status: JobStatus, owner: JobOwner) -> None:
    now = output.answered_at(owner)
    output.say(f"{output.plain(status.job_id)} is {_word('held')} by {output.plain(owner.shown_as)}")
    heartbeat_at = owner.last_heartbeat_at
    rows = [
        ("since", output.since(owner.claimed_at, now)),
        ("last heartbeat", f"{output.clock(heartbeat_at, now)} ({output.ago(heartbeat_at, now)})"),
        ("until", f"{output.clock(owner.expires_at, now)} ({output.span(owner.expires_in)} left)"),
        ("fencing token", str(owner.fencing_token)),
    ]
    if owner.session is not None:
        rows.append(("session", owner.session))
    if owner.note:
        rows.append(("note", owner.note))
    if metadata := output.metadata_words(owner.metadata):
        rows.append(("metadata", metadata))
    if owner.labels:
        rows.append(("labels", output.metadata_words(owner.labels)))
    output.say_fields([*rows, *_rows_of_any_status(status, now)])


def _say_not_held(status: JobStatus) -> None:
    now = output.now()
    output.say(f"{output.plain(status.job_id)} is {_word(status.status)}")
    rows: list[tuple[str, str]] = []
    if status.completed_at is not None:
        at = f"{output.clock(status.completed_at, now)} ({output.ago(status.completed_at, now)})"
        rows.append(("by", f"{status.shown_as} at {at}"))
    if status.result:
        rows.append(("result", status.result))
    if status.available_at is not None:
        left = output.span((status.available_at - now).total_seconds())
        rows.append(("closed until", f"{output.clock(status.available_at, now)} ({left} left)"))
    if status.status != "done":  # The previous owner is the one that has done it.
        rows += _rows_of_any_status(status, now)
    output.say_fields(rows)
    if status.status == "done":
        output.hint(f"to do it again: holdfast claim {quoted(status.job_id)} --redo")


def _rows_of_any_status(status: JobStatus, now: datetime) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if status.waiting:
        rows.append(("waiting", f"{status.waiting} (who: holdfast why {quoted(status.job_id)})"))
    if status.attempts > (status.owner is not None):
        rows.append(("attempts", f"{status.attempts} since it last ended well"))
    if status.previous is not None:
        # The claim that is held counts as an attempt too.
        before = status.attempts - (status.owner is not None)
        rows.append(("before", output.previous_words(status.previous, now, before)))
    return rows


def _word(status: str) -> str:
    return click.style(status, fg={"held": "yellow", "free": "green", "done": "cyan"}.get(status))
