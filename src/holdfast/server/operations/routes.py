"""Which request goes to which operation, and what becomes of it. Knows paths and methods, nothing of what they mean.

A name in a path is one percent-encoded segment. Literal slashes are taken too: a known verb as the last segment is the
verb, whatever the method (N2). Verbs that are not built yet are known too, so that a name never changes meaning.
A path that is a route as it stands comes first: `POST /locks/heartbeat` is the gateway's, `GET` there asks for a name.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from holdfast.server.access.hosts import Hosts
from holdfast.server.api import BUG
from holdfast.server.operations.guides import Guides
from holdfast.server.operations.reading import reader_for
from holdfast.server.operations.sizes import SMALL_BODY_BYTES, size_of
from holdfast.server.render import envelope
from holdfast.settings import parse_address, parse_url
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from holdfast.server.api import Api
    from holdfast.server.doors.request import Request
    from holdfast.server.operations.call import Envelope, Reply
    from holdfast.server.operations.operation import Operation

    Methods = dict[bytes, "Route"]

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


class Route:
    """An operation with all that was made ready for it when the server started."""

    __slots__ = ("body_bytes_max", "handler", "is_stream", "operation", "read")

    def __init__(self, api: Api, operation: Operation) -> None:
        self.operation = operation
        self.read = reader_for(api, operation)
        self.handler = operation.handler
        self.is_stream = operation.is_stream
        self.body_bytes_max = size_of(operation, api.settings).bytes_max


class Routes:
    """The operations of one server, by path and method. Both doors call `handle`; streams are the ASGI door's."""

    def __init__(self, api: Api, operations: tuple[Operation, ...]) -> None:
        self.api = api
        self._plain: dict[bytes, Methods] = {}
        self._lock_verbs: dict[bytes, Methods] = {}
        self._items: dict[tuple[bytes, bytes], Methods] = {}
        self._logs_requests = api.settings.log_requests
        settings = api.settings
        public = parse_url(settings.public_url)
        called = None if public is None else public.hostname
        self._hosts = Hosts(settings.allowed_hosts, parse_address(settings.listen)[0], called)
        self._passed_hosts = self._hosts.passed
        self._any_host = frozenset(operation.path.encode() for operation in operations if operation.any_host)
        self._guides = Guides(operations)
        for operation in operations:
            self._enter(operation.method.encode(), operation.path.encode(), Route(api, operation))
        # No path that is a route as it stands may look like a verb of a name: that is looked for first.
        below = (path.removeprefix(_LOCKS) for path in self._plain if path.startswith(_LOCKS))
        taken = {rest.rpartition(b"/")[2] for rest in below if rest.count(b"/")}
        self._by_verb = {verb: methods for verb, methods in self._lock_verbs.items() if verb and verb not in taken}

    def _enter(self, method: bytes, path: bytes, route: Route) -> None:
        parts = path.split(b"/")
        if b"{" not in path:
            self._plain.setdefault(path, {})[method] = route
        elif path.startswith(_LOCKS):
            self._lock_verbs.setdefault(b"/".join(parts[3:]), {})[method] = route
        else:
            self._items.setdefault((parts[1], b"/".join(parts[3:])), {})[method] = route

    def handle(self, request: Request, reply: Reply) -> None:
        """Answer a request; `reply` is called once, now or later, never twice."""
        if self._logs_requests:
            reply = self._logged(reply)
        try:
            if request.host not in self._passed_hosts:
                self.check_host(request)
            route, segment = self.find(request.method, request.path)
            if route.is_stream:
                raise self._no_route(request.path)
            read, handler = route.read, route.handler
            handler(self.api, read(request, segment, reply))
        except Problem as problem:
            self.refuse(problem, request, reply)
        except Exception:
            log.exception("a bug while answering %s", request.request_id)
            reply(request, *envelope(Problem("internal_error", BUG), request))

    def check_host(self, request: Request) -> None:
        """Raise if the request is for a server of another name. `handle` does it; a door does it before all else."""
        host = request.host
        if host not in self._passed_hosts and host is not None and request.path not in self._any_host:
            self._hosts.check(host)

    def body_limit(self, request: Request) -> int:
        """Return how many bytes the body of this request may have, of which only the head is known so far.

        A door asks as soon as it knows that there will be more than `SMALL_BODY_BYTES`, and before it keeps any more of
        it: raises why nothing beyond that is taken from this sender. The body need not be read on then.
        """
        self.check_host(request)
        route, _ = self.find(request.method, request.path)
        if route.body_bytes_max > SMALL_BODY_BYTES:
            self.api.admit(request, route.operation.scope or "", route.operation.own_scope)
        return route.body_bytes_max

    def refuse(self, problem: Problem, request: Request, reply: Reply) -> None:
        """Refuse a request in the words of its route; if the refusal rests on the state, not before that is durable."""
        words: Envelope = envelope
        with contextlib.suppress(Problem):
            words = self.find(request.method, request.path)[0].operation.refusal
        self.api.refuse(problem, words, request, reply)

    def find(self, method: bytes, path: bytes) -> tuple[Route, bytes]:
        """Return the route and the segment of the path that it is about, or raise 404 or 405."""
        # `removeprefix` returns the very same bytes if they have another beginning.
        rest = path.removeprefix(_LOCKS)
        if rest is not path:
            # Nearly all requests are for a verb of a name: they come first.
            name, _, verb = rest.rpartition(b"/")
            route = self._by_verb.get(verb, _NONE).get(method)
            if name and route is not None:
                return route, name
        if method == b"HEAD":
            method = b"GET"
        plain = self._plain.get(path, _NONE)
        if method in plain:
            return plain[method], b""
        if rest is not path:
            segment, methods = self._find_lock(rest)
        elif plain:
            raise self._no_method(method, path, plain)
        else:
            segment, methods = self._find_item(path)
        if method not in methods:
            raise self._no_method(method, path, methods | plain)
        return methods[method], segment

    def _find_lock(self, rest: bytes) -> tuple[bytes, Methods]:
        name, _, verb = rest.rpartition(b"/")
        if verb not in VERBS:
            name, verb = rest, b""
        methods = self._lock_verbs.get(verb)
        if not name or methods is None:
            raise self._no_route(_LOCKS + rest)
        return name, methods

    def _find_item(self, path: bytes) -> tuple[bytes, Methods]:
        _, kind, item, verb = (*path.split(b"/", 3), b"", b"", b"")[:4]
        methods = self._items.get((kind, verb))
        if not item or methods is None:
            raise self._no_route(path)
        return item, methods

    def _no_route(self, path: bytes) -> Problem:
        return Problem("not_found", f"No such route. {self._guides.for_path(path)}")

    def _no_method(self, method: bytes, path: bytes, methods: Methods) -> Problem:
        allowed = sorted(method.decode() for method in methods)
        if "GET" in allowed:
            allowed.insert(1, "HEAD")
        text = ", ".join(allowed)
        hint = self._guides.for_method(method, path)
        return Problem("invalid_input", f"This route takes {text}.{hint}", status=405, allow=text)

    def _logged(self, reply: Reply) -> Reply:
        """Write one line for the request when it is answered. Not its query, headers or body: secrets live there."""
        clock = self.api.engine.clock
        began_ms = clock.monotonic_ms()

        def answer(request: Request, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> None:
            took_ms = clock.monotonic_ms() - began_ms
            method, path = request.method.decode("latin-1"), request.path.decode("latin-1")
            log.info("%s %s %d %d ms %s", method, path, status, took_ms, request.request_id)
            reply(request, status, body, headers)

        return answer
