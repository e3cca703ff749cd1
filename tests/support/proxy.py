"""Ways to a server on which answers are lost: after the server sent them, before the client hears them.

The law of this file: a request is passed on whole and once, its answer is read to the end, and then it is either passed
back whole or the client's connection is closed. One proxy cuts instead: what it cuts is not passed on at all.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from tests.support.http import Answer, parse_answers
from tests.support.server import ServerProcess

TIMEOUT_SECONDS = 15.0


class Proxy(ABC):
    """Listens on a port of its own; `server` may be changed while it runs."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.host, self.port = self._listener.getsockname()[:2]
        self._acceptor = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._acceptor.start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://{self.host}:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join(5)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    @abstractmethod
    def _pass_on(self, client: socket.socket) -> None:
        """Serve one connection, in a thread of its own."""


class LosingProxy(Proxy):
    """Loses every answer."""

    def __init__(self, server: ServerProcess) -> None:
        self.lost: dict[str, Answer] = {}
        """The answers nobody heard, by the Idempotency-Key of their request."""
        super().__init__(server)

    def _pass_on(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(TIMEOUT_SECONDS)
            request = read_request(client)
            with socket.create_connection((self.server.host, self.server.port), timeout=TIMEOUT_SECONDS) as upstream:
                upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                upstream.sendall(request)
                answer = _read_answer(upstream)
            if answer is not None:
                self.lost[_header(request, b"idempotency-key")] = answer


class CuttingProxy(Proxy):
    """Passes requests and answers on, but hangs up on every request for a path that ends with `cuts`."""

    def __init__(self, server: ServerProcess) -> None:
        self.cuts: str | None = None
        """None passes all on. What is cut never reaches the server."""
        super().__init__(server)

    def _pass_on(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(TIMEOUT_SECONDS)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with socket.create_connection((self.server.host, self.server.port), timeout=TIMEOUT_SECONDS) as upstream:
                upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while True:
                    request = read_request(client)
                    path = request.split(b" ", 2)[1].decode()
                    if self.cuts is not None and path.endswith(self.cuts):
                        return
                    upstream.sendall(request)
                    answer = b""
                    while not parse_answers(answer, closed=False):
                        answer += _more(upstream)
                    client.sendall(answer)


class LeakyProxy(Proxy):
    """Passes requests and answers on over connections that last, and loses one answer in so many, by a seed."""

    def __init__(self, server: ServerProcess, *, one_in: int, seed: int) -> None:
        self.passed = 0
        self.lost = 0
        self._one_in = one_in
        self._chance = random.Random(seed)
        self._deciding = threading.Lock()
        super().__init__(server)

    def _pass_on(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(TIMEOUT_SECONDS)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with socket.create_connection((self.server.host, self.server.port), timeout=TIMEOUT_SECONDS) as upstream:
                upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while True:
                    upstream.sendall(read_request(client))
                    answer = b""
                    while not parse_answers(answer, closed=False):
                        answer += _more(upstream)
                    if self._loses():
                        return
                    client.sendall(answer)

    def _loses(self) -> bool:
        with self._deciding:
            loses = self._chance.randrange(self._one_in) == 0
            self.lost += loses
            self.passed += not loses
            return loses


def read_request(client: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += _more(client)
    head, _, body = data.partition(b"\r\n\r\n")
    missing = int(_header(head, b"content-length") or 0) - len(body)
    while missing > 0:
        more = _more(client)
        data += more
        missing -= len(more)
    return data


def _read_answer(upstream: socket.socket) -> Answer | None:
    data = b""
    while not (answers := parse_answers(data, closed=False)):
        try:
            data += _more(upstream)
        except OSError:
            return None
    return answers[0]


def _more(sock: socket.socket) -> bytes:
    data = sock.recv(1 << 16)
    if not data:
        raise ConnectionError("closed")
    return data


def _header(data: bytes, name: bytes) -> str:
    for line in data.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]:
        field, _, value = line.partition(b":")
        if field.strip().lower() == name:
            return value.strip().decode()
    return ""
