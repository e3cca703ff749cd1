"""`holdfast why`: the chain of owners and waits that keeps a job unavailable."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click
import msgspec

from holdfast.cli.shared import output, times
from holdfast.cli.shared.options import as_json, asks_server, client, names_job, wants_json
from holdfast.cli.shared.refusals import quoted


@click.command(short_help="Explain why a job is unavailable.")
@names_job
@as_json
@asks_server
def why(*, job: str) -> None:
    """Explain why JOB is unavailable.

    The output shows the owner of JOB, the job that this owner waits for, the owner of that job, and so on, and then the
    queue for JOB. A circle (deadlock) is marked: none of its owners can go on.
    """
    with client() as server:
        reply = server.why(job)
    if wants_json():
        output.say_json(reply)
        return
    shown: dict[str, Any] = msgspec.to_builtins(reply)
    now = times.now()
    chain = shown["chain"]
    for depth, link in enumerate(chain):
        _say_link(link, depth, now)
    if shown["circle"]:
        _say_cycle(chain)
    elif chain[-1]["waits_for"]:
        output.say("the chain goes on, but no more of it is shown")
    elif chain[-1]["status"] == "held" and len(chain) > 1:
        output.say(output.plain(f"everybody waits for {_who(chain[-1])}, who waits for nobody"))
    _say_queue(job, shown["waiting"], now)


def _say_link(link: dict[str, Any], depth: int, now: datetime) -> None:
    indent = "   " * depth
    arrow = f"{indent[3:]}└─ " if depth else ""
    name = click.style(output.plain(link["name"]), bold=True)
    if link["status"] != "held":
        free = {"free": "is free", "done": "is done", "closed": "is closed for a while after its last owner"}
        output.say(f"{arrow}{name} {free[link['status']]}")
        return
    since = times.since(datetime.fromisoformat(link["claimed_at"]), now)
    heartbeat = times.ago(datetime.fromisoformat(link["last_heartbeat_at"]), now)
    left = times.span(link["expires_in_ms"] / 1_000)
    status = f"is held by {_who(link)} since {since}, last heartbeat {heartbeat}, {left} left"
    output.say(f"{arrow}{name} {output.plain(status)}")
    if link["note"]:
        output.say(f"{indent}   note: {output.plain(link['note'])}")
    if link["waits_for"]:
        wanted = ", ".join(link["waits_for"])
        output.say(f"{indent}   {output.plain(_who(link))} waits for {output.plain(wanted)}")


def _who(holder: dict[str, Any]) -> str:
    return holder["owner"] or holder.get("shown_as") or "(no owner given)"


def _say_cycle(chain: list[dict[str, Any]]) -> None:
    # The last link closes it: its owner was in the chain before.
    first = next(position for position, link in enumerate(chain) if _same_holder(link, chain[-1]))
    names = [link["name"] for link in chain[first:]]
    if names[0] != names[-1]:
        names.append(names[0])
    text = click.style("CIRCLE", fg="red", bold=True)
    output.say(f"{text}: {output.plain(' -> '.join(names))}: nobody in it can go on by itself")
    output.hint(f"an operator can break it: holdfast revoke {quoted(chain[-1]['name'])} --reason '...'")


def _same_holder(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one["name"] == other["name"] or (one["owner"] is not None and one["owner"] == other["owner"])


def _say_queue(job: str, waiting: list[dict[str, Any]], now: datetime) -> None:
    if not waiting:
        output.say(output.plain(f"nobody stands in line for {job}"))
        return
    output.say(output.plain(f"in line for {job}:"))
    for position, each in enumerate(waiting, start=1):
        span = times.span((now - datetime.fromisoformat(each["since"])).total_seconds())
        away = "" if each["there"] else ", away at the moment"
        output.say(output.plain(f"{position:4}. {_who(each)} for {span}{away}"))
