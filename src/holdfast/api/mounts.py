"""ASGI applications beside our routes, each below a path of its own.

An application has no state here and no rights of its own. It sends requests to the current handler (our routes, or on a
following node the leader's) through `MountTable.ask`, on behalf of the request that it answers: with that one's token,
counted for the same address and connection.

`Host` is checked as for all routes, and a request from a page of another origin is refused. Bodies are small.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote

import msgspec

from holdfast.api.auth.origins import OwnOrigin
from holdfast.config import Settings
from holdfast.http.connection import ResponseStream
from holdfast.http.header_cache import NEVER_REPEATED
from holdfast.http.manager import Handler
from holdfast.http.messages import (
    SMALL_BODY_BYTES,
    ClientDisconnectedError,
    Fields,
    Request,
    ResponseParts,
    ResponseWriter,
    envelope,
    request_from,
)
from holdfast.http.proxies import Proxies
from holdfast.wire.problems import Problem

Scope: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

REQUEST = "holdfast.request"
REQUEST_ID = "holdfast.request_id"  # In the scope's extensions: for an application that refuses in our format.
DISCONNECTED = "holdfast.disconnected"  # In them too: a future, done when the client is gone or has the response.
_FORWARDED = (b"x-forwarded-for", b"x-forwarded-proto")
_OTHER_ORIGIN = "This was sent by a page of another origin, and programs alone are served here: send no Origin."


Ask: TypeAlias = Callable[[Scope, str, str, Mapping[str, str], bytes], Awaitable[tuple[int, Mapping[str, str], bytes]]]
"""Asks this server with method, path, headers and body, on behalf of the request with this scope."""
Mount: TypeAlias = Callable[[Ask], Application]


class MountTable:
    def __init__(
        self,
        mounts: Mapping[str, Mount],
        settings: Settings,
        proxies: Proxies,
        *,
        body_bytes_max: int = SMALL_BODY_BYTES,
    ) -> None:
        self._applications = {path.encode(): mount(self.ask) for path, mount in mounts.items()}
        self._paths = tuple(self._applications)
        if not all(path.startswith(NEVER_REPEATED) for path in self._paths):
            raise ValueError(f"a repeated POST would not reach an application at {', '.join(mounts)}")
        self._origin = OwnOrigin(settings, proxies)
        self._proxies = proxies
        self._body_bytes_max = body_bytes_max
        self._handler: Handler | None = None

    def wrap(self, handler: Handler) -> Handler:
        """Return a handler with the applications before it; from now on they ask that one."""
        self._handler = handler
        if not self._applications:
            return handler

        def is_streaming(request: Request) -> bool:
            return self._application_of(request.path) is not None or handler.is_streaming(request)

        def body_limit(request: Request) -> int:
            mounted = self._application_of(request.path) is not None
            return self._body_bytes_max if mounted else handler.body_limit(request)

        async def stream(request: Request, response: ResponseWriter) -> None:
            application = self._application_of(request.path)
            if application is None:
                await handler.stream(request, response)
            else:
                await self._run(application, handler, request, response)

        return msgspec.structs.replace(handler, is_streaming=is_streaming, body_limit=body_limit, stream=stream)

    def _application_of(self, path: bytes) -> Application | None:
        if not path.startswith(self._paths):
            return None
        for prefix, application in self._applications.items():
            if path == prefix or path.startswith(prefix + b"/"):
                return application
        return None

    async def _run(
        self, application: Application, handler: Handler, request: Request, response: ResponseWriter
    ) -> None:
        try:
            handler.check_host(request)
            self._check_origin(request)
        except Problem as problem:
            await response.respond(*envelope(problem, request))
            return
        if not isinstance(response, ResponseStream):
            raise TypeError("an application is mounted at a node's own connections only")
        cycle = AsgiCycle(response)
        await application(self._scope_of(request, response), cycle.receive, cycle.send)

    def _check_origin(self, request: Request) -> None:
        is_own = self._origin.is_same_origin(request)
        if is_own is False or (is_own is None and b"origin" in request.headers):
            raise Problem("forbidden", _OTHER_ORIGIN)

    def _scope_of(self, request: Request, response: ResponseStream) -> Scope:
        connection = response.connection
        peer, address = connection.peer, self._proxies.client_of(request)
        client = peer[:2] if isinstance(peer, tuple) else None
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.0" if request.is_old else "1.1",
            "method": request.method.decode("ascii"),
            "scheme": self._proxies.scheme_of(request, connection.scheme),
            "path": unquote(request.path.decode("latin-1")),
            "raw_path": request.path,
            "query_string": request.query,
            "root_path": "",
            "headers": list(request.headers.items()),
            "client": client if address is None or str(address) == request.peer else (str(address), 0),
            "server": None,
            "state": {},
            "extensions": {REQUEST: request, REQUEST_ID: request.request_id, DISCONNECTED: response.disconnected},
        }

    async def ask(
        self, scope: Scope, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Let the current handler answer. If this is cancelled, the client of the outer request is gone."""
        outer: Request = scope["extensions"][REQUEST]
        if self._handler is None:
            raise RuntimeError("there is no handler yet")
        path, _, query = path.partition("?")
        fields = {name.lower().encode("latin-1"): value.encode("latin-1") for name, value in headers.items()}
        fields |= {name: outer.headers[name] for name in _FORWARDED if name in outer.headers}
        request = request_from(method.encode(), path.encode(), query.encode(), fields, body, outer.peer)
        request.host, request.on_known, request.request_id = outer.host, outer.on_known, outer.request_id
        answered: asyncio.Future[ResponseParts] = asyncio.get_running_loop().create_future()

        def reply(_request: Request, status: int, body: bytes, headers: Fields) -> None:
            if not answered.done():
                answered.set_result((status, body, headers))

        self._handler.handle(request, reply)
        try:
            status, answer, reply_headers = await answered
        except asyncio.CancelledError:
            cancel = request.on_disconnect or request.on_lost
            if cancel is not None:
                cancel()
            raise
        return status, {name.decode("latin-1"): value.decode("latin-1") for name, value in reply_headers}, answer


class AsgiCycle:
    def __init__(self, response: ResponseStream) -> None:
        self._response = response

    async def receive(self) -> dict[str, Any]:
        """Return the next piece of the body; after the last one, wait until the client is gone."""
        response = self._response
        if response.body_was_read:
            await response.disconnected
            return {"type": "http.disconnect"}
        try:
            body = await response.read()
        except ClientDisconnectedError:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": body, "more_body": not response.body_was_read}

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._response.start(message["status"], message.get("headers", ()))
        elif message["type"] == "http.response.body":
            await self._response.write(message.get("body", b""))
            if not message.get("more_body", False):
                self._response.finish()
