"""`holdfast revoke`, `holdfast reopen` and `holdfast check`: what operators do to a job, and what guards ask of it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from holdfast.cli.shared import output, times
from holdfast.cli.shared.options import FencingToken, as_json, asks_server, client, names_job, wants_json
from holdfast.errors import Refused

if TYPE_CHECKING:
    from holdfast import Holdfast, JobOwner


@click.command(short_help="End somebody's claim.")
@names_job
@click.option("--reason", metavar="TEXT", required=True, help="Why; the owner is told.")
@as_json
@asks_server
def revoke(*, job: str, reason: str) -> None:
    """End somebody's claim on JOB.

    Its owner is told who did it and why, and the fencing token is worth nothing from then on. A command that runs for
    the claim under `holdfast run` is killed within about a second. Your own access token needs the scope admin.
    """
    with client() as server:
        owner = _owner(server, job)
        server.revoke(job, reason)
    if wants_json():
        output.say_json({"status": "revoked", "job_id": job, "reason": reason})
        return
    output.say(output.plain(f"{job} is revoked"))
    if owner is not None:
        output.hint(output.plain(_what_happens(owner)))


def _owner(server: Holdfast, job: str) -> JobOwner | None:
    """Return who has the job, if we may know."""
    with contextlib.suppress(Refused):
        return server.get_job_owner(job)
    return None


def _what_happens(owner: JobOwner) -> str:
    """Say what becomes of the holder, and when."""
    return (
        f"{owner.shown_as} is told now. Within about a second its command under `holdfast run` is killed, and its claim"
        " in Python is lost. If it cannot be reached, or asks over HTTP itself, it learns of it at its next renewal,"
        f" within {times.span(owner.expires_in)} if it keeps to its lease. The job can be claimed from now on."
    )


@click.command(short_help="Let a finished job be claimed again.")
@names_job
@click.option("--reason", metavar="TEXT", help="Why; the history has it.")
@as_json
@asks_server
def reopen(*, job: str, reason: str | None) -> None:
    """Let JOB be claimed again although it is done.

    Your own access token needs the scope admin.
    """
    with client() as server:
        server.reopen(job, reason)
    if wants_json():
        output.say_json({"status": "reopened", "job_id": job, "reason": reason})
        return
    output.say(output.plain(f"{job} can be claimed again"))


@click.command(short_help="Ask whether a fencing token is current.")
@names_job
@click.argument("token", metavar="FENCING_TOKEN", type=FencingToken())
@as_json
@asks_server
def check(*, job: str, token: int) -> int:
    """Say whether FENCING_TOKEN is that of the live claim on JOB.

    It ends with 0 when it is, and with 1 when it is not.
    """
    with client() as server:
        current = server.check(job, token)
    if wants_json():
        output.say_json({"job_id": job, "token": token, "current": current})
    else:
        output.say(output.plain(f"fencing token {token} of {job} is {'current' if current else 'not current'}"))
    return output.OK if current else output.FAILED
