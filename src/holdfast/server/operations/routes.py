"""Which request goes to which handler. Knows paths and methods, nothing of what they mean.

A name in a path is one percent-encoded segment. Literal slashes are taken too: a known verb as the last segment is the
verb, whatever the method (N2). Verbs that are not built yet are known too, so that a name never changes meaning.
A path that is a route as it stands comes first: `POST /locks/heartbeat` is the gateway's, `GET` there asks for a name.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast.server.api import BUG, refuse
from holdfast.server.gateway import handlers as gateway
from holdfast.server.handlers import claims, health, history, locks, sessions, tokens, verbs
from holdfast.server.pages import documents
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.server.api import Api
    from holdfast.server.doors.request import Reply, Request

    Handler = Callable[[Api, Request, bytes, Reply], None]
    Methods = dict[bytes, Handler | None]


HANDLERS: dict[tuple[str, str], Handler | None] = {
    ("GET", "/"): documents.docs,
    ("GET", "/docs"): documents.docs,
    ("POST", "/claims"): claims.claim,
    ("GET", "/events"): None,
    ("GET", "/health"): health.health,
    ("GET", "/healthz"): health.alive,
    ("GET", "/locks"): locks.list_,
    ("GET", "/locks/{name}"): locks.status,
    ("POST", "/locks/acquire"): gateway.acquire,
    ("POST", "/locks/heartbeat"): gateway.heartbeat,
    ("GET", "/locks/list"): gateway.list_,
    ("POST", "/locks/release"): gateway.release,
    ("GET", "/locks/status"): gateway.status,
    ("POST", "/locks/{name}/acquire"): locks.acquire,
    ("POST", "/locks/{name}/check"): verbs.check,
    ("POST", "/locks/{name}/release"): locks.release,
    ("POST", "/locks/{name}/renew"): locks.renew,
    ("POST", "/locks/{name}/reopen"): verbs.reopen,
    ("POST", "/locks/{name}/revoke"): verbs.revoke,
    ("POST", "/locks/{name}/transfer"): verbs.transfer,
    ("GET", "/locks/{name}/history"): history.history,
    ("GET", "/locks/{name}/watch"): None,
    ("GET", "/locks/{name}/why"): verbs.why,
    ("GET", "/openapi.json"): documents.openapi_json,
    ("GET", "/openapi.yaml"): documents.openapi_yaml,
    ("GET", "/readyz"): health.ready,
    ("GET", "/sessions"): sessions.list_,
    ("POST", "/sessions"): sessions.open_,
    ("DELETE", "/sessions/{id}"): sessions.end,
    ("GET", "/sessions/{id}"): sessions.look,
    ("POST", "/sessions/{id}/keepalive"): sessions.keep,
    ("POST", "/sessions/{id}/renew-all"): sessions.renew_all,
    ("GET", "/status"): health.status,
    ("DELETE", "/tickets/{id}"): claims.leave,
    ("GET", "/tokens"): tokens.list_,
    ("POST", "/tokens"): tokens.create,
    ("DELETE", "/tokens/{name}"): tokens.revoke,
}
"""Who answers what. None: it streams, and only the ASGI door has it. A test compares this with the description."""

VERBS = frozenset(
    {
        b"acl",
        b"acquire",
        b"check",
        b"history",
        b"release",
        b"renew",
        b"reopen",
        b"revoke",
        b"transfer",
        b"watch",
        b"why",
    }
)

log = logging.getLogger("holdfast.server")

_LOCKS = b"/locks/"
_NONE: Methods = {}
_PLAIN: dict[bytes, Methods] = {}
_LOCK_VERBS: dict[bytes, Methods] = {}
_ITEMS: dict[tuple[bytes, bytes], Methods] = {}


def _enter(method: bytes, path: bytes, handler: Handler | None) -> None:
    parts = path.split(b"/")
    if b"{" not in path:
        _PLAIN.setdefault(path, {})[method] = handler
    elif path.startswith(_LOCKS):
        _LOCK_VERBS.setdefault(b"/".join(parts[3:]), {})[method] = handler
    else:
        _ITEMS.setdefault((parts[1], b"/".join(parts[3:])), {})[method] = handler


for (_method, _path), _handler in HANDLERS.items():
    _enter(_method.encode(), _path.encode(), _handler)


def find(method: bytes, path: bytes) -> tuple[Handler | None, bytes]:
    """Return the handler and the segment of the path that it is about, or raise 404 or 405."""
    if method == b"HEAD":
        method = b"GET"
    plain = _PLAIN.get(path, _NONE)
    if method in plain:
        return plain[method], b""
    if path.startswith(_LOCKS):
        segment, methods = _find_lock(path[len(_LOCKS) :])
    elif plain:
        raise _no_method(plain)
    else:
        segment, methods = _find_item(path)
    if method not in methods:
        raise _no_method(methods | plain)
    return methods[method], segment


def _find_lock(rest: bytes) -> tuple[bytes, Methods]:
    name, slash, last = rest.rpartition(b"/")
    if last in VERBS:
        if not slash or not name:
            raise _no_route()
        verb = last
    else:
        name, verb = rest, b""
    methods = _LOCK_VERBS.get(verb)
    if not name or methods is None:
        raise _no_route()
    return name, methods


def _find_item(path: bytes) -> tuple[bytes, Methods]:
    _, _, rest = path.partition(b"/")
    kind, _, rest = rest.partition(b"/")
    item, _, verb = rest.partition(b"/")
    methods = _ITEMS.get((kind, verb))
    if not item or methods is None:
        raise _no_route()
    return item, methods


def _no_route() -> Problem:
    return Problem("not_found", "No such route. GET /docs lists them.")


def _no_method(methods: Methods) -> Problem:
    allowed = sorted(method.decode() for method in methods)
    if "GET" in allowed:
        allowed.insert(1, "HEAD")
    text = ", ".join(allowed)
    return Problem("invalid_input", f"This route takes {text}.", status=405, allow=text)


def handle(api: Api, request: Request, reply: Reply) -> None:
    """Answer a request; `reply` is called once, now or later, never twice."""
    if api.settings.log_requests:
        reply = _logged(api, request, reply)
    try:
        handler, segment = find(request.method, request.path)
        if handler is None:
            raise _no_route()
        handler(api, request, segment, reply)
    except Problem as problem:
        api.refuse(problem, request, reply)
    except Exception:
        log.exception("a bug while answering %s", request.request_id)
        refuse(Problem("internal_error", BUG), request, reply)


def _logged(api: Api, request: Request, reply: Reply) -> Reply:
    """Write one line for the request when it is answered. Not its query, headers or body: secrets live there."""
    began_ms = api.engine.clock.monotonic_ms()

    def answer(status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        took_ms = api.engine.clock.monotonic_ms() - began_ms
        method, path = request.method.decode("latin-1"), request.path.decode("latin-1")
        log.info("%s %s %d %d ms %s", method, path, status, took_ms, request.request_id)
        reply(status, body, headers)

    return answer
