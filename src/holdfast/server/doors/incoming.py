"""What comes in on a connection: bytes become requests. Knows the parser and the limits, nothing of sockets or answers.

What the sender is doing is the *phase*:

              first byte                head complete              body complete
      IDLE ───────────────► HEAD ─────────────────────────► BODY ─────────────────────► IDLE
                             │ header_bytes_max               │ the body's limit
                             ▼                                ▼
                            refuse: 431                      refuse: 413

The time limits of the phases are the lane's. What was read is handed to a `Sink`, in order, and nothing is kept of it.
A refusal is the last thing that is handed over: what follows it cannot be trusted to be a request. The same holds for
what follows a request that ends the connection. From then on `ended` is true and every byte is thrown away.

**How much is kept.** A head has at most `header_bytes_max` bytes and `FIELDS_MAX` fields, each counted as often as it
stands there. A body has at most `SMALL_BODY_BYTES` until the sink has said how much this request may send. What stands
behind the pieces of a body (sizes, extensions, trailers) may be as long as a head, and trailers are never headers.
Nothing is counted field by field: `_counted_bytes` is what was fed since the head began, or since the last piece of a
body, and only a head that comes near the limit is measured.

**Upgrade.** We speak nothing but HTTP/1.1, so a wish for another protocol is passed over and the body is read. The
parser cannot do that: after such a head it gives up. So the head is given, without that field, to a new parser.

**A head seen before.** Most clients send the same head with each request, but for a key and a length. Those that were
read last are kept, and one that comes again needs no parser (`repeated`; `heads` says why that is safe). A client that
sends another head each time gains nothing, so after `MISSES_MAX` in a row no more are kept for it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

import httptools

from holdfast.server.api import BUG
from holdfast.server.doors.heads import END_OF_LINE, HEADS_MAX, Head, head_of
from holdfast.server.doors.request import Request, fold, request_from
from holdfast.server.operations.sizes import SMALL_BODY_BYTES, too_large
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from holdfast.settings import Settings

IDLE, HEAD, BODY = range(3)
"""What the sender is doing: nothing, sending a head, sending a body."""
FEED_BYTES = 1_024
"""The most that is fed at once: it holds few requests, so reading them keeps nobody waiting."""
FIELDS_MAX = 128
MISSES_MAX = 16
"""So many heads in a row that were not known before, and none of a connection is kept any more."""

log = logging.getLogger("holdfast.server")

_FRAMING = frozenset({b"connection", b"content-length", b"transfer-encoding"})
"""Fields that the parser obeys even in a trailer."""
_FRAGMENT = ord("#")
_LENGTH_DIGITS = 20
"""The parser knows no larger length."""


class Pieces(Protocol):
    """Where the body of a request goes that is answered in pieces."""

    def put(self, body: bytes) -> None:
        """Take a piece of the body."""

    def end_body(self) -> None:
        """Know that the body is complete."""


class Sink(Protocol):
    """Where requests go, in order."""

    def take(self, request: Request) -> None:
        """Take a complete request."""

    def take_in_pieces(self, request: Request) -> Pieces | None:
        """Take a request whose body follows, or return None: then it is to be taken when it is complete."""

    def body_limit(self, request: Request) -> int:
        """Return how many bytes of body this request may send, or raise why no more than a small one."""

    def take_expectation(self) -> None:
        """Know that the sender waits for a word before it sends the body."""

    def refuse(self, problem: Problem, request: Request | None) -> None:
        """Take the problem that ends the connection, and the request that has it, as far as it was read."""


class SecondHand(Protocol):
    """A clock of whole seconds."""

    now_seconds: int


class _EnoughError(Exception):
    """Nothing more is read on this connection: stops the parser."""


class Incoming:
    """What comes in on one connection."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_body_limit",
        "_body_pieces",
        "_clock",
        "_counted_bytes",
        "_data",
        "_fields",
        "_head_bytes_max",
        "_heads",
        "_misses",
        "_parser",
        "_peer",
        "_request",
        "_sink",
        "_upgrades",
        "_url",
        "ended",
        "phase",
        "since",
    )

    def __init__(self, sink: Sink, clock: SecondHand, settings: Settings, peer: str) -> None:
        self._sink = sink
        self._clock = clock
        self._peer = peer
        self._head_bytes_max = settings.header_bytes_max
        self._parser = httptools.HttpRequestParser(self)
        self.phase = IDLE
        self.since = clock.now_seconds
        """When the phase began, or we last let the sender wait, in the clock's seconds."""
        self.ended = False
        self._data = b""
        self._heads: list[Head] = []
        """The last heads that were read, the latest first."""
        self._misses = 0
        self._upgrades = False
        self.on_message_begin()
        self.phase = IDLE

    # Bytes in.

    def feed(self, data: bytes) -> None:
        """Read at most `FEED_BYTES`; hand over what is complete."""
        while data:
            # What was begun before has no beginning in here: a value in it could look like one.
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
        """Refuse what is too large before it is complete: it is kept until then."""
        if len(self._fields) > FIELDS_MAX:
            self._refuse(_too_many())
        elif self._counted_bytes > self._head_bytes_max:
            self._refuse(self._too_large())

    def _without_upgrade(self) -> bytes:
        """Return the head that was read, without its wish for another protocol, for a new parser."""
        method, version = self._parser.get_method(), self._parser.get_http_version().encode()
        fields = b"".join(b"%b: %b\r\n" % field for field in self._fields if field[0] != b"upgrade")
        self._parser = httptools.HttpRequestParser(self)
        self._upgrades = False
        return b"%b %b HTTP/%b\r\n%b\r\n" % (method, self._url, version, fields)

    def repeated(self, data: bytes) -> Request | None:
        """Return the request, if it is the whole of the data and its head is one of those that were read last."""
        if self.phase == IDLE:
            line, _, follows = data.partition(END_OF_LINE)
            for head in self._heads:
                request = head.read(line, follows)
                if request is not None:
                    self._misses = 0
                    return request
        return None

    # The parser's callbacks.

    def on_message_begin(self) -> None:
        """Begin a request."""
        if self.ended:
            raise _EnoughError
        self.phase, self.since = HEAD, self._clock.now_seconds
        self._url = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._request: Request | None = None
        self._body: bytes | bytearray = b""
        self._body_bytes = 0
        self._body_limit = SMALL_BODY_BYTES
        self._body_pieces: Pieces | None = None
        self._counted_bytes = 0
        """What was fed after the piece in which the head, or what follows the last piece of the body, began."""

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field: of the head, or of the trailers, which are put where nobody looks."""
        self._fields.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """Know the request but for its body; hand it over already if it is answered in pieces."""
        parser = self._parser
        method = parser.get_method()
        if parser.should_upgrade() and method != b"CONNECT":
            self._upgrades = True
            return
        try:
            self._read_head(method, parser.get_http_version())
        except Problem as problem:
            self._refuse(problem)
            raise _EnoughError from None
        self.phase = BODY
        self._counted_bytes = 0
        self._fields = []

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._counted_bytes = 0
        self._body_bytes += len(body)
        if self._body_bytes > self._body_limit:
            try:
                self._allow(self._body_bytes)
            except Problem as problem:
                self._refuse(problem)
                raise _EnoughError from None
        if self._body_pieces is not None:
            self._body_pieces.put(body)
        elif not self._body:
            self._body = body
        elif isinstance(self._body, bytearray):
            self._body += body
        else:
            # One piece is kept as it is; many small ones must not be kept as many objects.
            self._body = bytearray(self._body + body)

    def on_message_complete(self) -> None:
        """Hand over the request."""
        if self._upgrades:
            return
        request = self._request
        if request is None:
            raise _EnoughError
        if self._fields and not _FRAMING.isdisjoint(name for name, _ in self._fields):
            self._refuse(Problem("invalid_input", "How a message or a connection ends is not said in a trailer."))
            raise _EnoughError
        self.phase, self.since = IDLE, self._clock.now_seconds
        self.ended = not request.keep_alive
        if self._body_pieces is not None:
            self._body_pieces.end_body()
            return
        request.body = bytes(self._body)
        self._body, self._request = b"", None
        if self._misses < MISSES_MAX:
            self._remember_head(request)
        self._sink.take(request)

    def end(self) -> None:
        """Read no more, and keep nothing of a body that will never be whole."""
        self.ended, self._body = True, b""

    def close(self) -> None:
        """Let go of all that holds on to us, or to the sink.

        Such a circle stays until the garbage collector comes, and after many connections all others wait for it.
        """
        self.end()
        if self._request is not None and self._request.on_lost is not None:
            self._request.on_lost()
        self._body_pieces = self._request = None
        del self._parser, self._sink

    # A head.

    def _read_head(self, method: bytes, version: str) -> None:
        """Know the request and make ready for its body, or raise what is wrong with it."""
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
            # The parser takes any number of zeros before a length, and `int` does not.
            announced_bytes = int(fields[b"content-length"][-_LENGTH_DIGITS:])
            if announced_bytes > SMALL_BODY_BYTES:
                self._allow(announced_bytes)
        if b"expect" in fields and fields[b"expect"].lower() == b"100-continue" and not is_old:
            self._sink.take_expectation()
        self._body_pieces = self._sink.take_in_pieces(request)

    def _check_size(self) -> None:
        """Raise if the head is too large."""
        if len(self._fields) > FIELDS_MAX:
            raise _too_many()
        size = len(self._url) + sum(len(name) + len(value) + 4 for name, value in self._fields)
        if size > self._head_bytes_max:
            raise self._too_large()

    def _allow(self, size: int) -> None:
        """Raise unless the request may send so much of a body; ask how much it may, but only if it matters."""
        if self._request is not None and self._body_limit == SMALL_BODY_BYTES:
            self._body_limit = self._sink.body_limit(self._request)
        if size > self._body_limit:
            raise too_large(self._body_limit)

    def _remember_head(self, request: Request) -> None:
        """Keep the head for the next request."""
        self._misses += 1
        head = head_of(self._data, request, self._head_bytes_max)
        if head is not None:
            self._heads = [head, *self._heads[: HEADS_MAX - 1]]

    # Refusals.

    def _too_large(self) -> Problem:
        text = f"The head of a request, or what follows its body, has at most {self._head_bytes_max} bytes."
        return Problem("invalid_input", text, status=431)

    def _refuse(self, problem: Problem) -> None:
        self.ended = True
        self._sink.refuse(problem, self._request)


def _too_many() -> Problem:
    return Problem("invalid_input", f"A request has at most {FIELDS_MAX} header fields.", status=431)


def _check_head(method: bytes, version: str, fields: dict[bytes, bytes]) -> None:
    """Raise if a head is none that we take."""
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
    """Return path and query of a request's target, which may be a whole URL."""
    if target.startswith(b"/") and _FRAGMENT not in target:
        path, _, query = target.partition(b"?")
        return path, query
    try:
        url = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        raise Problem("invalid_input", "The target of the request is no path and no URL.") from None
    return url.path or b"/", url.query or b""
