"""`holdfast nodes`: the leader and the followers, as any node or the store itself knows them."""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.shared import output
from holdfast.cli.shared.options import ANSWER_SECONDS, as_json, asks_server, server_options, wants_json
from holdfast.errors import ServerError, Unreachable

if TYPE_CHECKING:
    from holdfast.cli.operators.probe import Probe

SUCCESS, UNAVAILABLE = 200, 503
NODE_SECONDS = 2.0
"""The timeout for what a node says of itself."""
NOW_MS = 5_000
"""Nodes report to the store every three seconds."""

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
def nodes(*, store: str | None) -> int:
    """Say which node leads and since when, in which epoch, and which other nodes the store has heard of.

    Any node answers. Your token needs the scope read. If none knows who leads, each says what it knows.
    With --store the store itself is asked, also when no node runs.
    It ends with 0 if somebody leads, with 2 if nobody does, and with 69 if neither can be asked.
    """
    reply = _from_server() if store is None else _from_store(store)
    if reply is None:
        return output.UNREACHABLE
    if wants_json():
        output.say_json(reply)
    else:
        _say(reply)
    return output.FAILED if reply["leader"] is None else output.OK


def _from_server() -> dict[str, Any]:
    """Return what the nodes know together; if none of them knows a leader, what each says of itself."""
    from holdfast.cli.operators.probe import Probe

    with Probe.find(server_options()) as server:
        answer, problem = None, None
        try:
            answer = server.ask("/nodes", ANSWER_SECONDS)
        except Unreachable as error:
            problem = error
        if answer is None or answer.status == UNAVAILABLE:
            with server.each() as nodes:
                rows = [_row_of(node) for node in nodes]
            if problem and all(row["role"] == "silent" for row in rows):
                raise problem
            return {"leader": None, "epoch": None, "since": None, "authority": None, "nodes": rows}
        if answer.status != SUCCESS:
            server.refuse(answer)
        reply = answer.json()
        if not isinstance(reply, dict) or "nodes" not in reply:
            raise ServerError(f"{server.url} says nothing of nodes: is it a Holdfast server?")
        return reply


def _row_of(node: Probe) -> dict[str, Any]:
    row: dict[str, Any] = {"name": "-", "role": "silent", "url": node.url, "version": None, "seen_ms_ago": None}
    try:
        answer = node.ask("/readyz", NODE_SECONDS)
    except Unreachable as error:
        return row | {"details": f"no answer: {error.problem}"}
    reply = answer.json()
    details = reply.get("details") if isinstance(reply, dict) else None
    name = answer.headers.get("Holdfast-Node") or "-"
    return row | {
        "name": name,
        "role": "follower",
        "seen_ms_ago": 0,
        "details": details if details and isinstance(details, str) else f"it answers {answer.status}",
    }


def _from_store(store: str) -> dict[str, Any] | None:
    from holdfast.api.handlers.health import reply_of
    from holdfast.engine import migration
    from holdfast.journal.interface import JournalError

    try:
        leadership, peers = migration.roster(migration.named(store, os.environ))
    except JournalError as error:
        output.complain(error.in_one_line)
        return None
    reply: dict[str, Any] = msgspec.to_builtins(reply_of(leadership, peers))
    return reply


def _say(reply: dict[str, Any]) -> None:
    now = output.now()
    if reply["epoch"] is None:
        output.say("no node that was asked knows of a leader", "yellow")
        rows = [[each["name"], each["url"], each["details"]] for each in reply["nodes"]]
        output.say_table(["NODE", "URL", "SAYS"], rows, folded=("SAYS",))
        output.hint("the store itself can be asked: holdfast nodes --store URL, and holdfast doctor --store URL")
        return
    if reply["leader"] is None:
        output.say(f"nobody leads; the last epoch was {reply['epoch']}", "yellow")
    else:
        since = output.since(datetime.fromisoformat(reply["since"]), now)
        output.say(output.plain(f"{reply['leader']} leads since {since}, epoch {reply['epoch']}"))
    rows = [
        [each["name"], each["role"], each["url"] or "-", each["version"], _seen(each["seen_ms_ago"])]
        for each in reply["nodes"]
    ]
    if rows:
        output.say_table(["NODE", "ROLE", "URL", "VERSION", "SEEN"], rows, folded=("URL",))


def _seen(ms: int) -> str:
    return "now" if ms < NOW_MS else f"{output.span(ms / 1_000)} ago"
