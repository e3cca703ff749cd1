"""The tools over streamable HTTP, as an ASGI application: one request, one JSON response, no state in between.

Only authenticated requests arrive here (`endpoint`). If the client disconnects, its call is cancelled and leaves the
queue in which it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NoReturn

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings

from holdfast.agents.mcp.asgi import DISCONNECTED, Ask, Receive, Scope, Send, headers_of
from holdfast.agents.mcp.http_backend import SECRET_PREFIX, HttpBackend
from holdfast.agents.mcp.sdk_server import Context, create_server
from holdfast.agents.mcp.tools import AgentClient
from holdfast.client.answers import Answer
from holdfast.client.effects import Open
from holdfast.client.effects import Send as SendRequest
from holdfast.client.transport import headers_for, payload_of
from holdfast.errors import Unreachable

SESSION_HEADER = "holdfast-session"
BODY_BYTES_MAX = 65_536  # The server has limited it already.
_BEARER = "Bearer "
_URL = "http://127.0.0.1"
# The configuration of the server's user does not apply to callers.
_NO_CONFIGURATION: Mapping[str, str] = {"XDG_CONFIG_HOME": "/nonexistent"}


class InProcessTransport:
    """Sends the client's requests to the server's routes, on behalf of one request, without a connection."""

    def __init__(self, ask: Ask, scope: Scope, token: str) -> None:
        self._ask = ask
        self._scope = scope
        self._token = token
        self.finishing: set[asyncio.Task[Any]] = set()

    async def send(self, request: SendRequest) -> Answer:
        body = payload_of(request) or b""
        headers = headers_for(request.bearer or self._token, request)
        try:
            async with asyncio.timeout(request.answer_seconds):
                return Answer(*await self._ask(self._scope, request.method, request.path, headers, body))
        except TimeoutError:
            raise Unreachable("this server", "the answer did not come in time") from None

    async def stream(self, _opening: Open) -> NoReturn:
        raise Unreachable("this server", "there are no streams inside of it", was_sent=False)

    async def close(self) -> None:
        """Wait for releases that are under way."""
        if self.finishing:
            await asyncio.wait(self.finishing)


class InProcessClient(AgentClient):
    def __init__(self, ask: Ask, scope: Scope, token: str) -> None:
        self._in_process = InProcessTransport(ask, scope, token)
        self._bearer = token
        # Calls are short, so the model retries.
        super().__init__(_URL, token=token, environment=_NO_CONFIGURATION, retry_seconds=0)

    async def session_secret(self, session_id: str) -> str:
        # A caller whose token is a session's secret can enter that session alone.
        return self._bearer if self._bearer.startswith(SECRET_PREFIX) else await super().session_secret(session_id)

    def _make_transport(self) -> InProcessTransport:
        return self._in_process


class ToolsApp:
    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._manager = StreamableHTTPSessionManager(
            create_server(self._session, "http"),
            json_response=True,
            stateless=True,
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            max_request_body_size=BODY_BYTES_MAX,
        )
        self._running: asyncio.Task[None] | None = None
        self._is_ready = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._running is None:  # The manager has to end in the task that began it.
            self._running = asyncio.create_task(self._run())
        await self._is_ready.wait()
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> dict[str, Any]:
            return messages.pop() if messages else await receive()

        call = asyncio.create_task(self._manager.handle_request(scope, receive_again, send))
        try:
            await asyncio.wait({call, scope["extensions"][DISCONNECTED]}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            call.cancel()
        await asyncio.wait({call})
        if not call.cancelled():
            call.result()

    async def _run(self) -> None:
        try:
            async with self._manager.run():
                self._is_ready.set()
                await asyncio.get_running_loop().create_future()
        finally:
            self._is_ready.set()  # Later requests fail in the manager, which is not running.

    async def _session(self, context: Context, _params: object) -> HttpBackend:
        scope: Scope = context.request.scope  # type: ignore[union-attr] # HTTP always has one.
        headers = headers_of(scope)
        token = headers.get("authorization", "").removeprefix(_BEARER)
        own = token if token.startswith(SECRET_PREFIX) else None
        return HttpBackend(InProcessClient(self._ask, scope, token), headers.get(SESSION_HEADER, own))
