"""`holdfast move`: a data directory into a store that nodes share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.cli.shared import output
from holdfast.cli.shared.options import as_json, wants_json

if TYPE_CHECKING:
    from holdfast.engine.migration import Moved

EXAMPLES = """\
\b
holdfast move --from /var/lib/holdfast --to postgresql://holdfast@db/holdfast
"""


@click.command(short_help="Move a data directory into a store.", epilog=EXAMPLES)
@click.option(
    "--from",
    "directory",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The data directory of a stopped server.",
)
@click.option("--to", metavar="URL", help="The store, without its password; else HOLDFAST_STORE, else holdfast.toml.")
@as_json
def move(*, directory: Path, to: str | None) -> int:
    """Move all that the data directory DIR holds into an empty store, for nodes to start on.

    Leases, lines, sessions, access tokens, keys, history and the server's own key go with it, and fencing tokens go on
    where they were. Stop the server first. DIR is left as it is, but no server starts on it any more. If the move is
    interrupted, run it again: it finds out whether DIR or the store counts.
    """
    import asyncio

    from holdfast.api.auth.secrets import KEY_BYTES, KEY_FILE
    from holdfast.engine import ids, migration
    from holdfast.engine.migration import move as write
    from holdfast.journal.failpoints import arm
    from holdfast.journal.interface import JournalError
    from holdfast.privatefiles import NotOursError, reason_of

    arm(os.environ)
    address = migration.named(to, os.environ)
    try:
        key = _key_of(directory / KEY_FILE, KEY_BYTES)
        moved = asyncio.run(
            write(
                directory,
                migration.filled(address),
                to=address.shown,
                schema=address.schema,
                key=key,
                witnesses=(KEY_FILE,),
                authority=ids.new_secret(16).hex(),
                wall_ms=output.wall_ms(output.now()),
                tell=lambda text: output.progress(f"{text} …"),
            )
        )
    except (JournalError, NotOursError) as error:
        return output.fail(error)
    except OSError as error:
        return output.fail(JournalError(f"{directory}: {reason_of(error)}"))
    output.progress("")
    _say_moved(moved, directory, address.shown)
    return output.OK


def _key_of(file: Path, size_bytes: int) -> bytes:
    from holdfast.journal.interface import JournalError
    from holdfast.privatefiles import read_ours

    try:
        return read_ours(file, size_bytes)
    except FileNotFoundError:
        raise JournalError(
            f"{file} is missing: this is no data directory, or no server finished its first start on it",
            "Name the directory that the server was started with",
        ) from None


def _say_moved(moved: Moved, directory: Path, to: str) -> None:
    if wants_json():
        output.say_json({"status": "moved", "from": str(directory), "to": to, **msgspec.structs.asdict(moved)})
        return
    if moved.was_done:
        output.say(output.plain(f"{directory} was moved to {to} already; now the directory knows it too"))
    else:
        output.say(
            output.plain(f"{directory} is moved to {to}: {moved.records} records of history, read back and compared")
        )
        output.say_fields(
            [
                ("fencing tokens", f"go on after {moved.last_token}"),
                ("leases", f"{moved.leases} live on: their time stood still"),
                ("sessions", f"{moved.sessions}, with the secrets that they had"),
                ("access tokens", str(moved.tokens)),
                ("in line", str(moved.waiting)),
            ]
        )
    output.hint(f"No server starts on {directory} any more.")
    output.hint(f"Now start the nodes: holdfast serve --store '{to}'")
