"""Applications beside our routes: whatever answers below a path of its own, in ASGI's words.

    lane ──► the front ──► a mounted path? ──► the application ──┐ `ask`
                 ▲   └───► all else: routes and door             │
                 └───────────────────────────────────────────────┘

An application keeps nothing here and has no rights of its own. What it wants of this server it asks as any client does,
through `Mounting.ask`: in the name of the request that it answers, with the token that came with that, and counted for
the same address and connection. Who answers is whoever answers then: our own routes, or on a node that follows those of
the leader.

`Host` is checked as for all routes, and so is where a browser's page comes from: what is mounted is for programs, so a
page of another origin is refused, whatever it sends. A body is small, unless the mount says otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from holdfast.server.access.origins import OwnOrigin
from holdfast.server.doors.asgi import answer_to_come, request_of, respond
from holdfast.server.doors.exchange import REQUEST
from holdfast.server.doors.heads import NEVER_REPEATED
from holdfast.server.doors.request import request_from
from holdfast.server.operations.sizes import SMALL_BODY_BYTES
from holdfast.server.render import envelope
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from holdfast.server.access.proxies import Proxies
    from holdfast.server.doors.exchange import Application, Receive, Scope, Send
    from holdfast.server.doors.lanes import Answers, AnswersInPieces, Front
    from holdfast.server.doors.request import Request
    from holdfast.settings import Settings

REQUEST_ID = "holdfast.request_id"
"""Where the scope has the id of the request, for an application that refuses in our words."""
_FORWARDED = (b"x-forwarded-for", b"x-forwarded-proto")
_OTHER_ORIGIN = "This was sent by a page of another origin, and programs alone are served here: send no Origin."


class Ask(Protocol):
    """Asks this server something, on behalf of the request with this scope; returns status, headers and body."""

    def __call__(
        self, scope: Scope, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Awaitable[tuple[int, Mapping[str, str], bytes]]: ...


Mount: TypeAlias = Callable[[Ask], "Application"]
"""Makes an application that can ask."""


class Mounting:
    """The applications of one server. `front` puts them before whoever answers all else."""

    def __init__(
        self,
        mounts: Mapping[str, Mount],
        settings: Settings,
        proxies: Proxies,
        *,
        body_bytes_max: int = SMALL_BODY_BYTES,
    ) -> None:
        """`mounts` are by the path that each answers, and all below it."""
        self._applications = {path.encode(): mount(self.ask) for path, mount in mounts.items()}
        self._places = tuple(self._applications)
        self._origin = OwnOrigin(settings, proxies)
        self._proxies = proxies
        self._body_bytes_max = body_bytes_max
        self._answers: Answers | None = None

    def front(self, front: Front) -> Front:
        """Return a front that the applications stand before; from now on it is the one that they ask."""
        self._answers = front.routes
        if not self._applications:
            return front
        return msgspec.structs.replace(front, door=_Door(self, front.door))

    def of(self, path: bytes) -> Application | None:
        """Return the application that answers a path, if there is one."""
        if not path.startswith(self._places):
            return None
        for place, application in self._applications.items():
            if path == place or path.startswith(place + b"/"):
                return application
        return None

    def body_limit(self) -> int:
        """Return how many bytes of body a mounted application may be sent."""
        return self._body_bytes_max

    def may_be_repeated(self) -> bool:
        """Tell whether a path of a mount may come by a head that was seen before."""
        return not all(place.startswith(NEVER_REPEATED) for place in self._places)

    def check(self, request: Request) -> None:
        """Raise if a page of another origin asks."""
        is_own = self._origin.is_same(request)
        if is_own is False or (is_own is None and b"origin" in request.headers):
            raise Problem("forbidden", _OTHER_ORIGIN)

    def as_the_client_sees_it(self, scope: Scope, request: Request) -> Scope:
        """Return the scope with the client's own address and scheme, where a trusted proxy tells them."""
        address = self._proxies.client_of(request)
        client = scope["client"] if address is None or str(address) == request.peer else (str(address), 0)
        extensions = {**scope.get("extensions", {}), REQUEST: request, REQUEST_ID: request.request_id}
        scheme = self._proxies.scheme_of(request, scope["scheme"])
        return scope | {"scheme": scheme, "client": client, "extensions": extensions}

    async def ask(
        self, scope: Scope, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Ask whoever answers now. If this is cancelled, nobody is there any more who waits for the answer."""
        outer: Request = scope["extensions"][REQUEST]
        answers = self._answers
        if answers is None:
            raise RuntimeError("nobody answers yet")
        place, _, query = path.partition("?")
        fields = {name.lower().encode("latin-1"): value.encode("latin-1") for name, value in headers.items()}
        fields |= {name: outer.headers[name] for name in _FORWARDED if name in outer.headers}
        request = request_from(method.encode(), place.encode(), query.encode(), fields, body, outer.peer)
        request.host, request.on_known, request.request_id = outer.host, outer.on_known, outer.request_id
        answered, reply = answer_to_come()
        answers.handle(request, reply)
        try:
            status, answer, said = await answered
        except asyncio.CancelledError:
            leave = request.on_disconnect or request.on_lost
            if leave is not None:
                leave()
            raise
        return status, {name.decode("latin-1"): value.decode("latin-1") for name, value in said}, answer


class _Door:
    """Whoever answers in pieces, with the mounted applications before it."""

    def __init__(self, mounting: Mounting, door: AnswersInPieces) -> None:
        self._mounting = mounting
        self._door = door
        self.whole_methods = frozenset() if mounting.may_be_repeated() else door.whole_methods

    def is_in_pieces(self, request: Request) -> bool:
        return self._mounting.of(request.path) is not None or self._door.is_in_pieces(request)

    def body_limit(self, request: Request) -> int:
        if self._mounting.of(request.path) is not None:
            return self._mounting.body_limit()
        return self._door.body_limit(request)

    def check_host(self, request: Request) -> None:
        self._door.check_host(request)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._door(scope, receive, send)
            return
        try:
            request: Request = scope.get("extensions", {}).get(REQUEST) or request_of(scope)
        except Problem:
            await self._door(scope, receive, send)  # It says what is wrong with the head.
            return
        application = self._mounting.of(request.path)
        if application is None:
            await self._door(scope, receive, send)
            return
        try:
            self._door.check_host(request)
            self._mounting.check(request)
        except Problem as problem:
            await respond(send, request, envelope(problem, request))
            return
        await application(self._mounting.as_the_client_sees_it(scope, request), receive, _identified(request, send))


def _identified(request: Request, send: Send) -> Send:
    """Return what sends an answer with the id of its request, as all answers have it."""

    async def sending(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            identity = (b"x-request-id", request.request_id.encode())
            message = {**message, "headers": [*message.get("headers", ()), identity]}
        await send(message)

    return sending
