"""The transport over sockets: one JSON request, one JSON answer.

Idle connections are kept in a deque. Taking one and putting it back is one interpreter step each, so there is no lock
that an interrupt could leave locked, and no waiting: a call that finds none opens one, and waiting claims never delay a
renewal.

Servers close idle connections, so a kept one is checked before use and dropped if it has input. That is safe for every
request, because no byte of it was sent. From the first byte on the outcome is unknown, and only flows retry, with an
idempotency key. The exception is a request refused for an outdated token, which is sent again with the new one.
"""

from __future__ import annotations

import math
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http.client import BadStatusLine, HTTPException, HTTPResponse
from typing import TypeAlias, TypeVar, cast

from holdfast import sandbox, tlserrors
from holdfast.client import transport
from holdfast.client.answers import Answer
from holdfast.client.config import Target
from holdfast.client.effects import Open, Send
from holdfast.client.failover import Failover, Trying
from holdfast.client.http_connection import Connection, ProxyRefused, Route, encoded_request, plain_answer
from holdfast.errors import ServerError, Unreachable

CONNECTIONS_MAX = 256  # Idle ones; beyond that the oldest is closed.
_BROKEN = (OSError, HTTPException, UnicodeError)  # `UnicodeError`: for a host name that cannot be encoded.


T = TypeVar("T")


class HttpTransport:
    def __init__(
        self,
        target: Target,
        *,
        environment: Mapping[str, str],
        bearer: transport.Bearer | None = None,
        connect_share: float = 1.0,
        begin_seconds: float = math.inf,
    ) -> None:
        """Nothing is sent yet. `environment` may name a proxy, which is never used for a loopback address.

        The last three are for one of several addresses, which share a token: a dead one must not use up the time for an
        answer, so connecting may take only a share of it, and a stream must begin in time.
        """
        self.target = target
        self._bearer = bearer or transport.Bearer(target)
        self._route = Route(target, transport.proxy_for(target.url, environment))
        self._idle: deque[Connection] = deque(maxlen=CONNECTIONS_MAX)
        self._pid = os.getpid()
        self._connect_share = connect_share
        self._begin_seconds = begin_seconds

    def __repr__(self) -> str:  # Never the token.
        return f"HttpTransport({self.target!r})"

    def close(self) -> None:
        """Close the connections of all threads. Those in use are closed after that."""
        idle, self._idle = self._idle, deque(maxlen=CONNECTIONS_MAX)
        with suppress(IndexError):
            while True:
                idle.pop().close()

    def send(self, request: Send) -> Answer:
        token = request.bearer or self._bearer.token
        answer = self._send(request, token)
        if request.bearer is None and self._bearer.is_another_after(answer.status, token):
            answer = self._send(request, self._bearer.token)
        return answer

    def _send(self, request: Send, token: str | None) -> Answer:
        data = encoded_request(self._route, request, token)
        idle = self._idle if os.getpid() == self._pid else self._reset()
        connection = self._take(idle) or self._connect(request.answer_seconds)
        is_reusable = False
        try:
            until_ms = connection.send(data, request.answer_seconds)
            received = connection.receive()
            answer = plain_answer(received)
            if answer is not None:
                is_reusable = True
            else:
                response = connection.read_response(request.method, until_ms, received)
                content = _read_all(response, self.target.url)
                answer = Answer(response.status, cast("Mapping[str, str]", response.headers), content)
                is_reusable = not response.will_close
        except _BROKEN as error:
            raise _unreachable(self.target.url, error) from None
        finally:
            if not is_reusable:
                connection.close()
        if is_reusable and idle is self._idle:  # Else the client was closed meanwhile.
            idle.append(connection)
        return answer

    def stream(self, opening: Open) -> HttpStream:
        token = self._bearer.token
        stream = self._stream(opening, token)
        if self._bearer.is_another_after(stream.status, token):
            stream.close()
            stream = self._stream(opening, self._bearer.token)
        return stream

    def _stream(self, opening: Open, token: str | None) -> HttpStream:
        data = encoded_request(self._route, opening, token)
        begin_seconds = min(opening.read_seconds, self._begin_seconds)
        connection = self._connect(begin_seconds)
        try:
            response = connection.open_stream(opening.method, data, begin_seconds, opening.read_seconds)
            return HttpStream(self.target.url, connection, response)
        except _BROKEN as error:
            connection.close()
            raise _unreachable(self.target.url, error) from None

    def _reset(self) -> deque[Connection]:
        """Drop connections that a fork copied: they would receive the parent's answers."""
        self._idle, self._pid = deque(maxlen=CONNECTIONS_MAX), os.getpid()
        return self._idle

    def _take(self, idle: deque[Connection]) -> Connection | None:
        """Return the most recently used connection that is still usable; None if there is none."""
        try:
            # Taken out without asking whether there is one: that would be two steps.
            while not (connection := idle.pop()).is_quiet():
                connection.close()
        except IndexError:
            return None
        return connection

    def _connect(self, answer_seconds: float) -> Connection:
        try:
            return self._route.connect(min(transport.CONNECT_SECONDS, answer_seconds * self._connect_share))
        except _BROKEN as error:
            raise _unreachable(self.target.url, error, is_connecting=True, by_proxy=self._route.has_proxy) from None


class HttpStream:
    def __init__(self, url: str, connection: Connection, response: HTTPResponse) -> None:
        self._url = url
        self._connection = connection
        self._response = response
        self._pid = os.getpid()
        self._is_closed = False
        self.status = response.status
        self.on_broken: Callable[[], object] | None = None  # Called when the server was silent or the connection broke.

    def read(self) -> bytes:
        """Wait for the next bytes; empty at the end. Raises `Unreachable`."""
        try:
            return self._response.read1(transport.STREAM_BYTES)
        except (*_BROKEN, AttributeError, ValueError) as error:
            if self._is_closed:  # Closed during the read, which makes `http.client` raise any of these.
                return b""
            if isinstance(error, _BROKEN):
                if self.on_broken is not None:
                    self.on_broken()
                raise _unreachable(self._url, error) from None
            raise

    def close(self) -> None:
        """Close it. A forked process only closes its copy, because the connection is the parent's."""
        self._is_closed = True
        if os.getpid() == self._pid:
            self._connection.hang_up()
        self._response.close()
        self._connection.close()


def _read_all(response: HTTPResponse, url: str) -> bytes:
    """Read an answer to its end, so that a truncated one is detected."""
    if response.length is not None and response.length <= transport.ANSWER_BYTES_MAX:
        return response.read()
    content = response.read(transport.ANSWER_BYTES_MAX + 1)
    if len(content) > transport.ANSWER_BYTES_MAX:
        raise ServerError(f"{url} sent more than {transport.ANSWER_BYTES_MAX} bytes; is it a Holdfast server?")
    return content


def _unreachable(url: str, error: BaseException, *, is_connecting: bool = False, by_proxy: bool = False) -> Unreachable:
    if isinstance(error, ssl.SSLError):
        return Unreachable(url, *tlserrors.trouble(error), was_sent=not is_connecting)
    reason = _reason(error, is_connecting=is_connecting)
    if by_proxy:
        reason = f"the proxy did not let us through ({reason})"
    hung_up = isinstance(error, BadStatusLine | ConnectionResetError)
    hint = tlserrors.IF_TLS if hung_up and url.startswith("http://") else ""
    return Unreachable(url, reason, hint or (sandbox.hint(error) if is_connecting else ""), was_sent=not is_connecting)


def _reason(error: BaseException, *, is_connecting: bool) -> str:
    match error:
        case socket.gaierror() | UnicodeError():
            return "the host's name is not known"
        case TimeoutError() if is_connecting:
            return "the connection was not accepted in time"
        case TimeoutError():
            return "the answer did not come in time"
        case ProxyRefused():
            return str(error)
        case OSError(strerror=str(text)) if text:
            return text.lower()
        case _:
            return "the connection broke"


class FailoverTransport(Failover):
    """A transport for threads, with failover between the addresses of a server."""

    _transports: list[HttpTransport]

    def close(self) -> None:
        for member in self._transports:
            member.close()

    def send(self, request: Send) -> Answer:
        return self._try(self.sending(request), lambda transport: transport.send(request))

    def stream(self, opening: Open) -> HttpStream:
        stream: HttpStream = self._try(self.opening(), lambda transport: transport.stream(opening))
        return stream

    def _try(self, trying: Trying[T], ask: Callable[[HttpTransport], T]) -> T:
        try:
            at = next(trying)
            while True:
                try:
                    got = ask(self._transports[at])
                except Unreachable as error:
                    at = trying.throw(error)
                else:
                    at = trying.send(got)
        except StopIteration as done:
            found: T = done.value
            return found


Transport: TypeAlias = HttpTransport | FailoverTransport


def transport_to(target: Target, *, environment: Mapping[str, str]) -> Transport:
    if len(target.addresses) == 1:
        return HttpTransport(target, environment=environment)
    return FailoverTransport(target, partial(HttpTransport, environment=environment))
