"""Plays histories to a real server, many connections at once, and has each judged.

One loop, one task for each connection. What is held afterwards is asked on a connection of its own, once for a batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from urllib.parse import quote

from holdfast.http.connection import LINGER_SECONDS
from tests.http.histories import History, draw
from tests.http.judge import ReceivedData, Verdict, due, judge
from tests.http.naive_http import BadAnswer, ParsedAnswer, Reading, read, read_answers
from tests.support.http import Client

SECONDS_MAX = 30.0
PLAYS_MAX = 10
"""How long one history may take, however busy the machine is."""
MOMENT_SECONDS = 0.002
SMALL_BUFFER_BYTES = 65_536
"""Small beside an answer of 285 KB; with much less the kernel itself takes seconds for it."""

SETTINGS: dict[str, object] = {
    "header_bytes_max": 2_048,
    "body_bytes_max": 4_096,
    "leases_per_principal_max": 10_000_000,
    "tickets_per_principal_max": 1_000_000,
    "watches_per_principal_max": 10_000,
    "wrong_tokens_per_minute_max": 1_000_000,
}
"""What a server is started with that histories are played to: small limits are reached with few bytes."""


class ClientProtocol(asyncio.Protocol):
    """One connection of ours: collects what comes, and tells when something did."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.end: str = ""
        self._news = asyncio.Event()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self._news.set()

    def eof_received(self) -> bool:
        self.end = self.end or "closed"
        self._news.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.end = self.end or ("reset" if exc else "closed")
        self._news.set()

    async def until(self, wanted: Callable[[], bool]) -> None:
        """Wait until it is so, or the connection has ended."""
        while not self.end and not wanted():
            self._news.clear()
            await self._news.wait()


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    host: str
    port: int


async def play(history: History, address: Address) -> ReceivedData:
    """Do what the history says, and return what was heard.

    Who reads late on a busy machine may read too late: the server waits `LINGER_SECONDS` after its last word, and then
    the kernel takes back what was not read. Such a one is played again, until the machine lets it read in time.
    """
    loop = asyncio.get_running_loop()
    plays = 0
    while True:
        began = loop.time()
        received = await _play_once(history, address)
        plays += 1
        is_lost = received.end == "reset" or not received.data
        if plays == PLAYS_MAX or not (history.reads_late and is_lost and loop.time() - began > LINGER_SECONDS):
            return received


async def _play_once(history: History, address: Address) -> ReceivedData:
    client = await _connect(address, small=history.reads_late)
    try:
        async with asyncio.timeout(SECONDS_MAX):
            await _play(history, client)
    except TimeoutError:
        return ReceivedData(bytes(client.received), "open")
    finally:
        assert client.transport is not None
        client.transport.abort()
    return ReceivedData(bytes(client.received), "reset" if client.end == "reset" else "closed")


async def _connect(address: Address, *, small: bool) -> ClientProtocol:
    sock = socket.socket()
    sock.setblocking(False)
    if small:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, (address.host, address.port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _, client = await loop.create_connection(ClientProtocol, sock=sock)
    return client


async def _play(history: History, client: ClientProtocol) -> None:
    transport = client.transport
    assert transport is not None
    if history.reads_late:
        transport.pause_reading()
    reading = read(history.sent)
    at = 0
    for position, pause in history.cuts:
        if transport.is_closing():
            return
        transport.write(history.sent[at:position])
        at = position
        if pause == "turn":
            await asyncio.sleep(0)
        elif pause == "moment":
            await asyncio.sleep(MOMENT_SECONDS)
        elif pause == "answers" and not history.reads_late:
            await client.until(_answered(client, reading, position))
    transport.write(history.sent[at:])
    if history.reads_late:
        await asyncio.sleep(MOMENT_SECONDS)
        transport.resume_reading()
    if history.finish == "reset":
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    elif history.finish == "hang up":
        transport.close()
    elif history.finish == "half-close":
        if history.seed % 2:
            await client.until(_answered(client, reading, len(history.sent)))
        with contextlib.suppress(OSError):
            # The server may have ended it already.
            transport.write_eof()
    await client.until(lambda: False)


def _answered(client: ClientProtocol, reading: Reading, position: int) -> Callable[[], bool]:
    """Whether all that was complete at this place has its answer; a stream has begun when something stands in it."""
    wanted = sum(end <= position for end in due(reading))
    methods = [asked.method for asked in reading.asked]

    def is_answered() -> bool:
        said = _finals(bytes(client.received), methods)
        if len(said) < wanted:
            return False
        last = said[wanted - 1] if wanted else None
        return last is None or last.is_complete or b"\n\n" in last.body

    return is_answered


def _finals(data: bytes, methods: list[str]) -> list[ParsedAnswer]:
    try:
        return [said for said in read_answers(data, methods) if said.status >= 200]
    except BadAnswer:
        return []


# Many.


@dataclass
class Result:
    """What came of many histories."""

    played: int = 0
    answers: int = 0
    failed: list[tuple[History, Verdict]] = field(default_factory=list)

    def report(self) -> str:
        """The first failures, each with its history."""
        return "\n".join(
            f"{history}\n" + "\n".join(f"    {text}" for text in verdict.complaints[:6])
            for history, verdict in self.failed[:5]
        )


async def play_all(
    address: Address,
    token: str,
    seeds: Iterable[int],
    *,
    stem: str = "w",
    batch: int = 200,
    at_once: int = 40,
) -> Result:
    """Play the histories of these seeds; ask after each batch what is held. A batch that fails is the last."""
    result = Result()
    left = iter(seeds)
    number = 0
    while chosen := list(islice(left, batch)):
        prefix = f"{stem}{number}/"
        number += 1
        histories = [draw(seed, f"{prefix}{seed}") for seed in chosen]
        verdicts = await _play_batch(histories, address, at_once)
        held = await asyncio.to_thread(_held, address, token, prefix)
        by_seed: dict[int, list[str]] = {}
        for name in held:
            by_seed.setdefault(int(name.split("/")[1]), []).append(name)
        for history, verdict in zip(histories, verdicts, strict=True):
            verdict.check_held(by_seed.pop(history.seed, []))
            result.played += 1
            result.answers += len(verdict.statuses)
            if verdict.complaints:
                result.failed.append((history, verdict))
        assert not by_seed, by_seed
        if result.failed:
            break
    return result


async def _play_batch(histories: list[History], address: Address, at_once: int) -> list[Verdict]:
    slots = asyncio.Semaphore(at_once)

    async def one(history: History) -> Verdict:
        async with slots:
            received = await play(history, address)
        return judge(
            history.sent,
            received,
            half_closed=history.finish == "half-close",
            broken=history.finish in ("reset", "hang up"),
        )

    return await asyncio.gather(*map(one, histories))


def _held(address: Address, token: str, prefix: str) -> list[str]:
    """Every held name that begins so."""
    client = Client(address.host, address.port, token)
    names: list[str] = []
    after = ""
    while True:
        answer = client.get(f"/locks?prefix={quote(prefix, safe='')}&limit=10000{after}")
        assert answer.status == 200, answer
        rows = json.loads(answer.body)["locks"]
        names += [row["name"] for row in rows]
        if len(rows) < 10_000:
            client.close()
            return names
        after = f"&after={quote(rows[-1]['name'], safe='')}"
