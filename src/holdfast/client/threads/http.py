"""The transport over urllib3: one JSON request, one JSON answer. It follows no redirect.

Nothing is retried but what was refused for a token that is another by now. Connections are made as they are needed: a
claim that waits never keeps a renewal from being sent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from http.client import BadStatusLine
from types import TracebackType
from typing import Self

import urllib3

from holdfast import tlswords
from holdfast.client.common.http import (
    ANSWER_BYTES_MAX,
    CONNECT_SECONDS,
    STREAM_BYTES,
    Bearer,
    headers_for,
    payload_of,
    proxy_for,
)
from holdfast.client.common.tls import context_for
from holdfast.client.flows.effects import Open, Send
from holdfast.client.values.answer import Answer
from holdfast.client.values.config import Target
from holdfast.errors import ServerError, Unreachable

CONNECTIONS_MAX = 256
"""How many are kept open for the next request; more at once are closed after use."""


class HttpTransport:
    """A way to one server. Use it as a context manager, or `close` it."""

    def __init__(
        self,
        target: Target,
        *,
        environment: Mapping[str, str],
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        """Prepare; nothing is sent yet. `environment` may name a proxy, which is never asked for a loopback address."""
        self.target = target
        self._bearer = Bearer(target)
        self._environment = environment
        self._pool = _pool_for(target, environment)
        self._pid = os.getpid()
        self._connect_seconds = connect_seconds

    def __repr__(self) -> str:
        """Show where it leads, never the token."""
        return f"HttpTransport({self.target!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def send(self, request: Send) -> Answer:
        """Send one request and return its answer, whatever its status. Raises `Unreachable`."""
        token = self._bearer.token
        answer = self._send(request, token)
        if self._bearer.is_another_after(answer.status, token):
            answer = self._send(request, self._bearer.token)
        return answer

    def _send(self, request: Send, token: str | None) -> Answer:
        headers = headers_for(token, request)
        payload = payload_of(request)
        try:
            response = self._open(request.method, request.path, headers, request.answer_seconds, payload)
            content = b""
            # To its very end, where an answer that broke off is found out.
            while len(content) <= ANSWER_BYTES_MAX and (part := response.read(ANSWER_BYTES_MAX + 1)):
                content += part
        except urllib3.exceptions.HTTPError as error:
            raise _unreachable(self.target.url, error) from None
        if len(content) > ANSWER_BYTES_MAX:
            response.close()  # What is left of it must not be read as the next answer.
            raise ServerError(f"{self.target.url} sent more than {ANSWER_BYTES_MAX} bytes; is it a Holdfast server?")
        response.release_conn()
        return Answer(response.status, response.headers, content)

    def stream(self, opening: Open) -> HttpStream:
        """Open a response that goes on and on. Raises `Unreachable`."""
        token = self._bearer.token
        stream = self._stream(opening, token)
        if self._bearer.is_another_after(stream.status, token):
            stream.close()
            stream = self._stream(opening, self._bearer.token)
        return stream

    def _stream(self, opening: Open, token: str | None) -> HttpStream:
        headers = headers_for(token, opening)
        payload = payload_of(opening)
        try:
            response = self._open(opening.method, opening.path, headers, opening.read_seconds, payload)
        except urllib3.exceptions.HTTPError as error:
            raise _unreachable(self.target.url, error) from None
        return HttpStream(self.target.url, response)

    def _open(
        self, method: str, path: str, headers: Mapping[str, str], read_seconds: float, payload: bytes | None = None
    ) -> urllib3.BaseHTTPResponse:
        if os.getpid() != self._pid:
            # A forked process: on the connections it has inherited it would hear the answers of its parent.
            self._pool, self._pid = _pool_for(self.target, self._environment), os.getpid()
        return self._pool.request(
            method,
            self.target.url + path,
            body=payload,
            headers=headers,
            redirect=False,
            retries=False,
            timeout=urllib3.Timeout(connect=min(self._connect_seconds, read_seconds), read=read_seconds),
            preload_content=False,
            decode_content=False,
        )


class HttpStream:
    """A response that is read bit by bit."""

    def __init__(self, url: str, response: urllib3.BaseHTTPResponse) -> None:
        self._url = url
        self._response = response
        self.status = response.status

    def read(self) -> bytes:
        """Wait for the next bytes; empty at the end. Raises `Unreachable`."""
        try:
            return self._response.read1(STREAM_BYTES)
        except urllib3.exceptions.HTTPError as error:
            raise _unreachable(self._url, error) from None

    def close(self) -> None:
        """Hang up."""
        self._response.close()


def _pool_for(target: Target, environment: Mapping[str, str]) -> urllib3.PoolManager:
    proxy, context = proxy_for(target.url, environment), context_for(target)
    if proxy is None:
        return urllib3.PoolManager(num_pools=1, maxsize=CONNECTIONS_MAX, ssl_context=context)
    headers = None
    if proxy.user is not None:
        headers = urllib3.make_headers(proxy_basic_auth=f"{proxy.user}:{proxy.password}")
    return urllib3.ProxyManager(
        proxy.url, num_pools=1, maxsize=CONNECTIONS_MAX, proxy_headers=headers, ssl_context=context
    )


def _unreachable(url: str, error: urllib3.exceptions.HTTPError) -> Unreachable:
    if isinstance(error, urllib3.exceptions.SSLError):
        return Unreachable(url, *tlswords.trouble(error))
    hung_up = isinstance(error.__cause__ or error.__context__, BadStatusLine | ConnectionResetError)
    return Unreachable(url, _reason(error), tlswords.IF_TLS if hung_up and url.startswith("http://") else "")


def _reason(error: BaseException) -> str:
    """Say in a few words why there was no answer: urllib3's own texts show its insides."""
    match error:
        case urllib3.exceptions.NameResolutionError():
            return "the host's name is not known"
        case urllib3.exceptions.NewConnectionError():
            pass  # A kind of ConnectTimeoutError to urllib3; its cause knows better.
        case urllib3.exceptions.ConnectTimeoutError():
            return "the connection was not accepted in time"
        case urllib3.exceptions.ReadTimeoutError():
            return "the answer did not come in time"
        case urllib3.exceptions.ProxyError():
            return f"the proxy did not let us through ({error.original_error})"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
        cause = cause.__cause__ or cause.__context__
    return "the connection broke"
