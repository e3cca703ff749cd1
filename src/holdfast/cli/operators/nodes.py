"""`holdfast nodes`: who leads, since when, and who follows; asked of any node, or of the store itself."""

from __future__ import annotations

import os
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.shared import output, times
from holdfast.cli.shared.options import as_json, asks_server, reach, wants_json
from holdfast.errors import ServerError, Unreachable

if TYPE_CHECKING:
    from holdfast.cli.operators.probe import Probe

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


class _Said(msgspec.Struct, frozen=True):
    """What a node says of itself."""

    name: str
    details: str
    is_there: bool
    can_tell: bool
    """Whether it may know who leads: it does itself, or it has a link to the one who does."""


@click.command(short_help="Say which node leads, and which follow.", epilog=EXAMPLES)
@click.option("--store", metavar="URL", help="Ask this store, and no server.")
@as_json
@asks_server
def nodes(*, store: str | None) -> int:
    """Say which node leads and since when, in which epoch, and which other nodes the store has heard of.

    Any node answers. Your token needs the scope read. If none knows who leads, each says what it knows.
    With --store the store itself is asked, also when no node runs.
    It ends with 0 if somebody leads, with 1 if nobody does, and with 69 if neither can be asked.
    """
    told = _from_server() if store is None else _from_store(store)
    if told is None:
        return output.UNREACHABLE
    if wants_json():
        output.say_json(told)
    else:
        _say(told)
    return output.FAILED if told["leader"] is None else output.OK


def _from_server() -> dict[str, Any]:
    """Ask until a node tells who leads, for longer than a takeover takes. Else return what each says of itself."""
    from holdfast.cli.operators.probe import Probe

    began_ms = times.monotonic_ms()
    with Probe.find(reach()) as server, server.each() as nodes:
        while True:
            said = [_how_it_is(node) for node in nodes]
            for node, each in zip(nodes, said, strict=True):
                if each.can_tell and (told := _told_by(node)) is not None:
                    return told
            if not any(each.is_there for each in said):
                server.ask("/nodes")  # It raises that nobody is there, in the words of all commands.
            if times.monotonic_ms() - began_ms >= TAKEOVER_MS:
                break
            time.sleep(AGAIN_SECONDS)
    rows = [
        {
            "name": each.name,
            "role": "follower" if each.is_there else "silent",
            "url": node.url,
            "version": None,
            "seen_ms_ago": 0 if each.is_there else None,
            "details": each.details,
        }
        for node, each in zip(nodes, said, strict=True)
    ]
    return {"leader": None, "epoch": None, "since": None, "authority": None, "nodes": rows}


def _told_by(node: Probe) -> dict[str, Any] | None:
    """Ask one node for all of them. None if it cannot tell now: it finds no leader, or that one asks its store in vain.

    Raises what any other refusal means.
    """
    try:
        answer = node.ask("/nodes", NODE_SECONDS)
    except Unreachable:
        return None
    if answer.status == NOT_READY:
        return None
    if answer.status != SUCCESS:
        node.refuse(answer)
    told = answer.json()
    if not isinstance(told, dict) or "nodes" not in told:
        raise ServerError(f"{node.url} says nothing of nodes: is it a Holdfast server?")
    return told


def _how_it_is(node: Probe) -> _Said:
    """Ask a node how it is. One that knows of no leader would let a question about all nodes wait."""
    try:
        answer = node.ask("/readyz", NODE_SECONDS)
        if answer.status == NOT_READY:
            answer = node.ask("/health/leader", NODE_SECONDS)
    except Unreachable as error:
        return _Said("-", f"no answer: {error.problem}", is_there=False, can_tell=False)
    told = answer.json()
    details = told.get("details") if isinstance(told, dict) else None
    name = answer.headers.get("Holdfast-Node") or "-"
    if not isinstance(details, str):
        return _Said(name, f"it answers {answer.status}", is_there=True, can_tell=True)
    can_tell = answer.status != NOT_READY or node.leads(details)
    return _Said(name, details, is_there=True, can_tell=can_tell)


def _from_store(store: str) -> dict[str, Any] | None:
    from holdfast.engine import stores
    from holdfast.journal.base import JournalError
    from holdfast.server.handlers.health import reply_of

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
