"""One raw connection of a test, by hand: what is sent, what is read, and whether the server still has it.

Nothing is read unless a test says so, and every wait has a bound.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.http.naive_http import ParsedAnswer, read_answers
from tests.support.checks import wait_until
from tests.support.server import ServerProcess

SECONDS_MAX = 20.0
_OTHER = re.compile(r'"message": "(refused 40|\d+ more refusals|slow turn: )')
_ROW = re.compile(r"\s*\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:([0-9A-F]{4}) ([0-9A-F]{2}) \S+ \S+ \S+ +\d+ +\d+ (\d+)")


class Conversation:
    """A connection to a server."""

    def __init__(
        self, server: ServerProcess, *, receive_bytes: int | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._port = server.port
        self.received = b""
        self.ended = False
        """Whether the server said that nothing follows, or broke it."""
        plain = socket.socket()
        if receive_bytes is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        plain.settimeout(SECONDS_MAX)
        plain.connect((server.host, server.port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.own_port: int = plain.getsockname()[1]
        self.sock = tls.wrap_socket(plain, server_hostname=server.host) if tls else plain

    def send(self, *pieces: bytes) -> Self:
        """Send all of it, in one piece."""
        with contextlib.suppress(ConnectionError):
            self.sock.sendall(b"".join(pieces))
        return self

    def half_close(self) -> Self:
        """Say that nothing more is sent."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
        return self

    def read_some(self) -> bool:
        """Read what is there; wait for it. False at the end."""
        try:
            data = self.sock.recv(1 << 18)
        except (ConnectionError, ssl.SSLError):
            data = b""
        self.received += data
        self.ended = self.ended or not data
        return not self.ended

    def read_now(self) -> None:
        """Read what is there already."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        while not self.ended and poll.poll(0):
            self.read_some()

    def read_to_the_end(self, methods: Sequence[str] = ()) -> list[ParsedAnswer]:
        """Every answer until the server ends the connection; it must."""
        while self.read_some():
            pass
        return self.answers(methods)

    def read_until(self, wanted: Callable[[bytes], bool]) -> bytes:
        """All that came, once it is as wanted; the connection must not end before."""
        deadline = time.monotonic() + SECONDS_MAX
        while not wanted(self.received):
            assert self.read_some() or wanted(self.received), f"ended too early: {self.received[-2_000:]!r}"
            assert time.monotonic() < deadline, f"not in time: {self.received[-2_000:]!r}"
        return self.received

    def read_answers(self, count: int, methods: Sequence[str] = ()) -> list[ParsedAnswer]:
        """The first so many answers."""
        self.read_until(lambda _: len(self.complete(methods)) >= count)
        return self.complete(methods)[:count]

    def complete(self, methods: Sequence[str] = ()) -> list[ParsedAnswer]:
        """The answers that are complete, without interim ones."""
        return [said for said in self.answers(methods) if said.status >= 200 and said.is_complete]

    def answers(self, methods: Sequence[str] = ()) -> list[ParsedAnswer]:
        """All that came, read as answers; what is not complete yet is left out."""
        begins = self.received.rfind(b"HTTP/1.1 ")
        is_begun = begins >= 0 and b"\r\n\r\n" not in self.received[begins:]
        return read_answers(self.received[:begins] if is_begun else self.received, methods)

    def is_open_at_server(self) -> bool:
        """Does the server still have this connection?"""
        for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines():
            row = _ROW.match(line)
            if row and (int(row[1], 16), int(row[2], 16)) == (self._port, self.own_port):
                return row[4] != "0"
        return False

    def close(self) -> None:
        """Let it go."""
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def logged(server: ServerProcess) -> str:
    """All that the server printed, once it has said what it says at its start.

    Left out is whom it turned away, and that a busy machine kept a turn waiting.
    """
    wait_until(lambda: server.log.count("\n\n") >= 2)
    return "".join(line for line in server.log.splitlines(keepends=True) if not _OTHER.search(line))


def has_read_all(server: ServerProcess) -> bool:
    """Has the server read all that its connections were sent? Its kernel knows."""
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        _, local, _, _, queues, *_ = line.split()
        if int(local.partition(":")[2], 16) == server.port and int(queues.partition(":")[2], 16):
            return False
    return True


def memory_mib(server: ServerProcess) -> float:
    """How much memory the server has."""
    text = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert found is not None, text
    return int(found[1]) / 1_024


def pour(talk: Conversation, payload: bytes, *, bytes_max: int, blocked_seconds: float = 0.5) -> tuple[int, str]:
    """Send the same again and again without reading: how much went; it was `blocked`, `ended` or `taken`."""
    talk.sock.setblocking(False)
    poll = select.poll()
    poll.register(talk.sock, select.POLLOUT)
    sent = 0
    rest = payload
    deadline = time.monotonic() + SECONDS_MAX
    while sent < bytes_max and time.monotonic() < deadline:
        events = poll.poll(1_000 * blocked_seconds)
        if not events:
            return sent, "blocked"
        try:
            count = talk.sock.send(rest)
        except BlockingIOError:
            continue
        except OSError:
            return sent, "ended"
        sent += count
        rest = rest[count:] or payload
    return sent, "taken"
