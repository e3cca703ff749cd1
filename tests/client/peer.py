"""An HTTP server in a thread that answers what a test wants, and remembers what it was asked."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec

NOT_LEADER = msgspec.json.encode(
    {"error": "No leader", "code": "not_leader", "details": "Try again.", "request_id": "r", "retry_after_ms": 200}
)
"""How a node refuses that knows of no leader."""
LEADERLESS = (503, {"Content-Type": "application/json", "Retry-After": "1"}, NOT_LEADER)


class Peer(ThreadingHTTPServer):
    """Answers every request with what the test put into `answer`, and remembers what it was asked."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep the tests quiet: that a client hangs up is what some of them are about."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.answer: tuple[int, dict[str, str], bytes] = (200, {}, b'{"value": 1}')
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.accepted = 0
        """How many connections there were."""

    def get_request(self) -> tuple[socket.socket, object]:
        self.accepted += 1
        return super().get_request()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Peer

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.asked.append((self.command, self.path, headers, self.rfile.read(length)))
        status, extra, body = self.server.answer
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **extra}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = do_GET  # noqa: N815 - their names upstream

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name upstream
        """Keep the tests quiet."""


@contextmanager
def peering(answer: tuple[int, dict[str, str], bytes]) -> Iterator[Peer]:
    """A server that gives this answer to all that it is asked."""
    with Peer() as server:
        server.answer = answer
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@contextmanager
def nobody() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    yield f"http://127.0.0.1:{port}"


@contextmanager
def silent() -> Iterator[str]:
    """An address that takes connections and never answers, as a process that was stopped does."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
