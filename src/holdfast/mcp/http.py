"""The tools over streamable HTTP, as an ASGI application: one request, one answer in JSON, and nothing kept.

Only those come here whom the `entrance` lets in. This watches the connection: if that ends, the call is cancelled, so
that nobody stands in a line who is not there.
"""

from __future__ import annotations

import asyncio
from typing import Any

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings

from holdfast.mcp.asgi import Ask, Receive, Scope, Send
from holdfast.mcp.asking import Asker
from holdfast.mcp.entrance import headers_of
from holdfast.mcp.inside import SECRET_PREFIX, InsideClient
from holdfast.mcp.serving import Context, Desk, server_of

SESSION_HEADER = "holdfast-session"
BODY_BYTES_MAX = 65_536
"""The server has bounded it already."""
_BEARER = "Bearer "


class Tools:
    """The application."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._manager = StreamableHTTPSessionManager(
            server_of(self._desk, "http"),
            json_response=True,
            stateless=True,
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            max_request_body_size=BODY_BYTES_MAX,
        )
        self._running: asyncio.Task[None] | None = None
        self._is_ready = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._begin()
        await _until_gone(self._manager.handle_request, scope, receive, send)

    async def _begin(self) -> None:
        """Let the SDK's manager run, in a task of its own: it must be ended where it was begun."""
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        await self._is_ready.wait()

    async def _run(self) -> None:
        try:
            async with self._manager.run():
                self._is_ready.set()
                await asyncio.get_running_loop().create_future()
        finally:
            self._is_ready.set()  # Whoever comes then is told by the manager that it does not run.

    async def _desk(self, context: Context, _params: object) -> Desk:
        scope: Scope = context.request.scope  # type: ignore[union-attr] # HTTP always has one.
        headers = headers_of(scope)
        token = headers.get("authorization", "").removeprefix(_BEARER)
        own = token if token.startswith(SECRET_PREFIX) else None
        return Asker(InsideClient(self._ask, scope, token), headers.get(SESSION_HEADER, own))


async def _until_gone(application: Any, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ANN401 - the SDK's
    """Let an application answer, and cancel it when the caller is gone."""
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message.get("body", b"")
        more = message.get("more_body", False)
    gone = asyncio.create_task(_gone(receive))
    is_told = False

    async def given() -> dict[str, Any]:
        nonlocal is_told
        if is_told:
            await asyncio.shield(gone)
            return {"type": "http.disconnect"}
        is_told = True
        return {"type": "http.request", "body": bytes(body), "more_body": False}

    answering = asyncio.create_task(application(scope, given, send))
    try:
        await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not answering.done():
            answering.cancel()
    await asyncio.wait({answering})
    if not answering.cancelled():
        answering.result()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
