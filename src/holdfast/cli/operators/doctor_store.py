"""`holdfast doctor --store`: what a store that nodes share shows, and a verdict on each thing.

It changes nothing: what it writes, to find out whether that can be done, it takes back. Every record is read, and every
value of the state, as of one instant and some at a time: nodes go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import msgspec

from holdfast.cli.shared import output, times

if TYPE_CHECKING:
    from holdfast.engine.stores import Facts, Place

ROUND_TRIP_MS_HIGH = 20.0
"""Every answer waits for one such way at least."""
SILENT_MS = 10_000
TAIL_BYTES_HIGH = 1024**3
DAMAGED = "stop all nodes, put a backup of the database in its place, then: holdfast store restored"


class Finding(msgspec.Struct, frozen=True):
    """How one thing is."""

    name: str
    status: Literal["ok", "warn", "FAIL"]
    text: str
    next: str | None = None


def store_checks(place: Place) -> list[Finding]:
    """Look at a store. One that cannot be asked is one finding."""
    from holdfast.engine import stores
    from holdfast.journal.base import JournalError

    try:
        facts, round_trip_ms = stores.facts(place)
    except JournalError as error:
        return [Finding("store", "FAIL", error.problem, ". ".join(error.ways) or None)]
    return [*_checks(facts, round_trip_ms, place), _journal(place)]


def _journal(place: Place) -> Finding:
    from holdfast.engine import stores
    from holdfast.journal.base import DeposedError, JournalError

    def tell(records: int) -> None:
        output.progress(f"{records} records read …")

    try:
        found = stores.contents(place, tell)
    except DeposedError:
        return Finding("journal", "warn", "another node took the seat while it was looked at", "ask again")
    except JournalError as error:
        return Finding("journal", "FAIL", f"not all of it can be read: {error.problem}", ". ".join(error.ways) or None)
    finally:
        output.progress("")
    if found.problem is not None:
        return Finding("journal", "FAIL", found.problem, DAMAGED)
    since = found.last_seq - found.archived_upto
    text = f"{found.records} records, all whole; the last is {found.last_seq}, and {since} are not archived yet"
    return Finding("journal", "ok", text)


def _checks(facts: Facts, round_trip_ms: float, place: Place) -> Iterator[Finding]:
    version = f"PostgreSQL {facts.server.version // 10_000}.{facts.server.version % 10_000}"
    yield Finding("store", "ok", f"{place.shown}, {version}, schema {place.schema}")
    yield _round_trip(round_trip_ms)
    yield _leader(facts)
    yield from _nodes(facts)
    yield _settings(facts)
    yield _pooler(facts)
    yield _replicas(facts)
    yield _marks(facts)
    yield _writes(facts)
    yield _space(facts)
    yield Finding("format", "ok", f"records of format {facts.seat.format}, tables of version {facts.schema_version}")


def _round_trip(ms: float) -> Finding:
    text = f"{ms:.1f} ms there and back"
    if ms > ROUND_TRIP_MS_HIGH:
        return Finding("round trip", "warn", text, "every answer waits for it: run nodes near to the database")
    return Finding("round trip", "ok", text)


def _leader(facts: Facts) -> Finding:
    seat = facts.seat
    running = ", ".join(sorted(peer.node for peer in facts.peers if peer.seen_ms_ago < SILENT_MS))
    hint = f"/readyz and the log of each that runs say why: {running}" if running else "start a node on it"
    if not seat.is_held:
        if seat.epoch == 0:
            return Finding("leader", "warn", "nobody has ever led", hint)
        return Finding("leader", "FAIL", f"nobody leads; the last epoch was {seat.epoch}", hint)
    now = times.now()
    who = f"{seat.node} at {seat.url} since {times.since(times.at_ms(seat.since_wall_ms), now)}, epoch {seat.epoch}"
    if facts.is_beating:
        return Finding("leader", "ok", who)
    return Finding("leader", "FAIL", f"{who}: it is silent, and nobody took over", hint)


def _nodes(facts: Facts) -> Iterator[Finding]:
    live = [peer for peer in facts.peers if peer.seen_ms_ago < SILENT_MS]
    silent = [peer for peer in facts.peers if peer.seen_ms_ago >= SILENT_MS]
    names = ", ".join(sorted(peer.node for peer in live)) or "none"
    if silent:
        gone = ", ".join(f"{peer.node} ({times.span(peer.seen_ms_ago / 1_000)})" for peer in silent)
        hint = "start them, or let them be: one that was silent for a day is forgotten"
        if facts.marks != facts.server.marks and not facts.wants_jump:
            hint = "they may run, and keep away from a store that went back in time: ask /readyz of each"
        yield Finding("nodes", "warn", f"heard of: {names}; silent: {gone}", hint)
    elif len(live) == 1:
        yield Finding("nodes", "warn", f"heard of: {names}", "start another one: now nobody could take over")
    else:
        yield Finding("nodes", "ok" if live else "warn", f"heard of: {names}")
    seat = facts.seat
    if facts.is_beating and any(peer.node == seat.node and peer.process != seat.process for peer in live):
        text = f"two processes call themselves {seat.node}: one leads, and another one told of itself"
        yield Finding("names", "FAIL", text, "give each node a name of its own (setting node_name)")
    if len({peer.tokens for peer in live}) > 1:
        text = "the nodes have different static access tokens"
        yield Finding("tokens", "FAIL", text, "give `tokens` and `tokens_file` the same content on each")
    elif live:
        yield Finding("tokens", "ok", "the nodes have the same static access tokens")
    if len(versions := sorted({peer.version for peer in live})) > 1:
        yield Finding("version", "warn", f"the nodes have {' and '.join(versions)}", "upgrade all: the leader last")


def _settings(facts: Facts) -> Finding:
    # What is not enough was refused when we connected.
    wanted = ("synchronous_commit", "fsync", "full_page_writes")
    return Finding("settings", "ok", ", ".join(f"{name} {facts.server.settings[name]}" for name in wanted))


def _pooler(facts: Facts) -> Finding:
    if facts.server.is_pooled:
        hint = "connect directly: a pooler drops what our sessions set, and nothing is promised behind it"
        return Finding("pooler", "warn", "something between us and the server moves statements between sessions", hint)
    return Finding("pooler", "ok", "none")


def _replicas(facts: Facts) -> Finding:
    hidden = sum(not each.state for each in facts.replicas)
    told = [f"{each.name} ({each.state}, {each.sync_state})" for each in facts.replicas if each.state]
    text = ", ".join(told) or ("none" if not hidden else f"{hidden} that this role may not see")
    if not facts.server.has_standby:
        hint = "a failover of the database may lose the newest answers: set synchronous_standby_names"
        return Finding("replicas", "warn", f"{text}; no commit waits for any", hint)
    if hidden:
        return Finding("replicas", "ok", f"{text}; commits wait for a synchronous one")
    if not any(each.sync_state in {"sync", "quorum"} for each in facts.replicas):
        return Finding("replicas", "FAIL", f"{text}; none is synchronous, so commits hang", "start the standby")
    return Finding("replicas", "ok", f"{text}; commits wait for a synchronous one")


def _marks(facts: Facts) -> Finding:
    times_so_far = "once" if facts.jumps == 1 else f"{facts.jumps} times"
    jumps = f", fencing tokens jumped {times_so_far} so far" if facts.jumps else ""
    text = f"timeline {facts.server.marks.timeline}{jumps}"
    if facts.wants_jump:
        return Finding("timeline", "ok", f"{text}; the next leader lets fencing tokens jump")
    if facts.marks == facts.server.marks:
        return Finding("timeline", "ok", f"{text}, as when the last record was written")
    changed = f"{text}: this is another server, timeline or copy than the last record was written on"
    if facts.seat.is_held and facts.is_beating:
        return Finding("timeline", "warn", changed, "the leader has not met it yet")
    if _is_promoted(facts):
        text = f"{text}: it was promoted since the last record, and that one waited for a synchronous standby"
        return Finding("timeline", "ok", text, "the next leader goes on, and lets fencing tokens jump")
    hint = "if it was restored from a backup: holdfast store restored; else the next leader decides, by after_loss"
    return Finding("timeline", "warn", changed, hint)


def _is_promoted(facts: Facts) -> bool:
    """Tell whether all but the timeline is as it was, and the last record was on a synchronous standby too."""
    as_before = msgspec.structs.replace(facts.marks, timeline=facts.server.marks.timeline)
    return facts.has_standby and as_before == facts.server.marks


def _writes(facts: Facts) -> Finding:
    if not facts.may_write:
        return Finding("writes", "warn", "none was tried: this role may not write", "ask with the role of the nodes")
    if facts.refusal is not None:
        hint = "make room if its disk is full; the nodes go on by themselves"
        return Finding("writes", "FAIL", f"the store refuses writes: {facts.refusal}", hint)
    return Finding("writes", "ok", "one was tried, and taken back")


def _space(facts: Facts) -> Finding:
    tail = f"{facts.tail_records} records ({output.size(facts.tail_bytes)}) are not archived yet"
    text = f"{output.size(facts.size_bytes)} in all; {tail}"
    if facts.tail_bytes > TAIL_BYTES_HIGH:
        return Finding("space", "warn", text, "the archive does not keep up: look at the leader's log")
    return Finding("space", "ok", text)
