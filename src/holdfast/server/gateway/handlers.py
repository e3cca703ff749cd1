"""The gateway routes, as Action Llama's commands ask them: a run is a session, known by its secret (S1–S5).

The law of this file: a run is its session under the session's own name, and only what is held under both is its own.
What a run holds is looked up in the turn in which the command is decided, so no lease id can be stale. Bodies have the
fields of the original and no others; a refusal is `{"ok": false}` with a `reason` from the rules or an `error`.
"""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import parse_qsl

import msgspec

from holdfast.core.answers import Acquired, Extended, Released
from holdfast.core.commands import Acquire, Release, Renew
from holdfast.core.deadlock import holder_of_lease, label
from holdfast.core.refusals import (
    Deadlock,
    Delayed,
    Finished,
    Held,
    NotCurrent,
    SessionUnknown,
    TokensExhausted,
    TooManyLeases,
)
from holdfast.core.values import BadNameError, Terms, parse_name
from holdfast.engine.ids import new_uuid
from holdfast.server import render
from holdfast.server.access.auth import Caller
from holdfast.server.access.secrets import SESSION_PREFIX
from holdfast.server.api import encode, fingerprint
from holdfast.server.doors.request import shown
from holdfast.wire.gateway import (
    GatewayAcquiredReply,
    GatewayErrorReply,
    GatewayKeptReply,
    GatewayLock,
    GatewayOwnLock,
    GatewayRefusedReply,
    GatewayReleasedReply,
    GatewayStatusReply,
)
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.core.commands import Command
    from holdfast.core.state import State
    from holdfast.core.values import Lease, Moment
    from holdfast.server.api import Answered, Api
    from holdfast.server.doors.request import Reply, Request

    Handler = Callable[[Api, Request, bytes, Reply], None]
    Shown = Callable[[Any, Moment], Answered]

STATUS_LOCKS_MAX = 10_000
_OK, _NOT_FOUND, _CONFLICT = 200, 404, 409
_WHO = frozenset({"authentication_required", "authentication_failed", "session_expired"})
_NEEDS_HOST = frozenset({"ftp", "http", "https", "ws", "wss"})
_NO_LEASE = "00000000-0000-0000-0000-000000000000"
_NOT_ITS_OWN = (NotCurrent, SessionUnknown)


class Ask(msgspec.Struct, frozen=True):
    """What a run asks: the body after all that can be checked without the state."""

    secret: str
    name: str


class Run(msgspec.Struct, frozen=True):
    """A run that was let in."""

    caller: Caller
    session: str
    owner: str
    """What it is called: its session's name, or its id if it has none."""
    whole: bool
    """Whether all that its session holds is its own, as `reentrant = "holder"` has it."""

    def has(self, lease: Lease) -> bool:
        """Tell whether a live lease is this run's (S3)."""
        return lease.bound and lease.session == self.session and (self.whole or lease.owner == self.owner)


def _in_gateway_words(handler: Handler) -> Handler:
    """Let a handler's problems be answered as the gateway answers."""

    def answer(api: Api, request: Request, segment: bytes, reply: Reply) -> None:
        try:
            handler(api, request, segment, reply)
        except Problem as problem:
            answered = _error(problem)
            if request.late:
                # The refusal rests on the state, so it waits until that is durable.
                _read(api, lambda _state, _now: answered, reply)
            else:
                reply(*answered)

    answer.__doc__ = handler.__doc__
    return answer


@_in_gateway_words
def acquire(api: Api, request: Request, _segment: bytes, reply: Reply) -> None:
    """POST /locks/acquire: have a resource, also if it is the run's already (C4)."""
    ask, ttl_ms = _read_timed(api, request)
    run = _let_in(api, request, ask.secret)
    run.caller.may_touch(ask.name)
    lease = api.engine.state.lease_of(ask.name)
    holder = "" if lease is None else _shown_holder(api, api.engine.state, lease)
    command = Acquire(
        name=ask.name,
        lease_id=new_uuid(),
        terms=Terms(principal=run.caller.principal, ttl_ms=ttl_ms, owner=run.owner, session=run.session, bound=True),
        resume=True,
        via=run.session,
        interest=True,
    )

    def answered(outcome: Any, now: Moment) -> Answered:  # noqa: ANN401 - any outcome of a claim
        match outcome:
            case Acquired():
                api.counters.acquires += 1
                return _OK, encode(GatewayAcquiredReply(True, ask.name)), ()
            case Held(lease=held):
                return _CONFLICT, encode(GatewayRefusedReply(holder=holder, held_since=held.granted_wall_ms)), ()
            case Deadlock(path=path):
                return _CONFLICT, encode(_deadlock(path)), ()
            case Finished(done=done):
                return _refused(f"done by {done.owner or 'a claim without an owner'}")
            case Delayed(until_ms=until_ms):
                return _refused(f"closed for another {until_ms - now.ms} ms after its last end")
            case TooManyLeases() | TokensExhausted():
                return _refused(render.problem(outcome).details)
            case _:
                return _error(render.problem(outcome))

    _submit(api, command, answered, reply)


@_in_gateway_words
def release(api: Api, request: Request, _segment: bytes, reply: Reply) -> None:
    """POST /locks/release: give a resource back. With an idempotency key, a retry is told what the first try did."""
    ask = _read_ask(_read_body(request.body))
    run = _let_in(api, request, ask.secret)
    run.caller.may_touch(ask.name)
    # Only now: what another run of the same token did under this key is not what this one did.
    key, mark = fingerprint(request, ask.name, "gateway")
    lease = api.engine.state.lease_of(ask.name)
    otherwise = _not_its_own(api, lease)
    mine = lease is not None and run.has(lease)
    command = Release(
        name=ask.name,
        principal=run.caller.principal,
        # Without a lease of its own, only what its key did before can be told.
        lease_id=lease.lease_id if lease is not None and mine else _NO_LEASE,
        via=run.session,
        key=key,
        fingerprint=mark,
    )

    def answered(outcome: Any, _now: Moment) -> Answered:  # noqa: ANN401 - any outcome of a release
        if isinstance(outcome, Released):
            api.counters.releases += 1
            return _OK, encode(GatewayReleasedReply(True)), ()
        return otherwise if isinstance(outcome, _NOT_ITS_OWN) else _error(render.problem(outcome))

    _submit(api, command, answered, reply)


@_in_gateway_words
def heartbeat(api: Api, request: Request, _segment: bytes, reply: Reply) -> None:
    """POST /locks/heartbeat: keep a resource until now + ttl."""
    ask, ttl_ms = _read_timed(api, request)
    run = _let_in(api, request, ask.secret)
    run.caller.may_touch(ask.name)
    lease = api.engine.state.lease_of(ask.name)
    if lease is None or not run.has(lease):
        otherwise = _not_its_own(api, lease)
        _read(api, lambda _state, _now: otherwise, reply)
        return
    principal = run.caller.principal
    command = Renew(name=ask.name, principal=principal, lease_id=lease.lease_id, ttl_ms=ttl_ms, via=run.session)

    def answered(outcome: Any, now: Moment) -> Answered:  # noqa: ANN401 - any outcome of a renewal
        if isinstance(outcome, Extended):
            return _OK, encode(GatewayKeptReply(True, now.wall_ms + outcome.until_ms - now.ms)), ()
        return _error(render.problem(outcome))

    _submit(api, command, answered, reply)


@_in_gateway_words
def list_(api: Api, request: Request, _segment: bytes, reply: Reply) -> None:
    """GET /locks/list: what the run has, in the order of names."""
    run = _let_in(api, request, _read_secret(request.query))

    def view(state: State, now: Moment) -> Answered:
        found: list[GatewayOwnLock] = []
        for name in sorted(state.index.names_by_session.get(run.session, ())):
            lease = state.lease_of(name)
            if lease is not None and run.has(lease):
                until_ms = now.wall_ms + state.until_of(lease) - now.ms
                holder = _shown_holder(api, state, lease)
                found.append(GatewayOwnLock(name, holder, lease.granted_wall_ms, until_ms))
        return _OK, encode(found), ()

    _read(api, view, reply)


@_in_gateway_words
def status(api: Api, request: Request, _segment: bytes, reply: Reply) -> None:
    """GET /locks/status: who has what, as far as the bearer token may see."""
    try:
        caller = api.identify(request, "read")
    except Problem as problem:
        raise _unless_known(problem, "authentication_failed", "Unauthorized") from None

    def view(state: State, _now: Moment) -> Answered:
        found: list[GatewayLock] = []
        for name in islice(state.index.held.walk(caller.prefix or ""), STATUS_LOCKS_MAX):
            lease = state.lease_of(name)
            if lease is not None:
                holder = _shown_holder(api, state, lease)
                agent = holder.rpartition("-")[0] or holder
                found.append(GatewayLock(name, agent, holder, lease.granted_wall_ms))
        return _OK, encode(GatewayStatusReply(found)), ()

    _read(api, view, reply)


# Reading: what can be refused without looking at the state, in the original's order.


def _read_timed(api: Api, request: Request) -> tuple[Ask, int]:
    fields = _read_body(request.body)
    return _read_ask(fields), _read_ttl(api, fields.get("ttl"))


def _read_ask(fields: dict[str, Any]) -> Ask:
    secret, key = fields.get("secret"), fields.get("resourceKey")
    if not isinstance(secret, str) or not secret:
        raise _bad("missing secret")
    if not isinstance(key, str) or not key:
        raise _bad("missing resourceKey")
    try:
        name = _parse_key(key)
    except BadNameError as error:
        raise _bad(f"Invalid URI format: {error}") from None
    return Ask(secret, name)


def _read_body(body: bytes) -> dict[str, Any]:
    try:
        read = json.loads(body.decode(), object_pairs_hook=_pairs, parse_constant=_no_constant)
    except _TwiceError as error:
        raise _bad(str(error)) from None
    except (ValueError, RecursionError):
        raise _bad("invalid JSON body") from None
    # As in the original, what is not an object is one that lacks everything.
    return read if isinstance(read, dict) else {}


class _TwiceError(ValueError):
    """A field stands twice."""


def _pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise _TwiceError(f"invalid JSON body: the field {shown(name)} stands twice")
        found[name] = value
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _parse_key(text: str) -> str:
    """Return the key if it is a URI name (N1) that does not lack the host its scheme needs."""
    scheme, colon, rest = text.partition(":")
    if not colon or "/" in scheme:
        raise BadNameError("a scheme is missing, as in github://acme/app/issues/42")
    name = parse_name(text)
    if scheme.lower() in _NEEDS_HOST:
        authority = rest.lstrip("/\\")
        for end in "/\\?#":
            authority = authority.partition(end)[0]
        if authority.rpartition("@")[2].partition(":")[0] == "":
            raise BadNameError(f"{scheme}: needs a host")
    return name


def _read_ttl(api: Api, ttl: object) -> int:
    """Return the time to hold in milliseconds; a fraction of one counts as one."""
    settings = api.settings
    if ttl is None:
        return settings.resource_lock_timeout * 1000
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 <= ttl <= settings.max_ttl_seconds:
        # NaN and the infinite fail the comparison.
        raise _bad(f"invalid ttl: a number of seconds, 0 to {settings.max_ttl_seconds}; 0 stands for the default")
    return max(1, round(ttl * 1000)) if ttl else settings.resource_lock_timeout * 1000


def _read_secret(query: bytes) -> str:
    try:
        pairs = parse_qsl(query.decode(), keep_blank_values=True, errors="strict")
    except ValueError:
        raise _bad("The query is malformed.") from None
    found = [value for name, value in pairs if name == "secret"]
    if len(found) > 1:
        raise _bad("secret stands twice in the query")
    if not found or not found[0]:
        raise _bad("missing secret")
    return found[0]


def _bad(text: str) -> Problem:
    return Problem("invalid_input", text)


# Who asks.


def _let_in(api: Api, request: Request, secret: str) -> Run:
    """Return the run whose secret this is, as of this turn; that keeps its session alive (S1)."""
    # Only a session's secret is one here: no bearer token in a body or a query. Others are looked up just the same, so
    # that a server which cannot serve says so before it says anything of secrets.
    usable = secret.startswith(SESSION_PREFIX) and secret.isascii()
    request.authorization = f"Bearer {secret}".encode() if usable else None
    try:
        caller = api.identify(request, "claim")
    except Problem as problem:
        raise _unless_known(problem, "forbidden", "invalid secret") from None
    session = None if caller.via is None else api.engine.state.sessions.get(caller.via)
    if session is None:
        raise Problem("forbidden", "invalid secret")
    owner = session.name or session.session_id
    return Run(caller, session.session_id, owner, api.settings.reentrant == "holder")


def _unless_known(problem: Problem, code: str, text: str) -> Problem:
    """Return the gateway's one word for all who are not known; another problem stays as it is."""
    return Problem(code, text) if problem.code in _WHO else problem


# Answering: only through the engine, so that nothing is said before what it rests on is durable.


def _submit(api: Api, command: Command, answered: Shown, reply: Reply) -> None:
    api.engine.submit(command, lambda outcome, now: reply(*answered(outcome, now)))


def _read(api: Api, view: Callable[[State, Moment], Answered], reply: Reply) -> None:
    def answer(outcome: object, _now: Moment) -> None:
        reply(*(outcome if isinstance(outcome, tuple) else _error(render.problem(outcome))))

    api.engine.read(view, answer)


def _error(problem: Problem) -> Answered:
    return problem.status, encode(GatewayErrorReply(False, problem.details)), problem.headers()


def _refused(reason: str) -> Answered:
    return _CONFLICT, encode(GatewayRefusedReply(reason=reason)), ()


def _not_its_own(api: Api, lease: Lease | None) -> Answered:
    if lease is None:
        return _NOT_FOUND, encode(GatewayRefusedReply(reason="lock not found")), ()
    return _refused(f"held by {_shown_holder(api, api.engine.state, lease)}")


def _deadlock(path: tuple[str, ...]) -> GatewayRefusedReply:
    around = " → ".join([*path, path[0]])
    return GatewayRefusedReply(reason=f"possible deadlock: {around}", deadlock=True, cycle=list(path))


def _shown_holder(api: Api, state: State, lease: Lease) -> str:
    """Return what people call the holder of a lease; one without any name has a pseudonym."""
    holder = holder_of_lease(lease)
    return render.holder_id(lease, api.auth.key) if holder[0] == "alone" else label(state, holder)
