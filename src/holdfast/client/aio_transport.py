"""The transport over aiohttp: one JSON request, one JSON answer. See `transport` for what it guarantees."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from errno import ECONNRESET
from functools import partial
from typing import Any, TypeAlias, TypeVar

from holdfast import neterrors
from holdfast.client import transport
from holdfast.client.answers import Answer
from holdfast.client.config import Target, context_for
from holdfast.client.effects import Open, Send
from holdfast.client.transport import Failover, Trying
from holdfast.errors import ServerError, Unreachable
from holdfast.extras import how_to_install

try:
    import aiohttp
    from yarl import URL
except ModuleNotFoundError as error:
    message = f"AsyncHoldfast needs {error.name}, which is not installed; {how_to_install('async')}"
    raise ModuleNotFoundError(message, name=error.name) from None


_BROKEN = (aiohttp.ClientError, TimeoutError, OSError)


T = TypeVar("T")


class AsyncHttpTransport:
    """A transport to one server, for one event loop. Opens nothing before its first use."""

    def __init__(
        self,
        target: Target,
        *,
        environment: Mapping[str, str],
        bearer: transport.Bearer | None = None,
        connect_share: float = 1.0,
        begin_seconds: float | None = None,
    ) -> None:
        """The last three are for one of several addresses, as in the transport for threads."""
        self.target = target
        self._bearer = bearer or transport.Bearer(target)
        self._connect_share = connect_share
        self._begin_seconds = begin_seconds
        proxy = transport.proxy_for(target.url, environment)
        self._proxy_url = None if proxy is None else proxy.url
        self._proxy_headers = None
        if proxy is not None and proxy.authorization is not None:
            # aiohttp turns it into Proxy-Authorization, on the request or on the tunnel.
            self._proxy_headers = {"Authorization": proxy.authorization}
        self._session: aiohttp.ClientSession | None = None
        self.finishing: set[asyncio.Task[Any]] = set()  # Releases that continue after their caller was cancelled.

    def __repr__(self) -> str:  # Never the token.
        return f"AsyncHttpTransport({self.target!r})"

    async def close(self) -> None:
        """Close the connections after all running releases."""
        if self.finishing:
            await asyncio.wait(self.finishing)
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def send(self, request: Send) -> Answer:
        token = request.bearer or self._bearer.token
        answer = await self._send(request, token)
        if request.bearer is None and self._bearer.is_another_after(answer.status, token):
            answer = await self._send(request, self._bearer.token)
        return answer

    async def _send(self, request: Send, token: str | None) -> Answer:
        timeout = aiohttp.ClientTimeout(
            total=request.answer_seconds,
            sock_connect=min(transport.CONNECT_SECONDS, request.answer_seconds * self._connect_share),
        )
        try:
            async with await self._request(request, token, timeout=timeout) as response:
                return Answer(response.status, response.headers, await self._read_all(response))
        except _BROKEN as error:
            raise _unreachable(self.target.url, error) from None

    async def stream(self, opening: Open) -> AsyncHttpStream:
        token = self._bearer.token
        stream = await self._stream(opening, token)
        if self._bearer.is_another_after(stream.status, token):
            stream.close()
            stream = await self._stream(opening, self._bearer.token)
        return stream

    async def _stream(self, opening: Open, token: str | None) -> AsyncHttpStream:
        begin_seconds = self._begin_seconds or opening.read_seconds
        connect_seconds = min(transport.CONNECT_SECONDS, begin_seconds * self._connect_share)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds, sock_read=opening.read_seconds)
        try:
            async with asyncio.timeout(self._begin_seconds):
                response = await self._request(opening, token, timeout=timeout)
        except _BROKEN as error:
            raise _unreachable(self.target.url, error) from None
        return AsyncHttpStream(self.target.url, response)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            # No limit: waiting claims must never delay a renewal.
            context = context_for(self.target)
            connector = aiohttp.TCPConnector(limit=0, ssl=True if context is None else context)
            self._session = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
            )
        return self._session

    async def _request(self, request: Send | Open, token: str | None, **more: Any) -> aiohttp.ClientResponse:  # noqa: ANN401
        return await self._opened().request(
            request.method,
            URL(self.target.url + request.path, encoded=True),
            data=transport.payload_of(request),
            headers=transport.headers_for(token, request),
            allow_redirects=False,
            proxy=self._proxy_url,
            proxy_headers=self._proxy_headers,
            **more,
        )

    async def _read_all(self, response: aiohttp.ClientResponse) -> bytes:
        if response.content_length is not None and response.content_length <= transport.ANSWER_BYTES_MAX:
            return await response.read()
        content = b""
        async for part in response.content.iter_any():
            content += part
            if len(content) > transport.ANSWER_BYTES_MAX:
                response.close()  # The rest must not be read as the next answer.
                text = f"{self.target.url} sent more than {transport.ANSWER_BYTES_MAX} bytes; is it a Holdfast server?"
                raise ServerError(text)
        return content


class AsyncHttpStream:
    def __init__(self, url: str, response: aiohttp.ClientResponse) -> None:
        self._url = url
        self._response = response
        self.status = response.status
        self.on_broken: Callable[[], object] | None = None  # Called when the server was silent or the connection broke.

    async def read(self) -> bytes:
        """Wait for the next bytes; empty at the end. Raises `Unreachable`."""
        try:
            return await self._response.content.read(transport.STREAM_BYTES)
        except _BROKEN as error:
            if self.on_broken is not None:
                self.on_broken()
            raise _unreachable(self._url, error) from None

    def close(self) -> None:
        self._response.close()


def _unreachable(url: str, error: BaseException) -> Unreachable:
    _drop_tracebacks(error)
    was_sent = not isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return Unreachable(url, *neterrors.trouble(error), was_sent=was_sent)
    hung_up = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientResponseError) or (
        isinstance(error, OSError) and error.errno == ECONNRESET
    )
    hint = neterrors.IF_TLS if hung_up and url.startswith("http://") else ""
    return Unreachable(url, reason(error), hint or ("" if was_sent else neterrors.hint(error)), was_sent=was_sent)


def _drop_tracebacks(error: BaseException | None) -> None:
    """Break the reference cycles that a failed connect leaves in aiohttp.

    Their frames refer to those of our callers, whose claims would be renewed until the next garbage collection.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def reason(error: BaseException) -> str:
    match error:
        case aiohttp.ConnectionTimeoutError():
            return "the connection was not accepted in time"
        case asyncio.TimeoutError():
            return "the answer did not come in time"
        case aiohttp.ClientConnectorDNSError():
            return "the host's name is not known"
        case OSError(errno=int(number)) if number > 0:
            return os.strerror(number).lower()  # asyncio's own text shows its internals.
        case OSError(strerror=str(text)) if text:
            return text.lower()
        case _:
            return "the connection broke"


class AsyncFailoverTransport(Failover):
    """A transport for one event loop, with failover between the addresses of a server."""

    _transports: list[AsyncHttpTransport]

    def __init__(self, target: Target, make: Callable[..., AsyncHttpTransport]) -> None:
        super().__init__(target, make)
        self.finishing: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        if self.finishing:
            await asyncio.wait(self.finishing)
        for member in self._transports:
            await member.close()

    async def send(self, request: Send) -> Answer:
        return await self._try(self.sending(request), lambda transport: transport.send(request))

    async def stream(self, opening: Open) -> AsyncHttpStream:
        return await self._try(self.opening(), lambda transport: transport.stream(opening))

    async def _try(self, trying: Trying[T], ask: Callable[[AsyncHttpTransport], Awaitable[T]]) -> T:
        try:
            at = next(trying)
            while True:
                try:
                    got = await ask(self._transports[at])
                except Unreachable as error:
                    at = trying.throw(error)
                else:
                    at = trying.send(got)
        except StopIteration as done:
            found: T = done.value
            return found


AsyncTransport: TypeAlias = AsyncHttpTransport | AsyncFailoverTransport


def transport_to(target: Target, *, environment: Mapping[str, str]) -> AsyncTransport:
    if len(target.addresses) == 1:
        return AsyncHttpTransport(target, environment=environment)
    return AsyncFailoverTransport(target, partial(AsyncHttpTransport, environment=environment))
