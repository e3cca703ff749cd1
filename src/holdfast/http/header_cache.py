r"""Repeated headers: a client sends the same header with each request, and it need not be parsed each time.

What httptools made of a header is kept with its bytes. Three values may differ the next time:

    POST /locks/a/acquire                                              a plain request line: method and path
     HTTP/1.1\r\nHost: example\r\nIdempotency-Key:␣
    7b0f44d1                                                           a key: visible ASCII
    \r\nContent-Type: application/json\r\nContent-Length:␣
    19                                                                 the length of all that follows
    \r\n\r\n
    {"ttl_seconds": 60}

All other bytes must be those that httptools accepted on this connection, and the received data must end where the body
ends: so nothing is read in another way than httptools would read it. Any other header is parsed.
"""

from __future__ import annotations

import re

import msgspec

from holdfast.engine.ids import new_request_id
from holdfast.http.messages import SMALL_BODY_BYTES, Request

CACHED_HEADERS_MAX = 2  # Per connection: a claim has a key, a renewal has none.

_NOT_REPEATABLE = frozenset({b"expect", b"transfer-encoding", b"upgrade"})  # They change how a request is read.
_END = b"\r\n\r\n"
END_OF_LINE = b" HTTP/1.1\r\n"
_KEY, _LENGTH = b"idempotency-key", b"content-length"
_VARYING = re.compile(rb"(?:^|(?<=\n))(idempotency-key|content-length):[ \t]*([!-~]+)(?=\r\n)", re.IGNORECASE)
_LENGTHS = tuple(b"%d" % length for length in range(1_024))

_METHODS = frozenset({b"GET", b"POST"})
_PLAIN_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/._~%:-"
_AS_LETTERS = bytes(ord("x") if byte in _PLAIN_BYTES else 0 for byte in range(256))
_SLASH = ord("/")
NEVER_REPEATED = (b"/leases/", b"/mcp")  # POSTs here are streamed: always parsed, as repeated POSTs are not checked.
_plain_key = re.compile(rb"[!-~]{1,256}").fullmatch
_VALUES_BYTES_MAX = 256 + len(str(SMALL_BODY_BYTES))  # How much longer other values can make a header.


class CachedHeader(msgspec.Struct, eq=False):
    line_bytes_max: int
    received: bytes  # As it was received last, for identical ones.
    body_bytes: int  # The body length that goes with `received`; -1 with a key, which no other request shares.
    before: tuple[tuple[bytes, bytes], ...]  # For each value that may differ: its field, and the bytes before it.
    rest: bytes  # The bytes after the last of them.
    peer: str
    fields: dict[bytes, bytes]
    host: bytes | None
    authorization: bytes | None
    content_type: bytes | None

    def read(self, line: bytes, data: bytes) -> Request | None:
        """Return the request with this line, if the rest is this header, but for values that may differ, and a body."""
        body = data.removeprefix(self.received)  # The same object, if the beginning is another.
        fields, key = self.fields, None
        if len(body) != self.body_bytes or body is data:
            fields, body = self._values(data)
            if not fields:
                return None
            key = fields.get(_KEY)
            if key is None:
                # The next body may have this length too.
                self.received, self.body_bytes, self.fields = data[: len(data) - len(body)], len(body), fields
        method, _, path = line.partition(b" ")
        # A regular expression takes three times as long to tell whether a line is plain.
        is_plain = method in _METHODS and path.translate(_AS_LETTERS).isalpha() and path[0] == _SLASH
        if not is_plain or path.startswith(NEVER_REPEATED) or len(line) > self.line_bytes_max:
            return None
        request_id = new_request_id()
        return Request(
            method,
            path,
            b"",
            fields,
            body,
            self.peer,
            self.host,
            self.authorization,
            self.content_type,
            key,
            request_id,
        )

    def _values(self, data: bytes) -> tuple[dict[bytes, bytes], bytes]:
        fields = self.fields.copy()
        for name, before in self.before:
            after = data.removeprefix(before)
            if after is data:
                return {}, b""
            fields[name], _, data = after.partition(b"\r")
        body = data.removeprefix(self.rest)
        size = len(body)
        length = _LENGTHS[size] if size < len(_LENGTHS) else b"%d" % size
        if body is data or fields.get(_LENGTH, b"0") != length or not _plain_key(fields.get(_KEY, b"-")):
            return {}, b""
        return fields, body


def cached_header_of(data: bytes, request: Request, bytes_max: int) -> CachedHeader | None:
    """Return the header of this data, if the whole request is in it and a repeated one can be recognised."""
    fields = request.headers
    if not request.keep_alive or not _NOT_REPEATABLE.isdisjoint(fields):
        return None
    if fields.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    line, version, follows = data.partition(END_OF_LINE)
    received = follows[: len(follows) - len(request.body)]
    if not version or received.find(_END) != len(received) - len(_END):
        return None
    before, at = [], 0
    for varying in _VARYING.finditer(received):
        name = varying[1].lower()
        if fields.get(name) != varying[2]:
            return None
        before.append((name, received[at : varying.start(2)]))
        at = varying.end() + 1
    if len(before) != (_KEY in fields) + (_LENGTH in fields):
        return None
    head = CachedHeader(
        bytes_max - len(received) - _VALUES_BYTES_MAX,
        received,
        -1 if _KEY in fields else len(request.body),
        tuple(before),
        received[at:],
        request.peer,
        fields,
        request.host,
        request.authorization,
        request.content_type,
    )
    return None if head.read(line, follows) is None else head  # The first to be recognised is the request itself.
