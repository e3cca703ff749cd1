"""The router: which operation a request is for, whether it is for this server at all, and how it is answered.

A name in a path is one percent-encoded segment. Literal slashes are accepted too: a known verb as the last segment is
the verb, whatever the method (N2). Verbs that no operation has are known too, so that a name never changes its meaning.
A path that is a route as it stands comes first: `POST /locks/heartbeat` is the gateway's, `GET` there asks for a name.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from holdfast.api.auth.origins import Hosts
from holdfast.api.context import Envelope, Reply
from holdfast.api.decoding import body_bytes_max, reader_for
from holdfast.api.operation import Operation, Reader
from holdfast.api.service import ApiService
from holdfast.api.streams import Stream
from holdfast.config import Settings, parse_address, parse_url
from holdfast.extras import how_to_install
from holdfast.http.manager import Handler
from holdfast.http.messages import BUG, SMALL_BODY_BYTES, Fields, Request, ResponseParts, ResponseWriter, envelope
from holdfast.wire.problems import Problem

WORD_CHARS_MAX = 32
DOCS = "GET /docs lists them."
WITHOUT_MCP = (  # Where it is installed, `/mcp` is an application and no route.
    "The tools for agents need a part of Holdfast that was not installed when this server started:"
    f" {how_to_install('mcp')}. Then start the server again."
)

OTHER_WORDS = {  # Other systems' words for our verbs, by the first word of the path. Empty: the thing itself.
    "locks": {
        "beat": "renew",
        "claim": "acquire",
        "done": "release",
        "extend": "renew",
        "heartbeat": "renew",
        "keepalive": "renew",
        "lock": "acquire",
        "owner": "",
        "refresh": "renew",
        "status": "",
        "unlock": "release",
        "wait": "acquire",
    },
    "sessions": {"heartbeat": "keepalive", "renew": "keepalive", "release": "", "end": ""},
}

VERB_OF_METHOD = {"POST": "acquire", "PUT": "acquire", "DELETE": "release", "PATCH": "renew"}  # Of a bare name.


class RouteSuggestions:
    def __init__(self, operations: tuple[Operation, ...]) -> None:
        self._routes: dict[tuple[str, str], list[Operation]] = {}  # By the first word and the verb; and plain paths.
        for operation in operations:
            first, _, rest = operation.path.removeprefix("/").partition("/")
            item, _, verb = rest.partition("/")
            key = (first, verb) if item.startswith("{") else (operation.path, "")
            self._routes.setdefault(key, []).append(operation)
        self._firsts = sorted({first.removeprefix("/").partition("/")[0] for first, _ in self._routes} - {""})

    def for_path(self, path: bytes) -> str:
        if path == b"/mcp":
            return WITHOUT_MCP
        found = self._nearest(path)
        return DOCS if found is None else f"Did you mean {_listed(found)}? {DOCS}"

    def for_method(self, method: bytes, path: bytes) -> str:
        first, _, last = _words(path)
        if first == "locks" and last not in OTHER_WORDS["locks"] and not self._verb(first, last):
            verb = VERB_OF_METHOD.get(method.decode("latin-1"))  # The bare name of a lock, or one with slashes in it.
            found = None if verb is None else self._routes.get(("locks", verb))
        else:
            found = self._nearest(path)
        return "" if found is None else f" Did you mean {_listed(found)}?"

    def _nearest(self, path: bytes) -> list[Operation] | None:
        first, item, last = _words(path)
        near = first if first in self._firsts else _close(first, self._firsts)
        if near is None:
            return None
        if not item:
            return self._routes.get((f"/{near}", ""))
        verb = self._verb(near, last)
        return None if verb is None else self._routes.get((near, verb))

    def _verb(self, first: str, word: str) -> str | None:
        verbs = [verb for known, verb in self._routes if known == first]
        if word in verbs:
            return word
        meant = OTHER_WORDS.get(first, {}).get(word)
        return meant if meant is not None else _close(word, [verb for verb in verbs if verb])


def _words(path: bytes) -> tuple[str, str, str]:
    """Return the first word of a path, what stands behind it, and the last word if it is another than that."""
    first, _, rest = path.decode("latin-1").removeprefix("/").partition("/")
    item, slash, last = rest.rpartition("/")
    return (first, item, last) if slash else (first, rest, "")


def _close(word: str, known: list[str]) -> str | None:
    if not word or len(word) > WORD_CHARS_MAX:
        return None
    return next(iter(get_close_matches(word, known, 1)), None)


def _listed(operations: list[Operation]) -> str:
    return " or ".join(
        f"{each.method} {each.path} ({each.summary[0].lower()}{each.summary[1:]})" for each in operations
    )


VERBS = frozenset(b"acl acquire check history release renew reopen revoke transfer watch why".split())

_LOCKS = b"/locks/"
_PAGES = b"/ui/"
_ANY_VIEW = (b"{path}", b"")
_NONE: Mapping[bytes, Any] = {}

STREAM_SUFFIXES = (b"/watch", b"/events", b"/backup", b"/live")  # Nearly all requests end otherwise.


class Route:
    __slots__ = ("body_bytes_max", "handler", "is_stream", "operation", "read")

    read: Reader

    def __init__(self, operation: Operation, settings: Settings, api: ApiService | None) -> None:
        self.operation = operation
        self.handler = operation.handler
        self.is_stream = operation.is_stream
        self.body_bytes_max = body_bytes_max(operation, settings)
        if api is not None:
            self.read = reader_for(api, operation)


class RouteTable:
    """The routes of one server by path and method, on a leader or, without an `ApiService`, on a follower."""

    def __init__(self, settings: Settings, operations: tuple[Operation, ...], api: ApiService | None = None) -> None:
        self._plain: dict[bytes, dict[bytes, Route]] = {}
        self._lock_verbs: dict[bytes, dict[bytes, Route]] = {}
        self._items: dict[tuple[bytes, bytes], dict[bytes, Route]] = {}
        self._views: dict[tuple[bytes, bytes], dict[bytes, Route]] = {}  # Of the page: view and verb.
        public = parse_url(settings.public_url)
        called = None if public is None else public.hostname
        self._hosts = Hosts(settings.allowed_hosts, parse_address(settings.listen)[0], called)
        self._accepted_hosts = self._hosts.accepted
        self._any_host = frozenset(operation.path.encode() for operation in operations if operation.any_host)
        self._suggestions = RouteSuggestions(operations)
        for operation in operations:
            self._enter(operation.method.encode(), operation.path.encode(), Route(operation, settings, api))
        # No path that is a route as it stands may look like a verb of a name: that is looked for first.
        below = (path.removeprefix(_LOCKS) for path in self._plain if path.startswith(_LOCKS))
        taken = {rest.rpartition(b"/")[2] for rest in below if rest.count(b"/")}
        self._by_verb = {verb: methods for verb, methods in self._lock_verbs.items() if verb and verb not in taken}

    def _enter(self, method: bytes, path: bytes, route: Route) -> None:
        parts = path.split(b"/")
        if b"{" not in path:
            self._plain.setdefault(path, {})[method] = route
        elif path.startswith(_PAGES):
            self._views.setdefault((parts[2], b"/".join(parts[4:])), {})[method] = route
        elif path.startswith(_LOCKS):
            self._lock_verbs.setdefault(b"/".join(parts[3:]), {})[method] = route
        else:
            self._items.setdefault((parts[1], b"/".join(parts[3:])), {})[method] = route

    def check_host(self, request: Request) -> None:
        host = request.host
        if host not in self._accepted_hosts and host is not None and request.path not in self._any_host:
            self._hosts.check(host)

    def is_streaming(self, request: Request) -> bool:
        path = request.path
        if path.endswith(STREAM_SUFFIXES):
            with contextlib.suppress(Problem):
                return self.find(request.method, path)[0].is_stream
        return False

    def route_of(self, request: Request) -> str:
        with contextlib.suppress(Problem):
            return self.find(request.method, request.path)[0].operation.path
        return ""

    def refusal_renderer_of(self, request: Request) -> Envelope:
        with contextlib.suppress(Problem):
            return self.find(request.method, request.path)[0].operation.refusal
        return envelope

    def find(self, method: bytes, path: bytes) -> tuple[Route, bytes]:
        """Return the route and the segment of the path that it is about, or raise 404 or 405."""
        rest = path.removeprefix(_LOCKS)  # `removeprefix` returns the very same bytes if they have another beginning.
        if rest is not path:
            name, _, verb = rest.rpartition(b"/")  # Nearly all requests are for a verb of a name: they come first.
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
        elif path.startswith(_PAGES):
            segment, methods = self._find_page(path)
        else:
            segment, methods = self._find_item(path)
        if method not in methods:
            raise self._no_method(method, path, {**methods, **plain})
        return methods[method], segment

    def _find_lock(self, rest: bytes) -> tuple[bytes, dict[bytes, Route]]:
        name, _, verb = rest.rpartition(b"/")
        if verb not in VERBS:
            name, verb = rest, b""
        methods = self._lock_verbs.get(verb)
        if not name or methods is None:
            raise self.no_route(_LOCKS + rest)
        return name, methods

    def _find_page(self, path: bytes) -> tuple[bytes, dict[bytes, Route]]:
        """Find `/ui/view/name` or `/ui/view/name/verb`. A name may have literal slashes, if what follows is no verb."""
        view, _, rest = path.removeprefix(_PAGES).partition(b"/")
        item, _, verb = rest.partition(b"/")
        if verb and (view, verb) in self._views:
            return item, self._views[view, verb]
        methods = self._views.get((view, b""))
        if rest and methods is not None:
            return rest, methods
        if _ANY_VIEW not in self._views:
            raise self.no_route(path)
        return b"", self._views[_ANY_VIEW]

    def _find_item(self, path: bytes) -> tuple[bytes, dict[bytes, Route]]:
        _, kind, item, verb = (*path.split(b"/", 3), b"", b"", b"")[:4]
        methods = self._items.get((kind, verb))
        if not item or methods is None:
            raise self.no_route(path)
        return item, methods

    def no_route(self, path: bytes) -> Problem:
        return Problem("not_found", f"No such route. {self._suggestions.for_path(path)}")

    def _no_method(self, method: bytes, path: bytes, methods: Mapping[bytes, Route]) -> Problem:
        allowed = sorted(method.decode() for method in methods)
        if "GET" in allowed:
            allowed.insert(1, "HEAD")
        text = ", ".join(allowed)
        hint = self._suggestions.for_method(method, path)
        return Problem("invalid_input", f"This route takes {text}.{hint}", status=405, allow=text)


_STREAM_FIELDS = (
    (b"cache-control", b"no-cache, no-store"),  # OctoStore's clients look for the first word.
    (b"x-content-type-options", b"nosniff"),
    (b"x-accel-buffering", b"no"),  # A proxy must not buffer events.
)

log = logging.getLogger("holdfast.server")


class Routes(RouteTable):
    def __init__(self, api: ApiService, operations: tuple[Operation, ...]) -> None:
        super().__init__(api.settings, operations, api)
        self.api = api

    def handler(self, headers: Fields = ()) -> Handler:
        return Handler(
            handle=self.handle,
            refuse=self.refuse,
            is_streaming=self.is_streaming,
            stream=self.stream,
            body_limit=self.body_limit,
            check_host=self.check_host,
            principal_of=self.api.principal_of,
            route_of=self.route_of,
            expiry_ms=lambda: self.api.engine.ticks.expiry_ms,
            headers=headers,
        )

    def handle(self, request: Request, reply: Reply) -> None:
        """Answer a request; `reply` is called once, now or later, never twice."""
        try:
            if request.host not in self._accepted_hosts:
                self.check_host(request)
            route, segment = self.find(request.method, request.path)
            if route.is_stream:
                raise self.no_route(request.path)
            read, handler = route.read, route.handler
            handler(self.api, read(request, segment, reply))
        except Problem as problem:
            self.refuse(problem, request, reply)
        except Exception:
            log.exception("a bug while answering %s", request.request_id)
            reply(request, *envelope(Problem("internal_error", BUG), request))

    def body_limit(self, request: Request) -> int:
        self.check_host(request)
        route, _ = self.find(request.method, request.path)
        if route.body_bytes_max > SMALL_BODY_BYTES:
            self.api.admit(request, route.operation.scope or "", route.operation.own_scope)
        return route.body_bytes_max

    def refuse(self, problem: Problem, request: Request, reply: Reply) -> None:
        """Refuse a request in the words of its route; if the refusal rests on the state, not before that is durable."""
        self.api.refuse(problem, self.refusal_renderer_of(request), request, reply)

    async def stream(self, request: Request, response: ResponseWriter) -> None:
        try:
            self.check_host(request)
            route, segment = self.find(request.method, request.path)
            if route.operation.body is not None:
                await response.read_body()
            stream: Stream = route.handler(self.api, route.read(request, segment, _no_reply))
        except Problem as problem:
            await response.respond(*await self._refused(problem, request))
            return
        request.body = b""  # It was decoded, and the request lives as long as the stream.
        media_type = (b"content-type", str(route.operation.replies[200]).encode())
        try:
            if request.method == b"HEAD":
                await response.respond(200, b"", (media_type,))
                return
            response.start(200, [media_type, *_STREAM_FIELDS])
            if await _write_frames(stream, response):
                response.finish()
        finally:
            stream.close()

    async def _refused(self, problem: Problem, request: Request) -> ResponseParts:
        answered: asyncio.Future[ResponseParts] = asyncio.get_running_loop().create_future()

        def reply(_request: Request, status: int, body: bytes, headers: Fields) -> None:
            if not answered.done():
                answered.set_result((status, body, headers))

        self.refuse(problem, request, reply)
        return await answered


def _no_reply(_request: Request, _status: int, _body: bytes, _headers: Fields) -> None: ...


async def _write_frames(stream: Stream, response: ResponseWriter) -> bool:
    """Write the frames of a stream. False: the client is gone."""
    frames = stream.frames()
    while not response.disconnected.done():
        frame = asyncio.ensure_future(anext(frames, None))
        both: set[asyncio.Future[Any]] = {frame, response.disconnected}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not frame.done():
            frame.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await frame
            return False
        chunk = frame.result()
        if chunk is None:
            return True
        await response.write(chunk)
    return True
