"""`holdfast heartbeat` and `holdfast note`: renew a claim and report progress."""

from __future__ import annotations

import contextlib
from datetime import timedelta

import click
import msgspec

from holdfast.cli.shared import leases, times
from holdfast.cli.shared.options import Duration, as_json, asks_server, client, find_lease_id, names_own_job, report


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
    now = times.now()
    until = now + timedelta(seconds=seconds)
    if stored and stored[0].lease_id == lease_id:
        renewed = msgspec.structs.replace(stored[0], until_ms=times.wall_ms(until))
        with contextlib.suppress(OSError):  # It was renewed all the same.
            leases.own().store(renewed, times.wall_ms(now))
    value = {"status": "renewed", "job_id": job, "expires_in": seconds, "expires_at": until}
    report(value, f"{word} {job}, until {times.clock(until, now)} ({times.span(seconds)})")
