"""Clients that each hold one lease and believe in it for as long as the client library would, thousands in one process.

All clocks here are one machine's, so two things can be judged to the millisecond:

- *the stamp* (T1a): an answer says until when the lease lasts, by the wall clock, and for how long from when it was
  decided. The difference is when the server says that it was decided; that must not be before the request was sent.
- *the end* (I4): every end by time that the journal tells, against the deadline of each promise for that lease.
"""

from __future__ import annotations

import json
import random
import select
import socket
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from holdfast.client.clock import now
from holdfast.client.deadline import safe_ms
from holdfast.journal.sqlite.inspect import dump
from tests.support import callers
from tests.support.http import parse_answers
from tests.support.pending import payload

ROUNDING_MS = 2
"""A stamp is in whole milliseconds, and up to one old; a wall clock and a monotonic one tick at different times."""
NS_PER_MS = 1_000_000


@dataclass
class Seen:
    """What the clients were told, and when they had asked."""

    valid_until_ms: dict[str, list[float]] = field(default_factory=dict)
    """By lease: until when a client believed in each promise, by the monotonic clock."""
    promises: int = 0
    refused: int = 0
    oldest_ms: float = -1e9
    """How much before its request was sent the worst answer was decided, as the server says."""


@dataclass(eq=False)
class _Client:
    sock: socket.socket
    name: str
    lease_id: str | None = None
    sent_ms: int = 0
    sent_wall_ms: float = 0.0
    is_busy: bool = False
    received: bytes = b""


class LeaseHolders:
    """So many connections to one server, each with a name of its own."""

    def __init__(self, host: str, port: int, count: int, *, ttl_seconds: int) -> None:
        self.seen = Seen()
        self._ttl_seconds = ttl_seconds
        self._poll = select.epoll()
        self._wall_offsets_ns = [_wall_offset_ns()]
        self.clients: list[_Client] = []
        self._by_fileno: dict[int, _Client] = {}
        for number in range(count):
            sock = socket.create_connection((host, port), timeout=30)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client = _Client(sock, f"believed-{number}")
            self.clients.append(client)
            self._by_fileno[sock.fileno()] = client
            self._poll.register(sock.fileno(), select.EPOLLIN)

    # What they do.

    def ask(self, client: _Client) -> None:
        """Claim, or renew what it has."""
        if client.lease_id is None:
            body: dict[str, Any] = {"ttl_seconds": self._ttl_seconds}
            request = payload(f"/locks/{client.name}/acquire", callers.ALICE, body)
        else:
            body = {"lease_id": client.lease_id, "ttl_seconds": self._ttl_seconds}
            request = payload(f"/locks/{client.name}/renew", callers.ALICE, body)
        client.is_busy = True
        client.sent_ms = now().monotonic_ms
        client.sent_wall_ms = time.time_ns() / NS_PER_MS
        client.sock.sendall(request)

    def receive(self, within_seconds: float) -> list[_Client]:
        """Take what was answered; return whose."""
        answered: list[_Client] = []
        for fileno, _ in self._poll.poll(within_seconds):
            client = self._by_fileno[fileno]
            client.received += client.sock.recv(1 << 16)
            answers = parse_answers(client.received, closed=False)
            if answers:
                client.received, client.is_busy = b"", False
                self._note(client, json.loads(answers[0].body))
                answered.append(client)
        return answered

    def receive_all(self, within_seconds: float = 60.0) -> None:
        """Wait until everybody is answered."""
        deadline = time.monotonic() + within_seconds
        while any(client.is_busy for client in self.clients):
            assert time.monotonic() < deadline, "not everybody was answered"
            self.receive(1.0)

    def burst(self) -> None:
        """Let everybody ask at once, and be answered."""
        for client in self.clients:
            self.ask(client)
        self.receive_all()

    def keep_requesting(self, seconds: float, *, leave: float = 0.0, chance: random.Random) -> None:
        """Let everybody ask again as soon as it is answered; a share of them leaves, one after another."""
        until = time.monotonic() + seconds
        goes_at = {
            client: time.monotonic() + seconds * chance.random() / 2
            for client in chance.sample(self.clients, round(leave * len(self.clients)))
        }
        for client in self.clients:
            self.ask(client)
        while (moment := time.monotonic()) < until:
            for client in self.receive(0.05):
                if moment < goes_at.get(client, until):
                    self.ask(client)
        self.receive_all()

    def _note(self, client: _Client, answer: dict[str, Any]) -> None:
        if "expires_in_ms" not in answer or "lease_id" not in answer:
            # Its lease was over before its renewal was read: it claims anew.
            client.lease_id = None
            self.seen.refused += 1
            return
        client.lease_id = answer["lease_id"]
        promised_ms = answer["expires_in_ms"]
        until_ms = client.sent_ms + safe_ms(promised_ms)
        self.seen.valid_until_ms.setdefault(answer["lease_id"], []).append(until_ms)
        self.seen.promises += 1
        decided_ms = datetime.fromisoformat(answer["expires_at"]).timestamp() * 1000 - promised_ms
        self.seen.oldest_ms = max(self.seen.oldest_ms, client.sent_wall_ms - decided_ms)

    # What is judged.

    def early_ends(self, data: Path) -> tuple[int, list[str]]:
        """Return how many leases ended by time, and each that ended while somebody believed in it (I4)."""
        self._wall_offsets_ns.append(_wall_offset_ns())
        count, found = 0, []
        for record in dump(data):
            if record["event"] != "ended" or record["how"] != "expired":
                continue
            count += 1
            # The latest that the end can have been: the wall time is rounded down.
            ended_ms = record["wall_ms"] + 1 - min(self._wall_offsets_ns) / NS_PER_MS
            believed_ms = max(self.seen.valid_until_ms.get(record["lease_id"], [0.0]))
            if believed_ms > ended_ms:
                found.append(f"{record['name']} ended {believed_ms - ended_ms:.1f} ms before its client let it go")
        return count, found

    def close(self) -> None:
        """Close every connection."""
        self._poll.close()
        for client in self.clients:
            client.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _wall_offset_ns() -> int:
    """Return how far the wall clock is ahead of the monotonic one. The least of some: each look can be interrupted."""
    return min(-time.monotonic_ns() + time.time_ns() for _ in range(100))
