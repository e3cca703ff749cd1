"""The ASGI door: the same handlers for any ASGI server, and the streams, which only live here."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from holdfast.server.doors.request import Request
from holdfast.server.render import envelope
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.server.operations.routes import Route, Routes
    from holdfast.server.render import Answered
    from holdfast.server.streams.events import Events
    from holdfast.server.streams.watch import Watch

    Scope = dict[str, Any]
    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]

_NO_CONTENT = 204


class Door:
    """An ASGI application over the operations."""

    def __init__(self, routes: Routes) -> None:
        self._api = routes.api
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            raise ValueError(f"{scope['type']} is not served here")
        request = Request(
            scope["method"].encode(),
            scope.get("raw_path") or scope["path"].encode(),
            scope["query_string"],
            dict(scope["headers"]),
            b"",
            (scope.get("client") or ("",))[0],
        )
        try:
            self._routes.check_host(request)
            route, segment = self._routes.find(request.method, request.path)
            if route.is_stream:
                await self._stream(route, request, segment, receive, send)
                return
            request.body = await _body(receive, self._api.settings.body_bytes_max)
        except Problem as problem:
            answered = envelope(problem, request)
        else:
            answered = await self._answer(request, receive)
        await _respond(send, request, answered)

    async def _answer(self, request: Request, receive: Receive) -> Answered:
        answered: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()

        def reply(status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> None:
            if not answered.done():
                answered.set_result((status, body, headers))

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
        stream: Watch | Events = route.handler(self._api, route.read(request, segment, _no_reply))
        if request.method == b"HEAD":
            stream.close()
            await _respond(send, request, (200, b"", ((b"content-type", b"text/event-stream"),)))
            return
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"), *_identity(request)]
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


def _no_reply(_status: int, _body: bytes, _headers: tuple[tuple[bytes, bytes], ...]) -> None:
    """A stream is not answered by a reply."""


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _body(receive: Receive, bytes_max: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > bytes_max:
            raise Problem("invalid_input", f"A body has at most {bytes_max} bytes.", status=413)
        if not message.get("more_body", False):
            return bytes(body)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _respond(send: Send, request: Request, answered: Answered) -> None:
    status, body, extra = answered
    headers = [*extra, *_identity(request)]
    if not any(name == b"content-type" for name, _ in extra) and status != _NO_CONTENT:
        headers.insert(0, (b"content-type", b"application/json"))
    if status != _NO_CONTENT:
        headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if request.method == b"HEAD" else body, "more_body": False})


def _identity(request: Request) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"x-request-id", request.request_id.encode()),)
