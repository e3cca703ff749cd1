"""The tools over streamable HTTP, as an ASGI application: one request, one answer in JSON, and nothing kept.

The server has checked `Host`, `Origin` and sizes before anything comes here. This checks who asks, before the SDK reads
a byte: a caller without an access token that the server knows is told so by the status of HTTP, as at all routes. And
it watches the connection: if that ends, the call is cancelled, so that nobody stands in a line who is not there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings

from holdfast.mcp.asgi import PATH, REQUEST_ID, Ask, Receive, Scope, Send
from holdfast.mcp.asking import Asker
from holdfast.mcp.inside import InsideClient
from holdfast.mcp.serving import Context, Desk, server_of

SESSION_HEADER = "holdfast-session"
BODY_BYTES_MAX = 65_536
"""The server has bounded it already."""
_BEARER = "Bearer "
_METHOD = "POST"
_NOT_LET_IN = frozenset({401, 403, 429, 503})
_PROBE = "/sessions?limit=1"
"""Asks for little, and is refused to whoever has no access token that is known."""


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
        if scope["path"] != PATH:
            await _refuse(scope, send, 404, "not_found", "Not found", f"Ask {PATH} itself.")
            return
        if scope["method"] != _METHOD:
            # There is no stream of the server's own: nothing is told here that was not asked for.
            details = f"Send messages with {_METHOD}; there is no stream, and no session of the protocol."
            await _refuse(scope, send, 405, "invalid_input", "Invalid input", details, allow=_METHOD)
            return
        refused = await self._look_who_asks(scope)
        if refused is not None:
            await _pass_on(send, *refused)
            return
        await self._begin()
        await _until_gone(self._manager.handle_request, scope, receive, send)

    async def _look_who_asks(self, scope: Scope) -> tuple[int, Mapping[str, str], bytes] | None:
        """Return the server's own refusal of whoever asks, if it has one."""
        authorization = _headers(scope).get("authorization")
        headers = {} if authorization is None else {"Authorization": authorization}
        answer = await self._ask(scope, "GET", _PROBE, headers, b"")
        return answer if answer[0] in _NOT_LET_IN else None

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

    async def _desk(self, context: Context) -> Desk:
        scope: Scope = context.request.scope  # type: ignore[union-attr] # HTTP always has one.
        headers = _headers(scope)
        token = headers.get("authorization", "").removeprefix(_BEARER)
        return Asker(InsideClient(self._ask, scope, token), headers.get(SESSION_HEADER))


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


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


async def _refuse(  # noqa: PLR0917 - the parts of an envelope
    scope: Scope, send: Send, status: int, code: str, error: str, details: str, **headers: str
) -> None:
    """Refuse in the words of all routes."""
    request_id = scope["extensions"][REQUEST_ID]
    envelope = {"error": error, "code": code, "details": details, "request_id": request_id}
    await _pass_on(send, status, headers, msgspec.json.encode(envelope))


async def _pass_on(send: Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
    fields = {"content-type": "application/json", **headers, "content-length": str(len(body))}
    written = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": written})
    await send({"type": "http.response.body", "body": body, "more_body": False})
