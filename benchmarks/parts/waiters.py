"""How much one who stands in line costs, and how soon the next one is woken after a release.

Twice: all of them in one line, where each that is woken hands the name on to the next; and each in a line of its own,
where names are released one after another. Every waiter is a connection with one request that is not answered yet, as a
client's would be. A hand-over is timed from just before the release is sent until the next one has its grant in hand,
so the release, its sync and both ways over the wire are in it.
"""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.load.generator import split_answer
from benchmarks.load.http import new_loop
from benchmarks.load.tools import percentile
from benchmarks.progress import say
from benchmarks.systems.holdfast import Holdfast
from benchmarks.systems.process import allow_open_files
from benchmarks.systems.usage import usage_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from benchmarks.parts.common import Row, Work

HANDOVERS_MAX = 2_000
ONE_NAME, MANY_NAMES = "on one name", "each on a name of its own"
_SPARE_FILES = 200
_WAIT_SECONDS = 50
_HANDOVER_SECONDS_MAX = 20.0
_ANSWER_SECONDS_MAX = 10.0
_CONNECTS_AT_ONCE = 500
_NAMES_PER_CALL = 1_000
_WARM_WAITERS = 200
_IDLE_SECONDS = 1.0


@dataclass
class Line:
    """What was seen of one arrangement. Latencies are in microseconds; `wrong` counts what was no grant in its turn."""

    title: str
    waiters: int
    bytes_per_waiter: float = 0.0
    join_seconds: float = 0.0
    latencies_us: list[int] = field(default_factory=list)
    wrong: int = 0
    sample: str = ""

    @property
    def p50_ms(self) -> float:
        return percentile(sorted(self.latencies_us), 50) / 1_000

    @property
    def p99_ms(self) -> float:
        return percentile(sorted(self.latencies_us), 99) / 1_000

    def as_row(self) -> Row:
        return {
            "title": self.title,
            "waiters": self.waiters,
            "bytes_per_waiter": round(self.bytes_per_waiter),
            "join_seconds": round(self.join_seconds, 2),
            "hand_overs": len(self.latencies_us),
            "p50_ms": self.p50_ms,
            "p99_ms": self.p99_ms,
            "wrong": self.wrong + (not self.latencies_us),
            "sample": self.sample,
        }

    def blame(self, status: int, body: bytes) -> None:
        self.wrong += 1
        self.sample = self.sample or f"{status} {body[:200].decode(errors='replace')}"


def measure(work: Work) -> Row:
    """Both arrangements, each on a fresh server."""
    if not work.has(Holdfast()):
        return {"rows": []}
    count = _allowed(work.options.waiters)
    capacity = count + 1_000
    settings = {
        "connections_max": capacity,
        "queue_max": 2 * capacity,
        "tickets_per_principal_max": capacity,
        "waiting_names_per_principal_max": capacity,
    }
    rows: list[Row] = []
    for title, arrange in ((ONE_NAME, _one_name), (MANY_NAMES, _many_names)):
        server = Holdfast(settings=settings)
        folder = work.folder / title.replace(" ", "-")
        with server.running(folder) as child, asyncio.Runner(loop_factory=new_loop) as runner:
            line = Line(title, count)
            runner.run(_interruptible(arrange(_Crowd(server, child.pid, line))))
        rows.append(line.as_row())
        say(
            f"{count:,} waiters {title}: {line.bytes_per_waiter:,.0f} bytes each, joined in {line.join_seconds:.1f} s,"
            f" {len(line.latencies_us):,} hand-overs, p50 {line.p50_ms:.2f} ms p99 {line.p99_ms:.2f} ms"
            + (f", {line.wrong} WRONG: {line.sample}" if line.wrong else "")
        )
    return {"rows": rows}


def _allowed(wanted: int) -> int:
    """As many as this machine lets one process have open; the server inherits the limit from us."""
    hard = allow_open_files()
    if hard == resource.RLIM_INFINITY or wanted + _SPARE_FILES <= hard:
        return wanted
    count = max(1, hard - _SPARE_FILES)
    say(f"only {count:,} of {wanted:,} waiters: a process may have {hard:,} files open here (ulimit -Hn)")
    return count


async def _interruptible(work: Coroutine[None, None, None]) -> None:
    """Let Ctrl-C end the work: raised inside a callback of the loop, it would only end that callback."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        loop.add_signal_handler(number, task.cancel if task is not None else loop.stop)
    try:
        await work
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


async def _one_name(crowd: _Crowd) -> None:
    """One holds the name and all others stand in its line; each that is woken hands it on."""
    lease_id = (await crowd.hold(["bench-line"]))["bench-line"]
    waiters = await crowd.join(["bench-line"] * crowd.line.waiters)
    begun = time.perf_counter()
    for _ in range(min(HANDOVERS_MAX, len(waiters))):
        if time.perf_counter() - begun > _HANDOVER_SECONDS_MAX:
            break
        grant = await crowd.hand_over("bench-line", lease_id)
        if grant is None:
            break
        lease_id = grant
    crowd.close()


async def _many_names(crowd: _Crowd) -> None:
    """One holds every name, and each has one in its line; names are released one after another."""
    names = [f"bench-line-{number:06d}" for number in range(crowd.line.waiters)]
    held = await crowd.hold(names)
    await crowd.join(names)
    begun = time.perf_counter()
    for number in range(min(HANDOVERS_MAX, len(names))):
        if time.perf_counter() - begun > _HANDOVER_SECONDS_MAX:
            break
        # A stride that meets every name once and neighbours never in a row.
        name = names[number * 7_919 % len(names)]
        if await crowd.hand_over(name, held[name]) is None:
            break
    crowd.close()


class _Crowd:
    """Those who wait, and the one who holds."""

    def __init__(self, server: Holdfast, pid: int, line: Line) -> None:
        self.line = line
        self._server = server
        self._pid = pid
        self._woken: asyncio.Queue[tuple[float, int, bytes]] = asyncio.Queue()
        self._waiters: list[_Waiter] = []
        self._control: _Waiter | None = None
        self._begun_at = 0.0

    async def hold(self, names: Sequence[str]) -> dict[str, str]:
        """Take all the names; the lease ids by name."""
        held: dict[str, str] = {}
        for first in range(0, len(names), _NAMES_PER_CALL):
            part = list(names[first : first + _NAMES_PER_CALL])
            body = await self._ask("/claims", {"all": part, "ttl_seconds": 3600, "owner": "bench"})
            held |= {claim["name"]: claim["lease_id"] for claim in json.loads(body)["claims"]}
        return held

    async def join(self, names: Sequence[str]) -> list[_Waiter]:
        """Let one stand in line for each name, and weigh the server before and after."""
        await self._warm()
        before = await self._idle_rss_bytes()
        self._waiters = await self._enqueue(names, _WAIT_SECONDS, self._woken)
        await self._until_waiting(names)
        self.line.join_seconds = time.perf_counter() - self._begun_at
        self.line.bytes_per_waiter = (await self._idle_rss_bytes() - before) / len(names)
        return self._waiters

    async def hand_over(self, name: str, lease_id: str) -> str | None:
        """Release, and wait for the one who is woken: its lease id, or None when nobody was woken rightly."""
        sent_at = time.perf_counter()
        answer = asyncio.ensure_future(self._ask(f"/locks/{name}/release", {"lease_id": lease_id}))
        try:
            woken_at, status, body = await asyncio.wait_for(self._woken.get(), _ANSWER_SECONDS_MAX)
        except TimeoutError:
            self.line.blame(0, b"nobody was woken")
            return None
        finally:
            await answer
        if not self._woken.empty():
            self.line.blame(0, b"more than one was woken")
        grant = json.loads(body)
        if status != 200 or grant["status"] != "acquired":
            self.line.blame(status, body)
            return None
        self.line.latencies_us.append(int((woken_at - sent_at) * 1_000_000))
        lease: str = grant["lease_id"]
        return lease

    def close(self) -> None:
        """Let everybody go."""
        for waiter in self._waiters:
            waiter.close()
        if self._control is not None:
            self._control.close()

    async def _warm(self) -> None:
        """Code and buffers that come with the first waiters are no part of one."""
        held = await self.hold(["bench-warm"])
        replies: asyncio.Queue[tuple[float, int, bytes]] = asyncio.Queue()
        waiters = await self._enqueue(["bench-warm"] * _WARM_WAITERS, 1, replies)
        for _ in waiters:
            await asyncio.wait_for(replies.get(), _ANSWER_SECONDS_MAX)
        await self._ask("/locks/bench-warm/release", {"lease_id": held["bench-warm"]})
        for waiter in waiters:
            waiter.close()

    async def _enqueue(
        self, names: Sequence[str], wait_seconds: int, replies: asyncio.Queue[tuple[float, int, bytes]]
    ) -> list[_Waiter]:
        standing: list[_Waiter] = []
        for first in range(0, len(names), _CONNECTS_AT_ONCE):
            count = min(_CONNECTS_AT_ONCE, len(names) - first)
            standing += await asyncio.gather(*(self._connect_and_greet(replies) for _ in range(count)))
        body = {"ttl_seconds": 3600, "wait_seconds": wait_seconds}
        self._begun_at = time.perf_counter()
        for waiter, name in zip(standing, names, strict=True):
            waiter.send(self._message(f"/locks/{name}/acquire", body))
        return standing

    async def _connect_and_greet(self, replies: asyncio.Queue[tuple[float, int, bytes]]) -> _Waiter:
        """Open a connection and wait for one answer on it: a kernel takes connections that the server has not seen."""
        waiter = await self._connect(asyncio.Queue())
        waiter.send(self._message("/healthz", None))
        await asyncio.wait_for(waiter.replies.get(), _ANSWER_SECONDS_MAX)
        waiter.replies = replies
        return waiter

    async def _until_waiting(self, names: Sequence[str]) -> None:
        """Ask until the last line has all of its waiters: the server reads them in the order in which they came."""
        expected = len(names) if names[0] == names[-1] else 1
        deadline = time.perf_counter() + _WAIT_SECONDS / 2
        for name in (names[0], names[-1]):
            waiting = -1
            while waiting < expected:
                if time.perf_counter() > deadline:
                    raise OSError(f"only {waiting} of {expected} stand in line for {name}")
                await asyncio.sleep(0.05)
                waiting = json.loads(await self._ask(f"/locks/{name}"))["waiting"]

    async def _idle_rss_bytes(self) -> int:
        await asyncio.sleep(_IDLE_SECONDS)
        return usage_of(self._pid).bytes

    async def _ask(self, path: str, body: object = None) -> bytes:
        """One exchange on the connection of the one who holds."""
        if self._control is None or self._control.is_closed:
            self._control = await self._connect(asyncio.Queue())
        self._control.send(self._message(path, body))
        try:
            _, status, answer = await asyncio.wait_for(self._control.replies.get(), _ANSWER_SECONDS_MAX)
        except TimeoutError:
            raise OSError(f"{path} was not answered within {_ANSWER_SECONDS_MAX:.0f} s") from None
        if status != 200:
            raise OSError(f"{path}: {status} {answer[:200].decode(errors='replace')}")
        return answer

    async def _connect(self, replies: asyncio.Queue[tuple[float, int, bytes]]) -> _Waiter:
        loop = asyncio.get_running_loop()
        _, waiter = await loop.create_connection(lambda: _Waiter(replies), "127.0.0.1", self._server.port)
        return waiter

    def _message(self, path: str, body: object) -> bytes:
        content = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{'GET' if body is None else 'POST'} {path} HTTP/1.1",
            f"Host: 127.0.0.1:{self._server.port}",
            f"Authorization: {self._server.authorization}",
            "Content-Type: application/json",
            f"Content-Length: {len(content)}",
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


class _Waiter(asyncio.Protocol):
    """One connection with one request; tells when and what it was answered."""

    def __init__(self, replies: asyncio.Queue[tuple[float, int, bytes]]) -> None:
        self.replies = replies
        self.is_closed = False
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        at = time.perf_counter()
        self._pending += data
        answer = split_answer(self._pending)
        if answer is not None:
            self._pending = b""
            self.replies.put_nowait((at, *answer))

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if not self.is_closed:
            self.is_closed = True
            self.replies.put_nowait((time.perf_counter(), 0, b"the connection broke"))

    def send(self, message: bytes) -> None:
        self._transport.write(message)  # type: ignore[attr-defined]

    def close(self) -> None:
        self.is_closed = True
        self._transport.close()
