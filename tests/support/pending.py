"""A request whose answer is not waited for: sent on a connection of its own, looked at when the test wants to."""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from types import TracebackType
from typing import Any, Self

from tests.support.api import Api, lock_path
from tests.support.http import Answer, parse_answers


class Pending:
    """One request on one connection. The answer can be waited for, or the connection broken before it comes."""

    def __init__(self, host: str, port: int, payload: bytes) -> None:
        self._received = bytearray()
        self._closed = False
        self._sock = socket.create_connection((host, port), timeout=10)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.sendall(payload)
        self._sock.setblocking(False)

    def answers(self, count: int = 1, timeout_seconds: float = 10.0) -> list[Answer]:
        """The first so many answers on this connection. Fails when they do not come in time."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            found = parse_answers(bytes(self._received), closed=self._closed)
            if len(found) >= count:
                return found[:count]
            left = deadline - time.monotonic()
            assert left > 0 and not self._closed, f"{len(found)} of {count} answers, closed={self._closed}"
            self._receive(left)

    def answer(self, timeout_seconds: float = 10.0) -> Answer:
        """The answer. Fails when none comes in time."""
        return self.answers(1, timeout_seconds)[0]

    def json(self, timeout_seconds: float = 10.0) -> dict[str, Any]:
        """The answer's JSON; it must be a 200."""
        answer = self.answer(timeout_seconds)
        assert answer.status == 200, answer
        body: dict[str, Any] = answer.json()
        return body

    def is_answered(self, within_seconds: float = 0.0) -> bool:
        """Has an answer come, or does one come within so long?"""
        deadline = time.monotonic() + within_seconds
        while not parse_answers(bytes(self._received), closed=self._closed) and not self._closed:
            left = deadline - time.monotonic()
            self._receive(max(0.0, left))
            if left <= 0:
                break
        return bool(parse_answers(bytes(self._received), closed=self._closed))

    def send(self, payload: bytes) -> None:
        """Send more on the same connection."""
        self._sock.setblocking(True)
        self._sock.sendall(payload)
        self._sock.setblocking(False)

    def close(self, *, reset: bool = False) -> None:
        """Break the connection, politely or with a reset."""
        if reset:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _receive(self, timeout_seconds: float) -> None:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        if not poll.poll(1000 * timeout_seconds):
            return
        try:
            data = self._sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._closed = self._closed or not data
        self._received += data


def payload(
    path: str, token: str | None, body: object = None, *, key: str | None = None, method: str = "POST"
) -> bytes:
    """One request, written out."""
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(content)}"]
    if body is not None:
        lines.append("Content-Type: application/json")
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    if key is not None:
        lines.append(f"Idempotency-Key: {key}")
    return "\r\n".join([*lines, "", ""]).encode() + content


def pending(api: Api, path: str, body: object = None, *, key: str | None = None) -> Pending:
    """Send a POST with this caller's token and return without its answer."""
    return Pending(api.host, api.port, payload(path, api.token, body, key=key))


def waiting(
    api: Api,
    name: str,
    *,
    wait_seconds: float = 30,
    key: str | None = None,
    before: int | None = None,
    **fields: object,
) -> Pending:
    """Stand in line for a name, and return once the server counts one more who waits for it."""
    count = waiters(api, name) if before is None else before
    request = pending(api, f"{lock_path(name)}/acquire", {"wait_seconds": wait_seconds, **fields}, key=key)
    deadline = time.monotonic() + 10
    while waiters(api, name) <= count:
        assert not request.is_answered(), f"answered instead of waiting: {request.answer()}"
        assert time.monotonic() < deadline, f"{name} still has {count} waiters"
    return request


def waiters(api: Api, name: str) -> int:
    """How many wait for a name and are there."""
    count: int = api.status(name).json()["waiting"]
    return count
