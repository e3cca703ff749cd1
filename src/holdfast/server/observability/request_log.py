"""Observers of requests, and the request log, which is one of them; traces are another.

Observers wrap the application (`Front`), so each request is observed once, on the node and the connection where it came
in: also requests refused before they are read, streams, and requests that a node forwards. A stream ends when its
response ends. A client that disconnects before its response is observed too. Without observers nothing is wrapped.

The request log has one line per request, when it is answered:

    GET /locks/deploy 200 3 ms req_5f…

It never contains the query, headers or body, where secrets may be. The route tells what was asked without the name.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from holdfast.server.doors.asgi import request_of
from holdfast.server.doors.exchange import REQUEST
from holdfast.server.observability.logs import shown_path
from holdfast.server.operations.router import Finder
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.engine.clock import Clock
    from holdfast.server.access.proxies import Proxies
    from holdfast.server.doors.exchange import Application, Receive, Scope, Send
    from holdfast.server.doors.lanes import Answers, AnswersInPieces, Front
    from holdfast.server.doors.request import Request
    from holdfast.server.operations.call import Reply

Ended: TypeAlias = Callable[[int | None, str | None], None]
"""Is told how a request ended: its status, or None if the client left before; and the principal, if it is known."""
_START = "http.response.start"
_METHOD_CHARS_MAX = 16

log = logging.getLogger("holdfast.requests")


class Observer(Protocol):
    """Sees requests."""

    def begin(self, request: Request, route: str) -> Ended:
        """See a request come. `route` is the path of its row in the table; empty if there is none."""

    def close(self) -> None:
        """Know that there are no more."""


class RequestLog:
    """Logs one line per request."""

    def __init__(self, clock: Clock, proxies: Proxies) -> None:
        self._read_ms = clock.monotonic_ms
        self._proxies = proxies

    def begin(self, request: Request, route: str) -> Ended:
        return partial(self._end, request, route, self._read_ms())

    def close(self) -> None:
        """Do nothing: every line is queued already."""

    def _end(self, request: Request, route: str, began_ms: int, status: int | None, principal: str | None) -> None:
        method = request.method[:_METHOD_CHARS_MAX].decode("latin-1")
        path, took_ms = shown_path(request.path), self._read_ms() - began_ms
        fields = {
            "method": method,
            "path": path,
            "route": route or None,
            "status": status,
            "ms": took_ms,
            "request_id": request.request_id,
            "principal": principal,
            "client": str(self._proxies.client_of(request) or "") or None,
        }
        said = "the client left" if status is None else status
        text = "%s %s %s %d ms %s"
        log.info(text, method, path, said, took_ms, request.request_id, extra={"fields": fields})


class _Observed:
    """One request, until it is over."""

    __slots__ = ("_ended", "_principal_of", "_request", "is_over", "principal", "status")

    def __init__(self, request: Request, ended: list[Ended], principal_of: Callable[[Request], str | None]) -> None:
        self._request = request
        self._ended = ended
        self._principal_of = principal_of
        self.status: int | None = None
        self.principal: str | None = None
        self.is_over = False

    def answer(self, status: int) -> None:
        """Know the status. Who asked is found out now: later its token may have ended."""
        self.status, self.principal = status, self._principal_of(self._request)

    def end(self) -> None:
        """Know that it is over."""
        if not self.is_over:
            self.is_over = True
            for tell in self._ended:
                tell(self.status, self.principal)


class Observing:
    """All observers of a server. Give `front` to its lanes, or `door` to uvicorn."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def front(self, front: Front) -> Front:
        """Return the same front, observed; if there is nobody to observe it, as it is."""
        if not self._observers:
            return front
        door = _Door(front.door, partial(self._begin, front))
        return msgspec.structs.replace(front, routes=_Answers(front.routes, partial(self._begin, front)), door=door)

    def door(self, front: Front, door: Application) -> Application:
        """Return the ASGI door of a server without lanes, observed."""
        return _Application(door, partial(self._begin, front)) if self._observers else door

    def close(self) -> None:
        """Know that there are no more requests."""
        for observer in self._observers:
            observer.close()

    def _begin(self, front: Front, request: Request) -> _Observed:
        route = ""
        if isinstance(front.routes, Finder):
            with contextlib.suppress(Problem):
                route = front.routes.find(request.method, request.path)[0].operation.path
        return _Observed(request, [each.begin(request, route) for each in self._observers], front.principal_of)


class _Answers:
    """Whoever answers at once, observed."""

    def __init__(self, answers: Answers, begin: Callable[[Request], _Observed]) -> None:
        self._answers = answers
        self._begin = begin

    def handle(self, request: Request, reply: Reply) -> None:
        observed = self._begin(request)
        self._answers.handle(request, partial(_answered, observed, reply))
        if observed.is_over:
            return
        # One of the two is called if the client leaves. Who waits in line has the first.
        if request.on_disconnect is not None:
            request.on_disconnect = partial(_left, observed, request.on_disconnect)
        request.on_lost = partial(_left, observed, request.on_lost)

    def refuse(self, problem: Problem, request: Request, reply: Reply) -> None:
        self._answers.refuse(problem, request, partial(_answered, self._begin(request), reply))


def _answered(  # noqa: PLR0917 - as a reply is called
    observed: _Observed,
    reply: Reply,
    request: Request,
    status: int,
    body: bytes,
    headers: tuple[tuple[bytes, bytes], ...],
) -> None:
    observed.answer(status)
    observed.end()
    reply(request, status, body, headers)


def _left(observed: _Observed, tell: Callable[[], None] | None) -> None:
    observed.end()
    if tell is not None:
        tell()


class _Application:
    """An application of ASGI, observed. A class, because uvicorn asks what it is."""

    def __init__(self, application: Application, begin: Callable[[Request], _Observed]) -> None:
        self._application = application
        self._begin = begin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _observed(self._application, self._begin, scope, receive, send)


class _Door(_Application):
    """Whoever answers in pieces, observed."""

    def __init__(self, door: AnswersInPieces, begin: Callable[[Request], _Observed]) -> None:
        super().__init__(door, begin)
        self.whole_methods = door.whole_methods
        self.is_in_pieces = door.is_in_pieces
        self.body_limit = door.body_limit
        self.check_host = door.check_host


async def _observed(
    door: Application, begin: Callable[[Request], _Observed], scope: Scope, receive: Receive, send: Send
) -> None:
    """Answer one request of ASGI. A head that is no request's is left to the door."""
    request = scope.get("extensions", {}).get(REQUEST)
    if request is None and scope["type"] == "http":
        with contextlib.suppress(Problem):
            request = request_of(scope)
            scope = scope | {"extensions": {**scope.get("extensions", {}), REQUEST: request}}
    if request is None:
        await door(scope, receive, send)
        return
    observed = begin(request)

    async def seen(message: dict[str, Any]) -> None:
        if message["type"] == _START:
            observed.answer(message["status"])
        await send(message)

    try:
        await door(scope, receive, seen)
    finally:
        observed.end()
