"""Scenarios: scripts that a person can read. Each line is a command, an arrow and the full answer of the core.

    acquire job/7 by=ana ttl=10s      -> granted token=1 until=10s
    acquire job/7 by=ben ttl=10s      -> held by=ana until=10s
    advance 10s                       -> expired job/7
    acquire job/7 by=ben ttl=10s      -> granted token=2 until=20s attempts=2 previous=ana/expired
    renew   job/7 token=1 ttl=10s     -> not-current succeeded ended=ana/expired at=10s

Time is virtual and starts at zero. A session is called s1, s2, … in the order of opening, and a lease is named by its
fencing token. Everybody shares one bearer token (the principal `main`) unless the line says otherwise. What an answer
does not say is none, no or zero (`attempts`: one), so nothing can change unseen. A line without an arrow may answer
anything, and `#` opens a remark.

    acquire NAME [by=OWNER ttl=T metadata=TEXT session=S bound resume delay=T]
    renew NAME token=N [ttl=T note=TEXT metadata=TEXT]          without ttl: the lease's own
    release NAME token=N [failed]
    session open [ttl=T name=TEXT metadata=TEXT] · session keep|renew|end|show S
    token create NAME · token revoke NAME
    show NAME                  what anybody may see of a name
    advance T                  let time pass; the answer is every record that fell due
    restart                    read the journal anew; what comes of it must be what was there
    limits FIELD=VALUE …       other limits from here on

Every command but the last four also takes principal=P (who asks), via=S (with which session's secret) and key=K (the
idempotency key), where the core knows them.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import asdict, replace

from holdfast.core import answers, refusals
from holdfast.core.commands import (
    Acquire,
    Command,
    CreateToken,
    EndSession,
    KeepSession,
    OpenSession,
    Release,
    Renew,
    RenewSession,
    RevokeToken,
)
from holdfast.core.decide import decide, settle
from holdfast.core.events import Ended, Event, Forgotten, Record, SessionEnded
from holdfast.core.state import EMPTY, State, evolve
from holdfast.core.values import EndedSession, LastEnd, Lease, Limits, Moment

if TYPE_CHECKING:
    from holdfast.core.answers import Answer
    from holdfast.core.refusals import Refusal

__all__ = ["Played", "ScenarioError", "Step", "durable", "fingerprint", "play", "replay"]

WALL_MS = 1_700_000_000_000
"""The wall time at which every script begins. Answers show wall times as the time since then."""

TTL = "60s"
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_WHO = ("principal", "key")
_ACQUIRE = (*_WHO, "via", "by", "ttl", "metadata", "session", "bound", "resume", "delay")
_RENEW = (*_WHO, "via", "token", "ttl", "note", "metadata")
_RELEASE = (*_WHO, "via", "token", "failed")
_SESSION = (*_WHO, "ttl", "name", "metadata")
_REMARK = re.compile(r"(^|\s)#.*$")

Fields = dict[str, str | int | None]


class ScenarioError(AssertionError):
    """A line of a script was not answered as it says, or cannot be read."""


class Step(msgspec.Struct, frozen=True):
    """One played line: its number, what it asks, what it wants to hear (None: anything) and what it heard."""

    line: int
    words: tuple[str, ...]
    wanted: str | None
    got: str = ""


class Played(msgspec.Struct, frozen=True):
    """A script that went well: every line with its answer, every record it made, and the state it led to."""

    steps: tuple[Step, ...]
    records: tuple[Record, ...]
    state: State


def play(text: str, name: str = "scenario") -> Played:
    """Play a script to its end, or raise `ScenarioError` at the first line that is answered otherwise."""
    player = _Player()
    steps: list[Step] = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            step = _read(number, line)
            if step is None:
                continue
            got = player.run(*step.words)
        except ValueError as error:
            raise ScenarioError(f"{name}, line {number}: {line.strip()}\n  cannot be played: {error}") from error
        if step.wanted is not None and step.wanted.split() != got.split():
            raise ScenarioError(f"{name}, line {number}: {line.strip()}\n  wanted: {step.wanted}\n     got: {got}")
        steps.append(replace(step, got=got))
    return Played(tuple(steps), tuple(player.records), player.state)


def replay(records: list[Record]) -> State:
    """Make a state from nothing but records, each written to bytes and read back as a journal would."""
    state = State()
    for record in records:
        evolve(state, msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=Record))
    return state


def durable(state: State) -> tuple[object, ...]:
    """Take the picture that every replay must give again, order included (I15). Alarms are an index and left out."""
    frozen = state.freeze()
    slots = [(name, replace(slot, alarm_ms=0)) for name, slot in frozen.slots.items()]
    rest = (frozen.sessions, frozen.remembered, frozen.memos, frozen.tokens)
    return (frozen.head, tuple(slots), *(tuple(part.items()) for part in rest))


def fingerprint(command: Command) -> str:
    """Tell one request from another under the same key (C5): all that was asked, without the ids made for it."""
    fresh = {Acquire: "lease_id", OpenSession: "session_id"}.get(type(command))
    left_out = {"key", "fingerprint", fresh}
    asked = {field: value for field, value in asdict(command).items() if field not in left_out}
    return f"{type(command).__name__} {asked}"


def _read(number: int, line: str) -> Step | None:
    asked, arrow, wanted = _REMARK.sub("", line).partition("->")
    words = shlex.split(asked)
    if not words:
        if arrow:
            raise ValueError("an answer needs a command")
        return None
    return Step(number, tuple(words), wanted.strip() if arrow else None)


def _options(words: tuple[str, ...], *allowed: str) -> dict[str, str]:
    """Read `name=value` words; a bare word is a flag."""
    options: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in allowed:
            raise ValueError(f"{name!r} is none of {', '.join(sorted(allowed))}")
        options[name] = value if equals else "yes"
    return options


def _ms(text: str) -> int:
    found = re.fullmatch(r"(-?\d+)(ms|s|m|h)", text)
    if found is None:
        raise ValueError(f"{text!r} is no time: 250ms, 10s, 5m, 2h")
    return int(found[1]) * _UNIT_MS[found[2]]


def _time(ms: int) -> str:
    return f"{ms}ms" if ms % 1_000 else f"{ms // 1_000}s"


class _Player:
    """One authority in virtual time, driven as the engine drives it: settle, decide, evolve (T3)."""

    def __init__(self) -> None:
        self.state = State()
        self.records: list[Record] = []
        self.limits = Limits()
        self.now_ms = 0
        self.sessions_opened = 0

    def run(self, verb: str, *words: str) -> str:
        """Play one line and return its answer."""
        match verb, words:
            case "acquire", (name, *rest):
                return self._ask(self._acquire(name, tuple(rest)))
            case "renew", (name, *rest):
                return self._ask(self._renew(name, tuple(rest)))
            case "release", (name, *rest):
                return self._ask(self._release(name, tuple(rest)))
            case "session", ("open", *rest):
                return self._open_session(tuple(rest))
            case "session", ("keep" | "renew" | "end" | "show" as what, session_id, *rest):
                return self._session(what, session_id, tuple(rest))
            case "token", ("create" | "revoke" as what, name, *rest):
                return self._ask(self._token(what, name, tuple(rest)))
            case "show", (name,):
                self._settle()
                return self._show(name)
            case "advance", (time,):
                self.now_ms += _ms(time)
                return "; ".join(map(_event, self._settle())) or "nothing"
            case "restart", ():
                return self._restart()
            case "limits", (_, *_):
                return self._set_limits(words)
            case _:
                raise ValueError(f"no such command: {' '.join((verb, *words))}")

    def _record(self, event: Event) -> None:
        record = Record(self.state.seq + 1, self.now_ms, WALL_MS + self.now_ms, event)
        evolve(self.state, record)
        self.records.append(record)

    def _settle(self) -> list[Event]:
        before = len(self.records)
        while (event := settle(self.state, self.now_ms, self.limits)) is not None:
            self._record(event)
        return [record.event for record in self.records[before:]]

    def _ask(self, command: Command) -> str:
        self._settle()
        decision = decide(self.state, command, Moment(self.now_ms, WALL_MS + self.now_ms), self.limits)
        for event in decision.events:
            self._record(event)
        return _answer(decision.answer)

    def _acquire(self, name: str, words: tuple[str, ...]) -> Command:
        told = _options(words, *_ACQUIRE)
        asked = Acquire(
            name=name,
            principal=told.get("principal", "main"),
            lease_id=_lease_id(self.state.last_token + 1),
            ttl_ms=_ms(told.get("ttl", TTL)),
            owner=told.get("by"),
            metadata=told.get("metadata"),
            session=told.get("session"),
            bound="bound" in told,
            delay_ms=_ms(told.get("delay", "0s")),
            resume="resume" in told,
            via=told.get("via"),
            key=told.get("key"),
        )
        return replace(asked, fingerprint=fingerprint(asked))

    def _renew(self, name: str, words: tuple[str, ...]) -> Command:
        told = _options(words, *_RENEW)
        return Renew(
            name=name,
            principal=told.get("principal", "main"),
            lease_id=_lease_id(told.get("token", "?")),
            ttl_ms=_ms(told["ttl"]) if "ttl" in told else None,
            note=told.get("note"),
            metadata=told.get("metadata"),
            via=told.get("via"),
            key=told.get("key"),
        )

    def _release(self, name: str, words: tuple[str, ...]) -> Command:
        told = _options(words, *_RELEASE)
        asked = Release(
            name=name,
            principal=told.get("principal", "main"),
            lease_id=_lease_id(told.get("token", "?")),
            failed="failed" in told,
            via=told.get("via"),
            key=told.get("key"),
        )
        return replace(asked, fingerprint=fingerprint(asked))

    def _open_session(self, words: tuple[str, ...]) -> str:
        told = _options(words, *_SESSION)
        asked = OpenSession(
            principal=told.get("principal", "main"),
            session_id=f"s{self.sessions_opened + 1}",
            ttl_ms=_ms(told.get("ttl", TTL)),
            name=told.get("name"),
            metadata=told.get("metadata"),
            key=told.get("key"),
        )
        heard = self._ask(replace(asked, fingerprint=fingerprint(asked)))
        self.sessions_opened += asked.session_id in self.state.sessions
        return heard

    def _session(self, what: str, session_id: str, words: tuple[str, ...]) -> str:
        told = _options(words, *_WHO)
        principal = told.get("principal", "main")
        if what == "show":
            self._settle()
            return self._show_session(session_id)
        if what == "keep":
            return self._ask(KeepSession(principal=principal, session_id=session_id))
        if what == "renew":
            return self._ask(RenewSession(principal=principal, session_id=session_id))
        asked = EndSession(principal=principal, session_id=session_id, key=told.get("key"))
        return self._ask(replace(asked, fingerprint=fingerprint(asked)))

    def _token(self, what: str, name: str, words: tuple[str, ...]) -> Command:
        told = _options(words, *_WHO)
        principal, key = told.get("principal", "main"), told.get("key")
        asked: CreateToken | RevokeToken
        if what == "create":
            asked = CreateToken(principal=principal, name=name, digest=f"digest of {name}", scopes=("claim",), key=key)
        else:
            asked = RevokeToken(principal=principal, name=name, key=key)
        return replace(asked, fingerprint=fingerprint(asked))

    def _show(self, name: str) -> str:
        slot = self.state.slots.get(name, EMPTY)
        lease = slot.lease
        if lease is not None:
            told = {"token": lease.token, **_lease(lease, self.state.until_of(lease)), "session": lease.session}
            return _words("held", {**told, "attempts": _attempts(slot.attempts)})
        left = {"attempts": slot.attempts, **_previous(slot.last_end)}
        if slot.closed_until_ms > self.now_ms:
            return _words("closed", {"until": _time(slot.closed_until_ms), **left})
        return _words("free", left)

    def _show_session(self, session_id: str) -> str:
        session = self.state.sessions.get(session_id)
        ended = self.state.remembered.get(session_id)
        if session is not None:
            count = len(self.state.names_in.get(session_id, ()))
            told: Fields = {"ttl": _time(session.ttl_ms), "until": _time(session.until_ms), "leases": count}
            return _words("open", {**told, "name": session.name, "metadata": session.metadata})
        if isinstance(ended, EndedSession):
            return _words(ended.how, {"at": _time(ended.at_ms)})
        return "no-session"

    def _restart(self) -> str:
        again = State.thaw(self.state.freeze())
        for how, state in (("its journal", replay(self.records)), ("its snapshot", again)):
            if durable(state) != durable(self.state):
                raise ValueError(f"the state is not what {how} says (I15)")
        self.state = again
        return "ok"

    def _set_limits(self, words: tuple[str, ...]) -> str:
        told = _options(words, *Limits.__struct_fields__)
        given = {
            field: _ms(value) if "_ms" in field else int(value) if value.isdecimal() else value
            for field, value in told.items()
        }
        self.limits = msgspec.convert({**asdict(self.limits), **given}, Limits)
        return "ok"


def _lease_id(token: int | str) -> str:
    return f"lease-{token}"


def _words(verb: str, fields: Fields) -> str:
    """Write an answer. What is none, empty or zero is left out; a flag is a bare word."""
    said = [
        name if value == "yes" else f"{name}={shlex.quote(str(value))}"
        for name, value in fields.items()
        if value not in {None, 0, "0s"}
    ]
    return " ".join([verb, *said])


def _answer(answer: Answer | Refusal) -> str:
    """Write what the core answered."""
    match answer:
        case answers.Acquired(lease=lease):
            return _acquired(answer, lease)
        case answers.Extended(lease=lease, until_ms=until_ms):
            return _words("renewed", {"until": _time(until_ms)})
        case answers.SessionOpen(session=session):
            return _words(f"open {session.session_id}", {"until": _time(session.until_ms), "renewed": answer.renewed})
        case answers.Released() | answers.SessionOver() | answers.TokenMade() | answers.TokenGone():
            return "ok"
        case refusals.Held(lease=lease, until_ms=until_ms, same_owner=same_owner):
            return _words("held", {**_lease(lease, until_ms), "same-owner": "yes" if same_owner else None})
        case refusals.Delayed(until_ms=until_ms, end=end):
            return _words("closed", {"until": _time(until_ms), **_previous(end)})
        case refusals.NotCurrent():
            return _not_current(answer)
        case refusals.TooManyLeases() | refusals.TooManySessions() | refusals.TooManyTokens():
            return _words(_kebab(answer), {"limit": answer.limit})
        case refusals.BadTtl(max_ms=max_ms):
            return f"bad-ttl max={_time(max_ms)}"
        case refusals.BadField(text=text):
            return f"bad-field {text}"
        case _:
            return _kebab(answer)


def _acquired(answer: answers.Acquired, lease: Lease) -> str:
    if lease.lease_id != _lease_id(lease.token):
        raise ValueError(f"token {lease.token} came with the lease id {lease.lease_id!r} of another")
    told: Fields = {"token": lease.token, "until": _time(answer.until_ms), "attempts": _attempts(answer.attempts)}
    return _words("reacquired" if answer.reacquired else "granted", {**told, **_previous(answer.previous)})


def _lease(lease: Lease, until_ms: int) -> Fields:
    """What anybody may know of a live lease (C2)."""
    beat_ms = lease.beat_wall_ms - WALL_MS
    since_ms = lease.granted_wall_ms - WALL_MS
    return {
        "by": lease.owner,
        "until": _time(until_ms),
        "since": _time(since_ms),
        "beat": _time(beat_ms) if beat_ms != since_ms else None,
        "note": lease.note,
        "metadata": lease.metadata,
    }


def _previous(end: LastEnd | None) -> Fields:
    """What a successor is told (C7)."""
    if end is None:
        return {}
    return {"previous": _who_and_how(end), "previous-note": end.note}


def _who_and_how(end: LastEnd) -> str:
    return "/".join([end.owner or "-", end.how, *([end.reason] if end.reason else [])])


def _not_current(answer: refusals.NotCurrent) -> str:
    fields: Fields = {"succeeded": "yes" if answer.succeeded else None}
    if answer.ended is not None:
        end = answer.ended.end
        fields |= {"ended": _who_and_how(end), "at": _time(end.at_ms), "note": end.note}
    return _words("not-current", fields)


def _attempts(attempts: int) -> int | None:
    return attempts if attempts > 1 else None


def _event(event: Event) -> str:
    """Write a record that fell due."""
    match event:
        case Ended():
            return f"{event.how} {event.name}"
        case SessionEnded(session_id=session_id, how=how, leases=leases):
            return " ".join([f"session-{how} {session_id}", *(ended.name for ended in leases)])
        case Forgotten():
            return _words("forgotten", {"remembered": event.remembered, "names": event.names})
        case _:
            return _kebab(event)


def _kebab(thing: object) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", type(thing).__name__).lower()
