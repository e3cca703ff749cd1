"""A reply as the bytes of an HTTP/1.1 message, for the fast lane."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.server.doors.request import Request

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_JSON_HEADER = b"content-type: application/json\r\n"
_NO_CONTENT = 204


def message(
    request: Request,
    status: int,
    body: bytes,
    headers: tuple[tuple[bytes, bytes], ...],
    dated: bytes,
    *,
    keep_alive: bool,
) -> bytes:
    """Return the message. `dated` is the Date header; `headers` are those that not every reply has."""
    extra = dated
    is_json = True
    for name, value in headers:
        extra += name + b": " + value + b"\r\n"
        is_json = is_json and name != b"content-type"
    if not keep_alive:
        extra += b"connection: close\r\n"
    if status == _NO_CONTENT:
        return b"%bx-request-id: %b\r\n%b\r\n" % (_STATUS_LINES[status], request.request_id.encode(), extra)
    return b"%b%bcontent-length: %d\r\nx-request-id: %b\r\n%b\r\n%b" % (
        _STATUS_LINES[status],
        _JSON_HEADER if is_json else b"",
        len(body),
        request.request_id.encode(),
        extra,
        b"" if request.method == b"HEAD" else body,
    )
