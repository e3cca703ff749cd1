"""Pages that are open: so many streams of `GET /ui/live`, each read to its end and thrown away.

A program of its own, because a reader that shares the processor time of the generator would measure itself. It reads
what a browser reads, and draws nothing. It runs until its standard input is closed, and then says what it was told.

    python -m benchmarks.load.readers PORT AUTHORIZATION COUNT
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from benchmarks.load.tools import LoadError

_READ_BYTES = 262_144
_PATIENCE_SECONDS = 30.0
_ROOT = Path(__file__).resolve().parents[2]


class Readers:
    """Those pages, from the outside. Closed when the `with` block ends."""

    def __init__(self, port: int, authorization: str, count: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.load.readers", str(port), authorization, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "open":
            raise LoadError("the pages could not be opened")

    def result(self) -> dict[str, Any]:
        """Close them all; return how much they were told."""
        out, _ = self._process.communicate(timeout=_PATIENCE_SECONDS)
        counts: dict[str, Any] = json.loads(out)
        return counts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def _open(port: int, authorization: str) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_SECONDS)
    request = f"GET /ui/live HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: {authorization}\r\n\r\n"
    sock.sendall(request.encode())
    head = sock.recv(_READ_BYTES)
    if not head.startswith(b"HTTP/1.1 200"):
        raise OSError(f"no stream: {head[:200]!r}")
    return sock


def main(port: int, authorization: str, count: int) -> None:
    """Open them, say so, and read until nobody wants it any more."""
    streams = {sock.fileno(): sock for sock in (_open(port, authorization) for _ in range(count))}
    poll = select.epoll()
    for number in streams:
        poll.register(number, select.EPOLLIN)
    poll.register(sys.stdin.fileno(), select.EPOLLIN | select.EPOLLHUP)
    sys.stdout.write("open\n")
    sys.stdout.flush()
    counts = {"streams": count, "bytes": 0, "frames": 0, "resyncs": 0, "closed": 0}
    while True:
        for number, _ in poll.poll():
            if number == sys.stdin.fileno():
                sys.stdout.write(json.dumps(counts))
                return
            data = streams[number].recv(_READ_BYTES)
            counts["bytes"] += len(data)
            counts["frames"] += data.count(b"event: rows")
            counts["resyncs"] += data.count(b"event: resync")
            if not data:
                counts["closed"] += 1
                poll.unregister(number)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
