"""`holdfast nodes`: who leads, since when, and who follows; asked of any node, or of the store itself."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.cli.shared import output, times
from holdfast.cli.shared.options import as_json, asks_server, reach
from holdfast.errors import ServerError

SUCCESS = 200
NOW_MS = 5_000
"""Nodes tell of themselves every three seconds."""

EXAMPLES = """\
\b
holdfast nodes
holdfast nodes --json | jq -r .leader
holdfast nodes --store postgresql://holdfast@db/holdfast
"""


@click.command(short_help="Say which node leads, and which follow.", epilog=EXAMPLES)
@click.option("--store", metavar="URL", help="Ask this store, and no server.")
@as_json
@asks_server
def nodes(*, store: str | None, json: bool, url: str | None, token_file: Path | None) -> int:
    """Say which node leads and since when, in which epoch, and which other nodes the store has heard of.

    Any node answers. Your token needs the scope read. With --store the store itself is asked, also when no node runs.
    It ends with 0 if somebody leads, with 1 if nobody does, and with 69 if neither can be asked.
    """
    told = _from_server(url, token_file) if store is None else _from_store(store)
    if told is None:
        return output.UNREACHABLE
    if json:
        output.say_json(told)
    else:
        _say(told)
    return output.FAILED if told["leader"] is None else output.OK


def _from_server(url: str | None, token_file: Path | None) -> dict[str, Any]:
    from holdfast.cli.operators.probe import Probe

    with Probe(url, token_file, reach()) as server:
        answer = server.ask("/nodes")
        if answer.status != SUCCESS:
            server.refuse(answer)
    told = answer.json()
    if not isinstance(told, dict) or "nodes" not in told:
        raise ServerError(f"{server.url} says nothing of nodes: is it a Holdfast server?")
    return told


def _from_store(store: str) -> dict[str, Any] | None:
    from holdfast.engine import stores
    from holdfast.journal.base import JournalError
    from holdfast.server.handlers.nodes import reply_of

    try:
        seat, peers = stores.roster(stores.named(store, os.environ))
    except JournalError as error:
        output.complain(str(error))
        return None
    told: dict[str, Any] = msgspec.to_builtins(reply_of(seat, peers))
    return told


def _say(told: dict[str, Any]) -> None:
    now = times.now()
    if told["leader"] is None:
        output.say(f"nobody leads; the last epoch was {told['epoch']}", "yellow")
    else:
        since = times.since(datetime.fromisoformat(told["since"]), now)
        output.say(output.plain(f"{told['leader']} leads since {since}, epoch {told['epoch']}"))
    rows = [
        [each["name"], each["role"], each["url"] or "-", each["version"], _seen(each["seen_ms_ago"])]
        for each in told["nodes"]
    ]
    if rows:
        output.say_table(["NODE", "ROLE", "URL", "VERSION", "SEEN"], rows, folded=("URL",))


def _seen(ms: int) -> str:
    return "now" if ms < NOW_MS else f"{times.span(ms / 1_000)} ago"
