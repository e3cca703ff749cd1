"""`holdfast release` and `holdfast transfer`: release a claim, or hand it to another owner without a gap."""

from __future__ import annotations

import contextlib
from datetime import timedelta

import click
import msgspec

from holdfast.cli.shared import leases, options, output
from holdfast.cli.shared.options import Duration, as_json, asks_server, client, find_lease_id, names_own_job, report
from holdfast.cli.workers import claim
from holdfast.errors import LeaseLost, Refused

REMEMBER_SECONDS = 86_400


@click.command(short_help="Release a claim.")
@options.names_own_job
@click.option("--done", is_flag=True, help="The work is finished: nobody shall do it again.")
@click.option("--failed", is_flag=True, help="It did not end well: it counts as an attempt.")
@click.option(
    "--remember", type=options.Duration(options.REMEMBER_SECONDS_MAX, "30d"), help="With --done: for how long [1d]."
)
@click.option("--result", metavar="TEXT", help="With --done: what came of it.")
@options.as_json
@options.asks_server
def release(
    *,
    job: str,
    done: bool,
    failed: bool,
    remember: int | None,
    result: str | None,
    lease: str | None,
    owner: str | None,
) -> None:
    """Give JOB back.

    It ends with 20 when the claim was lost before: then another may have worked on it meanwhile.
    """
    if done and failed:
        raise click.UsageError("--done and --failed exclude each other")
    if not done and (remember is not None or result is not None):
        raise click.UsageError("--remember and --result belong to --done; add it")
    outcome = "done" if done else "failed" if failed else None
    with options.client() as server:
        lease_id = options.find_lease_id(server.url, job, lease, owner)
        try:
            server.release_job(
                job, lease_id, outcome=outcome, result=result, remember=(remember or REMEMBER_SECONDS) if done else None
            )
        except LeaseLost:
            _forget(server.url, job, lease_id)
            raise
        except Refused as error:
            if error.code != "quota_exceeded":
                raise
            server.release_job(job, lease_id)
            _forget(server.url, job, lease_id)
            problem = f"{job} was released, but it is NOT remembered as done"
            raise Refused(
                error.status, error.code, problem, error.details, error.request_id, retry_after=error.retry_after
            ) from None
        _forget(server.url, job, lease_id)
    text = f"released {job}" + (f" as {outcome}" if outcome else "")
    options.report({"status": "released", "job_id": job, "outcome": outcome}, text)


@click.command(short_help="Hand a claim to another owner.")
@options.names_own_job
@click.option("--to", "to_owner", metavar="OWNER", required=True, help="Who has it from now on.")
@click.option("--ttl", type=options.Duration(), help="Let it live for so long from now on; else for the time left.")
@click.option("--reason", metavar="TEXT", help="Why; the old owner is told, and the history has it.")
@options.as_json
@options.asks_server
def transfer(
    *, job: str, to_owner: str, ttl: int | None, reason: str | None, lease: str | None, owner: str | None
) -> None:
    """Hand JOB to OWNER without a gap.

    The lease id and the token are new; the old ones are worth nothing from then on. The new lease id is printed for
    OWNER, and kept here in its name. The claim leaves its session; OWNER takes it up with `holdfast claim --resume`.
    """
    with options.client() as server:
        lease_id = options.find_lease_id(server.url, job, lease, owner)
        given = server.transfer_job(job, lease_id, to_owner, ttl=ttl, reason=reason)
        claim.store_leases(server.url, [given])
    value = {"status": "transferred", **msgspec.structs.asdict(given)}
    options.report(value, f"handed to {to_owner}: {claim.describe(given)}")
    if not options.wants_json():
        output.say(f"lease {output.plain(given.lease_id)}")


def _forget(url: str, job: str, lease_id: str) -> None:
    stored = leases.own().find(url, job)
    if stored and stored[0].lease_id == lease_id:
        leases.own().forget(url, job)


@click.command(short_help="Renew a claim.")
@names_own_job
@click.option("--note", metavar="TEXT", help="Say how far it is; the next owner reads it if you die.")
@click.option("--ttl", type=Duration(), help="Let it live for so long from now on; else as before.")
@as_json
@asks_server
def heartbeat(*, job: str, note: str | None, ttl: int | None, lease: str | None, owner: str | None) -> None:
    """Renew your claim on JOB.

    It ends with 20 when the claim is lost: then stop working on it.
    """
    _renew("renewed", job, note=note, ttl=ttl, lease=lease, owner=owner)


@click.command(short_help="Report progress on a job.")
@names_own_job
@click.argument("text")
@as_json
@asks_server
def note(*, job: str, text: str, lease: str | None, owner: str | None) -> None:
    """Report your progress on JOB, for everybody to see.

    The next owner reads it if you die. This also renews the claim.
    """
    _renew("noted on", job, note=text, ttl=None, lease=lease, owner=owner)


def _renew(word: str, job: str, *, note: str | None, ttl: int | None, lease: str | None, owner: str | None) -> None:
    with client() as server:
        lease_id = find_lease_id(server.url, job, lease, owner)
        seconds = server.heartbeat_job(job, lease_id, ttl=ttl, note=note)
        stored = leases.own().find(server.url, job)
    now = output.now()
    until = now + timedelta(seconds=seconds)
    if stored and stored[0].lease_id == lease_id:
        renewed = msgspec.structs.replace(stored[0], until_ms=output.wall_ms(until))
        with contextlib.suppress(OSError):  # It was renewed all the same.
            leases.own().store(renewed, output.wall_ms(now))
    value = {"status": "renewed", "job_id": job, "expires_in": seconds, "expires_at": until}
    report(value, f"{word} {job}, until {output.clock(until, now)} ({output.span(seconds)})")
