"""`holdfast revoke`, `holdfast reopen` and `holdfast check`: end a claim, reopen a job, check a fencing token."""

from __future__ import annotations

import contextlib

import click

from holdfast.cli.shared import output
from holdfast.cli.shared.options import as_json, asks_server, client, names_job, report, wants_json
from holdfast.errors import Refused

DIGITS_MAX = 19
"""No fencing token has more digits. `int` raises an error for thousands of them."""


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
    owner = None
    with client() as server:
        with contextlib.suppress(Refused):  # Our access token may not read it.
            owner = server.get_job_owner(job)
        server.revoke(job, reason)
    report({"status": "revoked", "job_id": job, "reason": reason}, f"{job} is revoked")
    if owner is not None and not wants_json():
        text = (
            f"{owner.shown_as} is told now. Within about a second its command under `holdfast run` is killed, and its"
            " claim in Python is lost. If it cannot be reached, or asks over HTTP itself, it learns of it at its next"
            f" renewal, within {output.span(owner.expires_in)} if it keeps its lease. The job can be claimed from now"
            " on."
        )
        output.hint(text)


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
    report({"status": "reopened", "job_id": job, "reason": reason}, f"{job} can be claimed again")


@click.command(short_help="Ask whether a fencing token is current.")
@names_job
@click.argument("token", metavar="FENCING_TOKEN")
@as_json
@asks_server
def check(*, job: str, token: str) -> int:
    """Say whether FENCING_TOKEN is that of the live claim on JOB.

    It ends with 0 when it is, and with 1 when it is not.
    """
    if not token.isdecimal() or len(token) > DIGITS_MAX:
        # It is not repeated: it may be an access token or a secret.
        raise click.UsageError("a fencing token is a number, as `holdfast claim` and `holdfast owner` show it")
    with client() as server:
        current = server.check(job, int(token))
    text = f"fencing token {token} of {job} is {'current' if current else 'not current'}"
    report({"job_id": job, "token": int(token), "current": current}, text)
    return output.OK if current else output.NEGATIVE
