"""Requests to the gateway become calls. A run shows its session's secret in the body, or in the query of its list.

    secret → resource → ttl → who asks → whether it may touch the resource → key

Up to the ttl that is the original's order. Bodies have the fields of the original and no others.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import parse_qsl

import msgspec

from holdfast.core.names import BadNameError, parse_name
from holdfast.server.access.secrets import SESSION_PREFIX
from holdfast.server.operations.call import Call
from holdfast.server.operations.operation import Key
from holdfast.server.operations.parts import TARGET_BYTES_MAX, read_key, shown, too_long
from holdfast.server.operations.reading import fingerprint
from holdfast.server.operations.sizes import size_of, too_large
from holdfast.wire.gateway import GatewayTimedBody
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from holdfast.core.values import Session
    from holdfast.server.access.auth import Caller
    from holdfast.server.api import Api
    from holdfast.server.http.messages import Request
    from holdfast.server.operations.call import Reply
    from holdfast.server.operations.operation import Operation, Reader

NOT_KNOWN = frozenset({"authentication_required", "authentication_failed", "session_expired"})
"""The codes of those whom nobody knows: the gateway has one word for all of them."""
_NEEDS_HOST = frozenset({"ftp", "http", "https", "ws", "wss"})


class Run(msgspec.Struct, frozen=True):
    """A run that was let in, and for how long it asks: the body of its call."""

    session: str
    owner: str
    """What it is called: its session's name, or its id if it has none."""
    ttl_ms: int


def by_secret(api: Api, operation: Operation) -> Reader:
    """For an operation that a run asks for."""
    bytes_max = size_of(operation, api.settings).bytes_max

    def read(request: Request, _segment: bytes, reply: Reply) -> Call:
        name, ttl_ms = "", 0
        if operation.body is None:
            secret = _read_secret(request.query)
        else:
            if len(request.body) > bytes_max:
                raise too_large(bytes_max)
            fields = _read_body(request.body)
            secret, name = _read_ask(fields)
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
        return Call(operation.refusal, request, reply, name, None, run, caller, api, key, content)

    return read


def _admit(api: Api, request: Request, secret: str) -> tuple[Caller, Session]:
    """Return the caller and the session whose secret this is, as of this turn; that keeps it alive (S1)."""
    # Only a session's secret is one here: no bearer token in a body or a query. Others are looked up just the same, so
    # that a server which cannot serve says so before it says anything of secrets, and so that they are counted.
    usable = secret.startswith(SESSION_PREFIX) and secret.isascii()
    request.authorization = f"Bearer {secret if usable else SESSION_PREFIX}".encode()
    try:
        caller = api.admit(request, "claim")
    except Problem as problem:
        raise (Problem("forbidden", "invalid secret") if problem.code in NOT_KNOWN else problem) from None
    session = None if caller.session is None else api.engine.state.sessions.get(caller.session)
    if session is None:
        raise Problem("forbidden", "invalid secret")
    return caller, session


def _read_ask(fields: dict[str, Any]) -> tuple[str, str]:
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
        read = json.loads(body.decode(), object_pairs_hook=_pairs, parse_constant=_no_constant)
    except _TwiceError as error:
        raise _bad(str(error)) from None
    except (ValueError, RecursionError):
        raise _bad("invalid JSON body") from None
    # As in the original, what is not an object is one that lacks everything.
    return read if isinstance(read, dict) else {}


class _TwiceError(ValueError):
    pass


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
