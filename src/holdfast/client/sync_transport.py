"""The transport over sockets: one JSON request, one JSON answer.

Idle connections are kept in a deque. Taking one and putting it back is one interpreter step each, so there is no lock
that an interrupt could leave locked, and no waiting: a call that finds none opens one, and waiting claims never delay a
renewal.

Servers close idle connections, so a kept one is checked before use and dropped if it has input. That is safe for every
request, because no byte of it was sent. From the first byte on the outcome is unknown, and only flows retry, with an
idempotency key. The exception is a request refused for an outdated token, which is sent again with the new one.

A connection is idle, or in use by one call, which returns it as its last step once the answer is complete. A call that
is interrupted earlier discards it, so no call reads another's answer.

`http.client` takes half the time of a claim. Nearly all answers have one form, which `plain_answer` reads directly; it
leaves everything else to `http.client`, from the first byte. A test compares the two.
"""

from __future__ import annotations

import io
import math
import os
import re
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http.client import BadStatusLine, HTTPException, HTTPResponse
from typing import Any, TypeAlias, TypeVar, cast
from urllib.parse import urlsplit

from msgspec import structs

from holdfast import neterrors
from holdfast.client import clock, transport
from holdfast.client.answers import Answer
from holdfast.client.config import Target, context_for
from holdfast.client.effects import Open, Send
from holdfast.client.transport import KEY_HEADER, WILL_RETRY_HEADER, Failover, Proxy, Trying, headers_for, payload_of
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
        return Unreachable(url, *neterrors.trouble(error), was_sent=not is_connecting)
    reason = _reason(error, is_connecting=is_connecting)
    if by_proxy:
        reason = f"the proxy did not let us through ({reason})"
    hung_up = isinstance(error, BadStatusLine | ConnectionResetError)
    hint = neterrors.IF_TLS if hung_up and url.startswith("http://") else ""
    return Unreachable(
        url, reason, hint or (neterrors.hint(error) if is_connecting else ""), was_sent=not is_connecting
    )


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


RECEIVE_BYTES = 16_384  # What is read at once of an answer. Nearly all of them are whole by that.
_STATUS = re.compile(r"HTTP/1\.1 (?!204|304)([2-5][0-9]{2}) ")
_FIELD = re.compile(r"^([0-9A-Za-z-]+):[ \t]*([^\r\n]*)\r\n", re.MULTILINE)
_LINES_MAX = 80  # `http.client` takes 100 fields.
_PORTS = {"http": 80, "https": 443}
_KEY = KEY_HEADER.encode()
_HAS_POLL = hasattr(select, "poll")  # Not on Windows.
_WILL_RETRY = b"%b: true\r\n" % WILL_RETRY_HEADER.encode()


def plain_answer(received: bytes) -> Answer | None:
    """Return the answer in these bytes, if it is plain and they are all of it. The connection can be used again.

    Plain is `HTTP/1.1 200 OK`, or another status with a body, then `name: value` with each name once, among them the
    length of the body, no transfer-encoding, and no connection but keep-alive.
    """
    head, blank, body = received.partition(b"\r\n\r\n")
    text = head.decode("latin-1") + "\r\n"
    status = _STATUS.match(text)
    found = _FIELD.findall(text)
    # A line feed alone ends a line too, for `http.client`. Without the blank line, the head itself is incomplete.
    if not blank or status is None or not text.count("\n") == text.count("\r") == len(found) + 1 <= _LINES_MAX:
        return None
    fields = {name.title(): value for name, value in found}
    if (
        len(fields) != len(found)
        or fields.get("Content-Length") != str(len(body))
        or "Transfer-Encoding" in fields
        or fields.get("Connection", "keep-alive") != "keep-alive"
    ):
        return None
    return Answer(int(status[1]), fields, body)


class ProxyRefused(OSError):
    """The proxy would not open a tunnel to the server."""


class Route:
    """How connections to one server are made: directly or through a proxy, plain or with TLS."""

    def __init__(self, target: Target, proxy: Proxy | None) -> None:
        parts = urlsplit(target.url)
        self._target = target
        self._host = parts.hostname or ""
        self._port = parts.port or _PORTS[parts.scheme]
        self._proxy = None if proxy is None else urlsplit(proxy.url)
        self.has_proxy = proxy is not None
        self._proxy_line = b""
        if proxy is not None and proxy.authorization is not None:
            self._proxy_line = f"Proxy-Authorization: {proxy.authorization}\r\n".encode()
        self._is_tls = parts.scheme == "https"
        self._context: ssl.SSLContext | None = None
        # Without TLS a proxy is asked for the whole address, and told by a header of each request who we are.
        sends_full_url = proxy is not None and not self._is_tls
        self.prefix = target.url if sends_full_url else parts.path  # What stands before each path.
        self._host_lines = b"Host: %s\r\n" % parts.netloc.encode() + (self._proxy_line if sends_full_url else b"")
        self._lines: list[tuple[str | None, bytes]] = [(None, b"")] * 2
        """The header lines of the last request without and with a body that had no key, and the token in them."""

    def header_lines(self, request: Send | Open, token: str | None) -> bytes:
        """Return the header lines of a request; only two of them differ from one `Send` to the next."""
        if isinstance(request, Open):
            return self._encoded(headers_for(token, request))
        has_body = request.body is not None
        token_encoded, lines = self._lines[has_body]
        if token_encoded != token or not lines:
            lines = self._encoded(headers_for(token, structs.replace(request, key=None, will_retry=False)))
            self._lines[has_body] = (token, lines)
        if request.will_retry:
            lines += _WILL_RETRY
        return lines if request.key is None else b"%b%b: %b\r\n" % (lines, _KEY, request.key.encode("ascii"))

    def _encoded(self, headers: Mapping[str, str]) -> bytes:
        return "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode("ascii") + self._host_lines

    def connect(self, seconds: float) -> Connection:
        """Open a connection; each step of it may take so long. Raises `OSError`."""
        hop = (self._host, self._port)
        if self._proxy is not None:
            hop = (self._proxy.hostname or "", self._proxy.port or _PORTS["http"])
        connection = Connection(socket.create_connection(hop, seconds))
        try:
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._is_tls:
                if self._proxy is not None:
                    self._open_tunnel(connection, seconds)
                if self._context is None:  # Made when it is needed first: that takes a while.
                    self._context = context_for(self._target) or ssl.create_default_context()
                connection.sock = self._context.wrap_socket(connection.sock, server_hostname=self._host)
        except BaseException:
            connection.close()
            raise
        return connection

    def _open_tunnel(self, connection: Connection, seconds: float) -> None:
        """Ask the proxy for a way to the server that it cannot read."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        at = f"{host}:{self._port}".encode()
        connection.sock.sendall(b"CONNECT %s HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (at, at, self._proxy_line))
        response = connection.read_response("CONNECT", clock.monotonic_ms() + round(seconds * 1_000))
        response.close()
        if not 200 <= response.status < 300:  # noqa: PLR2004 - the range of success
            raise ProxyRefused(f"{response.status} {response.reason}".strip())


class Connection:
    """A connected socket. It is closed when it is dropped."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._poll: select.poll | None = None  # Made when the connection is first kept: by then its socket is final.

    def __del__(self) -> None:
        self.sock.close()

    def close(self) -> None:
        self.sock.close()

    def hang_up(self) -> None:
        """End it for all who have it, also for a thread that reads from it."""
        with suppress(OSError):  # It may be over already. Not the method of TLS, which is not for two threads.
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def is_quiet(self) -> bool:
        """Tell whether it can be used again. What can be read before we have asked is a hang-up, or not for us."""
        if not _HAS_POLL:
            return not _has_input(self.sock)
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self.sock, select.POLLIN)
        return not self._poll.poll(0)

    def send(self, request: bytes, seconds: float) -> int:
        """Send a request. Returns the moment by which its answer has to be read, to the end: in so many seconds."""
        until_ms = clock.monotonic_ms() + round(seconds * 1_000)
        if self.sock.gettimeout() != seconds:  # To say it is a call of the system, so it is not said twice.
            self.sock.settimeout(seconds)
        try:  # noqa: SIM105 - for every request: `suppress` is slower
            self.sock.sendall(request)
        except BrokenPipeError:
            pass  # It may have answered before it had heard everything.
        return until_ms

    def receive(self) -> bytes:
        """Wait for the first bytes of an answer; none at its end. They may take as long as the request was given."""
        return self.sock.recv(RECEIVE_BYTES)

    def read_response(self, method: str, until_ms: int, received: bytes = b"") -> HTTPResponse:
        """Read the head of an answer of which so much was heard. All of it has to be read by then."""
        return _read_head(_DeadlineReader(self.sock, until_ms, received), method)

    def open_stream(self, method: str, request: bytes, begin_seconds: float, read_seconds: float) -> HTTPResponse:
        """Send a request, and read the head of an answer that goes on and on. Each piece may take so long."""
        self.send(request, begin_seconds)
        response = _read_head(self.sock, method)
        self.sock.settimeout(read_seconds)
        return response


def _has_input(sock: socket.socket) -> bool:
    """Tell by `select` whether something can be read, an end or an error too."""
    try:
        return bool(select.select([sock], [], [], 0)[0])
    except (OSError, ValueError):  # It is closed, or its number is too large for `select`.
        return True


def _read_head(source: socket.socket | _DeadlineReader, method: str) -> HTTPResponse:
    response = HTTPResponse(cast("socket.socket", source), method=method)
    try:
        response.begin()
    except BaseException:
        response.close()
        raise
    return response


class _DeadlineReader(io.RawIOBase):
    """What is read from a socket until a moment. A time limit of the socket would begin anew with each byte."""

    def __init__(self, sock: socket.socket, until_ms: int, received: bytes) -> None:
        self._sock = sock
        self._until_ms = until_ms
        self._received = received  # What was read before; it comes first.

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any buffer
        if self._received:
            part = self._received[: len(buffer)]
            buffer[: len(part)] = part
            self._received = self._received[len(part) :]
            return len(part)
        left_ms = self._until_ms - clock.monotonic_ms()
        if left_ms <= 0:
            raise TimeoutError
        self._sock.settimeout(left_ms / 1_000)
        return self._sock.recv_into(buffer)


def encoded_request(route: Route, request: Send | Open, token: str | None) -> bytes:
    """Return a request as it travels."""
    target = route.prefix + request.path
    if not (target.isascii() and target.isprintable()) or " " in target:
        raise ValueError(f"{request.path!r:.200} cannot stand in a request")
    head = f"{request.method} {target} HTTP/1.1\r\n".encode("ascii")
    lines, payload = route.header_lines(request, token), payload_of(request)
    if payload is None:
        return b"%b%b%b\r\n" % (head, lines, b"" if request.method == "GET" else b"Content-Length: 0\r\n")
    return b"%b%bContent-Length: %d\r\n\r\n%b" % (head, lines, len(payload), payload)
