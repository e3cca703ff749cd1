"""`holdfast claim`: claim jobs once, and keep their lease ids for the commands that follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.shared import leases, options, output
from holdfast.cli.shared.refusals import quoted
from holdfast.cli.shared.wait import end_on_signals, waiting
from holdfast.errors import Refused

if TYPE_CHECKING:
    from holdfast import ClaimAnyOptions, JobClaim

TTL_SECONDS = 120

EXAMPLES = """\
\b
holdfast claim github-issue-1842
holdfast claim deploy-main -w 10m --note "rolling out 4.2"
holdfast claim --any issue-1 issue-2 issue-3 -m model=small --json
"""


@click.command(epilog=EXAMPLES, short_help="Claim a job.")
@options.names_jobs
@click.option("--any", "any_of", is_flag=True, help="Claim the first free one of several jobs, not all of them.")
@click.option("--ttl", type=options.Duration(), help="How long it lives unrenewed [2m, or what the server allows].")
@click.option("-w", "--wait", type=options.Duration(least=0), help="Stand in line for so long; else fail at once.")
@click.option("--owner", metavar="NAME", help="In whose name; else HOLDFAST_OWNER, else user@host:pid.")
@options.attaches
@options.labels("Mark it, to be found by. Can be repeated.")
@click.option("--note", metavar="TEXT", help="Say what you are about to do.")
@click.option("--resume", is_flag=True, help="Take back what you hold already under the same owner.")
@click.option("--redo", is_flag=True, help="Claim it although it is done.")
@click.option("--session", metavar="ID", help="End with this session; else HOLDFAST_SESSION, else none.")
@click.option("--no-keep", is_flag=True, help="Print the lease id instead of keeping it for heartbeat and release.")
@options.as_json
@options.asks_server
def claim(
    *,
    jobs: tuple[str, ...],
    any_of: bool,
    ttl: int | None,
    wait: int | None,
    owner: str | None,
    metadata: str | None,
    pairs: tuple[str, ...],
    labels: tuple[str, ...],
    note: str | None,
    resume: bool,
    redo: bool,
    session: str | None,
    no_keep: bool,
) -> int:
    """Claim JOB, once; of several all or none.

    Nothing renews it but `holdfast heartbeat`. Its lease id is kept for you, so that `heartbeat` and `release` work
    from here. `holdfast run` claims, renews and releases around a command.
    """
    if resume and len(jobs) > 1:
        raise click.UsageError("--resume takes back one job; name one")
    request: ClaimAnyOptions = {
        "ttl": ttl or TTL_SECONDS,
        "owner": owner or options.default_owner(),
        "wait": wait,
        "metadata": options.metadata_of(metadata, pairs),
        "labels": options.labels_of(labels),
        "redo": redo,
    }
    session = session or options.from_environment("HOLDFAST_SESSION") or None

    def ask() -> list[JobClaim]:
        with waiting(wait) as request["on_wait"]:
            if any_of:
                return [server.claim_any_job(jobs, session=session, **request)]
            if len(jobs) > 1:
                return server.claim_all_jobs(jobs, session=session, **request)
            return [server.claim_job(jobs[0], session=session, resume=resume, **request)]

    with end_on_signals(), options.client() as server:
        try:
            try:
                claims = ask()
            except Refused as error:
                if ttl is not None or error.code != "invalid_ttl":
                    raise
                request["ttl"] = None  # Our default is too long for this server.
                claims = ask()
        except KeyboardInterrupt:
            output.complain(f"interrupted; nothing was claimed and you are no longer in line for {', '.join(jobs)}")
            return output.INTERRUPTED
        is_stored = not no_keep and store_leases(server.url, claims)
        _say(claims, as_list=len(jobs) > 1 and not any_of, shows_lease=not is_stored)
        if note is not None:
            for each in claims:
                server.heartbeat_job(each.job_id, each.lease_id, note=note)
    return output.OK


def store_leases(url: str, claims: list[JobClaim]) -> bool:
    """Keep the lease ids for the commands that follow; return whether that was possible."""
    now = output.now()
    try:
        for each in claims:
            until_ms = output.wall_ms(each.expires_at)
            stored = leases.StoredLease(url, each.job_id, each.lease_id, each.owner, each.fencing_token, until_ms)
            leases.own().store(stored, output.wall_ms(now))
    except OSError as error:
        path_prefix = f"{error.filename}: " if error.filename else ""
        output.complain(f"{path_prefix}{error.strerror}; the lease id cannot be kept, so take it from here")
        return False
    return True


def describe(claim: JobClaim) -> str:
    """Describe a claim: `github-issue-1842, fencing token 1, until 02:14:05 (2 min)`."""
    now = output.now()
    began = now if claim.reacquired else claim.claimed_at
    left = output.span((claim.expires_at - began).total_seconds())
    return f"{claim.job_id}, fencing token {claim.fencing_token}, until {output.clock(claim.expires_at, now)} ({left})"


def history_lines(claim: JobClaim) -> list[str]:
    """Describe the previous owner and the attempts: `before: agent-2, released as failed 4 min ago; its note: …`."""
    lines = []
    if claim.previous is not None:
        lines.append(f"before: {output.previous_words(claim.previous, output.now(), claim.attempts - 1)}")
    if claim.attempts > 1:
        lines.append(f"attempt {claim.attempts}: it has not ended well so far")
    return lines


def _say(claims: list[JobClaim], *, as_list: bool, shows_lease: bool) -> None:
    if options.wants_json():
        values = [msgspec.structs.asdict(each) for each in claims]
        output.say_json({"status": "acquired", **({"claims": values} if as_list else values[0])})
        return
    for each in claims:
        word = "acquired again:" if each.reacquired else "acquired"
        output.say(f"{click.style(word, fg='green')} {output.plain(describe(each))}")
        for line in history_lines(each):
            output.say(output.plain(line))
        if shows_lease:
            output.say(f"lease {output.plain(each.lease_id)}")
    if output.is_terminal() and not shows_lease:
        job = quoted(claims[0].job_id)
        output.hint(f"renew it with `holdfast heartbeat {job}`, end it with `holdfast release {job}`")
