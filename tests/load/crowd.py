"""Thousands of connections that wait, in one process: raw sockets and one poll, no thread and no task for each."""

from __future__ import annotations

import json
import re
import resource
import select
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.http import parse_answers

SPARE_FILES = 500
WANTED = 10_000
FALLBACK = 2_000


def raise_file_limit() -> int:
    """Let this process and those it starts open as many files as they may; return how many waiters that allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY or hard >= WANTED + SPARE_FILES:
        return WANTED
    print(f"\nonly {hard} files may be open here: {FALLBACK} waiters instead of {WANTED}")
    return FALLBACK


def rss_bytes(pid: int, *, most: bool = False) -> int:
    """How much memory a process has, or the most that it ever had."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(rf"{'VmHWM' if most else 'VmRSS'}:\s+(\d+) kB", text)
    assert found is not None
    return 1024 * int(found[1])


class Crowd:
    """Connections that each have sent one request."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._poll = select.epoll()
        self._socks: dict[int, tuple[int, socket.socket]] = {}
        self._received: dict[int, bytes] = {}

    def send(self, requests: Iterable[bytes]) -> None:
        """Open a connection for each request."""
        for number, request in enumerate(requests, len(self._socks)):
            sock = socket.create_connection(self._address, timeout=30)
            sock.sendall(request)
            sock.setblocking(False)
            self._socks[sock.fileno()] = (number, sock)
            self._poll.register(sock.fileno(), select.EPOLLIN)

    def answers(self, count: int, *, within_seconds: float) -> dict[int, dict[str, Any]]:
        """The next so many answers, by the number of the request; fewer if they do not come in time."""
        found: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + within_seconds
        while len(found) < count and (left := deadline - time.monotonic()) > 0:
            for fileno, _ in self._poll.poll(left):
                number, sock = self._socks[fileno]
                data = sock.recv(65_536)
                if not data:
                    self._poll.unregister(fileno)
                    continue
                received = self._received.pop(fileno, b"") + data
                answers = parse_answers(received, closed=False)
                if answers:
                    found[number] = json.loads(answers[0].body)
                else:
                    self._received[fileno] = received
        return found

    def close(self) -> None:
        """Close every connection."""
        self._poll.close()
        for _, sock in self._socks.values():
            sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
