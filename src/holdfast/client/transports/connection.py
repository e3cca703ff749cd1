"""Answers in the form that a Holdfast server gives them, read at once from their bytes. Knows no socket.

`http.client` reads every form that HTTP allows: chunks, no length at all, several answers for one question. That took
half of all that the client did for a claim. Nearly all answers have one form, which is read here:

    HTTP/1.1 200 OK                                    not 204 or 304, nor below 200
    content-type: application/json                     whole lines of name: value, in whatever order
    content-length: 4                                  once
    x-request-id: req_…                                no transfer-encoding, no connection but keep-alive

    null                                               as many bytes as were said, and not one more

What is in doubt is not plain. Then `http.client` reads the answer from its first byte, so nothing is understood in two
ways. A test compares the two over many forms of heads.

TLS inside TLS: to a server that speaks it, through a proxy that is spoken to with TLS as well.

A socket of Python speaks TLS over a plain one only. This is as much of a socket as a connection needs, over another
that speaks TLS already.

One connection to a server: the socket, the bytes of a request, and the answer, plain or as `http.client` reads it.

A connection is at one of two places: among the kept ones of its transport, or in the hands of the one call that uses
it. It goes back to the kept ones as the last step of that call, when its answer was read to the end. Whatever breaks
the call off before, an interrupt too, has thrown it away by that: nobody can read an answer that is another's.
"""

from __future__ import annotations

import io
import re
import select
import socket
import ssl
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from email.message import Message
from functools import cached_property, partial
from http.client import HTTPResponse, parse_headers
from io import BytesIO
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from holdfast.client import clock
from holdfast.client.answers import Answer
from holdfast.client.config import Target, context_for
from holdfast.client.transports.base import Proxy

# Possessive quantifiers and atomic groups never backtrack, so matching is linear in the length of the headers. The
# groups are atomic instead of possessive because Python before 3.11.5 matches possessive groups wrongly (gh-106052).
_FIELD = rb"""
    (?! (?i: content-length | transfer-encoding | connection (?! :\ keep-alive\r\n ) ) )
    [!\#$%&'*+.^_`|~0-9A-Za-z-]++ : [^\r]*+ \r\n
"""
_PLAIN = re.compile(
    rb"""
    HTTP/1\.1\ (?! 204 | 304 ) ([2-5][0-9][0-9])\ [^\r]*+ \r\n
    ( (?> (?: %(field)b ){0,40} ) (?i: content-length ) :\ ([0-9]{1,9}) \r\n (?> (?: %(field)b ){0,40} ) \r\n )
    """
    % {b"field": _FIELD},
    re.VERBOSE,
)


class Fields(Mapping[str, str]):
    """The fields of a head. Nobody looks at those of most answers, so they are read when somebody does."""

    def __init__(self, lines: bytes) -> None:
        self._lines = lines

    @cached_property
    def _read(self) -> Message:
        return parse_headers(BytesIO(self._lines))

    def __getitem__(self, name: str) -> str:
        value: str | None = self._read[name]
        if value is None:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._read.keys())

    def __len__(self) -> int:
        return len(self._read)


def plain_answer(heard: bytes) -> Answer | None:
    """Return the answer in these bytes, if it is plain and they are all of it. The connection can be used again."""
    found = _PLAIN.match(heard)
    if found is None:
        return None
    status, lines, length = found.groups()
    begins = found.end()
    # A line feed alone ends a line too, for `http.client`. To look for it here is quicker than in the pattern.
    if len(heard) != begins + int(length) or lines.count(b"\n") != lines.count(b"\r"):
        return None
    return Answer(int(status), Fields(lines), heard[begins:])


T = TypeVar("T")

RECORD_BYTES = 16_384


class NestedTls:
    """Speaks TLS through a socket that speaks TLS."""

    def __init__(self, outer: socket.socket, context: ssl.SSLContext, host: str) -> None:
        """Shake hands."""
        self.outer = outer
        self._heard, self._said = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._heard, self._said, server_hostname=host)
        self._do(self._tls.do_handshake)

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        sent = 0
        while sent < len(data):
            sent += self._do(partial(self._tls.write, data[sent : sent + RECORD_BYTES]))

    def recv(self, size: int) -> bytes:
        """Read what there is, at most so much, after waiting for some; nothing at the end."""
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(buffer)])

    def recv_into(self, buffer: Any) -> int:  # noqa: ANN401 - any buffer
        """Read what there is, after waiting for some; 0 at the end."""
        try:
            # It says `bytes` of what it returns; into a buffer it returns how many.
            return cast("int", self._do(partial(self._tls.read, len(buffer), buffer)))
        except ssl.SSLZeroReturnError:
            return 0

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a file to read from. Closing it leaves the connection open."""
        return io.BufferedReader(_Reading(self))

    def settimeout(self, seconds: float | None) -> None:
        """Wait for so long at most."""
        self.outer.settimeout(seconds)

    def gettimeout(self) -> float | None:
        """Return how long it waits at most."""
        return self.outer.gettimeout()

    def fileno(self) -> int:
        """Return what can be looked at: whether there is something to read."""
        return self.outer.fileno()

    def close(self) -> None:
        """Hang up."""
        self.outer.close()

    def _do(self, step: Callable[[], T]) -> T:
        """Take one step of TLS, and carry between it and the outer connection what that needs."""
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self._flush()
            else:
                self._flush()
                return result
            data = self.outer.recv(RECORD_BYTES)
            if data:
                self._heard.write(data)
            else:
                self._heard.write_eof()

    def _flush(self) -> None:
        if self._said.pending:
            self.outer.sendall(self._said.read())


class _Reading(io.RawIOBase):
    """The side that is read from, as a file."""

    def __init__(self, nested: NestedTls) -> None:
        super().__init__()
        self._nested = nested

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any buffer
        return self._nested.recv_into(buffer)


HEARD_BYTES = 16_384
"""What is read at once of an answer. Nearly all of them are whole by that."""
_PORTS = {"http": 80, "https": 443}


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
        self._proxy_line = b"" if proxy is None else _authorization(proxy)
        self._is_tls = parts.scheme == "https"
        self._context: ssl.SSLContext | None = None
        # A plain proxy is asked for the whole address, and told by a header of each request who we are.
        whole = proxy is not None and not self._is_tls
        self.prefix = target.url if whole else parts.path
        """What stands before each path."""
        self.lines = b"Host: %s\r\n" % parts.netloc.encode() + (self._proxy_line if whole else b"")
        """The lines that every request has."""

    @property
    def has_proxy(self) -> bool:
        """Whether somebody stands in between."""
        return self._proxy is not None

    def connect(self, seconds: float) -> Connection:
        """Open a connection; each step of it may take so long. Raises `OSError`."""
        hop = (self._host, self._port)
        if self._proxy is not None:
            hop = (self._proxy.hostname or "", self._proxy.port or _PORTS[self._proxy.scheme])
        sock = socket.create_connection(hop, seconds)
        connection = Connection(sock)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._proxy is not None and self._proxy.scheme == "https":
                connection.secure(ssl.create_default_context(), hop[0])
            if self._proxy is not None and self._is_tls:
                self._open_tunnel(connection, seconds)
            if self._is_tls:
                connection.secure(self._trusting(), self._host)
        except BaseException:
            connection.close()
            raise
        return connection

    def _trusting(self) -> ssl.SSLContext:
        """Return whom we trust. Read when it is needed first: that takes a while."""
        if self._context is None:
            self._context = context_for(self._target) or ssl.create_default_context()
        return self._context

    def _open_tunnel(self, connection: Connection, seconds: float) -> None:
        """Ask the proxy for a way to the server that it cannot read."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        at = f"{host}:{self._port}".encode()
        connection.sock.sendall(b"CONNECT %s HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (at, at, self._proxy_line))
        response = connection.hear("CONNECT", clock.monotonic_ms() + round(seconds * 1_000))
        response.close()
        if not 200 <= response.status < 300:  # noqa: PLR2004 - the range of success
            raise ProxyRefused(f"{response.status} {response.reason}".strip())


class Connection:
    """A connected socket. It is closed when it is dropped."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock: socket.socket | NestedTls = sock
        self._look: select.poll | None = None
        """What looks whether it is quiet. Made when it is kept for the first time: by then it speaks as it will."""

    def __del__(self) -> None:
        """Close it: nobody else has it any more."""
        self.sock.close()

    def close(self) -> None:
        """Hang up."""
        self.sock.close()

    def hang_up(self) -> None:
        """End it for all who have it, also for a thread that reads from it."""
        with suppress(OSError):  # It may be over already. Not the method of TLS, which is not for two threads.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def secure(self, context: ssl.SSLContext, host: str) -> None:
        """Speak TLS from here on."""
        if isinstance(self.sock, ssl.SSLSocket):
            self.sock = NestedTls(self.sock, context, host)
        else:
            self.sock = context.wrap_socket(self._socket, server_hostname=host)

    @property
    def _socket(self) -> socket.socket:
        return self.sock.outer if isinstance(self.sock, NestedTls) else self.sock

    def is_quiet(self) -> bool:
        """Tell whether it can be used again. What can be read before we have asked is a hang-up, or not for us."""
        if self._look is None:
            self._look = select.poll()
            self._look.register(self.sock, select.POLLIN)
        return not self._look.poll(0)

    def say(self, request: bytes, seconds: float) -> int:
        """Send a request. Returns the moment by which its answer has to be read, to the end: in so many seconds."""
        until_ms = clock.monotonic_ms() + round(seconds * 1_000)
        if self.sock.gettimeout() != seconds:  # To say it is a call of the system, so it is not said twice.
            self.sock.settimeout(seconds)
        try:  # noqa: SIM105 - for every request: `suppress` takes longer than all else here
            self.sock.sendall(request)
        except BrokenPipeError:
            pass  # It may have answered before it had heard everything.
        return until_ms

    def heard(self) -> bytes:
        """Wait for the first bytes of an answer; none at its end. They may take as long as the request was given."""
        return self.sock.recv(HEARD_BYTES)

    def hear(self, method: str, until_ms: int, heard: bytes = b"") -> HTTPResponse:
        """Read the head of an answer of which so much was heard. All of it has to be read by then."""
        return _begun(_Punctual(self.sock, until_ms, heard), method)

    def follow(self, method: str, request: bytes, begin_seconds: float, read_seconds: float) -> HTTPResponse:
        """Send a request, and read the head of an answer that goes on and on. Each piece may take so long."""
        self.sock.settimeout(begin_seconds)
        with suppress(BrokenPipeError):
            self.sock.sendall(request)
        response = _begun(self.sock, method)
        self.sock.settimeout(read_seconds)
        return response


def _begun(source: socket.socket | NestedTls | _Punctual, method: str) -> HTTPResponse:
    response = HTTPResponse(cast("socket.socket", source), method=method)
    try:
        response.begin()
    except BaseException:
        response.close()
        raise
    return response


class _Punctual(io.RawIOBase):
    """What is read from a socket until a moment. A time limit of the socket would begin anew with each byte."""

    def __init__(self, sock: socket.socket | NestedTls, until_ms: int, heard: bytes) -> None:
        self._sock = sock
        self._until_ms = until_ms
        self._heard = heard
        """What was read before; it comes first."""

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Be read by `http.client`, as a socket is."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any buffer
        """Read what there is. Raises `TimeoutError` when the time is over."""
        if self._heard:
            part = self._heard[: len(buffer)]
            buffer[: len(part)] = part
            self._heard = self._heard[len(part) :]
            return len(part)
        left_ms = self._until_ms - clock.monotonic_ms()
        if left_ms <= 0:
            raise TimeoutError
        self._sock.settimeout(left_ms / 1_000)
        return self._sock.recv_into(buffer)


def lines_of(route: Route, headers: Mapping[str, str]) -> bytes:
    """Return headers as they travel."""
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode("ascii") + route.lines


def written(method: str, route: Route, path: str, lines: bytes, payload: bytes | None) -> bytes:
    """Return a request as it travels."""
    target = route.prefix + path
    if not (target.isascii() and target.isprintable()) or " " in target:
        raise ValueError(f"{path!r:.200} cannot stand in a request")
    head = f"{method} {target} HTTP/1.1\r\n".encode("ascii")
    if payload is None:
        return b"%b%b%b\r\n" % (head, lines, b"" if method == "GET" else b"Content-Length: 0\r\n")
    return b"%b%bContent-Length: %d\r\n\r\n%b" % (head, lines, len(payload), payload)


def _authorization(proxy: Proxy) -> bytes:
    if proxy.user is None:
        return b""
    return b"Proxy-Authorization: Basic %s\r\n" % b64encode(f"{proxy.user}:{proxy.password}".encode())
