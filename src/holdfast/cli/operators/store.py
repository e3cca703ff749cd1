"""`holdfast store`: set up a store that nodes share, or declare it restored from a backup."""

from __future__ import annotations

import os
import sys

import click

from holdfast.cli.shared import output
from holdfast.cli.shared.options import InOrder, as_json, wants_json

EXAMPLES = """\
\b
holdfast store init --store postgresql://holdfast@db/holdfast
holdfast store restored --store postgresql://holdfast@db/holdfast
"""

STORE = click.option(
    "--store", metavar="URL", help="The store, without its password; else HOLDFAST_STORE, else holdfast.toml."
)


@click.group(cls=InOrder, short_help="Set up a shared store, or declare it restored.", epilog=EXAMPLES)
def store() -> None:
    """Make a store that nodes share, or say that it was restored from a backup.

    A password goes into the file of PGPASSFILE (~/.pgpass) or into PGPASSWORD, never on a command line.
    """


@store.command(short_help="Make the tables and the authority.")
@STORE
@as_json
def init(*, store: str | None) -> int:
    """Make the tables, the authority and its key.

    The first node that starts on an empty store does that too. This is for who wants to see it done, or whose nodes
    may not make tables. What is there already is left as it is.
    """
    from holdfast.engine import migration
    from holdfast.journal.interface import JournalError

    address = migration.named(store, os.environ)
    try:
        authority, is_new = migration.init(address)
    except JournalError as error:
        return output.fail(error)
    if wants_json():
        output.say_json({"status": "made" if is_new else "there", "authority": authority, "store": address.shown})
    elif is_new:
        output.say(output.plain(f"{address.shown} is ready: authority {authority} in the schema {address.schema}"))
        output.hint(f"Now start the nodes: holdfast serve --store '{address.shown}'")
    else:
        output.say(output.plain(f"{address.shown} has an authority already: {authority}; nothing was changed"))
    return output.OK


@store.command(short_help="Say that it was restored from a backup.")
@STORE
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
def restored(*, store: str | None, yes: bool) -> int:
    """Say that the store was restored from a backup: the next leader lets fencing tokens jump.

    Nobody knows what was given out since the backup was made. So fencing tokens go on far beyond those that the store
    knows, and readers of /events are told to look anew. Stop all nodes before: while one leads, this is refused.
    """
    from holdfast.engine import migration
    from holdfast.journal.interface import JournalError

    address = migration.named(store, os.environ)
    if not yes and not _agrees(address.shown):
        return output.FAILED
    try:
        epoch = migration.restored(address)
    except JournalError as error:
        return output.fail(error)
    if wants_json():
        output.say_json({"status": "restored", "store": address.shown, "epoch": epoch})
        return output.OK
    output.say(output.plain(f"{address.shown}: fencing tokens jump when the next leader (epoch {epoch}) begins"))
    output.hint(f"Now start the nodes: holdfast serve --store '{address.shown}'")
    return output.OK


def _agrees(shown: str) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here; say --yes if the store was restored from a backup")
    text = f"{shown} was restored from a backup, and no node runs? Fencing tokens jump, which cannot be taken back"
    return click.confirm(output.plain(text), err=True)
