"""The request parser of a connection: bytes become requests. It knows the limits, but neither sockets nor responses.

The *phase* is what the client is sending:

              first byte                header complete           body complete
      IDLE ───────────────► HEAD ─────────────────────────► BODY ─────────────────────► IDLE
                             │ header_bytes_max: 431          │ the body's limit: 413

The connection enforces the time limits of the phases, and gets the requests in order. After a refusal, or a request
that ends the connection, `ended` is true and all input is discarded: it cannot be trusted to be a request.

**Limits.** A header has at most `header_bytes_max` bytes and `FIELDS_MAX` fields, repeated ones counted each time. A
body has at most `SMALL_BODY_BYTES` until the connection has returned the limit of this request. The framing between the
pieces of a body (sizes, extensions, trailers) may be as long as a header, and trailers never become header fields. Only
a header whose `_counted_bytes` are close to the limit is measured.

**Upgrade.** A request to upgrade is ignored and its body is read. httptools stops after such a header, so the header is
parsed again by a new parser, without that field.

**Repeated headers** need no parsing (`header_cache`). After `MISSES_MAX` different ones in a row none is kept.
"""

from __future__ import annotations

import logging
from typing import Any

import httptools

from holdfast.config import Settings
from holdfast.http.header_cache import CACHED_HEADERS_MAX, END_OF_LINE, CachedHeader, cached_header_of
from holdfast.http.messages import BUG, SMALL_BODY_BYTES, Request, fold, request_from, too_large
from holdfast.wire.problems import Problem

IDLE, HEAD, BODY = range(3)
FEED_BYTES = 1_024  # The most that is parsed at once: it contains few requests, so others do not wait long.
FIELDS_MAX = 128
MISSES_MAX = 16  # After so many unknown headers in a row no more are kept for a connection.

log = logging.getLogger("holdfast.server")

_FRAMING = frozenset({b"connection", b"content-length", b"transfer-encoding"})  # httptools obeys these in trailers too.
_FRAGMENT = ord("#")
_LENGTH_DIGITS = 20


class _StopParsingError(Exception):
    pass


class RequestParser:
    def __init__(self, sink: Any, clock: Any, settings: Settings, peer: str) -> None:  # noqa: ANN401 - as below
        """`sink` is the connection, which imports this module, and `clock` the manager, which counts seconds."""
        self._sink = sink
        self._clock = clock
        self._peer = peer
        self._head_bytes_max = settings.header_bytes_max
        self._parser = httptools.HttpRequestParser(self)
        self.phase = IDLE
        self.since = clock.now_seconds  # When the phase began, or reading was resumed, in the clock's seconds.
        self.ended = False
        self._data = b""
        self._heads: list[CachedHeader] = []
        self._misses = 0
        self._upgrades = False
        self.on_message_begin()
        self.phase = IDLE

    def feed(self, data: bytes) -> None:
        while data:
            # A header that began in an earlier piece has no beginning in this one: a value in it could look like one.
            self._data = data if self.phase == IDLE else b""
            self._counted_bytes += len(data)
            rest = b""
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                if not self.ended:
                    rest = self._without_upgrade() + data[stopped.args[0] :]
            except httptools.HttpParserCallbackError:
                if not self.ended:
                    log.exception("a bug while a request was read")
                    self._refuse(Problem("internal_error", BUG))
            except httptools.HttpParserError as error:
                if not self.ended:
                    self._refuse(Problem("invalid_input", f"This is not HTTP/1.1: {error}."))
            data = rest
        if self.phase != IDLE and not self.ended:
            self._check_what_waits()

    def _check_what_waits(self) -> None:
        """Refuse a header that is too large before it is complete: it is kept until then."""
        if len(self._fields) > FIELDS_MAX:
            self._refuse(_too_many())
        elif self._counted_bytes > self._head_bytes_max:
            self._refuse(self._too_large())

    def _without_upgrade(self) -> bytes:
        method, version = self._parser.get_method(), self._parser.get_http_version().encode()
        fields = b"".join(b"%b: %b\r\n" % field for field in self._fields if field[0] != b"upgrade")
        self._parser = httptools.HttpRequestParser(self)
        self._upgrades = False
        return b"%b %b HTTP/%b\r\n%b\r\n" % (method, self._url, version, fields)

    def repeated(self, data: bytes) -> Request | None:
        if self.phase == IDLE:
            line, _, follows = data.partition(END_OF_LINE)
            for head in self._heads:
                request = head.read(line, follows)
                if request is not None:
                    self._misses = 0
                    return request
        return None

    def on_message_begin(self) -> None:
        if self.ended:
            raise _StopParsingError
        self.phase, self.since = HEAD, self._clock.now_seconds
        self._url = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._request: Request | None = None
        self._body: bytes | bytearray = b""
        self._body_bytes = 0
        self._body_limit = SMALL_BODY_BYTES
        self._stream: Any = None
        self._counted_bytes = 0  # Parsed after the piece in which the header, or framing after a piece of body, began.

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the header, or of the trailers, which are only checked."""
        self._fields.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        parser = self._parser
        method = parser.get_method()
        if parser.should_upgrade() and method != b"CONNECT":
            self._upgrades = True
            return
        try:
            self._read_head(method, parser.get_http_version())
        except Problem as problem:
            self._refuse(problem)
            raise _StopParsingError from None
        self.phase = BODY
        self._counted_bytes = 0
        self._fields = []

    def on_body(self, body: bytes) -> None:
        self._counted_bytes = 0
        self._body_bytes += len(body)
        if self._body_bytes > self._body_limit:
            try:
                self._allow(self._body_bytes)
            except Problem as problem:
                self._refuse(problem)
                raise _StopParsingError from None
        if self._stream is not None:
            self._stream.feed_body(body)
        elif not self._body:
            self._body = body
        elif isinstance(self._body, bytearray):
            self._body += body
        else:
            # One piece is kept as it is; many small ones must not become many objects.
            self._body = bytearray(self._body + body)

    def on_message_complete(self) -> None:
        if self._upgrades:
            return
        request = self._request
        if request is None:
            raise _StopParsingError
        if self._fields and not _FRAMING.isdisjoint(name for name, _ in self._fields):
            self._refuse(Problem("invalid_input", "How a message or a connection ends is not said in a trailer."))
            raise _StopParsingError
        self.phase, self.since = IDLE, self._clock.now_seconds
        self.ended = not request.keep_alive
        if self._stream is not None:
            self._stream.end_body()
            return
        request.body = bytes(self._body)
        self._body, self._request = b"", None
        if self._misses < MISSES_MAX:
            self._remember_head(request)
        self._sink.enqueue(request)

    def end(self) -> None:
        self.ended, self._body = True, b""

    def close(self) -> None:
        """Drop references to parser and sink: many such cycles would make the garbage collector delay everything."""
        self.end()
        if self._request is not None and self._request.on_lost is not None:
            self._request.on_lost()
        self._stream = self._request = None
        del self._parser, self._sink

    def _read_head(self, method: bytes, version: str) -> None:
        if self._counted_bytes + FEED_BYTES > self._head_bytes_max or len(self._fields) > FIELDS_MAX:
            self._check_size()
        fields = fold(self._fields)
        is_old = version != "1.1"
        if is_old or method == b"CONNECT" or b"host" not in fields or b"transfer-encoding" in fields:
            _check_head(method, version, fields)
        path, query = _split(self._url)
        request = self._request = request_from(method, path, query, fields, b"", self._peer)
        request.is_old = is_old
        request.keep_alive = not is_old and self._parser.should_keep_alive()
        if b"content-length" in fields:
            announced_bytes = int(fields[b"content-length"][-_LENGTH_DIGITS:])  # `int` refuses thousands of zeros.
            if announced_bytes > SMALL_BODY_BYTES:
                self._allow(announced_bytes)
        if b"expect" in fields and fields[b"expect"].lower() == b"100-continue" and not is_old:
            self._sink.enqueue_continue()
        self._stream = self._sink.enqueue_stream(request)

    def _check_size(self) -> None:
        if len(self._fields) > FIELDS_MAX:
            raise _too_many()
        size = len(self._url) + sum(len(name) + len(value) + 4 for name, value in self._fields)
        if size > self._head_bytes_max:
            raise self._too_large()

    def _allow(self, size: int) -> None:
        """Raise unless the request may send so much of a body; ask for its limit only if that matters."""
        if self._request is not None and self._body_limit == SMALL_BODY_BYTES:
            self._body_limit = self._sink.body_limit(self._request)
        if size > self._body_limit:
            raise too_large(self._body_limit)

    def _remember_head(self, request: Request) -> None:
        self._misses += 1
        head = cached_header_of(self._data, request, self._head_bytes_max)
        if head is not None:
            self._heads = [head, *self._heads[: CACHED_HEADERS_MAX - 1]]

    def _too_large(self) -> Problem:
        text = f"The head of a request, or what follows its body, has at most {self._head_bytes_max} bytes."
        return Problem("invalid_input", text, status=431)

    def _refuse(self, problem: Problem) -> None:
        self.ended = True
        self._sink.refuse(problem, self._request)


def _too_many() -> Problem:
    return Problem("invalid_input", f"A request has at most {FIELDS_MAX} header fields.", status=431)


def _check_head(method: bytes, version: str, fields: dict[bytes, bytes]) -> None:
    coding = fields.get(b"transfer-encoding")
    if version not in {"1.0", "1.1"}:
        raise Problem("invalid_input", "Only HTTP/1.1 and HTTP/1.0 are spoken here.")
    if method == b"CONNECT":
        raise Problem("invalid_input", "This is not a proxy.", status=405)
    if version == "1.1" and b"host" not in fields:
        raise Problem("invalid_input", "Send a Host header.")
    if coding is not None and (version == "1.0" or coding.lower() != b"chunked"):
        raise Problem("invalid_input", "A body comes with its length, or in chunks over HTTP/1.1; nothing else.")


def _split(target: bytes) -> tuple[bytes, bytes]:
    if target.startswith(b"/") and _FRAGMENT not in target:
        path, _, query = target.partition(b"?")
        return path, query
    try:
        url = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        raise Problem("invalid_input", "The target of the request is no path and no URL.") from None
    return url.path or b"/", url.query or b""
