"""`holdfast session`: a run whose claims all end with it. What a run needs goes to its environment, never elsewhere."""

from __future__ import annotations

import click

from holdfast.cli.agents.session_exec import exec_, tell_shortened
from holdfast.cli.shared import output, times
from holdfast.cli.shared.options import (
    Duration,
    InOrder,
    as_json,
    asks_server,
    attaches,
    client,
    from_environment,
    metadata_of,
    wants_json,
)
from holdfast.cli.shared.refusals import quoted


@click.group(cls=InOrder, short_help="Begin, end and list runs whose claims end with them.")
def session() -> None:
    """Begin, end and list sessions: runs whose claims all end with them."""


EXAMPLES = """\
\b
eval "$(holdfast session start nightly-review)"
rlock github://acme/app/issues/42
holdfast session end
"""


session.add_command(exec_)


@session.command(epilog=EXAMPLES, short_help="Begin a session and print what a shell needs.")
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
    tell_shortened(ttl, made.expires_in)
    variables = {**made.environment, "HOLDFAST_SESSION": made.session_id}
    if wants_json():
        output.say_json(
            {
                "status": "started",
                "session_id": made.session_id,
                "name": made.name,
                "expires_in": made.expires_in,
                "environment": variables,
            }
        )
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
    found = session_id or from_environment("HOLDFAST_SESSION")
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
    now = times.now()
    rows = [
        [
            each.session_id,
            each.name or "-",
            times.clock(each.expires_at, now),
            times.span((each.expires_at - now).total_seconds()),
            str(each.claims),
            output.metadata_words(each.metadata),
        ]
        for each in found
    ]
    output.say_table(["SESSION", "NAME", "UNTIL", "LEFT", "CLAIMS", "METADATA"], rows, folded=("NAME", "METADATA"))
