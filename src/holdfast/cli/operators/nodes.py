"""`holdfast nodes`: who leads, since when, and who follows; asked of any node, or of the store itself."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.cli.shared import output, times
from holdfast.cli.shared.options import as_json, asks_server, reach
from holdfast.errors import ServerError

SUCCESS, NOT_READY = 200, 503
NODE_SECONDS = 2.0
"""How long a node is waited for that only tells of itself."""
TAKEOVER_MS, AGAIN_SECONDS = 3_000, 0.25
"""For how long nodes that know of no leader are asked again, and how often: a takeover takes less."""
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

    Any node answers. Your token needs the scope read. If none knows who leads, each says what it knows.
    With --store the store itself is asked, also when no node runs.
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
        followers_of_nobody = _until_one_can_tell(server.url.split(","), token_file)
        if followers_of_nobody:
            return {"leader": None, "epoch": None, "since": None, "authority": None, "nodes": followers_of_nobody}
        answer = server.ask("/nodes")
        if answer.status != SUCCESS:
            server.refuse(answer)
    told = answer.json()
    if not isinstance(told, dict) or "nodes" not in told:
        raise ServerError(f"{server.url} says nothing of nodes: is it a Holdfast server?")
    return told


def _until_one_can_tell(urls: list[str], token_file: Path | None) -> list[dict[str, Any]]:
    """Return what each node says of itself if none of them knows who leads, for longer than a takeover takes.

    Empty if one can tell, or none can be reached. A question about all nodes would wait in each of them for a leader.
    """
    began_ms = times.monotonic_ms()
    while True:
        said: list[dict[str, Any]] = []
        for url in urls:
            found = _how_it_is(url, token_file)
            if found is not None and "details" not in found:
                return []
            if found is not None:
                said.append(found)
        if not said or times.monotonic_ms() - began_ms >= TAKEOVER_MS:
            return said
        time.sleep(AGAIN_SECONDS)


def _how_it_is(url: str, token_file: Path | None) -> dict[str, Any] | None:
    """Ask a node how it is: with `details` if it knows of no leader. None if it cannot be reached."""
    from holdfast.cli.operators.probe import Probe
    from holdfast.errors import Unreachable

    can_tell: dict[str, Any] = {"url": url}
    with Probe(url, token_file, reach()) as node:
        try:
            if node.ask("/readyz", NODE_SECONDS).status != NOT_READY:
                return can_tell
            answer = node.ask("/health/leader", NODE_SECONDS)
        except Unreachable:
            return None
        told = answer.json() if answer.status == NOT_READY else None
    details = told.get("details") if isinstance(told, dict) else None
    if not isinstance(details, str) or details.startswith("this node leads"):
        return can_tell
    name = answer.headers.get("Holdfast-Node") or "-"
    return {"name": name, "role": "follower", "url": url, "version": None, "seen_ms_ago": 0, "details": details}


def _from_store(store: str) -> dict[str, Any] | None:
    from holdfast.engine import stores
    from holdfast.journal.base import JournalError
    from holdfast.server.handlers.nodes import reply_of

    try:
        seat, peers = stores.roster(stores.named(store, os.environ))
    except JournalError as error:
        output.complain(error.in_one_line)
        return None
    told: dict[str, Any] = msgspec.to_builtins(reply_of(seat, peers))
    return told


def _say(told: dict[str, Any]) -> None:
    now = times.now()
    if told["epoch"] is None:
        _say_nobody_is_known(told["nodes"])
        return
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


def _say_nobody_is_known(nodes: list[dict[str, Any]]) -> None:
    """Say what each node said that was asked, and who knows more."""
    output.say("no node that was asked knows of a leader", "yellow")
    rows = [[output.plain(each["name"]), each["url"], output.plain(each["details"])] for each in nodes]
    output.say_table(["NODE", "URL", "SAYS"], rows, folded=("SAYS",))
    output.hint("the store itself can be asked: holdfast nodes --store URL, and holdfast doctor --store URL")


def _seen(ms: int) -> str:
    return "now" if ms < NOW_MS else f"{times.span(ms / 1_000)} ago"
