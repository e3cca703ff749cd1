"""What it costs that every holder hears of its end at once: streams of `POST /leases/watch`, for a whole fleet.

    make bench ARGS="followers --processes 200"

One server, and a thousand processes that hold ten leases each (here: a thousand streams from one process, as a client
opens them). The processor time of the server is read from /proc, and what is compared takes turns on the same server:
the streams are closed and opened again for each round. So the ratios hold on a busy machine too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.load.http import new_loop
from benchmarks.systems.base import Tools
from benchmarks.systems.holdfast import Holdfast
from benchmarks.systems.usage import usage_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

PROCESSES, LEASES_EACH = 1_000, 10
ROUNDS, PAIRS, REST_SECONDS = 3, 4_000, 30
CONNECTIONS = 32
NAMES_PER_CALL = 1_000
TTL_SECONDS = 86_400
TICK_MS = 1_000 / os.sysconf("SC_CLK_TCK")


@dataclass
class Costs:
    """What was seen. Processor time is the server's, in milliseconds."""

    processes: int
    bytes_per_stream: float = 0.0
    rest_ms_per_second: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    pair_ms: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    end_ms: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    """Of a release, with somebody who follows the lease and without."""
    notified_ms: list[float] = field(default_factory=list)
    """From before the release is sent until its end was heard on the stream."""

    def lines(self) -> list[str]:
        """Return the result for people."""
        sorted_ms = sorted(self.notified_ms)
        at_rest, without = _middles(self.rest_ms_per_second)
        p50, p99 = sorted_ms[len(sorted_ms) // 2], sorted_ms[len(sorted_ms) * 99 // 100]
        rows = {
            "streams": f"{self.processes:,}, with {LEASES_EACH} leases each",
            "memory of a stream": f"{self.bytes_per_stream / 1024:.1f} KiB, its connection and its leases included",
            "processor at rest": f"{at_rest:.1f} ms a second, without streams {without:.1f}",
            "claim and release of others": f"{_ratio(self.pair_ms):.2f} x the processor time without streams",
            "a release that is followed": f"{_ratio(self.end_ms):.2f} x that of one that is not",
            "from release to news": f"{p50:.2f} ms p50, {p99:.2f} ms p99",
        }
        return [f"{name:<30}{text}" for name, text in rows.items()]


def _middles(costs: dict[bool, list[float]]) -> tuple[float, float]:
    """Return the medians with and without streams."""
    return median(costs[True]), median(costs[False])


def _ratio(costs: dict[bool, list[float]]) -> float:
    with_streams, without = _middles(costs)
    return with_streams / without


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks followers", description="What it costs to be told.")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="how many streams, default %(default)s")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often both take turns, default %(default)s")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="claims and releases in a turn, default %(default)s")
    parser.add_argument(
        "--rest",
        type=float,
        default=REST_SECONDS,
        help="seconds of rest in a turn: of a multiple of 15, for each stream has a comment every 15 s",
    )
    arguments = parser.parse_args(argv)
    costs = Costs(arguments.processes)
    server = Holdfast(Tools.find(), {"connections_max": 2 * arguments.processes + 1_000})
    with (
        tempfile.TemporaryDirectory() as folder,
        server.running(Path(folder)) as child,
        asyncio.Runner(loop_factory=new_loop) as runner,
    ):
        runner.run(_measure(Fleet(server, child.pid, costs), arguments))
    sys.stdout.write("\n".join(costs.lines()) + "\n")
    return 0


async def _measure(fleet: Fleet, arguments: argparse.Namespace) -> None:
    costs = fleet.costs
    await fleet.warm()
    held = await fleet.hold("held", fleet.costs.processes * LEASES_EACH)
    before = await fleet.idle_bytes()
    for number in range(arguments.rounds):
        for followed in (False, True):
            async with fleet.followed(held if followed else {}):
                if followed and not costs.bytes_per_stream:
                    costs.bytes_per_stream = (await fleet.idle_bytes() - before) / costs.processes
                with fleet.processor(costs.rest_ms_per_second[followed], arguments.rest):
                    await asyncio.sleep(arguments.rest)
                at_rest = costs.rest_ms_per_second[followed][-1]
                with fleet.processor(costs.pair_ms[followed], arguments.pairs, at_rest):
                    await fleet.pairs(f"pair-{number}-{followed}", arguments.pairs)
            ending = await fleet.hold(f"ending-{number}-{followed}", costs.processes)
            async with fleet.followed(ending if followed else {}) as received:
                with fleet.processor(costs.end_ms[followed], len(ending), at_rest):
                    await fleet.release(ending, received if followed else None)
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} round {number + 1} of {arguments.rounds}\n")
    fleet.close()


class Fleet:
    """Processes that hold leases, and somebody else who claims and releases."""

    def __init__(self, server: Holdfast, pid: int, costs: Costs) -> None:
        self.costs = costs
        self._server = server
        self._pid = pid
        self._idle: list[Line] = []

    async def warm(self) -> None:
        """Let code and buffers come that come with the first requests."""
        async with self.followed(await self.hold("warm", 1_000)):
            await self.pairs("warm-pair", 1_000)

    async def hold(self, prefix: str, count: int) -> dict[str, str]:
        """Claim so many names; return their lease ids."""
        held: dict[str, str] = {}
        for first in range(0, count, NAMES_PER_CALL):
            names = [f"{prefix}-{number:06d}" for number in range(first, min(first + NAMES_PER_CALL, count))]
            answer = await self._ask("/claims", {"all": names, "ttl_seconds": TTL_SECONDS})
            held |= {claim["name"]: claim["lease_id"] for claim in answer["claims"]}
        return held

    @contextlib.asynccontextmanager
    async def followed(self, held: dict[str, str]) -> AsyncIterator[asyncio.Queue[str]]:
        """Have each lease followed, by as many streams as there are processes; yield where their ends are heard."""
        received: asyncio.Queue[str] = asyncio.Queue()
        items = list(held.items())
        share = -(-len(items) // self.costs.processes)
        parts = [dict(items[first : first + share]) for first in range(0, len(items), share or 1)]
        lines = [await self._open() for _ in parts]
        tasks = []
        for line, part in zip(lines, parts, strict=True):
            line.send("/leases/watch", {"leases": part}, self._server)
            first = await line.frame()
            if f'"following":{len(part)},' not in first:
                raise OSError(f"not followed: {first}")
            tasks.append(asyncio.create_task(line.listen(received)))
        try:
            yield received
        finally:
            for task, line in zip(tasks, lines, strict=True):
                task.cancel()
                line.close()
            await asyncio.sleep(1)

    @contextlib.contextmanager
    def processor(self, seen: list[float], per: float, at_rest_ms: float = 0.0) -> Iterator[None]:
        """Measure the processor time of the server for each of so many, without what it takes at rest in a second."""
        began, began_at = self._ticks(), time.perf_counter()
        yield
        at_rest = at_rest_ms * (time.perf_counter() - began_at)
        seen.append(((self._ticks() - began) * TICK_MS - at_rest) / per)

    def _ticks(self) -> int:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    async def idle_bytes(self) -> int:
        """Return the memory of the server, once it is quiet."""
        await asyncio.sleep(2)
        return usage_of(self._pid).bytes

    async def pairs(self, prefix: str, count: int) -> None:
        """Claim and release names that nobody follows."""

        async def work(numbers: range) -> None:
            for number in numbers:
                path = f"/locks/{prefix}-{number:06d}"
                granted = await self._ask(f"{path}/acquire", {"ttl_seconds": 60})
                await self._ask(f"{path}/release", {"lease_id": granted["lease_id"]})

        await asyncio.gather(*(work(range(first, count, CONNECTIONS)) for first in range(CONNECTIONS)))

    async def release(self, held: dict[str, str], received: asyncio.Queue[str] | None) -> None:
        """Release all of them, one after another, and wait for the news of each if it is followed."""
        for name, lease_id in held.items():
            began = time.perf_counter()
            await self._ask(f"/locks/{name}/release", {"lease_id": lease_id})
            if received is not None and lease_id in await asyncio.wait_for(received.get(), 10):
                self.costs.notified_ms.append(1_000 * (time.perf_counter() - began))

    async def _ask(self, path: str, body: object) -> Any:  # noqa: ANN401 - JSON is whatever the server sent
        line = self._idle.pop() if self._idle else await self._open()
        line.send(path, body, self._server)
        answer = await line.answer()
        self._idle.append(line)
        return answer

    async def _open(self) -> Line:
        return Line(*await asyncio.open_connection("127.0.0.1", self._server.port))

    def close(self) -> None:
        """Close what is open."""
        for line in self._idle:
            line.close()


class Line:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, path: str, body: object, server: Holdfast) -> None:
        """Send a request."""
        content = json.dumps(body)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAuthorization: {server.authorization}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        self._writer.write((head + content).encode())

    async def answer(self) -> Any:  # noqa: ANN401 - JSON is whatever the server sent
        """Read an answer with a length."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        body = await self._reader.readexactly(length)
        if not head.startswith(b"HTTP/1.1 200"):
            raise OSError(f"{head[:15].decode()}: {body[:200].decode(errors='replace')}")
        return json.loads(body)

    async def frame(self) -> str:
        """Read up to the next event of a stream."""
        return (await self._reader.readuntil(b"\n\n")).decode()

    async def listen(self, received: asyncio.Queue[str]) -> None:
        """Pass on each event."""
        while True:
            frame = await self.frame()
            if "event: ended" in frame:
                received.put_nowait(frame)

    def close(self) -> None:
        """Hang up."""
        self._writer.close()
