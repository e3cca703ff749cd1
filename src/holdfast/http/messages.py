"""Requests and responses of HTTP/1.1: a `Request` as the handlers see it, and a response as it is written.

The page's sign-in cookie is read and set here; `api/auth/secrets.py` makes and checks its value.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import TypeAlias

import msgspec

from holdfast.engine.ids import new_request_id
from holdfast.wire.problems import Problem

SMALL_BODY_BYTES = 16_384  # Read before the sender is known; a larger body only from an authenticated one.

BUG = "This is a bug of ours: report it with the request id."

Fields: TypeAlias = tuple[tuple[bytes, bytes], ...]
ResponseParts: TypeAlias = tuple[int, bytes, Fields]  # Status, body, additional headers.

_SINGLE = frozenset({b"authorization", b"content-length", b"content-type", b"host", b"idempotency-key"})
"""Fields that we, or a proxy, read. If one appears twice, two readers could disagree."""


def too_large(bytes_max: int) -> Problem:
    return Problem("invalid_input", f"The body may have at most {bytes_max} bytes.", status=413)


def fold(fields: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return header fields by lower-case name, repeated ones joined. A repeated one that must be unique is refused."""
    folded = dict(fields)
    if len(folded) == len(fields):
        return folded
    folded.clear()
    for name, value in fields:
        if name not in folded:
            folded[name] = value
        elif name in _SINGLE:
            raise Problem("invalid_input", f"The header {name.decode('latin-1')} stands twice: send it once.")
        else:
            folded[name] += b", " + value
    return folded


class Request(msgspec.Struct, eq=False):
    """One request, undecoded, made with `request_from`. It may be part of a reference cycle, so gc stays on."""

    method: bytes
    path: bytes
    query: bytes
    headers: dict[bytes, bytes]  # By lower-case names; only a few are read.
    body: bytes
    peer: str  # The address at the other end, which may be a proxy's; empty if it has none.
    host: bytes | None
    authorization: bytes | None  # The field of that name, or else the page's cookie (`access.cookies`).
    content_type: bytes | None
    key: bytes | None  # The idempotency key. It and the fields above come from the header.
    request_id: str
    keep_alive: bool = True  # Whether the connection stays open after it. Set by the connection, as the next.
    is_old: bool = False
    is_known: bool = False
    rests_on_state: bool = False  # Whether the handler read the state: a refusal waits until that is durable.
    on_disconnect: Callable[[], None] | None = None  # Before the response, also on a half-close. Set while it waits.
    on_lost: Callable[[], object] | None = None  # If that is not set; not on a half-close: the response still arrives.
    on_known: Callable[[str], None] | None = None  # With the principal; raises if that has too many connections.
    is_half_closed: bool = False  # The client sends no more, so it may be gone. Set by the connection.
    held_ms: int = 0  # Since another node received and forwarded it; subtracted from a claim's waiting time.
    scheme: str = ""  # `http` or `https`, as the forwarding node knows it; empty if it came here directly.


def request_from(  # noqa: PLR0917 - as the parts of a request come
    method: bytes, path: bytes, query: bytes, headers: dict[bytes, bytes], body: bytes, peer: str = ""
) -> Request:
    header = headers.get
    host, authorization, content_type = header(b"host"), header(b"authorization"), header(b"content-type")
    key = header(b"idempotency-key")
    if authorization is None and b"cookie" in headers:
        authorization = cookie_credential(headers)
    request_id = new_request_id()
    return Request(method, path, query, headers, body, peer, host, authorization, content_type, key, request_id)


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LARGE_BYTES = 16_384  # A larger body is written in pieces: uncopied, and buffered only as the client reads.
NO_STORE = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
"""On every response: ownership is true only now, and JSON must never be taken for a page."""
NO_CONTENT, NOT_MODIFIED = 204, 304

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_JSON_HEADER = b"content-type: application/json\r\n"
_OK = 200
_LENGTHS = tuple(b"%d\r\nx-request-id: " % length for length in range(1_024))


def written(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"%b: %b\r\n" % field for field in fields)


def status_line(status: int) -> bytes:
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


class ResponsePrefix:
    """The first bytes of responses. Made once a second, because they contain the date."""

    __slots__ = ("fields", "fields_without_no_store", "usual")

    def __init__(self, common: Iterable[tuple[bytes, bytes]]) -> None:
        self.fields = written([*common, *NO_STORE])
        self.fields_without_no_store = written(
            [*common, *NO_STORE[1:]]
        )  # For a response with a `Cache-Control` of its own.
        self.usual = _STATUS_LINES[_OK] + _JSON_HEADER + self.fields + b"content-length: "  # Nearly all use it.


def message(  # noqa: PLR0917 - made for every response: keywords cost
    request: Request,
    status: int,
    body: bytes,
    headers: Fields,
    prefix: ResponsePrefix,
    keep_alive: bool,  # noqa: FBT001 - the same
) -> bytes:
    length, request_id = len(body), request.request_id.encode()
    if status == _OK and keep_alive and not headers and length < len(_LENGTHS) and request.method != b"HEAD":
        return b"".join((prefix.usual, _LENGTHS[length], request_id, b"\r\n\r\n", body))
    extra = prefix.fields
    is_json = status != NO_CONTENT
    if headers and any(name == b"cache-control" for name, _ in headers):
        extra = prefix.fields_without_no_store
    for name, value in headers:
        extra += name + b": " + value + b"\r\n"
        is_json = is_json and name != b"content-type"
    if not keep_alive:
        extra += b"connection: close\r\n"
    if is_json:
        extra += _JSON_HEADER
    if status != NO_CONTENT:
        extra += b"content-length: %d\r\n" % length
    if length > LARGE_BYTES or request.method == b"HEAD":
        body = b""
    return b"".join((status_line(status), extra, b"x-request-id: ", request_id, b"\r\n\r\n", body))


def envelope(problem: Problem, request: Request) -> ResponseParts:
    """Return a problem as a response."""
    return problem.status, problem.body(request.request_id), problem.headers()


class ClientDisconnectedError(ConnectionError):
    pass


class ResponseWriter(ABC):
    """A response over time. A handler that returns before `finish` aborts the connection: no part looks complete."""

    request: Request
    disconnected: asyncio.Future[None]  # Done when the client is gone or the response is complete.
    on_start: Callable[[int], None] | None = None  # Called with the status when the response starts, for observers.

    @abstractmethod
    async def read_body(self) -> bytes:
        """Read the whole body into the request, if that was not done yet. Raises `ClientDisconnectedError`."""

    @abstractmethod
    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Send the status and the header; the id of the request is added."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Send a piece, and wait until there is room for more. Nothing is sent after a disconnect."""

    @abstractmethod
    def finish(self) -> None: ...

    async def respond(self, status: int, body: bytes, headers: Fields = ()) -> None:
        fields = list(headers)
        if status != NO_CONTENT:
            if not any(name == b"content-type" for name, _ in fields):
                fields.append((b"content-type", b"application/json"))
            fields.append((b"content-length", b"%d" % len(body)))
        self.start(status, fields)
        if self.request.method != b"HEAD":
            await self.write(body)
        self.finish()


StreamHandler: TypeAlias = Callable[[Request, ResponseWriter], Awaitable[None]]


COOKIE = b"Cookie "  # Before a cookie, as `Bearer ` before a token.
HEADER_BYTES_MAX = 16_384
COOKIE_CHARS_MAX = 256
CHECKED_MAX = 4  # How many cookies of our name are checked.
SAFE, PLAIN = "s", "p"  # The first letter of a value: made over https, or over plain http.

_SAFE_NAME, _PLAIN_NAME = b"__Host-holdfast", b"holdfast"
_PORT = re.compile(rb":([0-9]{1,5})$")


def cookie_credential(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return what stands for a token in a head that has none: cookies, behind `COOKIE`; None if there are none."""
    sent = headers.get(b"cookie", b"")
    if _PLAIN_NAME not in sent or len(sent) > HEADER_BYTES_MAX:
        return None
    values = _values_of(sent, _SAFE_NAME + _port_of(headers), SAFE) or _values_of(
        sent, _PLAIN_NAME + _port_of(headers), PLAIN
    )
    return COOKIE + b" ".join(values) if values else None


def _values_of(sent: bytes, name: bytes, kind: str) -> list[bytes]:
    """Return the first values of that name: over plain http a neighbour on the host may put its own before ours."""
    values = []
    for part in sent.replace(b",", b";").split(b";"):  # A proxy may have joined two fields with a comma.
        cookie_name, _, value = part.strip().partition(b"=")
        if cookie_name == name and value.startswith(kind.encode() + b".") and len(value) <= COOKIE_CHARS_MAX:
            values.append(value)
    return values[:CHECKED_MAX]


def set_cookie(headers: Mapping[bytes, bytes], value: str, seconds: int, *, is_https: bool) -> tuple[bytes, bytes]:
    name = (_SAFE_NAME if is_https else _PLAIN_NAME) + _port_of(headers)
    return b"set-cookie", _field(name, value.encode(), seconds, is_https=is_https)


def clear_cookie(headers: Mapping[bytes, bytes], *, is_https: bool) -> tuple[bytes, bytes]:
    return b"set-cookie", _field(
        (_SAFE_NAME if is_https else _PLAIN_NAME) + _port_of(headers), b"", 0, is_https=is_https
    )


def _field(name: bytes, value: bytes, seconds: int, *, is_https: bool) -> bytes:
    field = b"%b=%b; Path=/; Max-Age=%d; HttpOnly; SameSite=Strict" % (name, value, seconds)
    return field + b"; Secure" if is_https else field


def _port_of(headers: Mapping[bytes, bytes]) -> bytes:
    values = _PORT.search(headers.get(b"host", b""))
    return b"" if values is None else b"-" + values[1]
