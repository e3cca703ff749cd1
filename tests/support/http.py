"""A plain HTTP/1.1 client for tests: no retries, no redirects, nothing hidden. Standard library only.

The law of this file: a request is sent at most once, and what came back is shown as it came.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import select
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

TIMEOUT_SECONDS = 15.0
JSON_TYPE = "application/json"


class _Same:
    """Stands for "the token this client was made with", since None means no token at all."""


SAME: Final = _Same()


@dataclass(frozen=True)
class Answer:
    """One HTTP answer. `headers` looks names up without regard to case."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:  # noqa: ANN401 - JSON is whatever the server sent
        """The body, decoded. A body that is not JSON fails with the answer in the message."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise AssertionError(f"not JSON ({error}): {self}") from None

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", "replace")

    @property
    def request_id(self) -> str | None:
        """The X-Request-Id header."""
        return self.headers.get("X-Request-Id")

    @property
    def content_type(self) -> str:
        """The media type without parameters, in lower case."""
        return (self.headers.get("Content-Type") or "").split(";")[0].strip().lower()

    def __str__(self) -> str:
        return f"{self.status} {dict(self.headers.items())} {self.body[:600]!r}"


class Connection:
    """One keep-alive connection, for one thread at a time. A connection the server closed while idle is replaced
    before sending.
    """

    def __init__(self, host: str, port: int, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._http = http.client.HTTPConnection(host, port, timeout=timeout_seconds)

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request and read its answer.

        `body` may be bytes (sent as they are), anything JSON (encoded), or None (no body). Bodies are announced as JSON
        unless `headers` has a Content-Type; an empty Content-Type there means: send none.
        """
        self._replace_if_closed()
        payload, all_headers = _encoded(body, token, headers)
        try:
            self._http.request(method, path, body=payload, headers=all_headers)
            response = self._http.getresponse()
            return Answer(response.status, response.headers, response.read())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the socket; the next request opens another."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A thread that ends leaves its connection behind; nobody else can close it.
        self.close()

    def _replace_if_closed(self) -> None:
        # Nothing may arrive between two requests, so anything readable is the end of the connection.
        if self._http.sock is not None:
            poll = select.poll()
            poll.register(self._http.sock, select.POLLIN)
            if poll.poll(0):
                self._http.close()


class Client:
    """A caller with one token. May be shared by threads: each thread has its own connection."""

    def __init__(
        self, host: str, port: int, token: str | None = None, *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self.host = host
        self.port = port
        self.token = token
        self._timeout_seconds = timeout_seconds
        self._local = threading.local()

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | _Same | None = SAME,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """As `Connection.request`, with this client's token unless another (or None, for none) is given."""
        bearer = self.token if isinstance(token, _Same) else token
        return self._connection().request(method, path, body, token=bearer, headers=headers)

    def get(self, path: str, **options: Any) -> Answer:  # noqa: ANN401 - passed on as it is
        """`request("GET", …)`."""
        return self.request("GET", path, **options)

    def post(self, path: str, body: object = None, **options: Any) -> Answer:  # noqa: ANN401 - passed on as it is
        """`request("POST", …)`."""
        return self.request("POST", path, body, **options)

    def delete(self, path: str, **options: Any) -> Answer:  # noqa: ANN401 - passed on as it is
        """`request("DELETE", …)`."""
        return self.request("DELETE", path, **options)

    def watch(self, path: str, *, token: str | _Same | None = SAME) -> EventStream:
        """Open a stream of server-sent events."""
        return EventStream(self.host, self.port, path, token=self.token if isinstance(token, _Same) else token)

    def raw(self, payload: bytes, **options: Any) -> bytes:  # noqa: ANN401 - passed on as it is
        """Send bytes on a connection of their own and return what came back. See `exchange`."""
        return exchange(self.host, self.port, payload, **options).data

    def close(self) -> None:
        """Close this thread's connection."""
        self._connection().close()

    def _connection(self) -> Connection:
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = Connection(self.host, self.port, timeout_seconds=self._timeout_seconds)
            self._local.connection = connection
        return connection


@dataclass(frozen=True)
class RawReply:
    """What came back on a raw connection, and whether the server closed it."""

    data: bytes
    closed: bool

    def answers(self) -> list[Answer]:
        """The complete answers in it, in order, without interim (1xx) ones."""
        return parse_answers(self.data, closed=self.closed)


def exchange(
    host: str,
    port: int,
    payload: bytes,
    *,
    answers: int = 1,
    timeout_seconds: float = 5.0,
    linger_seconds: float = 0.2,
) -> RawReply:
    """Send `payload` and read until the server closes, or `answers` complete answers came and nothing more follows,
    or time is up.

    It reads while it sends, so that a server which refuses early is heard; a reset counts as closed.
    """
    received = bytearray()
    unsent = memoryview(payload)
    deadline = time.monotonic() + timeout_seconds
    complete = False
    with socket.create_connection((host, port), timeout=timeout_seconds) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        while (left := deadline - time.monotonic()) > 0:
            poll = select.poll()
            poll.register(sock, select.POLLIN | (select.POLLOUT if unsent and not complete else 0))
            events = poll.poll(1000 * (min(left, linger_seconds) if complete else left))
            if not events:
                break
            flags = events[0][1]
            if flags & (select.POLLIN | select.POLLHUP | select.POLLERR):
                try:
                    data = sock.recv(1 << 16)
                except BlockingIOError:
                    data = None
                except OSError:
                    data = b""
                if data == b"":
                    return RawReply(bytes(received), closed=True)
                received += data or b""
                complete = len(parse_answers(bytes(received), closed=False)) >= answers
            elif flags & select.POLLOUT:
                try:
                    unsent = unsent[sock.send(unsent[: 1 << 16]) :]
                except BlockingIOError:
                    continue
                except OSError:
                    unsent = memoryview(b"")
    return RawReply(bytes(received), closed=False)


def parse_answers(data: bytes, *, closed: bool) -> list[Answer]:
    """Split a byte stream into its complete answers, 1xx left out. An answer without a length is complete once the
    stream is closed.
    """
    found: list[Answer] = []
    while b"\r\n\r\n" in data:
        head, _, rest = data.partition(b"\r\n\r\n")
        status_line, _, header_lines = head.partition(b"\r\n")
        parts = status_line.split(b" ")
        if not parts[0].startswith(b"HTTP/") or len(parts) < 2:
            raise AssertionError(f"not an HTTP answer: {data[:200]!r}")
        status = int(parts[1])
        headers = http.client.parse_headers(io.BytesIO(header_lines + b"\r\n\r\n"))
        body, after = _split_body(status, headers, rest, closed=closed)
        if body is None:
            break
        if status >= 200:
            found.append(Answer(status, headers, body))
        data = after
    return found


def _split_body(
    status: int, headers: http.client.HTTPMessage, rest: bytes, *, closed: bool
) -> tuple[bytes | None, bytes]:
    if status < 200 or status in (204, 304):
        return b"", rest
    if "chunked" in (headers.get("Transfer-Encoding") or "").lower():
        return _split_chunked(rest)
    length = headers.get("Content-Length")
    if length is not None:
        size = int(length)
        return (rest[:size], rest[size:]) if len(rest) >= size else (None, rest)
    return (rest, b"") if closed else (None, rest)


def _split_chunked(rest: bytes) -> tuple[bytes | None, bytes]:
    body = bytearray()
    while True:
        line, separator, after = rest.partition(b"\r\n")
        if not separator:
            return None, rest
        size = int(line.split(b";")[0], 16)
        if len(after) < size + 2:
            return None, rest
        body += after[:size]
        rest = after[size + 2 :]
        if size == 0:
            return bytes(body), rest


@dataclass(frozen=True)
class Frame:
    """One server-sent event, as its lines."""

    lines: tuple[str, ...]
    received_at: float = field(default_factory=time.monotonic)

    @property
    def is_comment(self) -> bool:
        """Is nothing told by it? There are comments in it, and perhaps the id of where the stream is."""
        return all(line.startswith((":", "id:")) for line in self.lines)

    @property
    def data(self) -> str:
        """The data lines, joined."""
        return "\n".join(line[5:].removeprefix(" ") for line in self.lines if line.startswith("data:"))

    def field(self, name: str) -> str | None:
        """The value of a line: `id`, `event`."""
        return next((line.partition(":")[2].strip() for line in self.lines if line.startswith(f"{name}:")), None)

    def json(self) -> Any:  # noqa: ANN401 - JSON is whatever the server sent
        """The data, decoded."""
        return json.loads(self.data)


class EventStream:
    """A stream of server-sent events, read by a thread so that waiting for a frame can time out without losing any."""

    def __init__(
        self,
        host: str,
        port: int,
        path: str,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        body: object = None,
    ) -> None:
        """A stream that takes a body is asked for with POST."""
        self._http = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
        payload, sent = _encoded(body, token, {"Accept": "text/event-stream", **(headers or {})})
        self._http.request("GET" if body is None else "POST", path, body=payload, headers=sent)
        self._sock = self._http.sock
        self._response = self._http.getresponse()
        self.status = self._response.status
        self.headers = self._response.headers
        self.refusal = b"" if self.status == 200 else self._response.read()
        """The whole answer, if it is no stream."""
        self.opened_at = time.monotonic()
        self.comments: list[Frame] = []
        self._frames: list[Frame] = []
        self._news = threading.Condition()
        self._at_end = False
        with contextlib.suppress(OSError):  # It may be closed already, behind a refusal.
            self._sock.settimeout(None)
        self._reader = threading.Thread(target=self._read, name="events", daemon=True)
        self._reader.start()

    def next(self, timeout_seconds: float = 5.0) -> Frame:
        """The next frame that is not a comment. Fails when none comes in time or the stream ends."""
        with self._news:
            if not self._news.wait_for(lambda: self._frames or self._at_end, timeout_seconds):
                raise AssertionError(f"no event within {timeout_seconds} s")
            if not self._frames:
                raise AssertionError("the stream ended")
            return self._frames.pop(0)

    def next_record(self, timeout_seconds: float = 5.0) -> Frame:
        """The next frame, or the parts of a large record as the one frame that they would be."""
        frame = self.next(timeout_seconds)
        changes = []
        while (body := frame.json()).get("part", 1) < body.get("parts", 1):
            changes += body["changes"]
            frame = self.next(timeout_seconds)
        if not changes:
            return frame
        data = json.dumps({"seq": body["seq"], "changes": changes + body["changes"]})
        return Frame((*frame.lines[:-1], f"data: {data}"), frame.received_at)

    def next_event(self, event: str, timeout_seconds: float = 5.0) -> Any:  # noqa: ANN401 - JSON is whatever the server sent
        """Skip to the next frame whose JSON has this `event`, and return that JSON."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            body = self.next(max(0.0, deadline - time.monotonic())).json()
            if body.get("event") == event:
                return body

    def wait_for_comment(self, timeout_seconds: float) -> Frame:
        """The first comment of this stream, which may have come already."""
        with self._news:
            if not self._news.wait_for(lambda: self.comments or self._at_end, timeout_seconds) or not self.comments:
                raise AssertionError(f"no comment within {timeout_seconds} s")
            return self.comments[0]

    def wait_for_end(self, timeout_seconds: float) -> bool:
        """Did the server end the stream in time?"""
        with self._news:
            return self._news.wait_for(lambda: self._at_end, timeout_seconds)

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._reader.join(5)
        self._response.close()
        self._http.close()
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        lines: list[str] = []
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError, AttributeError):
            while raw := self._response.readline():
                line = raw.decode("utf-8").rstrip("\r\n")
                if line:
                    lines.append(line)
                elif lines:
                    self._add(Frame(tuple(lines)))
                    lines = []
        with self._news:
            self._at_end = True
            self._news.notify_all()

    def _add(self, frame: Frame) -> None:
        with self._news:
            (self.comments if frame.is_comment else self._frames).append(frame)
            self._news.notify_all()


def _encoded(body: object, token: str | None, headers: Mapping[str, str] | None) -> tuple[bytes | None, dict[str, str]]:
    payload = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    merged: dict[str, str] = {} if payload is None else {"Content-Type": JSON_TYPE}
    if token is not None:
        merged["Authorization"] = f"Bearer {token}"
    merged.update(headers or {})
    if merged.get("Content-Type") == "":
        del merged["Content-Type"]
    return payload, merged
