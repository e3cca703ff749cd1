"""Scenarios: scripts that a person can read. Each line is a command, an arrow and the full answer of the core.

    acquire job/7 by=ana ttl=10s      -> granted token=1 until=10s
    acquire job/7 by=ben ttl=10s      -> held by=ana until=10s
    acquire job/7 by=cem wait=30s     -> waiting t1 position=1
    advance 10s                       -> expired job/7; t1: granted token=2 until=70s attempts=2 previous=ana/expired
    renew   job/7 token=1 ttl=10s     -> not-current succeeded ended=ana/expired at=10s

Time is virtual and starts at zero. A session is called s1, s2, … in the order of opening, a place in a line t1, t2, …
in the order of joining, and a lease is named by its fencing token. Everybody shares one bearer token (the principal
`main`) unless the line says otherwise. What an answer does not say is none, no or zero (`attempts`: one), so nothing
can change unseen. What those in line hear stands behind the answer of the line that caused it, each after the name of
its place; a line that begins with `;` goes on with the answer of the one above. A line without an arrow may answer
anything, and `#` opens a remark.

    acquire NAME [by=OWNER ttl=T metadata=TEXT labels=KEY:TEXT,… session=S bound resume redo delay=T wait=T ticket=T
                  interest]
    any NAME,NAME,… [by=OWNER ttl=T … redo]                     the first that is free
    all NAME,NAME,… [by=OWNER ttl=T … redo wait=T ticket=T]     every one or none
    away T · back T [wait=T] · leave T                          of a place in a line: its request is gone, comes again
    renew NAME token=N [ttl=T note=TEXT metadata=TEXT]          without ttl: the lease's own
    release NAME token=N [failed] [done remember=T result=TEXT]
    transfer NAME [token=N] to=OWNER [ttl=T reason=TEXT]        without a token: as an operator
    revoke NAME reason=TEXT · reopen NAME [reason=TEXT]
    session open [ttl=T name=TEXT metadata=TEXT] · session keep|renew|end|show S
    token create NAME [prefix=TEXT expires=T] · token revoke NAME
    show NAME                  what anybody may see of a name, and who stands in its line
    why NAME                   the chain of waits
    advance T                  let time pass; the answer is every record that fell due
    restart                    read the journal anew; what comes of it must be what was there, and nobody is there
    limits FIELD=VALUE …       other limits from here on

Every command that changes something also takes principal=P (who asks), as=S (with which session's secret) and key=K
(the idempotency key), where the core knows them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import asdict, replace

from holdfast.core.commands import (
    Acquire,
    ClaimAll,
    ClaimAny,
    Command,
    CreateToken,
    EndSession,
    KeepSession,
    Leave,
    OpenSession,
    Release,
    Renew,
    RenewSession,
    Reopen,
    Revoke,
    RevokeToken,
    Transfer,
)
from holdfast.core.deadlock import why
from holdfast.core.decide import decide, next_due, next_grant
from holdfast.core.events import Event, Granted, GrantedMany, Joined, Record, SessionOpened, Transferred
from holdfast.core.evolve import evolve
from holdfast.core.outcomes import MustWait, Waiting
from holdfast.core.state import State
from holdfast.core.values import Instant, Limits, Terms
from holdfast.journal.codec import decode_batch, encode_batch
from tests.scenarios import words
from tests.scenarios.script import Step, read_lines, read_step
from tests.scenarios.words import WALL_MS, read_labels, read_ms, read_options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.core.decision import Notice

__all__ = ["Played", "ScenarioError", "Step", "durable", "fingerprint", "play", "replay"]

TTL = "60s"
_WHO = ("principal", "key")
_MAKE = (*_WHO, "as", "by", "ttl", "metadata", "labels", "session", "bound", "delay", "redo")
_ACQUIRE = (*_MAKE, "resume", "wait", "ticket", "interest")
_RENEW = (*_WHO, "as", "token", "ttl", "note", "metadata")
_RELEASE = (*_WHO, "as", "token", "failed", "done", "remember", "result")
_TRANSFER = (*_WHO, "as", "token", "to", "ttl", "reason")
_SESSION = (*_WHO, "ttl", "name", "metadata")
_TOKEN = (*_WHO, "prefix", "expires")
_NOT_ASKED = frozenset(
    {"fingerprint", "key", "lease_id", "lease_ids", "new_lease_id", "new_ticket", "ticket", "wait_ms"}
)
"""What does not make another request of it (C5): how long and where it waits, and the ids that were made for it."""


class ScenarioError(AssertionError):
    """A line of a script was not answered as it says, or cannot be read."""


class Played(msgspec.Struct, frozen=True):
    """A script that went well: every line with its answer, every record it made, and the state it led to."""

    steps: tuple[Step, ...]
    records: tuple[Record, ...]
    state: State


def play(text: str, name: str = "scenario") -> Played:
    """Play a script to its end, or raise `ScenarioError` at the first line that is answered otherwise."""
    player = _Player()
    steps: list[Step] = []
    for number, line in read_lines(text):
        try:
            step = read_step(number, line)
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
        for read in decode_batch(encode_batch([record])):
            evolve(state, read)
    return state


def durable(state: State) -> tuple[object, ...]:
    """Take the picture that every replay must give again, order included (I15)."""
    frozen = state.freeze()
    parts = (frozen.slots, frozen.sessions, frozen.remembered, frozen.memos, frozen.tokens, frozen.tickets)
    return (frozen.scalars, *(tuple(part.items()) for part in (*parts, frozen.last_used)))


def fingerprint(command: Command) -> str:
    """Tell one request from another under the same key (C5): all that was asked, without the ids made for it."""
    left_out = _NOT_ASKED - ({"lease_id"} if isinstance(command, Release | Transfer) else set())
    if isinstance(command, OpenSession):
        left_out |= {"session_id"}
    given = asdict(command)
    if isinstance(command, Acquire | ClaimAny | ClaimAll):
        given |= asdict(given.pop("terms"))
    asked = {field: value for field, value in given.items() if field not in left_out}
    return f"{type(command).__name__} {asked}"


class _Player:
    """One authority in virtual time, driven as the engine drives it: settle, decide, evolve, settle the line (T3)."""

    def __init__(self) -> None:
        self.state = State()
        self.records: list[Record] = []
        self.limits = Limits()
        self.now_ms = 0
        self.made = 0
        self.lease_ids: dict[int, str] = {}
        """By token."""
        self.sessions_opened = 0
        self.tickets_taken = 0
        self.claims: dict[str, Acquire | ClaimAll] = {}
        """What was asked at each place in a line."""
        self.waits: dict[str, int] = {}
        """Where a request waits, and until when."""

    @property
    def now(self) -> Instant:
        return Instant(self.now_ms, WALL_MS + self.now_ms)

    def run(self, verb: str, *rest: str) -> str:
        """Play one line and return its answer."""
        match verb, rest:
            case "acquire" | "any" | "all" | "renew" | "release" | "transfer" | "revoke" | "reopen", (name, *more):
                return self._ask(getattr(self, f"_{verb}")(name, tuple(more)))
            case "away" | "back" | "leave", (ticket_id, *more):
                return self._on_ticket(verb, ticket_id, tuple(more))
            case "session", ("open", *more):
                return self._ask(self._open_session(tuple(more)))
            case "session", ("keep" | "renew" | "end" | "show" as what, session_id, *more):
                return self._session(what, session_id, tuple(more))
            case "token", ("create" | "revoke" as what, name, *more):
                return self._ask(self._token(what, name, tuple(more)))
            case "show", (name,):
                self._apply_due()
                return words.shown(self.state, name, self.now_ms)
            case "why", (name,):
                self._apply_due()
                return words.chain(why(self.state, name))
            case "advance", (by,):
                self.now_ms += read_ms(by)
                return "; ".join(self._apply_due()) or "nothing"
            case "restart", ():
                return self._restart()
            case "limits", (_, *_):
                return self._set_limits(rest)
            case _:
                raise ValueError(f"no such command: {' '.join((verb, *rest))}")

    # How the engine would do it.

    def _record(self, event: Event) -> None:
        record = Record(self.state.seq + 1, self.now_ms, WALL_MS + self.now_ms, event)
        match event:
            case Granted() | Transferred():
                self.lease_ids[event.lease.token] = event.lease.lease_id
            case GrantedMany():
                self.lease_ids |= {grant.lease.token: grant.lease.lease_id for grant in event.grants}
            case Joined():
                self.tickets_taken += event.ticket.ticket_id not in self.state.tickets
            case SessionOpened():
                self.sessions_opened += 1
        evolve(self.state, record)
        self.records.append(record)

    def _apply_due(self) -> list[str]:
        """Let everything happen that is due, and say it."""
        said: list[str] = []
        while (due := next_due(self.state, self.now, self.limits)) is not None:
            self._record(due.event)
            happened = words.event(due.event)
            said += [*([happened] if happened else []), *self._notify(due.notices)]
        overdue = [ticket_id for ticket_id, until_ms in self.waits.items() if until_ms <= self.now_ms]
        return said + [f"{ticket_id}: {self._end_wait(ticket_id)}" for ticket_id in overdue]

    def _notify(self, notices: Iterable[Notice]) -> list[str]:
        """Write what those in line hear; who is not there hears nothing."""
        there = [notice for notice in notices if self.waits.pop(notice[0], None) is not None]
        return [f"{ticket_id}: {words.answer(answer)}" for ticket_id, answer in there]

    def _ask(self, command: Command) -> str:
        self._apply_due()
        said: list[str] = []
        decision = decide(self.state, command, self.now, self.limits)
        for event in decision.events:
            self._record(event)
        if decision.interest is not None:
            self.state.connected.add_interest(*decision.interest)
        ticket_id = decision.answer.ticket_id if isinstance(decision.answer, MustWait) else None
        if ticket_id is not None and isinstance(command, Acquire | ClaimAll):
            if ticket_id in self.waits:
                said.append(f"{ticket_id}: {self._waiting(ticket_id)}")
            self.waits[ticket_id], self.claims[ticket_id] = self.now_ms + command.wait_ms, command
            self.state.attach(ticket_id)
        said += self._notify(decision.notices)
        while (due := next_grant(self.state, self.now, self.limits)) is not None:
            self._record(due.event)
            said += self._notify(due.notices)
        if ticket_id is None:
            return "; ".join([words.answer(decision.answer), *said])
        own = next((each for each in said if each.startswith(f"{ticket_id}: ") and ticket_id not in self.waits), None)
        if own is not None:
            said.remove(own)
            return "; ".join([own.removeprefix(f"{ticket_id}: "), *said])
        waiting = self._waiting(ticket_id)
        if self.waits[ticket_id] <= self.now_ms:
            self._end_wait(ticket_id)
        return "; ".join([waiting, *said])

    def _waiting(self, ticket_id: str) -> str:
        return words.answer(Waiting(ticket_id, self.state.position_of(ticket_id)))

    def _end_wait(self, ticket_id: str) -> str:
        waiting = self._waiting(ticket_id)
        self.state.detach(ticket_id, self.now_ms)
        del self.waits[ticket_id]
        return waiting

    # Commands.

    def _fresh(self) -> str:
        self.made += 1
        return f"lease-{self.made}"

    def _lease_id(self, options: dict[str, str]) -> str:
        token = options.get("token", "?")
        return self.lease_ids.get(int(token), "no lease") if token.isdecimal() else "no lease"

    def _claim(self, options: dict[str, str]) -> dict[str, Any]:
        terms = Terms(
            principal=options.get("principal", "main"),
            key=options.get("key"),
            ttl_ms=read_ms(options.get("ttl", TTL)),
            owner=options.get("by"),
            metadata=options.get("metadata"),
            labels=read_labels(options["labels"]) if "labels" in options else None,
            session=options.get("session"),
            bound="bound" in options,
            delay_ms=read_ms(options.get("delay", "0s")),
            redo="redo" in options,
        )
        return {"terms": terms, "as_session": options.get("as")}

    def _wait(self, options: dict[str, str]) -> dict[str, Any]:
        wait_ms = read_ms(options.get("wait", "0s"))
        return {"wait_ms": wait_ms, "ticket": options.get("ticket"), "new_ticket": f"t{self.tickets_taken + 1}"}

    def _asker(self, options: dict[str, str]) -> dict[str, Any]:
        return {
            "principal": options.get("principal", "main"),
            "as_session": options.get("as"),
            "key": options.get("key"),
        }

    def _acquire(self, name: str, rest: tuple[str, ...]) -> Command:
        options = read_options(rest, *_ACQUIRE)
        flags: dict[str, Any] = {"resume": "resume" in options, "interest": "interest" in options}
        return _marked(
            Acquire(name=name, lease_id=self._fresh(), **self._claim(options), **self._wait(options), **flags)
        )

    def _any(self, names: str, rest: tuple[str, ...]) -> Command:
        options = read_options(rest, *_MAKE)
        return _marked(ClaimAny(names=tuple(names.split(",")), lease_id=self._fresh(), **self._claim(options)))

    def _all(self, names: str, rest: tuple[str, ...]) -> Command:
        options = read_options(rest, *_MAKE, "wait", "ticket")
        each = tuple(names.split(","))
        lease_ids = tuple(self._fresh() for _ in each)
        return _marked(ClaimAll(names=each, lease_ids=lease_ids, **self._claim(options), **self._wait(options)))

    def _renew(self, name: str, rest: tuple[str, ...]) -> Command:
        options = read_options(rest, *_RENEW)
        ttl_ms = read_ms(options["ttl"]) if "ttl" in options else None
        rest_of_it: dict[str, Any] = {
            "note": options.get("note"),
            "metadata": options.get("metadata"),
            **self._asker(options),
        }
        return Renew(name=name, lease_id=self._lease_id(options), ttl_ms=ttl_ms, **rest_of_it)

    def _release(self, name: str, rest: tuple[str, ...]) -> Command:
        options = read_options(rest, *_RELEASE)
        asked = Release(
            name=name,
            lease_id=self._lease_id(options),
            failed="failed" in options,
            done="done" in options,
            remember_ms=read_ms(options.get("remember", "0s")),
            result=options.get("result"),
            **self._asker(options),
        )
        return _marked(asked)

    def _transfer(self, name: str, rest: tuple[str, ...]) -> Command:
        options = read_options(rest, *_TRANSFER)
        asked = Transfer(
            name=name,
            lease_id=self._lease_id(options) if "token" in options else None,
            new_lease_id=self._fresh(),
            to_owner=options["to"],
            ttl_ms=read_ms(options["ttl"]) if "ttl" in options else None,
            reason=options.get("reason"),
            **self._asker(options),
        )
        return _marked(asked)

    def _revoke(self, name: str, rest: tuple[str, ...]) -> Command:
        options = read_options(rest, *_WHO, "reason")
        principal = options.get("principal", "main")
        return _marked(Revoke(name=name, principal=principal, reason=options.get("reason", ""), key=options.get("key")))

    def _reopen(self, name: str, rest: tuple[str, ...]) -> Command:
        options = read_options(rest, *_WHO, "reason")
        principal = options.get("principal", "main")
        return _marked(Reopen(name=name, principal=principal, reason=options.get("reason"), key=options.get("key")))

    def _on_ticket(self, what: str, ticket_id: str, rest: tuple[str, ...]) -> str:
        options = read_options(rest, "principal", "wait")
        if what == "leave":
            return self._ask(Leave(ticket_id=ticket_id, principal=options.get("principal", "main")))
        if what == "away":
            if ticket_id not in self.waits:
                raise ValueError(f"nobody waits at {ticket_id}")
            self._end_wait(ticket_id)
            return "ok"
        if ticket_id not in self.claims:
            raise ValueError(f"nobody ever waited at {ticket_id}")
        return self._ask(replace(self.claims[ticket_id], **self._wait({"wait": "50s", **options, "ticket": ticket_id})))

    def _open_session(self, rest: tuple[str, ...]) -> Command:
        options = read_options(rest, *_SESSION)
        asked = OpenSession(
            principal=options.get("principal", "main"),
            session_id=f"s{self.sessions_opened + 1}",
            ttl_ms=read_ms(options.get("ttl", TTL)),
            name=options.get("name"),
            metadata=options.get("metadata"),
            key=options.get("key"),
        )
        return _marked(asked)

    def _session(self, what: str, session_id: str, rest: tuple[str, ...]) -> str:
        options = read_options(rest, *_WHO)
        principal = options.get("principal", "main")
        if what == "show":
            self._apply_due()
            return words.shown_session(self.state, session_id)
        if what == "keep":
            return self._ask(KeepSession(principal=principal, session_id=session_id))
        if what == "renew":
            return self._ask(RenewSession(principal=principal, session_id=session_id))
        return self._ask(_marked(EndSession(principal=principal, session_id=session_id, key=options.get("key"))))

    def _token(self, what: str, name: str, rest: tuple[str, ...]) -> Command:
        options = read_options(rest, *_TOKEN)
        principal, key = options.get("principal", "main"), options.get("key")
        if what == "revoke":
            return _marked(RevokeToken(principal=principal, name=name, key=key))
        expires_wall_ms = WALL_MS + read_ms(options["expires"]) if "expires" in options else None
        asked = CreateToken(
            principal=principal,
            name=name,
            digest=f"digest of {name}",
            scopes=("claim",),
            prefix=options.get("prefix"),
            expires_wall_ms=expires_wall_ms,
            key=key,
        )
        return _marked(asked)

    # Restarts and limits.

    def _restart(self) -> str:
        again = State.thaw(self.state.freeze())
        for how, state in (("its journal", replay(self.records)), ("its snapshot", again)):
            if durable(state) != durable(self.state):
                raise ValueError(f"the state is not what {how} says (I15)")
        self.state = again
        self.waits.clear()
        return "ok"

    def _set_limits(self, rest: tuple[str, ...]) -> str:
        options = read_options(rest, *Limits.__struct_fields__)
        given = {
            field: read_ms(value) if "_ms" in field else int(value) if value.isdecimal() else value
            for field, value in options.items()
        }
        self.limits = msgspec.convert({**asdict(self.limits), **given}, Limits)
        return "ok"


def _marked(command: Command) -> Command:
    mark = fingerprint(command)
    if isinstance(command, Acquire | ClaimAny | ClaimAll):
        return replace(command, terms=replace(command.terms, fingerprint=mark))
    return replace(command, fingerprint=mark)
