"""Connections that misbehave together: one thread, one epoll, and a row that says how.

A `Swarm` keeps so many connections open. Each sends `first`, and then `more` again and again; what the server closes is
opened anew. A row has no loop of its own, so every loop is this one, and it ends at a given time. What a row sends and
how often is bounded by its numbers, so that a swarm is stopped by what the server takes and not by our own processor.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

READ_BYTES = 1 << 16
SEND_BYTES = 1 << 18
CHANCE = random.Random(7)

Source = bytes | Callable[[], bytes]
"""What is sent: always the same, or made for each time."""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """How a swarm behaves."""

    connections: int
    first: Source = b""
    more: Source = b""
    every_seconds: float = 0.1
    """How often each connection sends `more`, once all that it had is sent."""
    reads: bool = True
    lasts_seconds: float = 3_600
    """After this a connection is closed by us, and opened anew."""
    half_closes: bool = False
    """Whether our side is closed once `first` is sent."""
    resets: bool = False
    """Whether a connection is closed by a reset."""
    stubborn: bool = False
    """Whether it goes on sending when the server has closed its side."""
    opens_per_second: float = 100
    receive_buffer_bytes: int = 0
    """The size of the kernel's buffer for answers; 0 leaves it as it is."""


@dataclass
class Counts:
    """What a swarm did, and what was done to it."""

    opened: int = 0
    not_opened: int = 0
    """The server, or the kernel, took no connection."""
    closed_by_server: int = 0
    sends: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(eq=False)
class _Link:
    sock: socket.socket
    unsent: memoryview
    born: float
    next_send: float
    events: int = 0
    half_closed: bool = False


@dataclass
class Swarm:
    """One attack on one server."""

    address: tuple[str, int]
    attack: Attack
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self._poll = select.epoll()
        self._links: dict[int, _Link] = {}
        self._may_open = 1.0
        self._opened_last = time.monotonic()

    def run(self, until: float) -> Counts:
        """Attack until that time of the monotonic clock."""
        while (now := time.monotonic()) < until:
            self._open(now)
            soonest = now + 0.05
            for link in list(self._links.values()):
                soonest = min(soonest, self._tend(link, now))
            for fileno, events in self._poll.poll(max(0.001, min(soonest, until) - time.monotonic())):
                self._look(self._links[fileno], events)
        for link in list(self._links.values()):
            self._close(link)
        self._poll.close()
        return self.counts

    def _open(self, now: float) -> None:
        attack = self.attack
        self._may_open = min(
            attack.opens_per_second, self._may_open + attack.opens_per_second * (now - self._opened_last)
        )
        self._opened_last = now
        while len(self._links) < attack.connections and self._may_open >= 1:
            self._may_open -= 1
            sock = socket.socket()
            try:
                if attack.receive_buffer_bytes:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, attack.receive_buffer_bytes)
                # Strangers have addresses of their own; all of 127.0.0.0/8 is this machine.
                sock.bind((f"127.{CHANCE.randrange(1, 255)}.{CHANCE.randrange(255)}.{CHANCE.randrange(1, 255)}", 0))
                sock.settimeout(1)
                sock.connect(self.address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setblocking(False)
            except OSError:
                self.counts.not_opened += 1
                sock.close()
                return
            self.counts.opened += 1
            link = _Link(sock, memoryview(_made(attack.first)), now, now + attack.every_seconds * CHANCE.random())
            self._links[sock.fileno()] = link
            self._poll.register(sock.fileno(), 0)
            self._send(link)

    def _tend(self, link: _Link, now: float) -> float:
        """Do what is due for a connection; return when it wants to be looked at next."""
        if now - link.born >= self.attack.lasts_seconds:
            self._close(link)
            return now
        if link.unsent or link.half_closed:
            return now + 1
        if self.attack.half_closes:
            link.half_closed = True
            with contextlib.suppress(OSError):
                link.sock.shutdown(socket.SHUT_WR)
            return now + 1
        if not self.attack.more:
            return link.born + self.attack.lasts_seconds
        if now >= link.next_send:
            link.next_send = now + self.attack.every_seconds
            link.unsent = memoryview(_made(self.attack.more))
            self._send(link)
        return link.next_send

    def _look(self, link: _Link, events: int) -> None:
        if events & select.EPOLLIN and not self._read(link):
            return
        if events & (select.EPOLLHUP | select.EPOLLERR) or (
            events & select.EPOLLRDHUP and not (self.attack.reads or self.attack.stubborn)
        ):
            self._closed_by_server(link)
        elif events & select.EPOLLOUT:
            self._send(link)

    def _read(self, link: _Link) -> bool:
        try:
            data = link.sock.recv(READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        self.counts.received_bytes += len(data)
        if data:
            return True
        if self.attack.stubborn and not link.half_closed:
            self._want(link, select.EPOLLOUT if link.unsent else 0)
            return True
        self._closed_by_server(link)
        return False

    def _send(self, link: _Link) -> None:
        try:
            while link.unsent:
                sent = link.sock.send(link.unsent[:SEND_BYTES])
                link.unsent = link.unsent[sent:]
                self.counts.sends += 1
                self.counts.sent_bytes += sent
        except BlockingIOError:
            pass
        except OSError:
            self._closed_by_server(link)
            return
        reading = select.EPOLLIN if self.attack.reads else 0
        closing = 0 if self.attack.stubborn else select.EPOLLRDHUP
        self._want(link, (select.EPOLLOUT if link.unsent else 0) | reading | closing)

    def _want(self, link: _Link, events: int) -> None:
        if events != link.events:
            link.events = events
            self._poll.modify(link.sock.fileno(), events)

    def _closed_by_server(self, link: _Link) -> None:
        self.counts.closed_by_server += 1
        self._close(link)

    def _close(self, link: _Link) -> None:
        if self.attack.resets:
            link.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        del self._links[link.sock.fileno()]
        link.sock.close()


def _made(source: Source) -> bytes:
    return source if isinstance(source, bytes) else source()
