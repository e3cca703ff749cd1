"""The built-in load generator: raw sockets, keep-alive, one request in flight per connection.

It exists for two reasons: machines without wrk still get numbers, and some checks need an exact count of
acquires where wrk only knows a duration. Being Python, it may be slower than the server it loads, so its
rates are a floor; the report says so wherever they appear.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

NAME_PREFIX_CHARS = 8
NAME_CHARS = NAME_PREFIX_CHARS + 12
SETTLE_SECONDS_MAX = 15.0
WORKERS_MAX = 4

try:
    import uvloop

    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
except ImportError:
    new_loop = None


@dataclass(frozen=True)
class Names:
    """Where the names of one run start. A run owns its prefix, so two runs never meet in a name."""

    prefix: str
    user_first: int = 0
    leases_per_user: int = 100

    def __post_init__(self) -> None:
        if len(self.prefix) != NAME_PREFIX_CHARS:
            raise ValueError(f"the prefix {self.prefix!r} must have {NAME_PREFIX_CHARS} characters")

    def name(self, number: int) -> str:
        return f"{self.prefix}{number:012d}"

    def user(self, number: int) -> str:
        return f"{self.user_first + number // self.leases_per_user:06d}"


@dataclass(frozen=True)
class Target:
    """One HTTP system: where it listens, the raw acquire, and the text that only a grant contains."""

    port: int
    template: str
    marker: str

    def request(self, names: Names, number: int) -> bytes:
        text = self.template.replace("{name}", names.name(number))
        if "{user}" in text:
            text = text.replace("{user}", names.user(number))
        return text.encode()


def raw_post(port: int, path: str, body: str, headers: dict[str, str]) -> str:
    """A raw POST with `{name}` left open. Names have one length, so its Content-Length never changes."""
    length = len(body.replace("{name}", "x" * NAME_CHARS).encode())
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        *(f"{key}: {value}" for key, value in headers.items()),
        "Content-Type: application/json",
        f"Content-Length: {length}",
    ]
    return "\r\n".join(lines) + "\r\n\r\n" + body


@dataclass(frozen=True)
class Plan:
    """What one worker process does: until `seconds` have passed, or `count` names are used."""

    target: Target
    names: Names
    connections: int
    seconds: float
    count: int | None = None
    worker: int = 0
    workers: int = 1

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        fields = json.loads(text)
        target, names = Target(**fields.pop("target")), Names(**fields.pop("names"))
        return cls(target=target, names=names, **fields)


@dataclass
class Tally:
    """What one worker saw. Latencies are in microseconds."""

    latencies_us: list[int] = field(default_factory=list)
    answers_2xx: int = 0
    acquired: int = 0
    errors: int = 0
    elapsed_seconds: float = 0.0
    sample: str = ""

    def as_dict(self) -> dict[str, Any]:
        # Not asdict(), which would copy the latencies one by one.
        return vars(self)

    def note(self, status: int, body: bytes, marker: bytes) -> None:
        good = 200 <= status < 300
        self.answers_2xx += good
        if good and marker in body:
            self.acquired += 1
        elif not self.sample:
            self.sample = f"{status} {body[:200].decode(errors='replace')}"


class _Connection(asyncio.Protocol):
    """Send, wait for the whole answer, judge it, send the next."""

    def __init__(self, crew: _Crew) -> None:
        self._crew = crew
        self._marker = crew.plan.target.marker.encode()
        self._pending = b""
        self._sent_at = 0.0
        self._in_flight = False
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send_next()

    def data_received(self, data: bytes) -> None:
        self._pending += data
        answer = split_answer(self._pending)
        if answer is None:
            return
        status, body = answer
        self._pending = b""
        self._in_flight = False
        tally = self._crew.tally
        tally.latencies_us.append(int((time.perf_counter() - self._sent_at) * 1_000_000))
        tally.note(status, body, self._marker)
        self._send_next()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        # Closing between answers is the normal end; closing on an open request is an error.
        self._crew.tally.errors += self._in_flight
        if not self.closed.done():
            self.closed.set_result(None)

    def _send_next(self) -> None:
        message = self._crew.next_request()
        if message is None:
            self._transport.close()
            return
        self._in_flight = True
        self._sent_at = time.perf_counter()
        self._transport.write(message)  # type: ignore[attr-defined]


class _Crew:
    """The connections of one worker. Numbers go round the workers, so all of them together use 0, 1, 2, …"""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tally = Tally()
        self._number = plan.worker
        self._deadline = time.perf_counter() + plan.seconds

    def next_request(self) -> bytes | None:
        number, plan = self._number, self.plan
        if plan.count is not None and number >= plan.count:
            return None
        if time.perf_counter() >= self._deadline:
            return None
        self._number += plan.workers
        return plan.target.request(plan.names, number)

    async def work(self) -> Tally:
        loop = asyncio.get_running_loop()
        started_at = time.perf_counter()
        port = self.plan.target.port
        opened = [
            await loop.create_connection(lambda: _Connection(self), "127.0.0.1", port)
            for _ in range(self.plan.connections)
        ]
        patience = self.plan.seconds + SETTLE_SECONDS_MAX
        _, late = await asyncio.wait([c.closed for _, c in opened], timeout=patience)
        self.tally.elapsed_seconds = time.perf_counter() - started_at
        self.tally.errors += len(late)
        return self.tally


def run_plan(plan: Plan) -> Tally:
    """Do one worker's share, in this process."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(_Crew(plan).work())


def workers_for(connections: int) -> int:
    """Half of the cores, so that the server under load keeps the other half."""
    return max(1, min(WORKERS_MAX, (os.cpu_count() or 2) // 2, connections))


def share(total: int, workers: int) -> list[int]:
    """Split connections evenly: share(64, 3) is [22, 21, 21]."""
    return [total // workers + (worker < total % workers) for worker in range(workers)]


def run_workers(
    target: Target, names: Names, *, connections: int, seconds: float, count: int | None = None
) -> list[Tally]:
    """Load the target from as many processes as the machine can spare."""
    workers = workers_for(connections)
    plans = [
        Plan(target, names, part, seconds, count, worker, workers)
        for worker, part in enumerate(share(connections, workers))
    ]
    processes = [_start_worker(plan) for plan in plans]
    try:
        return [_tally_of(process, seconds + 2 * SETTLE_SECONDS_MAX) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _start_worker(plan: Plan) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.worker", plan.as_json()]
    # Its own session: Ctrl-C reaches only us, and we end it.
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
        start_new_session=True,
    )


def _tally_of(process: subprocess.Popen[str], seconds_max: float) -> Tally:
    out, complaint = process.communicate(timeout=seconds_max)
    if process.returncode != 0:
        raise OSError(f"a worker ended with {process.returncode}: {complaint.strip()[-300:]}")
    return Tally(**json.loads(out))


def split_answer(data: bytes) -> tuple[int, bytes] | None:
    """The status and body once they are complete. Every system here sends a Content-Length."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = data[:end].lower()
    at = head.find(b"content-length:")
    if at < 0:
        return int(head[9:12]), b"(an answer without Content-Length)"
    line_end = head.find(b"\r\n", at)
    length = int(head[at + 15 : line_end if line_end >= 0 else end])
    body = data[end + 4 :]
    return (int(head[9:12]), body) if len(body) >= length else None
