"""`holdfast revoke`, `holdfast reopen` and `holdfast check`: what operators do to a job, and what guards ask of it."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.shared import output
from holdfast.cli.shared.options import Whole, as_json, asks_server, client, names_job


@click.command(short_help="End somebody's claim.")
@names_job
@click.option("--reason", metavar="TEXT", required=True, help="Why; the owner is told.")
@as_json
@asks_server
def revoke(*, job: str, reason: str, json: bool, url: str | None, token_file: Path | None) -> None:
    """End somebody's claim on JOB.

    Its owner is told who did it and why, and the token is worth nothing from then on. Your own token needs the scope
    admin.
    """
    with client(url, token_file) as server:
        server.revoke(job, reason)
    if json:
        output.say_json({"status": "revoked", "job_id": job, "reason": reason})
        return
    output.say(output.plain(f"{job} is revoked"))


@click.command(short_help="Let finished work be done again.")
@names_job
@click.option("--reason", metavar="TEXT", help="Why; the history has it.")
@as_json
@asks_server
def reopen(*, job: str, reason: str | None, json: bool, url: str | None, token_file: Path | None) -> None:
    """Let JOB be claimed again although it is done.

    Your own token needs the scope admin.
    """
    with client(url, token_file) as server:
        server.reopen(job, reason)
    if json:
        output.say_json({"status": "reopened", "job_id": job, "reason": reason})
        return
    output.say(output.plain(f"{job} can be claimed again"))


@click.command(short_help="Ask whether a fencing token is current.")
@names_job
@click.argument("token", type=Whole(0))
@as_json
@asks_server
def check(*, job: str, token: int, json: bool, url: str | None, token_file: Path | None) -> int:
    """Say whether TOKEN is that of the live claim on JOB.

    It ends with 0 when it is, and with 1 when it is not.
    """
    with client(url, token_file) as server:
        current = server.check(job, token)
    if json:
        output.say_json({"job_id": job, "token": token, "current": current})
    else:
        output.say(output.plain(f"token {token} of {job} is {'current' if current else 'not current'}"))
    return output.OK if current else output.FAILED
