"""Runs an ASGI application on a `ResponseStream`: what is mounted beside our routes (`server.mounts`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

from holdfast.server.http.messages import ClientDisconnectedError

if TYPE_CHECKING:
    from holdfast.server.http.connection import ResponseStream

Scope: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class AsgiCycle:
    def __init__(self, response: ResponseStream) -> None:
        self._response = response

    def scope(self) -> Scope:
        connection, request = self._response.connection, self._response.request
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.0" if request.is_old else "1.1",
            "method": request.method.decode("ascii"),
            "scheme": connection.scheme,
            "path": unquote(request.path.decode("latin-1")),
            "raw_path": request.path,
            "query_string": request.query,
            "root_path": "",
            "headers": list(request.headers.items()),
            "client": connection.peer[:2] if isinstance(connection.peer, tuple) else None,
            "server": None,
            "state": {},
            "extensions": {},
        }

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
