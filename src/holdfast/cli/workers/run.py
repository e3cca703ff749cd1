"""`holdfast run`: claim, run a command while the claim is renewed, release.

The command runs only while the claim is ours, and is stopped before it could be lost. In any case it is released.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from holdfast.cli.shared import completion, options, output, with_command
from holdfast.cli.shared.refusals import AROUND, exit_code, sentence
from holdfast.cli.shared.wait import end_on_signals, waiting
from holdfast.cli.workers.claim import describe, history_lines
from holdfast.errors import Deadlock, HoldfastError, JobHeld, LeaseLost, Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast import Claim, ClaimAnyOptions, Claims, Holdfast

EPILOG = """\
\b
holdfast run github-issue-1842 -- ./fix.sh
holdfast run -n nightly-report --remember 20h -- ./report.sh
holdfast run deploy-main -w 10m -E 75 -- ./deploy.sh
holdfast run --any task-1 task-2 -- sh -c './work "$HOLDFAST_JOB"'

The command finds HOLDFAST_JOB, HOLDFAST_FENCING_TOKEN and HOLDFAST_LEASE in its environment, HOLDFAST_JOBS (JSON) for
one job or several, with their lease ids, HOLDFAST_ATTEMPTS, and HOLDFAST_PREVIOUS_OWNER, HOLDFAST_PREVIOUS_ENDED and
HOLDFAST_PREVIOUS_NOTE if somebody was there before. In place of your access token it has a secret that can only look
at, renew and release what this run holds, so that `holdfast note "$HOLDFAST_JOB" "half way"` works in it; --keep-token
leaves it your access token.

It ends with the command's own exit code, 128 + n for signal n. Otherwise: 1 held by another (-n), 11 not acquired in
time (-w), both replaced by -E; 12 already done, 13 deadlock, 20 lost, 75 a limit is reached (with --remember also:
the command succeeded, and that is not remembered), 126 and 127 as a shell has them.

-n, -w and -E are those of flock(1), and so is waiting for ever without -n and -w. Unlike there, a wait that runs out
has an exit code of its own, 11.
"""


@click.command(cls=with_command.WithCommand, epilog=EPILOG, short_help="Run a command while a job is yours.")
@options.names_jobs
@click.option("-n", "--no-wait", is_flag=True, help="Fail at once if somebody else has the job.")
@click.option(
    "-w", "--wait", type=options.Duration(least=0), help="Stand in line for so long. Without -n and -w: for ever."
)
@click.option("--ttl", type=options.Duration(), help="The life of the lease; else the server's default [60s].")
@click.option("--any", "any_one", is_flag=True, help="Take the first free one of the jobs instead of all of them.")
@click.option("--grace", type=options.Duration(), default=with_command.GRACE_SECONDS, help="From TERM to KILL [10s].")
@click.option(
    "-E", "--conflict-exit-code", "conflict", type=click.IntRange(0, 255), metavar="N", help="End with N if it is held."
)
@click.option(
    "--remember",
    type=options.Duration(options.REMEMBER_SECONDS_MAX, "30d"),
    help="If the command succeeds, the job is done for so long. At most 30d.",
)
@click.option("--redo", is_flag=True, help="Run it although the job is done.")
@click.option("--owner", metavar="NAME", help="In whose name; else HOLDFAST_OWNER, else host:pid:random.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")
@with_command.keeps_token
@options.attaches
@options.labels("Mark it, to be found by. Can be repeated.")
@options.asks_server
@click.pass_context
def run(
    context: click.Context,
    /,
    *,
    jobs: tuple[str, ...],
    no_wait: bool,
    wait: int | None,
    ttl: int | None,
    any_one: bool,
    grace: int,
    conflict: int | None,
    remember: int | None,
    redo: bool,
    owner: str | None,
    quiet: bool,
    keep_token: bool,
    metadata: str | None,
    pairs: tuple[str, ...],
    labels: tuple[str, ...],
) -> int:
    """Run a command while every JOB is yours, or with --any the first free one.

    The lease is renewed while the command runs. Before it can be lost, the command gets TERM, and KILL after the grace.
    """
    from holdfast import Holdfast

    if no_wait and wait is not None:
        raise click.UsageError("-n does not wait and -w does; use one of them")
    seconds = 0.0 if no_wait else float("inf" if wait is None else wait)
    request: ClaimAnyOptions = {
        "wait": seconds,
        "ttl": ttl,
        "redo": redo,
        "owner": owner or options.from_environment("HOLDFAST_OWNER"),
        "metadata": options.metadata_of(metadata, pairs),
        "labels": options.labels_of(labels),
    }
    command = context.meta[completion.COMMAND]
    # A signal may come while the wait is still shown: what is claimed by then has to be known here.
    got: list[Claim | Claims] = []
    with end_on_signals(), Holdfast(retry_seconds=with_command.RETRY_SECONDS, **options.server_options()) as server:
        try:
            if seconds and not any_one:
                refuse_jobs_of_outer_run(server, jobs)
            with waiting(seconds, quiet=quiet) as request["on_wait"]:
                if any_one or len(jobs) > 1:
                    got.append((server.claim_any if any_one else server.claim_all)(jobs, **request))
                else:
                    got.append(server.claim(jobs[0], **request))
        except JobHeld as error:
            if conflict is None:
                raise
            output.complain(sentence(error))
            return conflict
        except BaseException:
            for held in got:
                release(held, None)
            raise
        return run_held(server, got[0], command, grace=grace, remember=remember, quiet=quiet, keep_token=keep_token)


def refuse_jobs_of_outer_run(server: Holdfast, jobs: Sequence[str]) -> None:
    """Raise `Deadlock` if the `holdfast run` around us has one of the jobs: it waits for us.

    The server cannot know, because each has an owner of its own. An environment that outlived its run is ignored.
    """
    for each in with_command.outer_jobs(os.environ):
        if each["job"] in jobs and server.check(each["job"], each["fencing_token"]):
            cycle = ("this command", each["job"], AROUND)
            raise Deadlock(409, "deadlock", "Deadlock", cycle=cycle)


def run_held(
    server: Holdfast,
    held: Claim | Claims,
    command: Sequence[str],
    *,
    grace: int,
    remember: int | None,
    quiet: bool,
    keep_token: bool,
) -> int:
    """Run the command, and release what is held in any case. So nothing may be done before the first `try`."""
    try:
        from holdfast import Claims
        from holdfast.run.supervisor import run_child

        claims = tuple(held) if isinstance(held, Claims) else (held,)
        secret = None if keep_token else server.claim_secret(claims[0].job_id, claims[0].lease_id)
        base = with_command.environment_with(secret, server.environment)
    except BaseException:
        # Nothing of it ran: the job did not fail.
        release(held, None)
        raise
    try:
        if not quiet:
            _announce(claims)
        ended = run_child(
            command,
            environment=with_command.environment_for(base, claims),
            held=held,
            grace_seconds=grace,
            say=output.complain,
        )
    except BaseException:
        release(held, "failed")
        raise
    if ended.returncode == 0 and remember is not None:
        code = release_as_done(held, claims, remember)
        return output.LOST if ended.lost else code
    lost = release(held, "failed" if ended.returncode else None, is_stopped=ended.lost)
    return output.LOST if lost or ended.lost else ended.returncode


def _announce(claims: Sequence[Claim]) -> None:
    for each in claims:
        word = "acquired again:" if each.reacquired else "acquired"
        output.complain(f"{word} {describe(each.record)}")
        if each.reacquired:
            output.complain(
                'this access token had the job already (reentrant = "holder"): another command may work on it'
            )
        for line in history_lines(each.record):
            output.complain(line)


def release(held: Claim | Claims, outcome: str | None, *, is_stopped: bool = False) -> bool:
    """Release; return whether it was lost. The advice to stop is left out if the command was stopped for that."""
    try:
        held.release(outcome=outcome)
    except LeaseLost as error:
        output.complain(str(error).removesuffix("; stop working on it") if is_stopped else str(error))
        return True
    except HoldfastError as error:
        output.complain(f"the claim was not released and ends by itself: {error}")
    return False


def release_as_done(held: Claim | Claims, claims: Sequence[Claim], remember: float) -> int:
    """Release as done; return the exit code. If the server refuses to remember that, the claim is released anyway."""
    try:
        held.release(outcome="done", remember=remember)
    except LeaseLost as error:
        output.complain(str(error))
        return output.LOST
    except Refused as error:
        # Refused jobs are still ours. Those that are remembered are released already.
        jobs = ", ".join(each.job_id for each in claims if not each.released)
        is_known = "is not known to be" if error.code == "outcome_unknown" else "is NOT"
        output.complain(f"the command succeeded, but {jobs} {is_known} remembered as done: {error}")
        return output.LOST if release(held, None) else exit_code(error)
    except HoldfastError as error:
        output.complain(f"whether the job is remembered as done is not known; the claim ends by itself: {error}")
        return exit_code(error)
    return output.OK
