"""`holdfast token`: make, list and revoke the tokens that callers show. Over HTTP, with a token of the scope admin."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from holdfast.cli.shared import output, times
from holdfast.cli.shared.options import Duration, InOrder, as_json, asks_server, client

SCOPES = ("read", "claim", "admin")


@click.group(cls=InOrder)
def token() -> None:
    """Make, list and revoke tokens.

    Your own token needs the scope admin for this.
    """


EXAMPLES = """\
\b
holdfast token create ci --scope read --expires 30d
(umask 077; holdfast token create agents --prefix agents/ > agents.token)
"""


@token.command(epilog=EXAMPLES)
@click.argument("name")
@click.option("--scope", "each", type=click.Choice(SCOPES), multiple=True, help="What it may do. Can be repeated.")
@click.option("--scopes", "joined", metavar="SCOPE+SCOPE", help="The same in one word, as in read+claim+admin.")
@click.option("--prefix", metavar="PREFIX", help="Confine it to names that start with PREFIX.")
@click.option("--expires", metavar="TIME", type=Duration(), help="Let it end after 90s, 15m, 12h, 30d or 2w.")
@as_json
@asks_server
def create(
    *,
    name: str,
    each: tuple[str, ...],
    joined: str | None,
    prefix: str | None,
    expires: int | None,
    json: bool,
    url: str | None,
    token_file: Path | None,
) -> None:
    """Make the token NAME and print it, once.

    Without --scope it may read and claim. Only the token goes to standard output.
    """
    with client(url, token_file) as server:
        made = server.create_token(name, scopes=_scopes(each, joined), prefix=prefix, expires_in_seconds=expires)
    if json:
        output.say_json(made)
        return
    output.say(output.plain(made.token))
    until = f" until {_clock(made.expires_at)}" if made.expires_at else ""
    output.hint(
        output.plain(
            f"{made.name} may {'+'.join(made.scopes)}{until}. This is the only time the token is shown:"
            " keep it in a file of mode 600 and name that file in HOLDFAST_TOKEN_FILE."
        )
    )


@token.command("list")
@as_json
@asks_server
def list_tokens(*, json: bool, url: str | None, token_file: Path | None) -> None:
    """List all tokens, without the tokens themselves."""
    with client(url, token_file) as server:
        known = server.list_tokens()
    if json:
        output.say_json({"tokens": known})
        return
    rows = [
        [
            each.name,
            "+".join(each.scopes),
            each.prefix or "-",
            _clock(each.expires_at) or "never",
            _clock(each.created_at) or "-",
            each.source,
        ]
        for each in known
    ]
    output.say_table(["NAME", "SCOPES", "PREFIX", "EXPIRES", "CREATED", "SOURCE"], rows, folded=("NAME", "PREFIX"))


@token.command()
@click.argument("name")
@as_json
@asks_server
def revoke(*, name: str, json: bool, url: str | None, token_file: Path | None) -> None:
    """Shut the token NAME out at once.

    What it holds lives on until its time is over.
    """
    with client(url, token_file) as server:
        server.revoke_token(name)
    if json:
        output.say_json({"status": "revoked", "name": name})
        return
    output.say(output.plain(f"{name} is revoked"))


def _clock(at: str | None) -> str | None:
    """Write a time of the server's as every command writes times."""
    return None if at is None else times.clock(datetime.fromisoformat(at), times.now())


def _scopes(each: tuple[str, ...], joined: str | None) -> list[str] | None:
    """Join both ways to name scopes; None where neither was used."""
    named = {*each, *(joined.split("+") if joined is not None else ())}
    if not named <= set(SCOPES):
        raise click.UsageError(
            f"--scopes {joined!r:.100} cannot be used; write it as {'+'.join(SCOPES)} or a part of it"
        )
    return [scope for scope in SCOPES if scope in named] or None
