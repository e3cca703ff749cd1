"""A user with a token, while others attack: `python -m tests.load.bystander HOST PORT TOKEN [keys]`, results as JSON.

It claims, renews and releases on one kept connection, a request every 20 ms (50 ms with keys), until its standard
input ends. A latency counts from when the request was *due*: a stall of the server is felt by every request that it
held up, and not only by the one that was on its way.

With `keys` every claim and every release has an idempotency key, and is retried: at once, when it must be the same
again; and once more at any time within the retry memory, when a claim that is over must be told as that and never be
granted anew (C5).

Between two requests it asks a process of its own that only echoes. That *echo* goes the same way through the scheduler
and without the server. So where the echo is slow, too, the machine was. With it goes how long the machine was kept
waiting by its host.
"""

from __future__ import annotations

import json
import os
import random
import re
import select
import socket
import sys
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

from tests.support.pending import payload

EVERY_SECONDS = 0.02
KEYED_EVERY_SECONDS = 0.05
"""With keys a round has seven requests. A busy server answers each after a turn or two, and the user must keep pace."""
ANSWER_SECONDS_MAX = 30
ROUNDS_MAX = 100_000
"""More than an hour and a half of them."""
NAMES = 100
RETRY_SECONDS_MAX = 500
"""How old a claim may be that is retried: the server promises ten minutes."""

CHANCE = random.Random(7)
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class Sample(NamedTuple):
    """One request: what, when it was due, how long it took from then, and what was wrong with it."""

    verb: str
    due: float
    latency_ms: float
    wrong: str


class PersistentConnection:
    """A kept connection, as a client has it."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._sock: socket.socket | None = None
        self.opened = 0

    def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send a request and read its answer: status and body."""
        if self._sock is None:
            self._sock = socket.create_connection(self._address, timeout=ANSWER_SECONDS_MAX)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.opened += 1
        try:
            self._sock.sendall(request)
            data = b""
            while True:
                more = self._sock.recv(65_536)
                if not more:
                    raise ConnectionError(f"closed after {data[:100]!r}")
                data += more
                head, found, body = data.partition(b"\r\n\r\n")
                length = LENGTH.search(head) if found else None
                if length is not None and len(body) == int(length[1]):
                    return int(head[9:12]), body
        except OSError:
            self._sock.close()
            self._sock = None
            raise


class Bystander:
    """The user: what it holds, and what it has seen."""

    def __init__(self, host: str, port: int, token: str, *, has_keys: bool = False) -> None:
        self.connection = PersistentConnection(host, port)
        self._has_keys = has_keys
        self.every_seconds = KEYED_EVERY_SECONDS if has_keys else EVERY_SECONDS
        self.round_seconds = 7 * KEYED_EVERY_SECONDS if has_keys else 3 * EVERY_SECONDS
        self._over: deque[tuple[float, str, str]] = deque()
        """When a claim ended, its name and its key."""
        self.samples: list[Sample] = []
        self._token = token
        self._number = 0
        self._lease_id: object = ""
        self._fence = 0

    def claim_renew_release(self, due: float) -> None:
        """Three requests, each when it is due."""
        name = f"bystander/{self._number % NAMES}"
        self._number += 1
        key = f"claim-{self._number}" if self._has_keys else None
        claim = self._ask("claim", f"/locks/{name}/acquire", {"ttl_seconds": 60}, due, key)
        lease = {"lease_id": claim.get("lease_id", "")}
        every = self.every_seconds
        self._ask("renew", f"/locks/{name}/renew", lease, due + every)
        if key is None:
            self._ask("release", f"/locks/{name}/release", lease, due + 2 * every)
            return
        self._lease_id = lease["lease_id"]
        self._ask("retry", f"/locks/{name}/acquire", {"ttl_seconds": 60}, due + 2 * every, key)
        self._ask("release", f"/locks/{name}/release", lease, due + 3 * every, f"{key}-release")
        self._ask("release", f"/locks/{name}/release", lease, due + 4 * every, f"{key}-release")
        self._over.append((time.monotonic(), name, key))
        self._retry_what_is_over(due + 5 * every)

    def _retry_what_is_over(self, due: float) -> None:
        """Retry the eldest claim whose retry is promised, and any one."""
        while self._over[0][0] < time.monotonic() - RETRY_SECONDS_MAX:
            self._over.popleft()
        for number, (_, name, key) in enumerate((self._over[0], CHANCE.choice(self._over))):
            late = due + number * self.every_seconds
            self._ask("late retry", f"/locks/{name}/acquire", {"ttl_seconds": 60}, late, key)

    def _ask(
        self, verb: str, path: str, fields: dict[str, object], due: float, key: str | None = None
    ) -> dict[str, object]:
        body: dict[str, object] = {}
        request = payload(path, self._token, fields, key=key)
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            status, content = self.connection.ask(request)
            latency_ms = 1000 * (time.monotonic() - due)
            body = json.loads(content) or {}
            wrong = self._judge(verb, status, body)
        except (OSError, ValueError) as error:
            latency_ms = 1000 * (time.monotonic() - due)
            wrong = f"{type(error).__name__}: {error}"
        self.samples.append(Sample(verb, due, latency_ms, wrong))
        return body

    def _judge(self, verb: str, status: int, body: dict[str, object]) -> str:
        if verb == "late retry":
            is_reported = status == 404 and body.get("code") == "lease_not_current" and body.get("ended") == "released"
            return "" if is_reported else f"a claim that is over was not told as that: {status} {body}"
        if status != 200:
            return f"{status} {body}"
        if verb == "claim":
            fence = body.get("fencing_token")
            if body.get("status") != "acquired" or not isinstance(fence, int) or fence <= self._fence:
                return f"not acquired with a fencing token above {self._fence}: {body}"
            self._fence = fence
        if verb == "retry" and body.get("lease_id") != self._lease_id:
            return f"a retry got another lease: {body}"
        return ""


def echo() -> socket.socket:
    """Our end of a connection to a process that sends back what it gets, until we are gone."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        while data := theirs.recv(100):
            theirs.sendall(data)
        os._exit(0)
    theirs.close()
    return ours


def stolen_seconds() -> float:
    """How long a virtual machine, all its processors together, was kept waiting by its host, since it was started."""
    return int(Path("/proc/stat").read_text(encoding="ascii").split()[8]) / os.sysconf("SC_CLK_TCK")


def main(host: str, port: str, token: str, keys: str = "") -> None:
    """Be a user until told to stop, and tell what it was like."""
    echoing = echo()
    bystander = Bystander(host, int(port), token, has_keys=bool(keys))
    echoes: list[tuple[float, float, float]] = []
    stop_requested = select.poll()
    stop_requested.register(sys.stdin, select.POLLIN | select.POLLHUP)
    began = time.monotonic()
    for number in range(ROUNDS_MAX):
        if stop_requested.poll(0):
            break
        due = began + number * bystander.round_seconds
        bystander.claim_renew_release(due)
        time.sleep(max(0.0, due + bystander.round_seconds - bystander.every_seconds / 2 - time.monotonic()))
        sent = time.monotonic()
        echoing.sendall(b"?")
        echoing.recv(100)
        echoes.append((sent, 1000 * (time.monotonic() - sent), stolen_seconds()))
    print(json.dumps({"samples": bystander.samples, "echoes": echoes, "connections": bystander.connection.opened}))


if __name__ == "__main__":
    main(*sys.argv[1:])
