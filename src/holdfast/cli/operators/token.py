"""`holdfast token`: make, list, revoke and rotate access tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from holdfast.cli.shared import output
from holdfast.cli.shared.options import Duration, InOrder, as_json, asks_server, client, report, wants_json

SCOPES = ("read", "claim", "admin")
NEVER = 0
"""The value of `--expires never`."""


@click.group(cls=InOrder)
def token() -> None:
    """Make, list, revoke and rotate access tokens.

    Your own access token needs the scope admin for this.
    """


EXAMPLES = """\
\b
holdfast token create ci --scope read --expires 30d
(umask 077; holdfast token create agents --prefix agents/ > agents.token)
"""


ROTATE_EXAMPLES = """\
\b
(umask 077; holdfast token rotate ci > ci.new && mv ci.new ci.token)
"""


@token.command(epilog=EXAMPLES)
@click.argument("name")
@click.option("--scope", "scopes", type=click.Choice(SCOPES), multiple=True, help="What it may do. Can be repeated.")
@click.option("--prefix", metavar="PREFIX", help="Confine it to names that start with PREFIX.")
@click.option("--expires", type=Duration(), help="Let it end after 90s, 15m, 12h, 30d or 2w.")
@as_json
@asks_server
def create(*, name: str, scopes: tuple[str, ...], prefix: str | None, expires: int | None) -> None:
    """Make the access token NAME and print it, once.

    Without --scope it may read and claim. Only the token goes to standard output.
    """
    with client() as server:
        made = server.create_token(
            name,
            scopes=[scope for scope in SCOPES if scope in scopes] or None,
            prefix=prefix,
            expires_in_seconds=expires,
        )
    _show(made)


class _OwnExpiry(Duration):
    """A time, or never."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return NEVER if value == "never" else super().convert(value, param, ctx)


def _show(made: Any) -> None:  # noqa: ANN401 - a reply of the server
    """Print the token, and nothing else to standard output."""
    report(made, made.token)
    if wants_json():
        return
    names = f"names that start with {made.prefix}" if made.prefix else "all names"
    until = f", until {_clock(made.expires_at)}" if made.expires_at else " and never expires"
    output.hint(
        f"{made.name} may {'+'.join(made.scopes)} {names}{until}. This is the only time the access token is shown:"
        " keep it in a file of mode 600 and name that file in HOLDFAST_TOKEN_FILE."
    )


@token.command("list")
@as_json
@asks_server
def list_tokens() -> None:
    """List the access tokens, without the secrets themselves.

    Those whose rights are wider than your own are not shown.
    """
    with client() as server:
        known = server.list_tokens()
    if wants_json():
        output.say_json({"tokens": known})
        return
    rows = [
        [
            each.name,
            "+".join(scope for scope in SCOPES if scope in each.scopes),
            each.prefix or "-",
            _clock(each.expires_at) or "never",
            _clock(each.created_at) or "-",
            _clock(each.last_used) or "never",
            each.source,
        ]
        for each in known
    ]
    heads = ["NAME", "SCOPES", "PREFIX", "EXPIRES", "CREATED", "LAST USED", "SOURCE"]
    output.say_table(heads, rows, folded=("NAME", "PREFIX"))


keeps_sessions = click.option(
    "--keep-sessions",
    is_flag=True,
    help="Leave its sessions to the next access token of that name. Their secrets are dead.",
)


@token.command()
@click.argument("name")
@keeps_sessions
@as_json
@asks_server
def revoke(*, name: str, keep_sessions: bool) -> None:
    """Shut the access token NAME out at once.

    Its sessions end, with all that is bound to them, and its places in lines. Its other claims live on until their time
    is over.
    """
    with client() as server:
        server.revoke_token(name, keep_sessions=keep_sessions)
    report({"status": "revoked", "name": name}, f"{name} is revoked")
    if keep_sessions and not wants_json():
        output.hint("Its places in lines have ended. Its sessions live on, and its claims until their time is over.")
    elif not wants_json():
        output.hint("Its sessions have ended, with all that was bound to them, and its places in lines. Its other")
        output.hint("claims live on until their time is over; to end one: holdfast revoke JOB")


@token.command(epilog=ROTATE_EXAMPLES)
@click.argument("name")
@keeps_sessions
@click.option(
    "--expires",
    type=_OwnExpiry(),
    help="Let the new one end after 90s, 15m, 12h, 30d or 2w, or never. Else it lives as long as the old one was to.",
)
@as_json
@asks_server
def rotate(*, name: str, keep_sessions: bool, expires: int | None) -> None:
    """Replace the access token NAME and print the new one, once.

    It has the same scopes, prefix and lifetime, counted from now. The old one is out at once, as if it were revoked.
    Only the token goes to standard output.
    """
    with client() as server:
        made = server.rotate_token(
            name, keep_sessions=keep_sessions, expires_in_seconds=expires or None, never_expires=expires == NEVER
        )
    _show(made)


def _clock(at: str | None) -> str | None:
    return None if at is None else output.clock(datetime.fromisoformat(at), output.now())
