"""Our own client inside of the server's process: it asks the routes as any client does, without a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NoReturn

from holdfast.client.common.http import headers_for, payload_of
from holdfast.client.coroutines.background import BackgroundLoop
from holdfast.client.coroutines.link import AsyncLink
from holdfast.client.flows import sessions
from holdfast.client.flows.effects import Open, Send
from holdfast.client.values.answer import Answer
from holdfast.errors import Unreachable
from holdfast.mcp.agent import AgentClient
from holdfast.mcp.asgi import Ask, Scope

SECRET_PREFIX = "holds_"  # noqa: S105 - a shape, not a secret
_HERE = "http://127.0.0.1"
_NO_CONFIGURATION: Mapping[str, str] = {"XDG_CONFIG_HOME": "/nonexistent"}
"""What the server's user has configured is none of a caller's."""


class InsideTransport:
    """The way to the routes, on behalf of one request."""

    def __init__(self, ask: Ask, scope: Scope, token: str) -> None:
        self._ask = ask
        self._scope = scope
        self._token = token
        self.finishing: set[asyncio.Task[Any]] = set()

    async def send(self, request: Send) -> Answer:
        """Ask, and return the answer, whatever its status. Raises `Unreachable` if there is none in time."""
        body = payload_of(request) or b""
        try:
            async with asyncio.timeout(request.answer_seconds):
                headers = headers_for(request.bearer or self._token, request)
                asked = self._ask(self._scope, request.method, request.path, headers, body)
                return Answer(*await asked)
        except TimeoutError:
            raise Unreachable("this server", "the answer did not come in time") from None

    async def stream(self, _opening: Open) -> NoReturn:
        """Refuse: nothing here is followed."""
        raise Unreachable("this server", "there are no streams inside of it", was_sent=False)

    async def close(self) -> None:
        """Wait for what is given back."""
        if self.finishing:
            await asyncio.wait(self.finishing)


class InsideClient(AgentClient):
    """A client for one request, with the token that came with it."""

    def __init__(self, ask: Ask, scope: Scope, token: str) -> None:
        self._way = InsideTransport(ask, scope, token)
        self._bearer = token
        # What fails is the caller's to try again: each call of a tool is short.
        super().__init__(_HERE, token=token, environment=_NO_CONFIGURATION, retry_seconds=0)

    async def session_secret(self, session_id: str) -> str:
        """Return the secret of a session of this token. Raises `Refused`.

        A caller that came with a session's secret in place of a token can enter that session alone.
        """
        if self._bearer.startswith(SECRET_PREFIX):
            return self._bearer
        return await self._run(sessions.session_secret(session_id, self._policy))

    def _prepare(self) -> None:
        self._transport = self._way
        self._background = BackgroundLoop()
        self._link = AsyncLink(self._way, self._policy, self._background)
