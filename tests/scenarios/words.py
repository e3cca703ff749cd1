"""How scenarios are written: times, options, and every answer, record and look of the core in words."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from holdfast.core import outcomes
from holdfast.core import outcomes as answers
from holdfast.core.events import DoneExpired, Ended, Event, Forgotten, Left, SessionEnded, UsageEvicted
from holdfast.core.state import EMPTY
from holdfast.core.values import EndedSession

if TYPE_CHECKING:
    from holdfast.core.deadlock import Chain
    from holdfast.core.outcomes import Answer, Refusal
    from holdfast.core.state import State
    from holdfast.core.values import Done, LastEnd, Lease

WALL_MS = 1_700_000_000_000
"""The wall time at which every script begins. Answers show wall times as the time since then."""

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}

Fields = dict[str, str | int | None]


def read_options(words: tuple[str, ...], *allowed: str) -> dict[str, str]:
    """Read `name=value` words; a bare word is a flag."""
    options: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in allowed:
            raise ValueError(f"{name!r} is none of {', '.join(sorted(allowed))}")
        options[name] = value if equals else "yes"
    return options


def read_labels(text: str) -> dict[str, str]:
    """Read `key:value,key:value`."""
    pairs = (pair.partition(":") for pair in text.split(","))
    return {key: value for key, _, value in pairs}


def read_ms(text: str) -> int:
    """Read a time."""
    found = re.fullmatch(r"(-?\d+)(ms|s|m|h)", text)
    if found is None:
        raise ValueError(f"{text!r} is no time: 250ms, 10s, 5m, 2h")
    return int(found[1]) * _UNIT_MS[found[2]]


def time(ms: int) -> str:
    """Write a time."""
    return f"{ms}ms" if ms % 1_000 else f"{ms // 1_000}s"


def words(verb: str, fields: Fields) -> str:
    """Write an answer. What is none, empty or zero is left out; a flag is a bare word."""
    said = [
        name if value == "yes" else f"{name}={shlex.quote(str(value))}"
        for name, value in fields.items()
        if value not in {None, 0, "0s"}
    ]
    return " ".join([verb, *said])


def answer(said: Answer | Refusal) -> str:
    """Write what the core answered."""
    match said:
        case answers.Acquired():
            return _acquired("reacquired" if said.reacquired else "granted", said)
        case answers.AcquiredMany(claims=claims):
            return "granted " + ", ".join(_acquired(name, claim) for name, claim in claims)
        case answers.Waiting(ticket_id=ticket_id, position=position):
            return words(f"waiting {ticket_id}", {"position": position})
        case answers.Extended(until_ms=until_ms):
            return words("renewed", {"until": time(until_ms)})
        case answers.SessionOpen(session=session):
            return words(f"open {session.session_id}", {"until": time(session.until_ms), "renewed": said.renewed})
        case answers.Released() | answers.SessionOver() | answers.TokenMade() | answers.TokenGone():
            return "ok"
        case answers.OpenAgain() | answers.Withdrawn() | answers.HandedOver():
            return "ok"
        case _:
            return _refusal(said)


def _refusal(said: Answer | Refusal) -> str:
    match said:
        case outcomes.Held() | outcomes.Delayed():
            return _obstacle(said)
        case outcomes.AllHeld(names=names, retry_after_ms=retry_after_ms):
            busy = ", ".join(f"{name} {_obstacle(obstacle)}" for name, obstacle in names)
            return f"all-held {busy}, retry={time(retry_after_ms)}"
        case outcomes.Finished(name=name, done=done):
            return words(f"done {name}", finished(done))
        case outcomes.Deadlock(path=path, own=own):
            since_ms = 0 if own is None else own.granted_wall_ms - WALL_MS
            return words(f"deadlock {' '.join(path)}", {"own-since": time(since_ms) if since_ms else None})
        case outcomes.NotCurrent():
            return _not_current(said)
        case outcomes.TooManyLeases() | outcomes.TooManySessions() | outcomes.TooManyTokens():
            return words(kebab(said), {"limit": said.limit})
        case outcomes.TooManyTickets() | outcomes.QueueFull() | outcomes.DeadlockSearchExceeded():
            return words(kebab(said), {"limit": said.limit})
        case outcomes.BadTtl(max_ms=max_ms):
            return f"bad-ttl max={time(max_ms)}"
        case outcomes.BadField(text=text) | outcomes.BadName(text=text) | outcomes.QuotaExceeded(text=text):
            return f"{kebab(said)} {text}"
        case _:
            return kebab(said)


def event(happened: Event) -> str | None:
    """Write a record that fell due; None for what is told by its answer alone."""
    match happened:
        case Ended():
            return f"{happened.how} {happened.name}"
        case SessionEnded(session_id=session_id, how=how, leases=leases):
            return " ".join([f"session-{how} {session_id}", *(ended.name for ended in leases)])
        case Forgotten():
            return words("forgotten", {"remembered": happened.remembered})
        case UsageEvicted():
            parts: Fields = {"remembered": _accounts(happened.remembered), "names": _accounts(happened.names)}
            return words("forgotten", parts)
        case DoneExpired(names=names):
            return f"faded {' '.join(names)}"
        case Left(how="gone", ticket_id=ticket_id):
            return f"gone {ticket_id}"
        case _:
            return None


def _accounts(parts: tuple[tuple[str, str | None, int], ...]) -> str | None:
    """Write of whom how many were dropped or looked at: `ana:2,ana/s1:1`."""
    return (
        ",".join(f"{who if session is None else f'{who}/{session}'}:{count}" for who, session, count in parts) or None
    )


def chain(waits: Chain) -> str:
    """Write whom a name waits for, link by link."""
    links: list[str] = []
    for link in waits.links:
        lease = link.slot.lease
        if lease is None:
            links.append(f"{link.name} free")
        else:
            links.append(words(f"{link.name} held", {"by": lease.owner, "waits": ",".join(link.waits_for) or None}))
    return "; ".join([*links, *(["cycle"] if waits.is_cycle else [])])


def shown(state: State, name: str, now_ms: int) -> str:
    """Write what anybody may see of a name, and who stands in its line."""
    slot = state.slots.get(name, EMPTY)
    line = [each if each in state.connected.attached else f"{each}/away" for each in state.index.queues.get(name, ())]
    waiting: Fields = {"line": ",".join(line) or None}
    lease = slot.lease
    if lease is not None:
        fields = {"token": lease.token, **lease_words(lease, state.until_of(lease)), "session": lease.session}
        return words("held", {**fields, "attempts": attempts(slot.attempts), **waiting})
    left: Fields = {"attempts": slot.attempts, **previous(slot.last_end), **waiting}
    if slot.done is not None and slot.done.until_ms > now_ms:
        return words("done", {**finished(slot.done), **left})
    if slot.closed_until_ms > now_ms:
        return words("closed", {"until": time(slot.closed_until_ms), **left})
    return words("free", left)


def shown_session(state: State, session_id: str) -> str:
    """Write what is known of a session."""
    session = state.sessions.get(session_id)
    ended = state.remembered.get(session_id)
    if session is not None:
        count = len(state.index.names_by_session.get(session_id, ()))
        fields: Fields = {"ttl": time(session.ttl_ms), "until": time(session.until_ms), "leases": count}
        return words("open", {**fields, "name": session.name, "metadata": session.metadata})
    if isinstance(ended, EndedSession):
        return words(ended.how, {"at": time(ended.at_ms)})
    return "no-session"


def lease_words(lease: Lease, until_ms: int) -> Fields:
    """What anybody may know of a live lease (C2)."""
    heartbeat_ms = lease.beat_wall_ms - WALL_MS
    since_ms = lease.granted_wall_ms - WALL_MS
    return {
        "by": lease.owner,
        "until": time(until_ms),
        "since": time(since_ms),
        "beat": time(heartbeat_ms) if heartbeat_ms != since_ms else None,
        "note": lease.note,
        "metadata": lease.metadata,
        "labels": None if lease.labels is None else ",".join(f"{key}:{value}" for key, value in lease.labels.items()),
    }


def previous(end: LastEnd | None) -> Fields:
    """What a successor is told (C7)."""
    if end is None:
        return {}
    return {"previous": _who_and_how(end), "previous-note": end.note}


def finished(done: Done) -> Fields:
    """What is told of finished work (L5)."""
    at = time(done.wall_ms - WALL_MS)
    return {"by": done.owner, "token": done.token, "at": at, "until": time(done.until_ms), "result": done.result}


def attempts(count: int) -> int | None:
    """One attempt goes without saying."""
    return count if count > 1 else None


def kebab(thing: object) -> str:
    """Write the name of a thing's kind."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", type(thing).__name__).lower()


def _acquired(verb: str, claim: answers.Acquired) -> str:
    fields: Fields = {"token": claim.lease.token, "until": time(claim.until_ms), "attempts": attempts(claim.attempts)}
    return words(verb, {**fields, **previous(claim.previous)})


def _obstacle(obstacle: outcomes.Held | outcomes.Delayed) -> str:
    if isinstance(obstacle, outcomes.Delayed):
        return words("closed", {"until": time(obstacle.until_ms), **previous(obstacle.end)})
    same_owner = "yes" if obstacle.same_owner else None
    return words("held", {**lease_words(obstacle.lease, obstacle.until_ms), "same-owner": same_owner})


def _who_and_how(end: LastEnd) -> str:
    return "/".join([end.owner or "-", end.how, *([end.reason] if end.reason else [])])


def _not_current(said: outcomes.NotCurrent) -> str:
    fields: Fields = {"succeeded": "yes" if said.succeeded else None}
    if said.ended is not None:
        end = said.ended.end
        by = end.by if end.how == "revoked" else None
        fields |= {"ended": _who_and_how(end), "at": time(end.at_ms), "note": end.note, "by": by}
    return words("not-current", fields)
