"""`holdfast session`: a run whose claims end with it. Its secrets are passed only in the environment."""

from __future__ import annotations

import click

from holdfast.cli.shared import options, output, with_command
from holdfast.cli.shared.completion import COMMAND
from holdfast.cli.shared.options import Duration, as_json, asks_server, attaches, client, metadata_of, wants_json
from holdfast.cli.shared.refusals import quoted
from holdfast.cli.shared.wait import end_on_signals
from holdfast.cli.shared.with_command import GRACE_SECONDS, RETRY_SECONDS, TTL_SECONDS, WithCommand, keeps_token
from holdfast.errors import HoldfastError, LeaseLost

EXEC_EXAMPLES = """\
\b
holdfast session exec triage-7f3a -- ./agent.sh
holdfast session exec review -- sh -c 'rlock github://acme/app && ./review.sh'

The command finds GATEWAY_URL, SHUTDOWN_SECRET and HOLDFAST_SESSION in its environment, and in place of your access
token the secret of the session: all that it claims is the session's. --keep-token leaves it your access token. It ends
with the command's own exit code, 128 + n for signal n, or with 20 if the session was lost.
"""


@click.command("exec", cls=WithCommand, epilog=EXEC_EXAMPLES, short_help="Run a command in a session of its own.")
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
    from holdfast.run.supervisor import run_child

    attached = metadata_of(metadata, pairs)
    with end_on_signals(), Holdfast(retry_seconds=RETRY_SECONDS, **options.server_options()) as server:
        began_ms = output.monotonic_ms()
        session = server.session(name, ttl=ttl, metadata=attached)
        # Add the request's own time: a slow response does not mean a shorter session.
        warn_shortened(ttl, session.remaining + (output.monotonic_ms() - began_ms) / 1_000)
        secret = None if keep_token else session.secret
        base = with_command.environment_with(secret, {**server.environment, "HOLDFAST_URL": session.url})
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


def warn_shortened(asked: float, got: float) -> None:
    """Warn that the server shortened a session, which it does without a refusal (S1)."""
    if got < asked * 0.99 - 1:  # Allows for latency and clock drift.
        output.hint(f"the server gives a session less than the {output.span(asked)} that were asked for;")
        output.hint("its setting max_session_ttl_seconds is the longest")


@click.group(cls=options.InOrder, short_help="Start, end and list sessions: their claims end with them.")
def session() -> None:
    """Start, end and list sessions. All claims of a session end with it."""


EXAMPLES = """\
\b
eval "$(holdfast session start nightly-review)"
rlock github://acme/app/issues/42
holdfast session end
"""


session.add_command(exec_)


@session.command(epilog=EXAMPLES, short_help="Start a session and print what a shell needs.")
@click.argument("name", required=False)
@click.option(
    "--ttl", metavar="TIME", type=Duration(), help="How long it lives without a call; else as long as the server says."
)
@attaches
@as_json
@asks_server
def start(*, name: str | None, ttl: int | None, metadata: str | None, pairs: tuple[str, ...]) -> None:
    """Begin a session and print what a shell needs for it.

    `rlock` and its kin use it, any call of theirs keeps it alive, and `holdfast claim` binds to it. Without --ttl it
    lives for the server's setting `resourceLockTimeout`.
    """
    attached = metadata_of(metadata, pairs)
    with client() as server:
        if ttl is None:
            ttl = server.server_status().resource_lock_timeout_seconds
        made = server.open_session(name, ttl=ttl, metadata=attached)
    warn_shortened(ttl, made.expires_in)
    variables = {**made.environment, "HOLDFAST_SESSION": made.session_id}
    if wants_json():
        printed = {"session_id": made.session_id, "name": made.name, "expires_in": made.expires_in}
        output.say_json({"status": "started", **printed, "environment": variables})
        return
    for variable, value in variables.items():
        output.say(f"export {variable}={quoted(output.plain(value))}")
    if output.is_terminal():
        given = f" {quoted(name)}" if name else ""
        output.hint(output.plain(f'to use it: eval "$(holdfast session start{given})"'))


@session.command(short_help="End a session and every claim of it.")
@click.argument("session_id", metavar="[ID]", required=False)
@as_json
@asks_server
def end(*, session_id: str | None) -> None:
    """End the session ID, or that of HOLDFAST_SESSION, and every claim of it, in one step."""
    found = session_id or options.from_environment("HOLDFAST_SESSION")
    if not found:
        raise click.UsageError("there is no session here; name it, or see `holdfast session list`")
    with client() as server:
        server.end_session(found)
    if wants_json():
        output.say_json({"status": "ended", "session_id": found})
        return
    output.say(output.plain(f"session {found} is ended, and all that was claimed with it is free"))


@session.command("list")
@as_json
@asks_server
def list_sessions() -> None:
    """List your sessions."""
    with client() as server:
        found = server.sessions()
    if wants_json():
        output.say_json({"sessions": found})
        return
    if not found:
        output.hint("there is no session of yours; begin one with `holdfast session start`")
        return
    now = output.now()
    rows = [
        [
            each.session_id,
            each.name or "-",
            output.clock(each.expires_at, now),
            output.span((each.expires_at - now).total_seconds()),
            str(each.claims),
            output.metadata_words(each.metadata),
        ]
        for each in found
    ]
    output.say_table(["SESSION", "NAME", "UNTIL", "LEFT", "CLAIMS", "METADATA"], rows, folded=("NAME", "METADATA"))
