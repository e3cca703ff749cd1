"""`holdfast session exec`: run a command as a run of its own, whose claims all end with it, whichever way it ends."""

from __future__ import annotations

import click

from holdfast.cli.shared import output, times
from holdfast.cli.shared.completion import COMMAND
from holdfast.cli.shared.options import Duration, asks_server, attaches, metadata_of, reach
from holdfast.cli.shared.waiting import orderly_end
from holdfast.cli.shared.with_command import (
    GRACE_SECONDS,
    RETRY_SECONDS,
    TTL_SECONDS,
    WithCommand,
    environment_with,
    keeps_token,
)
from holdfast.errors import HoldfastError, LeaseLost

EXAMPLES = """\
\b
holdfast session exec triage-7f3a -- ./agent.sh
holdfast session exec review -- sh -c 'rlock github://acme/app && ./review.sh'

The command finds GATEWAY_URL, SHUTDOWN_SECRET and HOLDFAST_SESSION in its environment, and in place of your access
token the secret of the session: all that it claims is the session's. --keep-token leaves it your access token. It ends
with the command's own exit code, 128 + n for signal n, or with 20 if the session was lost.
"""


@click.command("exec", cls=WithCommand, epilog=EXAMPLES, short_help="Run a command in a session of its own.")
@click.argument("name")
@click.option(
    "--ttl",
    type=Duration(),
    metavar="TIME",
    default=TTL_SECONDS,
    help="How long it outlives us if we are killed [60s].",
)
@click.option("--grace", type=Duration(), metavar="TIME", default=GRACE_SECONDS, help="From TERM to KILL [10s].")
@keeps_token
@attaches
@asks_server
@click.pass_context
def exec_(
    context: click.Context,
    /,
    *,
    name: str,
    ttl: int,
    grace: int,
    keep_token: bool,
    metadata: str | None,
    pairs: tuple[str, ...],
) -> int:
    """Run a command in a session called NAME, which is kept alive meanwhile.

    When the command has ended, so has the session, and every lock of it is free. If the session is lost before, the
    command is stopped.
    """
    from holdfast import Holdfast
    from holdfast.supervision.supervisor import run_child

    attached = metadata_of(metadata, pairs)
    with orderly_end(), Holdfast(retry_seconds=RETRY_SECONDS, **reach()) as server:
        began_ms = times.monotonic_ms()
        session = server.session(name, ttl=ttl, metadata=attached)
        # What passed since it was asked for is gone, however slow the answer was: it was given nevertheless.
        tell_shortened(ttl, session.remaining + (times.monotonic_ms() - began_ms) / 1_000)
        secret = None if keep_token else session.secret
        base = environment_with(secret, {**server.environment, "HOLDFAST_URL": session.url})
        lost = False
        try:
            ended = run_child(
                context.meta[COMMAND],
                environment={**base, **session.environment, "HOLDFAST_SESSION": session.session_id},
                held=session,
                grace_seconds=grace,
                say=output.complain,
            )
        finally:
            try:
                session.end()
            except LeaseLost as error:
                output.complain(str(error))
                lost = True
            except HoldfastError as error:
                output.complain(f"the session was not ended and ends by itself: {error}")
        return output.LOST if lost or ended.lost else ended.returncode


def tell_shortened(asked: float, got: float) -> None:
    """Say that the server gave a session less time than was asked for: it does so without a refusal (S1)."""
    if got < asked * 0.99 - 1:  # The answer was on its way for a moment, and clocks may drift.
        output.hint(f"the server gives a session less than the {times.span(asked)} that were asked for;")
        output.hint("its setting max_session_ttl_seconds is the longest")
