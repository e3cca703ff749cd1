"""HTTP/1.1 as a person reads it: all bytes of a connection at once, from the front, one message after the other.

There is no parser to be fed, no state between two reads and no concern for speed, so it can be checked by eye. It knows
nothing of the server but the limits that it was started with. Where the standard leaves a choice the histories do not
go (a bare line feed, a limit met to the byte), or both ways are taken: `Refusal.statuses` has several then.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT")
HEAD_BYTES_MAX = 2_048
BODY_BYTES_MAX = 4_096
"""The limits of the servers that the histories are played to."""

_LINE = re.compile(rb"([!-~]+) ([!-~]+) HTTP/(1\.[01])")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})(;[ -~]*)?")
_STATUS = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [ -~]*")
_ENDED = b"\r\n\r\n"

BAD = frozenset({400, 431, 501, 505})
TOO_LARGE = frozenset({413})
HEAD_TOO_LARGE = frozenset({400, 414, 431})


@dataclass(frozen=True)
class ParsedRequest:
    """One complete request. `end` is where it ends in what was sent."""

    method: str
    target: str
    version: str
    fields: tuple[tuple[str, str], ...]
    body: bytes
    end: int

    def all(self, name: str) -> list[str]:
        """Every value of a field."""
        return [value for found, value in self.fields if found == name]

    def get(self, name: str) -> str:
        """The value of a field, empty if it is not there."""
        return next(iter(self.all(name)), "")

    def says(self, name: str, word: str) -> bool:
        """Is the word in a field that is a list of words?"""
        return word in [part.strip().lower() for value in self.all(name) for part in value.split(",")]


@dataclass(frozen=True)
class Refusal:
    """What cannot be read: one answer with one of these statuses, and the end of the connection."""

    statuses: frozenset[int]
    why: str


@dataclass(frozen=True)
class Rest:
    """The beginning of a request: no answer is owed for it, but if the sender stops here it may be refused."""

    expects: bool
    """Whether its head is whole and asks for `100 Continue`."""


@dataclass
class Reading:
    """What was sent: the complete requests in order, and what stands behind the last of them."""

    asked: list[ParsedRequest] = field(default_factory=list)
    last: Refusal | Rest | None = None


class _Bad(Exception):
    def __init__(self, statuses: frozenset[int], why: str) -> None:
        super().__init__(why)
        self.refusal = Refusal(statuses, why)


class _Incomplete(Exception):
    """The bytes end before the message does."""


@lru_cache(maxsize=1_000)
def read(data: bytes) -> Reading:
    """Read all that was sent on a connection. What follows a refusal is not looked at."""
    reading = Reading()
    at = 0
    while True:
        while data.startswith(b"\r\n", at):
            at += 2
        if data[at:] in (b"", b"\r"):
            return reading
        head: tuple[tuple[str, str, str], tuple[tuple[str, str], ...]] | None = None
        try:
            end = _end_of_head(data, at)
            head = _head(data[at:end])
            body, at = _body(ParsedRequest(*head[0], head[1], b"", end), data)
        except _Bad as bad:
            reading.last = bad.refusal
            return reading
        except _Incomplete:
            reading.last = Rest(
                expects=head is not None and ParsedRequest(*head[0], head[1], b"", 0).says("expect", CONTINUE)
            )
            return reading
        reading.asked.append(ParsedRequest(*head[0], head[1], body, at))


CONTINUE = "100-continue"


def _end_of_head(data: bytes, at: int) -> int:
    end = data.find(_ENDED, at)
    size = (end if end >= 0 else len(data)) - at
    if size > HEAD_BYTES_MAX:
        raise _Bad(HEAD_TOO_LARGE, "the head is too large")
    if end < 0:
        if not data[at : at + 1].isupper():
            raise _Bad(BAD, "no method begins so")
        raise _Incomplete
    return end + len(_ENDED)


def _head(head: bytes) -> tuple[tuple[str, str, str], tuple[tuple[str, str], ...]]:
    line, *lines = head[: -len(_ENDED)].split(b"\r\n")
    found = _LINE.fullmatch(line)
    if found is None or found[1].decode() not in METHODS:
        raise _Bad(BAD, "this is no request line")
    fields = _fields(lines)
    method, target, version = (part.decode() for part in found.groups())
    names = [name for name, _ in fields]
    if version == "1.1" and "host" not in names:
        raise _Bad(BAD, "there is no Host")
    return (method, target, version), fields


def _fields(lines: Sequence[bytes]) -> tuple[tuple[str, str], ...]:
    fields = []
    for line in lines:
        found = _FIELD.fullmatch(line)
        if found is None:
            raise _Bad(BAD, f"{line!r} is no field")
        fields.append((found[1].decode().lower(), found[2].decode("latin-1")))
    return tuple(fields)


def _body(asked: ParsedRequest, data: bytes) -> tuple[bytes, int]:
    """The body of a request whose head ends at `asked.end`, and where it ends itself."""
    codings, lengths = asked.all("transfer-encoding"), asked.all("content-length")
    if asked.method == "CONNECT" or not codings + lengths:
        return b"", asked.end
    if len(codings + lengths) > 1 or (codings and codings[0].lower() != "chunked"):
        raise _Bad(BAD, "its end can be read in two ways, or in none")
    if codings:
        return _chunked(data, asked.end)
    if not re.fullmatch(r"[0-9]{1,18}", lengths[0]):
        raise _Bad(BAD | TOO_LARGE, "this is no length")
    size = int(lengths[0])
    if size > BODY_BYTES_MAX:
        raise _Bad(TOO_LARGE, "the body is too large")
    if len(data) < asked.end + size:
        raise _Incomplete
    return data[asked.end : asked.end + size], asked.end + size


def _chunked(data: bytes, at: int) -> tuple[bytes, int]:
    body = b""
    while True:
        line, separator, _ = data[at:].partition(b"\r\n")
        if not separator:
            if line and not re.fullmatch(rb"[0-9A-Fa-f]{1,8}\r?|[0-9A-Fa-f]{1,8};[ -~]*\r?", line):
                raise _Bad(BAD, "this is no size of a chunk")
            raise _Incomplete
        found = _SIZE.fullmatch(line)
        if found is None:
            raise _Bad(BAD, "this is no size of a chunk")
        at += len(line) + 2
        size = int(found[1], 16)
        if size == 0:
            return body, _end_of_trailers(data, at)
        if len(body) + size > BODY_BYTES_MAX:
            raise _Bad(TOO_LARGE, "the body is too large")
        body += data[at : at + size]
        if len(data) < at + size + 2:
            if data[at + size :] not in (b"", b"\r"):
                raise _Bad(BAD, "the chunk has another size")
            raise _Incomplete
        if data[at + size : at + size + 2] != b"\r\n":
            raise _Bad(BAD, "the chunk has another size")
        at += size + 2


def _end_of_trailers(data: bytes, at: int) -> int:
    if data.startswith(b"\r\n", at):
        return at + 2
    end = data.find(_ENDED, at)
    size = (end if end >= 0 else len(data)) - at
    if size > HEAD_BYTES_MAX:
        raise _Bad(HEAD_TOO_LARGE, "the trailers are too large")
    if end < 0:
        raise _Incomplete
    _fields(data[at:end].split(b"\r\n"))
    return end + len(_ENDED)


# The other direction: what a server says.


@dataclass(frozen=True)
class ParsedAnswer:
    """One answer, as its bytes say. `is_complete` is false if they end before it does."""

    status: int
    fields: tuple[tuple[str, str], ...]
    body: bytes
    framing: str
    """`length`, `chunks`, `close` or `none`."""
    is_complete: bool

    def get(self, name: str) -> str:
        """The value of a field, empty if it is not there."""
        return next((value for found, value in self.fields if found == name), "")

    @property
    def closes(self) -> bool:
        """Does it say that nothing follows?"""
        return self.get("connection").lower() == "close" or self.framing == "close"


class BadAnswer(Exception):
    """What came is no answer."""


def read_answers(data: bytes, methods: Sequence[str]) -> list[ParsedAnswer]:
    """Read all that came on a connection, 1xx among it. `methods` are those of the requests, in order."""
    found: list[ParsedAnswer] = []
    finals = 0
    while data:
        head, separator, data = data.partition(_ENDED)
        if not separator:
            raise BadAnswer(f"the head of an answer does not end: {head[:200]!r}")
        line, *lines = head.split(b"\r\n")
        status = _STATUS.fullmatch(line)
        if status is None:
            raise BadAnswer(f"this is no status line: {line[:200]!r}")
        try:
            fields = _fields(lines)
        except _Bad as bad:
            raise BadAnswer(str(bad)) from None
        method = methods[finals] if finals < len(methods) else "GET"
        said, data = _said(int(status[1]), fields, data, method)
        finals += said.status >= 200
        found.append(said)
    return found


def _said(status: int, fields: tuple[tuple[str, str], ...], data: bytes, method: str) -> tuple[ParsedAnswer, bytes]:
    codings = [value for name, value in fields if name == "transfer-encoding"]
    lengths = [value for name, value in fields if name == "content-length"]
    if len(codings + lengths) > 1 or (codings and codings != ["chunked"]):
        raise BadAnswer(f"the end of the answer can be read in two ways: {fields}")
    if status < 200 or status in (204, 304):
        if codings + lengths:
            raise BadAnswer(f"an answer without a body says how long it is: {status} {fields}")
        return ParsedAnswer(status, fields, b"", "none", is_complete=True), data
    if method == "HEAD":
        return ParsedAnswer(status, fields, b"", "none", is_complete=True), data
    if codings:
        body, data, is_complete = _said_chunks(data)
        return ParsedAnswer(status, fields, body, "chunks", is_complete), data
    if not lengths:
        return ParsedAnswer(status, fields, data, "close", is_complete=True), b""
    size = int(lengths[0])
    return ParsedAnswer(status, fields, data[:size], "length", is_complete=len(data) >= size), data[size:]


def _said_chunks(data: bytes) -> tuple[bytes, bytes, bool]:
    body = b""
    while True:
        line, separator, rest = data.partition(b"\r\n")
        if not separator and re.fullmatch(rb"[0-9A-Fa-f]*\r?", line):
            return body, b"", False
        if not re.fullmatch(rb"[0-9A-Fa-f]+", line):
            raise BadAnswer(f"not a chunk: {data[:200]!r}")
        size = int(line, 16)
        if len(rest) < size + 2:
            return body + rest[:size], b"", False
        if rest[size : size + 2] != b"\r\n":
            raise BadAnswer(f"a chunk of {size} bytes ends in {rest[size : size + 2]!r}")
        body += rest[:size]
        data = rest[size + 2 :]
        if size == 0:
            return body, data, True
