"""The load generator: one thread, one `epoll`, one request in flight on each connection.

It runs in a process of its own, so that nothing else of the benchmark takes its time. It is Python, and needs about a
third of what the server needs for the same request, so the server is the limit. What it used of a core is in its
result: near 100 % it was the limit itself, and the rate is a floor.

A closed run sends the next request of a connection as soon as it has the answer. A paced run sends at a rate, whatever
was answered, and counts a latency from the moment at which the request was due.
"""

from __future__ import annotations

import gc
import json
import select
import socket
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.load import scripts
from benchmarks.load.histogram import Histogram, bucket_of
from benchmarks.load.http import Names

if TYPE_CHECKING:
    from benchmarks.load.scripts import Script

STALL_MS = 20
"""A gap without any answer, while all connections wait for one, that is worth a line."""
STALLS_MAX = 10_000
PATIENCE_SECONDS = 30.0
_READ_BYTES = 262_144


@dataclass(frozen=True)
class Plan:
    """What one run does."""

    port: int
    script: str
    connections: int
    seconds: float
    authorization: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    as_client: bool = False
    """Send the headers that our own client sends, a new key among them."""
    count: int | None = None
    """Stop after so many requests, if the time is not over before."""
    rate: float | None = None
    """Requests a second, whatever was answered; None for as fast as they are."""
    window_seconds: float = 3_600.0

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        return cls(**json.loads(text))


@dataclass
class Window:
    """What was answered in one stretch of a run."""

    latencies: Histogram = field(default_factory=Histogram)
    stalls: list[tuple[float, float]] = field(default_factory=list)
    """Gaps without an answer: when they ended, in seconds since the run began, and how many ms they took."""

    @property
    def answers(self) -> int:
        return self.latencies.total


@dataclass
class Run:
    """What one run saw."""

    windows: list[Window]
    began_at: float = 0.0
    """By the monotonic clock, which all processes of a machine share."""
    elapsed_seconds: float = 0.0
    errors: int = 0
    wrong: int = 0
    sample: str = ""
    generator_seconds: float = 0.0

    @property
    def latencies(self) -> Histogram:
        """Return those of all windows together."""
        merged = Histogram()
        for window in self.windows:
            merged.merge(window.latencies)
        return merged

    @property
    def answers(self) -> int:
        return sum(window.answers for window in self.windows)

    @property
    def per_second(self) -> float:
        return self.answers / self.elapsed_seconds if self.elapsed_seconds else 0.0

    @property
    def generator_share(self) -> float:
        """Return how much of one core the generator used."""
        return self.generator_seconds / self.elapsed_seconds if self.elapsed_seconds else 0.0

    def as_json(self) -> str:
        windows = [{"latencies": each.latencies.as_dict(), "stalls": each.stalls} for each in self.windows]
        return json.dumps({**vars(self), "windows": windows})

    @classmethod
    def from_json(cls, text: str) -> Run:
        fields = json.loads(text)
        windows = [
            Window(Histogram.from_dict(each["latencies"]), [(at, ms) for at, ms in each["stalls"]])
            for each in fields.pop("windows")
        ]
        return cls(windows, **fields)


def script_of(plan: Plan) -> Script:
    """Make the script that a plan names."""
    wire = scripts.Wire(plan.port, plan.authorization, as_client=plan.as_client)
    given = dict(plan.arguments)
    if "held" in given:
        given["held"] = scripts.read_pairs(given["held"])
    match plan.script:
        case "acquire":
            return scripts.Acquire(wire, **given)
        case "renew":
            return scripts.Renew(wire, **given)
        case "release":
            return scripts.Release(wire, **given)
        case "status":
            return scripts.Status(wire, **given)
        case "heartbeat":
            return scripts.Heartbeat(wire, given["held"])
        case "loop":
            return scripts.Loop(wire, **given)
        case "all":
            return scripts.All(wire, **given)
        case "any":
            return scripts.First(wire, **given)
        case "template":
            return scripts.Template(given["template"], given["marker"], Names(**given["names"]))
    raise ValueError(f"there is no script {plan.script!r}")


def run(plan: Plan) -> Run:
    """Do it, in this process."""
    return _Generator(plan, script_of(plan)).run()


class _Connection:
    """One socket, the request it waits for, and what has come of the answer."""

    __slots__ = ("number", "pending", "sent_at", "sock")

    def __init__(self, number: int, port: int) -> None:
        self.number = number
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pending = b""
        self.sent_at = 0.0


class _Generator:
    def __init__(self, plan: Plan, script: Script) -> None:
        self._plan = plan
        self._script = script
        self._run = Run([])
        self._left = plan.count if plan.count is not None else -1
        self._is_over = False
        self._busy = 0
        self._idle: deque[_Connection] = deque()
        self._poll = select.epoll()
        self._open: dict[int, _Connection] = {}

    def run(self) -> Run:
        plan, result = self._plan, self._run
        for number in range(plan.connections):
            connection = _Connection(number, plan.port)
            connection.sock.setblocking(False)
            self._open[connection.sock.fileno()] = connection
            self._poll.register(connection.sock, select.EPOLLIN)
        gc.collect()
        gc.disable()  # A collection would be seen as a stall of the server.
        used = time.process_time()
        result.began_at = time.monotonic()
        began = time.perf_counter()
        try:
            self._drive(began)
        finally:
            result.elapsed_seconds = time.perf_counter() - began
            result.generator_seconds = time.process_time() - used
            result.wrong, result.sample = self._script.wrong, self._script.sample or result.sample
            for connection in self._open.values():
                connection.sock.close()
            self._poll.close()
        self._script.finish()
        return result

    def _drive(self, began: float) -> None:
        plan = self._plan
        end = began + plan.seconds
        self._idle.extend(self._open.values())
        sent, now = 0, began
        while True:
            self._is_over = self._is_over or now >= end
            while self._idle and not self._is_over:
                due = began + sent / plan.rate if plan.rate else now
                if due > now:
                    break
                sent += 1
                self._send(self._idle.popleft(), due if plan.rate else time.perf_counter())
            if self._is_over and not self._busy:
                return
            if now > end + PATIENCE_SECONDS:
                self._run.errors += self._busy
                return
            asked = time.perf_counter()
            patience = 0.1 if plan.rate is None or not self._idle else max(0.0, began + sent / plan.rate - asked)
            events = self._poll.poll(patience)
            now = time.perf_counter()
            self._take(events, now, began, (now - asked) * 1_000 if plan.rate is None else 0.0)

    def _take(self, events: list[tuple[int, int]], now: float, began: float, waited_ms: float) -> None:
        """Read every answer that is there, and let its connection ask again."""
        window = self._window(now - began)
        if waited_ms > STALL_MS and self._busy and len(window.stalls) < STALLS_MAX:
            window.stalls.append((round(now - began, 4), round(waited_ms, 2)))
        counts, closed = window.latencies.counts, self._plan.rate is None
        for file, _ in events:
            connection = self._open[file]
            answer = self._answer(connection)
            if answer is None:
                continue
            self._busy -= 1
            us = int((now - connection.sent_at) * 1_000_000)
            counts[bucket_of(us)] += 1
            window.latencies.worst_us = max(us, window.latencies.worst_us)
            self._script.judge(connection.number, *answer)
            if closed and not self._is_over:
                self._send(connection, time.perf_counter())
            else:
                self._idle.append(connection)

    def _window(self, seconds: float) -> Window:
        windows = self._run.windows
        while len(windows) <= seconds // self._plan.window_seconds:
            windows.append(Window())
        return windows[-1]

    def _send(self, connection: _Connection, at: float) -> None:
        message = self._script.next(connection.number) if self._left else None
        if message is None:
            self._is_over = True
            return
        self._left -= 1
        connection.sent_at = at
        connection.sock.sendall(message)
        self._busy += 1

    def _answer(self, connection: _Connection) -> tuple[int, bytes] | None:
        """Read what came; return the status and the body once they are whole."""
        data = connection.sock.recv(_READ_BYTES)
        if not data:
            self._poll.unregister(connection.sock)
            self._busy -= 1
            self._run.errors += 1
            self._run.sample = self._run.sample or "the server hung up"
            return None
        if connection.pending:
            data = connection.pending + data
        answer = split_answer(data)
        connection.pending = data if answer is None else b""
        return answer


def split_answer(data: bytes) -> tuple[int, bytes] | None:
    """Return the status and the body once they are whole. Every system here sends a Content-Length."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    at = data.find(b"ontent-", 0, end)
    while at >= 0 and data[at + 7 : at + 14].lower() != b"length:":
        at = data.find(b"ontent-", at + 1, end)
    if at < 0:
        return int(data[9:12]), b"(an answer without Content-Length)"
    stop = data.find(b"\r\n", at)
    length = int(data[at + 14 : stop])
    body = data[end + 4 :]
    return (int(data[9:12]), body) if len(body) >= length else None
