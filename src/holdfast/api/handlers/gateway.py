"""The gateway: Action Llama's lock routes. A run is a session, known by its secret (S1–S5).

A run is its session under the session's own name, and only what is held under both is its own (`is_of_run`). A refusal
is `{"ok": false}` with a `reason` from the rules or an `error`. Bodies have the fields of the original and no others.
They are read in this order, up to the ttl as in the original:

    secret → resource → ttl → who asks → whether it may touch the resource → key
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from holdfast.api import rendering
from holdfast.api.auth.auth import Caller
from holdfast.api.auth.secrets import SESSION_PREFIX
from holdfast.api.context import Reply, RequestContext
from holdfast.api.decoding import TARGET_BYTES_MAX, body_bytes_max, fingerprint, loads, read_key, too_long
from holdfast.api.handlers import paging
from holdfast.api.operation import Key, Operation, Reader
from holdfast.api.rendering import encode
from holdfast.api.service import ApiService, Renderer
from holdfast.core.commands import Acquire, Release, Renew
from holdfast.core.deadlock import name_of_holder
from holdfast.core.names import BadNameError, parse_name
from holdfast.core.outcomes import (
    Acquired,
    Deadlock,
    Delayed,
    Extended,
    Finished,
    Held,
    NotHeld,
    Released,
    TokensExhausted,
    TooManyLeases,
)
from holdfast.core.state import State
from holdfast.core.values import Instant, Lease, Session, Terms, is_of_run
from holdfast.engine.ids import new_uuid
from holdfast.http.messages import Request, ResponseParts, too_large
from holdfast.wire import gateway
from holdfast.wire.gateway import (
    GatewayAcquiredReply,
    GatewayErrorReply,
    GatewayLock,
    GatewayOwnLock,
    GatewayRefusedReply,
    GatewayReleasedReply,
    GatewayRenewedReply,
    GatewayStatusReply,
    GatewayTimedBody,
)
from holdfast.wire.problems import Problem
from holdfast.wire.replies import shown_as

STATUS_LOCKS_MAX = 10_000
UNAUTHENTICATED_CODES = frozenset({"authentication_required", "authentication_failed", "session_expired"})
_NEEDS_HOST = frozenset({"ftp", "http", "https", "ws", "wss"})


class Run(msgspec.Struct, frozen=True):
    session: str
    owner: str  # The name of its session, or its id if it has none.
    ttl_ms: int


def secret_reader(api: ApiService, operation: Operation) -> Reader:
    bytes_max = body_bytes_max(operation, api.settings)

    def read(request: Request, _segment: bytes, reply: Reply) -> RequestContext:
        name, ttl_ms = "", 0
        if operation.body is None:
            secret = _read_secret(request.query)
        else:
            if len(request.body) > bytes_max:
                raise too_large(bytes_max)
            fields = _read_body(request.body)
            secret, name = _read_target(fields)
            if operation.body is GatewayTimedBody:
                ttl_ms = _read_ttl(api, fields.get("ttl"))
        caller, session = _admit(api, request, secret)
        if name:
            caller.require_touch(name)
        run = Run(session.session_id, session.name or session.session_id, ttl_ms)
        key, content = None, ""
        if operation.key is not Key.IGNORED and request.key is not None:
            # Only now: what another run of the same token did under this key is not what this one did.
            key, content = read_key(request), fingerprint(request, name, "gateway")
        return RequestContext(operation.refusal, request, reply, name, None, run, caller, api, key, content)

    return read


def _admit(api: ApiService, request: Request, secret: str) -> tuple[Caller, Session]:
    """Return the caller and the session whose secret this is, as of this turn; that keeps it alive (S1)."""
    # Only a session's secret is one here: no bearer token in a body or a query. Others are looked up just the same, so
    # that a server which cannot serve says so before it says anything of secrets, and so that they are counted.
    is_session_secret = secret.startswith(SESSION_PREFIX) and secret.isascii()
    request.authorization = f"Bearer {secret if is_session_secret else SESSION_PREFIX}".encode()
    try:
        caller = api.admit(request, "claim")
    except Problem as problem:
        raise (Problem("forbidden", "invalid secret") if problem.code in UNAUTHENTICATED_CODES else problem) from None
    session = None if caller.session is None else api.engine.state.sessions.get(caller.session)
    if session is None:
        raise Problem("forbidden", "invalid secret")
    return caller, session


def _read_target(fields: dict[str, Any]) -> tuple[str, str]:
    secret, key = fields.get("secret"), fields.get("resourceKey")
    if not isinstance(secret, str) or not secret:
        raise _bad("missing secret")
    if not isinstance(key, str) or not key:
        raise _bad("missing resourceKey")
    try:
        return secret, _parse_key(key)
    except BadNameError as error:
        raise _bad(f"Invalid URI format: {error}") from None


def _read_body(body: bytes) -> dict[str, Any]:
    try:
        read = loads(body)
    except ValueError:
        raise _bad("invalid JSON body") from None
    return read if isinstance(read, dict) else {}  # Another type of value lacks every field, as in the original.


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


def _read_ttl(api: ApiService, ttl: object) -> int:
    settings = api.settings
    if ttl is None:
        return settings.resource_lock_timeout * 1000
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 <= ttl <= settings.max_ttl_seconds:
        # NaN and the infinite fail the comparison.
        raise _bad(f"invalid ttl: a number of seconds, 0 to {settings.max_ttl_seconds}; 0 stands for the default")
    return max(1, round(ttl * 1000)) if ttl else settings.resource_lock_timeout * 1000


def _read_secret(query: bytes) -> str:
    if len(query) > TARGET_BYTES_MAX:
        raise too_long("query")
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


def error(problem: Problem, _request: Request) -> ResponseParts:
    return problem.status, encode(GatewayErrorReply(False, problem.details)), problem.headers()


def error_of_status(problem: Problem, request: Request) -> ResponseParts:
    if problem.code in UNAUTHENTICATED_CODES:
        problem = Problem("authentication_failed", "Unauthorized")
    return error(problem, request)


def acquire(api: ApiService, context: RequestContext) -> None:
    run: Run = context.body
    command = Acquire(
        name=context.item,
        lease_id=new_uuid(),
        terms=Terms(
            principal=context.caller.principal, ttl_ms=run.ttl_ms, owner=run.owner, session=run.session, bound=True
        ),
        resume=True,  # Also if it is the run's already (C4).
        as_session=run.session,
        interest=True,
    )
    api.submit(context, command, _ACQUIRE_RENDERERS)


def _deadlock(api: ApiService, context: RequestContext, outcome: Deadlock, _now: Instant) -> ResponseParts:
    api.record_deadlock(context, outcome)
    path = rendering.masked(outcome.path, context.caller.prefix)
    around = " → ".join([*path, path[0]])
    return _refused(reason=f"possible deadlock: {around}", deadlock=True, cycle=list(path))


def _exhausted(_api: ApiService, _context: RequestContext, outcome: object, _now: Instant) -> ResponseParts:
    return _refused(reason=rendering.problem(outcome).details)


_ACQUIRE_RENDERERS: dict[type, Renderer] = {
    Acquired: lambda _api, context, _outcome, _now: (200, encode(GatewayAcquiredReply(True, context.item)), ()),
    Held: lambda _api, _context, outcome, _now: _refused(
        holder=_holder(outcome), held_since=outcome.lease.granted_wall_ms
    ),
    Deadlock: _deadlock,
    Finished: lambda _api, _context, outcome, _now: _refused(
        reason=f"done by {outcome.done.owner or shown_as(outcome.done.whose)}"
    ),
    Delayed: lambda _api, _context, outcome, now: _refused(
        reason=f"closed for another {outcome.until_ms - now.ms} ms after its last end"
    ),
    TooManyLeases: _exhausted,
    TokensExhausted: _exhausted,
}


def release(api: ApiService, context: RequestContext) -> None:
    run: Run = context.body
    command = Release(
        name=context.item,
        principal=context.caller.principal,
        run=run.owner,
        as_session=run.session,
        key=context.key,
        fingerprint=context.fingerprint,
    )
    api.submit(context, command, _RELEASE_RENDERERS)


def heartbeat(api: ApiService, context: RequestContext) -> None:
    run: Run = context.body
    command = Renew(
        name=context.item, principal=context.caller.principal, run=run.owner, ttl_ms=run.ttl_ms, as_session=run.session
    )
    api.submit(context, command, _RENEW_RENDERERS)


def _renewed(_api: ApiService, _context: RequestContext, outcome: Extended, now: Instant) -> ResponseParts:
    return 200, encode(GatewayRenewedReply(True, now.wall_ms + outcome.until_ms - now.ms)), ()


_NOT_HELD_BY_RUN: dict[type, Renderer] = {
    NotHeld: lambda _api, _context, _outcome, _now: (404, encode(GatewayRefusedReply(reason="lock not found")), ()),
    Held: lambda _api, _context, outcome, _now: _refused(reason=f"held by {_holder(outcome)}"),
}
_RELEASE_RENDERERS: dict[type, Renderer] = {
    Released: lambda _api, _context, _outcome, _now: (200, encode(GatewayReleasedReply(True)), ()),
    **_NOT_HELD_BY_RUN,
}
_RENEW_RENDERERS: dict[type, Renderer] = {Extended: _renewed, **_NOT_HELD_BY_RUN}


def _refused(**fields: Any) -> ResponseParts:  # noqa: ANN401 - the fields of the reply
    return 409, encode(GatewayRefusedReply(**fields)), ()


def _holder(outcome: Held) -> str:
    return outcome.holder or shown_as(outcome.lease.principal)


def list_(api: ApiService, context: RequestContext) -> None:
    run: Run = context.body

    def view(state: State, now: Instant) -> ResponseParts:
        found: list[GatewayOwnLock] = []
        for name in sorted(state.index.names_by_session.get(run.session, ())):
            lease = state.lease_of(name)
            if lease is not None and is_of_run(lease, run.session, run.owner, api.engine.limits):
                until_ms = now.wall_ms + state.until_of(lease) - now.ms
                holder = _shown_holder(state, lease)
                found.append(GatewayOwnLock(name, holder, lease.granted_wall_ms, until_ms))
        return 200, encode(found), ()

    api.read(context, view)


def status(api: ApiService, context: RequestContext) -> None:
    found: list[GatewayLock] = []

    def take_slice(state: State, _now: Instant) -> bool:
        after = found[-1].resource_key if found else ""
        for name in islice(state.index.held.walk(context.caller.prefix or "", after), paging.SLICE_ITEMS):
            lease = state.lease_of(name)
            if lease is not None:
                holder = _shown_holder(state, lease)
                found.append(GatewayLock(name, _agent(holder), holder, lease.granted_wall_ms))
        is_last = not found or found[-1].resource_key == after
        return is_last or len(found) >= STATUS_LOCKS_MAX

    async def respond() -> ResponseParts:
        await paging.sort_held_names(api.engine)
        await paging.in_slices(api.engine, take_slice)
        return 200, encode(GatewayStatusReply(found)), ()

    api.answer_slowly(context, respond)


def _shown_holder(state: State, lease: Lease) -> str:
    return name_of_holder(state, lease) or shown_as(lease.principal)


def _agent(holder: str) -> str:
    """Return the agent of a run, which is its name without the number. Brackets say that there is no such name."""
    return holder if holder.startswith("(") else holder.rpartition("-")[0] or holder


_ERRORS = dict.fromkeys((400, 403, 413, 421, 429, 503), gateway.GatewayErrorReply)

_row = partial(Operation, reader=secret_reader, refusal=error)

GATEWAY: tuple[Operation, ...] = (
    _row(
        "POST",
        "/locks/acquire",
        acquire,
        "Gateway: have a resource, as a run",
        body=gateway.GatewayTimedBody,
        replies={200: gateway.GatewayAcquiredReply, 409: gateway.GatewayRefusedReply, **_ERRORS},
    ),
    _row(
        "POST",
        "/locks/heartbeat",
        heartbeat,
        "Gateway: keep a resource, as a run",
        body=gateway.GatewayTimedBody,
        replies={
            200: gateway.GatewayRenewedReply,
            404: gateway.GatewayRefusedReply,
            409: gateway.GatewayRefusedReply,
            **_ERRORS,
        },
    ),
    _row(
        "GET",
        "/locks/list",
        list_,
        "Gateway: what a run has",
        query={"secret": "The session's secret."},
        replies={200: list[gateway.GatewayOwnLock], **_ERRORS},
    ),
    _row(
        "POST",
        "/locks/release",
        release,
        "Gateway: give a resource back, as a run",
        body=gateway.GatewayBody,
        key=Key.WITH_CONTENT,
        replies={
            200: gateway.GatewayReleasedReply,
            404: gateway.GatewayRefusedReply,
            409: gateway.GatewayRefusedReply,
            **_ERRORS,
        },
    ),
    Operation(
        "GET",
        "/locks/status",
        status,
        "Gateway: who has what",
        scope="read",
        ignores_query=True,
        refusal=error_of_status,
        replies={200: gateway.GatewayStatusReply, 401: gateway.GatewayErrorReply, **_ERRORS},
    ),
)
