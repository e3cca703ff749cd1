"""`holdfast watch` and `holdfast history`: events as they happen, and those of one job."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.shared import completion, options, output
from holdfast.cli.shared.options import as_json, asks_server, client, names_job, wants_json
from holdfast.cli.shared.refusals import quoted

if TYPE_CHECKING:
    from holdfast import JobEvent

LIMIT = 100
COLOURS = {
    "granted": "green",
    "transferred": "green",
    "done": "cyan",
    "expired": "red",
    "revoked": "red",
    "session_ended": "yellow",
}


@click.command(short_help="Follow everything that happens.")
@click.argument("prefix", required=False, shell_complete=completion.claimed_jobs)
@click.option("--after", metavar="N", type=click.IntRange(0), help="Begin after event N instead of now.")
@options.labels("Only what has this label; of several, all of them.")
@options.as_json
@options.asks_server
def watch(*, prefix: str | None, after: int | None, labels: tuple[str, ...]) -> None:
    """Print what happens to all jobs, or to those that begin with PREFIX, one line each, until Ctrl-C.

    It goes on through restarts of the server: nothing is missing and nothing comes twice. That the server is away is
    said on standard error. Renewals are not told. With --json each line is an object.
    """
    if prefix is not None and any(char.isspace() for char in prefix):
        raise click.UsageError(f"no job has a blank in its name, so nothing begins with {prefix!r:.200}")
    with options.client() as server:
        for event in server.events(prefix, labels=options.labels_of(labels), after=after, on_away=_say_away):
            if options.wants_json():
                output.say_json_line(event)
            else:
                _say(event)


@click.command(short_help="Say what happened to a job.")
@options.names_job
@click.option("--limit", metavar="N", type=click.IntRange(1), default=LIMIT, help="At most so many [100].")
@click.option("--owner", metavar="NAME", help="Only what concerns NAME.")
@click.option("--since", type=options.PastTime(), help="Not before: 02:14, 2026-11-15T02:14:00Z, or 2h (ago).")
@click.option("--until", type=options.PastTime(), help="Not after.")
@options.as_json
@options.asks_server
def history(*, job: str, limit: int, owner: str | None, since: str | None, until: str | None) -> None:
    """Say what happened to JOB, newest first."""
    with options.client() as server:
        # One more than is shown tells whether there is more.
        known = server.history(job, limit=limit + 1, owner=owner, since=since, until=until)
    found = known[:limit]
    if options.wants_json():
        output.say_json({"history": found})
    elif found:
        now = output.now()
        heads = ["WHEN", "AGO", "EVENT", "OWNER", "FENCING TOKEN", "BY", "REASON"]
        output.say_table(heads, [_row(each, now) for each in found], folded=("OWNER", "BY", "REASON"))
    else:
        like_this = " that is like this" if owner or since or until else ""
        output.hint(f"nothing is known of {job}{like_this}, or it is no longer kept")
    if len(known) > limit and not options.wants_json():
        output.hint(f"there is more: these are the newest {limit}; see more of them with --limit")


def _say_away(why: str | None) -> None:
    output.complain("the server is back" if why is None else f"the server is away ({why}); trying until it is back")


def _row(event: JobEvent, now: datetime) -> list[str]:
    when, age = ("-", "-") if event.at is None else (output.clock(event.at, now), output.ago(event.at, now))
    token = "-" if event.fencing_token is None else str(event.fencing_token)
    return [when, age, event.event, event.shown_as or "-", token, event.by or "-", event.reason or ""]


def _say(event: JobEvent) -> None:
    if event.at is None:
        output.hint(f"some events before {event.seq} are no longer kept; see what is claimed with `holdfast jobs`")
        return
    when = output.clock(event.at, output.now())
    word = click.style(f"{output.plain(event.event):13}", fg=COLOURS.get(event.event))
    rest = event.job_id
    if event.shown_as:
        rest += f"  {event.shown_as}"
    if event.fencing_token is not None:
        rest += f"  fencing token {event.fencing_token}"
    if event.by:
        rest += f"  by {event.by}"
    if event.reason:
        rest += f": {event.reason}"
    output.say(f"{when}  {word} {output.plain(rest)}")


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
    now = output.now()
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
    since = output.since(datetime.fromisoformat(link["claimed_at"]), now)
    heartbeat = output.ago(datetime.fromisoformat(link["last_heartbeat_at"]), now)
    left = output.span(link["expires_in_ms"] / 1_000)
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
        span = output.span((now - datetime.fromisoformat(each["since"])).total_seconds())
        away = "" if each["there"] else ", away at the moment"
        output.say(output.plain(f"{position:4}. {_who(each)} for {span}{away}"))
