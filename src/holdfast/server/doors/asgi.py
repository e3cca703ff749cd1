"""The ASGI door: the same handlers for any ASGI server, and what is answered in pieces, which only lives here.

That is the streams. The fast lane passes them on to this door, each as an `Exchange`, so that there is one
implementation of them. `server.mounts` puts applications before it that have a path of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from holdfast.server.doors.exchange import REQUEST
from holdfast.server.doors.message import NEVER_KEPT
from holdfast.server.doors.request import Request, fold, request_from
from holdfast.server.operations.sizes import SMALL_BODY_BYTES, too_large
from holdfast.server.receiving import Receiving
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from holdfast.server.doors.exchange import Receive, Scope, Send
    from holdfast.server.operations.call import Reply
    from holdfast.server.operations.router import Route, Routes
    from holdfast.server.render import Answered
    from holdfast.server.streams.backup import Backup
    from holdfast.server.streams.events import Events
    from holdfast.server.streams.follow import Follow
    from holdfast.server.streams.live import Live
    from holdfast.server.streams.watch import Watch

_NO_CONTENT = 204
STREAM_ENDS = (b"/watch", b"/events", b"/follow", b"/backup", b"/live")
"""How the paths of streams end: a quick look tells that nearly all requests are for none."""
_STREAM_FIELDS = (
    # OctoStore's clients look for the first word; the second is what all our answers say.
    (b"cache-control", b"no-cache, no-store"),
    (b"x-content-type-options", b"nosniff"),
    # A proxy must not gather what is told as it happens.
    (b"x-accel-buffering", b"no"),
)


class Door:
    """An ASGI application over the operations."""

    whole_methods = frozenset({b"POST"})
    """The methods of repeated heads that `is_in_pieces` need not be asked about. Streams are asked for with GET; the
    one that is asked for with POST never counts as repeated (`heads`)."""

    def __init__(self, routes: Routes, *, chunks_only: bool = True) -> None:
        """`chunks_only` says that the server in front ends a stream by chunks alone, which HTTP/1.0 does not know."""
        self._api = routes.api
        self._routes = routes
        self._chunks_only = chunks_only
        self._receiving = Receiving()
        """The bodies that are read here. Those that come through lanes count there as well, and for longer."""

    def is_in_pieces(self, request: Request) -> bool:
        """Tell whether a request is for a stream."""
        path = request.path
        if path.endswith(STREAM_ENDS):
            with contextlib.suppress(Problem):
                return self._routes.find(request.method, path)[0].is_stream
        return False

    def body_limit(self, request: Request) -> int:
        """Return how many bytes of body a request may send, or raise why no more than a small one."""
        return self._routes.body_limit(request)

    def check_host(self, request: Request) -> None:
        """Raise if the request is for a server of another name."""
        self._routes.check_host(request)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            raise ValueError(f"{scope['type']} is not served here")
        request = request_from(b"", b"", b"", {}, b"")
        try:
            request = scope.get("extensions", {}).get(REQUEST) or request_of(scope)
            self._routes.check_host(request)
            route, segment = self._routes.find(request.method, request.path)
            if route.is_stream:
                if self._chunks_only and scope["http_version"] == "1.0":
                    raise Problem("invalid_input", "A stream comes in chunks: ask for it with HTTP/1.1.", status=426)
                await self._stream(route, request, segment, receive, send)
                return
            request.body = await self._body(request, receive)
        except Problem as problem:
            answered = await self._refused(problem, request)
        else:
            answered = await self._answer(request, receive)
        await respond(send, request, answered)

    async def _body(self, request: Request, receive: Receive) -> bytes:
        try:
            return await self._read_body(request, receive)
        finally:
            self._receiving.free(request)

    async def _read_body(self, request: Request, receive: Receive) -> bytes:
        body = bytearray()
        bytes_max, more = SMALL_BODY_BYTES, True
        announced = request.headers.get(b"content-length", b"")
        size = int(announced[:16]) if announced.isdigit() else 0
        while True:
            if size > bytes_max == SMALL_BODY_BYTES:
                bytes_max = self.body_limit(request)
                if bytes_max > SMALL_BODY_BYTES:
                    who = self._api.principal_of(request) or ""
                    self._receiving.take(request, request, who, min(size, bytes_max) if announced else bytes_max)
            if size > bytes_max:
                raise too_large(bytes_max)
            if not more:
                return bytes(body)
            message = await receive()
            body += message.get("body", b"")
            size, more = max(size, len(body)), message.get("more_body", False)

    async def _refused(self, problem: Problem, request: Request) -> Answered:
        answered, reply = answer_to_come()
        self._routes.refuse(problem, request, reply)
        return await answered

    async def _answer(self, request: Request, receive: Receive) -> Answered:
        answered, reply = answer_to_come()
        self._routes.handle(request, reply)
        if request.on_disconnect is not None and not answered.done():
            disconnected = asyncio.create_task(_disconnected(receive))
            both: set[asyncio.Future[Any]] = {answered, disconnected}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not answered.done():
                request.on_disconnect()
                return 200, b"", ()
            disconnected.cancel()
        return await answered

    async def _stream(self, route: Route, request: Request, segment: bytes, receive: Receive, send: Send) -> None:
        if route.operation.body is not None:
            request.body = await self._body(request, receive)
        stream: Watch | Events | Follow | Backup | Live = route.handler(
            self._api, route.read(request, segment, _no_reply)
        )
        request.body = b""  # It was read, and the request lives as long as the stream.
        media_type = (b"content-type", str(route.operation.replies[200]).encode())
        if request.method == b"HEAD":
            stream.close()
            await respond(send, request, (200, b"", (media_type,)))
            return
        headers = [media_type, *_STREAM_FIELDS, (b"x-request-id", request.request_id.encode())]
        disconnected = asyncio.create_task(_disconnected(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            frames = stream.frames()
            while not disconnected.done():
                frame = asyncio.ensure_future(anext(frames, None))
                await asyncio.wait({frame, disconnected}, return_when=asyncio.FIRST_COMPLETED)
                if not frame.done():
                    frame.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await frame
                    return
                chunk = frame.result()
                if chunk is None:
                    break
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            disconnected.cancel()
            stream.close()


def answer_to_come() -> tuple[asyncio.Future[Answered], Reply]:
    """Return an answer that is not there yet, and what to call when it is."""
    answered: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()

    def reply(_request: Request, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        if not answered.done():
            answered.set_result((status, body, headers))

    return answered, reply


def request_of(scope: Scope) -> Request:
    """Return the request without its body, or raise what is wrong with its head."""
    path = scope.get("raw_path") or scope["path"].encode()
    peer = (scope.get("client") or ("",))[0]
    fields = [(name, value.rstrip(b" \t")) for name, value in scope["headers"]]
    return request_from(scope["method"].encode(), path, scope["query_string"], fold(fields), b"", peer)


def _no_reply(_request: Request, _status: int, _body: bytes, _headers: tuple[tuple[bytes, bytes], ...]) -> None:
    """A stream is not answered by a reply."""


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def respond(send: Send, request: Request, answered: Answered) -> None:
    status, body, extra = answered
    headers = [*extra, *_identity(request)]
    if any(name == b"cache-control" for name, _ in extra):
        headers.remove(NEVER_KEPT[0])
    if not any(name == b"content-type" for name, _ in extra) and status != _NO_CONTENT:
        headers.insert(0, (b"content-type", b"application/json"))
    if status != _NO_CONTENT:
        headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if request.method == b"HEAD" else body, "more_body": False})


def _identity(request: Request) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"x-request-id", request.request_id.encode()), *NEVER_KEPT)
