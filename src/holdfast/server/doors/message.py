"""Replies as the bytes of HTTP/1.1 messages, for the fast lane."""

from __future__ import annotations

from functools import lru_cache
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
_NO_CONTENT = 204


def written(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return header fields as they are written."""
    return b"".join(b"%b: %b\r\n" % field for field in fields)


def status_line(status: int) -> bytes:
    """Return the first line of a message."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def message(  # noqa: PLR0917 - made for every answer: keywords cost
    request: Request,
    status: int,
    body: bytes,
    headers: tuple[tuple[bytes, bytes], ...],
    common: bytes,
    keep_alive: bool,  # noqa: FBT001 - the same
) -> bytes:
    """Return the message, without its body if that is large: the caller writes it by itself.

    `common` are the fields that every message has, `headers` those that only this one has.
    """
    extra = common
    is_json = True
    for name, value in headers:
        extra += name + b": " + value + b"\r\n"
        is_json = is_json and name != b"content-type"
    if not keep_alive:
        extra += b"connection: close\r\n"
    length = len(body)
    if length > LARGE_BYTES or request.method == b"HEAD":
        body = b""
    return b"".join((_beginning(status, length, is_json), request.request_id.encode(), b"\r\n", extra, b"\r\n", body))


@lru_cache(maxsize=1_024)
def _beginning(status: int, length: int, is_json: bool) -> bytes:  # noqa: FBT001 - the same
    """Return a message up to the request's id. Most have one of a few lengths."""
    if status == _NO_CONTENT:
        return _STATUS_LINES[status] + b"x-request-id: "
    kind = _JSON_HEADER if is_json else b""
    return b"%b%bcontent-length: %d\r\nx-request-id: " % (_STATUS_LINES[status], kind, length)
