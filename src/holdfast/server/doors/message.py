"""Replies as the bytes of HTTP/1.1 messages, for the fast lane."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.server.doors.request import Request

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LARGE_BYTES = 16_384
"""From here on a body is written by itself, in pieces: it is not copied, and no more of it waits than is taken."""
NEVER_KEPT = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
"""On every answer of both doors: who owns what is true only now, and JSON is never to be taken for a page."""

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_JSON_HEADER = b"content-type: application/json\r\n"
_OK, _NO_CONTENT = 200, 204
_LENGTHS = tuple(b"%d\r\nx-request-id: " % length for length in range(1_024))
"""What follows the usual beginning, by the length of the body."""


def written(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return header fields as they are written."""
    return b"".join(b"%b: %b\r\n" % field for field in fields)


def status_line(status: int) -> bytes:
    """Return the first line of a message."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


class Beginning:
    """How answers begin. It is made once a second, because the date is in it."""

    __slots__ = ("fields", "fields_kept", "usual")

    def __init__(self, said_always: Iterable[tuple[bytes, bytes]]) -> None:
        """`said_always` are the date, and what else every answer of this server says."""
        self.fields = written([*said_always, *NEVER_KEPT])
        """The header fields that every answer has, as they are written."""
        self.fields_kept = written([*said_always, *NEVER_KEPT[1:]])
        """Of an answer that says by itself how long it may be kept."""
        self.usual = _STATUS_LINES[_OK] + _JSON_HEADER + self.fields + b"content-length: "
        """Of an answer with JSON in it, up to its length: nearly all are such."""


def message(  # noqa: PLR0917 - made for every answer: keywords cost
    request: Request,
    status: int,
    body: bytes,
    headers: tuple[tuple[bytes, bytes], ...],
    beginning: Beginning,
    keep_alive: bool,  # noqa: FBT001 - the same
) -> bytes:
    """Return the message, without its body if that is large: the caller writes it by itself.

    `headers` are the fields that only this message has.
    """
    length, request_id = len(body), request.request_id.encode()
    if status == _OK and keep_alive and not headers and length < len(_LENGTHS) and request.method != b"HEAD":
        return b"".join((beginning.usual, _LENGTHS[length], request_id, b"\r\n\r\n", body))
    extra = beginning.fields
    is_json = status != _NO_CONTENT
    if headers and any(name == b"cache-control" for name, _ in headers):
        extra = beginning.fields_kept
    for name, value in headers:
        extra += name + b": " + value + b"\r\n"
        is_json = is_json and name != b"content-type"
    if not keep_alive:
        extra += b"connection: close\r\n"
    if is_json:
        extra += _JSON_HEADER
    if status != _NO_CONTENT:
        extra += b"content-length: %d\r\n" % length
    if length > LARGE_BYTES or request.method == b"HEAD":
        body = b""
    return b"".join((status_line(status), extra, b"x-request-id: ", request_id, b"\r\n\r\n", body))
