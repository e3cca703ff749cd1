"""Nodes in one process, on real sockets: each has connections and a link, and leads or follows as a test says.

What a node finds out by looking at the store is told to it here, so that a test can let two things happen in an order
that no store would give. Engines, routes, connections and links are the real ones, on a journal in memory that all
share.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from holdfast.api.auth.auth import Auth, StaticTokens
from holdfast.api.auth.secrets import AuthorityKey
from holdfast.api.service import ApiService
from holdfast.cluster.forwarder import Forwarder
from holdfast.cluster.link_follower import LinkClient, Security
from holdfast.cluster.link_leader import LinkServer, ProtocolDetector
from holdfast.cluster.node import CountedRoutes, FollowerHealth, LeaderTerm, Node
from holdfast.config import Settings
from holdfast.core.values import Limits
from holdfast.engine.clock import SystemClock
from holdfast.engine.engine import Engine
from holdfast.engine.ids import new_secret
from holdfast.http.manager import ConnectionManager
from holdfast.http.proxies import Proxies
from holdfast.http.tls import TlsAcceptor, TlsHandshake
from holdfast.journal.interface import Leadership, Peer
from holdfast.server.components import OPERATIONS
from tests.cluster.proxy import TcpProxy
from tests.support.http import Answer, parse_answers
from tests.support.shared_journal import SharedMemoryJournal, SharedShelf

SECONDS_MAX = 20.0
TOKENS = "ana:ana-has-this-token:read+claim+admin,ben:ben-has-this-token:read+claim"
ANA, BEN = "ana-has-this-token", "ben-has-this-token"


class Caller:
    """One connection of a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.data = b""

    def send(self, method: str, path: str, body: object = None, *, token: str | None = ANA, **headers: str) -> None:
        """Send a request."""
        content = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        fields = {"Host": "127.0.0.1", **({"Authorization": f"Bearer {token}"} if token else {})}
        if body is not None:
            fields |= {"Content-Type": "application/json", "Content-Length": str(len(content))}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        self.writer.write("\r\n".join(lines).encode() + content)

    async def answer(self) -> Answer:
        """Read the next answer."""
        while not (found := parse_answers(self.data, closed=False)):
            more = await asyncio.wait_for(self.reader.read(65_536), SECONDS_MAX)
            assert more, f"closed after {self.data!r}"
            self.data += more
        self.data = b""
        return found[0]

    async def ask(self, method: str, path: str, body: object = None, **options: Any) -> Answer:  # noqa: ANN401
        """Send a request, and read its answer."""
        self.send(method, path, body, **options)
        return await self.answer()

    async def read_until(self, text: bytes) -> bytes:
        """Read a stream until it has said something."""
        while text not in self.data:
            more = await asyncio.wait_for(self.reader.read(65_536), SECONDS_MAX)
            assert more, f"closed after {self.data!r}"
            self.data += more
        return self.data

    async def size_until(self, end: bytes) -> int:
        """Read a large answer until it ends with this, keep nothing of it, and return how large it was."""
        size, last = 0, b""
        while not last.endswith(end):
            more = await asyncio.wait_for(self.reader.read(65_536), SECONDS_MAX)
            assert more, f"closed after {size} bytes"
            size, last = size + len(more), (last + more)[-len(end) :]
        return size

    async def read_to_end(self) -> bytes:
        """Read until the other side closes."""
        with contextlib.suppress(ConnectionError):
            while more := await asyncio.wait_for(self.reader.read(65_536), SECONDS_MAX):
                self.data += more
        return self.data

    def close(self) -> None:
        """Break it off."""
        self.writer.transport.abort()


def lose(caller: Caller) -> None:
    """Reset a connection: one that is only closed looks like one that waits for its answer and sends no more."""
    linger = struct.pack("ii", 1, 0)
    caller.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    caller.close()


class LinkedNode:
    """One node of a test."""

    def __init__(self, name: str, shelf: SharedShelf, settings: Settings, security: Security | None = None) -> None:
        self.shelf = shelf
        self.settings = settings
        self.clock = SystemClock()
        self.node = Node(_peer(name, ""))
        self.node.key = shelf.key
        self.term: LeaderTerm | None = None
        proxies, local = Proxies(settings.trusted_proxies), FollowerHealth(self.node, "shared memory").handlers()
        self.forwarder = Forwarder(self.node, settings, OPERATIONS, self.clock, proxies, local=local)
        self.manager = ConnectionManager(
            self.forwarder.handler(), settings, self.clock, Proxies(settings.trusted_proxies)
        )
        self.links = LinkServer(self.node, settings, new_secret)
        self.link_client = LinkClient(self.node, self.forwarder, self.manager, new_secret, security)
        self.callers: list[Caller] = []
        self.proxy: TcpProxy | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | TlsAcceptor | None = None
        self._listener: socket.socket | None = None
        self.port = 0

    async def start(self, context: ssl.SSLContext | None = None) -> None:
        """Listen, and keep a link."""
        loop = asyncio.get_running_loop()
        if context is None:
            self._server = await loop.create_server(self._detect, "127.0.0.1", 0)
            self.port = self._server.sockets[0].getsockname()[1]
        else:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self._listener.setblocking(False)
            self._server = TlsAcceptor(self._listener, context, self.manager, self._detect)
            self.port = self._listener.getsockname()[1]
        self._tasks = [loop.create_task(self.link_client.run()), loop.create_task(self._tick())]

    def _detect(self, handshake: TlsHandshake | None = None) -> asyncio.BaseProtocol:
        return ProtocolDetector(self.manager, self.links, handshake)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1)
            await self.manager.tick()

    async def lead(self) -> Leadership:
        """Take the seat and lead."""
        seen = self.shelf.leadership
        journal = SharedMemoryJournal(self.shelf, self.node.me, term_id=uuid.uuid4().hex)
        journal.depose(seen)
        limits = Limits(metadata_chars_max=self.settings.metadata_chars_max)
        engine = Engine(journal, limits, clock=self.clock, version="test")
        await engine.start()
        api = ApiService(engine, Auth(StaticTokens.parse(TOKENS), AuthorityKey(self.shelf.key)), self.settings)
        routes = CountedRoutes(api, OPERATIONS)
        self.term = LeaderTerm(self.shelf.leadership, engine, api, routes)
        self.node.set_leader(None, self.term)
        self.manager.set_handler(routes.handler())
        return self.term.leadership

    async def start_leading_through_proxy(self) -> None:
        """Lead, with a way to it that a test can break."""
        await self.lead()
        self.proxy = TcpProxy("127.0.0.1", self.port)

    def follow(self, leadership: Leadership | None, url: str = "") -> None:
        """Know that another leads, there; or nobody."""
        known = None if leadership is None else msgspec.structs.replace(leadership, url=url)
        self.node.set_leader(known, None)
        self.manager.set_handler(self.forwarder.handler())

    async def resign(self) -> None:
        """Lead no more."""
        if self.term is not None:
            term, self.term = self.term, None
            self.follow(None)
            await term.engine.stop()
            self.links.end_all()

    @property
    def url(self) -> str:
        """Where other nodes reach it."""
        return f"http://127.0.0.1:{self.port}"

    async def call(self, context: ssl.SSLContext | None = None) -> Caller:
        """Connect to it as a client."""
        host = None if context is None else "127.0.0.1"
        self.callers.append(
            Caller(*await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname=host))
        )
        return self.callers[-1]

    async def stop(self) -> None:
        """End all of it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for caller in self.callers:
            caller.close()
        if self.proxy is not None:
            self.proxy.close()
        if self._server is not None:
            self._server.close()
        if self._listener is not None:
            self._listener.close()
        if self.term is not None:
            await self.term.engine.stop()
        self.links.end_all()
        for connection in list(self.manager.connections):
            connection.abort()
        for task in list(self.manager.tasks):
            task.cancel()
        await asyncio.sleep(0)


def _peer(name: str, url: str) -> Peer:
    return Peer(node=name, process=uuid.uuid4().hex, url=url, version="test", format_max=99, tokens="")


@asynccontextmanager
async def two_nodes(directory: Path, **settings: Any) -> AsyncIterator[tuple[LinkedNode, LinkedNode]]:  # noqa: ANN401
    """A leader, and a follower with an open link to it."""
    async with nodes(directory, 2, **settings) as (leader, follower):
        follower.follow(await leader.lead(), leader.url)
        await until(lambda: follower.node.is_linked)
        yield leader, follower


@asynccontextmanager
async def nodes(
    directory: Path,
    count: int,
    *,
    start: bool = True,
    **settings: Any,  # noqa: ANN401
) -> AsyncIterator[list[LinkedNode]]:
    """Nodes of which none knows who leads; and which do not listen yet, if a test starts them itself."""
    shelf = SharedShelf()
    made = [LinkedNode(f"node{number}", shelf, Settings(data=directory, **settings)) for number in range(count)]
    try:
        for node in made if start else ():
            await node.start()
        yield made
    finally:
        for node in made:
            await node.stop()


async def until(is_so: Callable[[], object], seconds_max: float = SECONDS_MAX) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(seconds_max):
        while not is_so():  # noqa: ASYNC110 - it asks many things, and none of them has an event
            await asyncio.sleep(0.002)


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test in a loop of its own, of the kind that the server has, with a limit."""

    async def limited() -> None:
        async with asyncio.timeout(60):
            await test()

    with asyncio.Runner(loop_factory=uvloop.Loop) as runner:
        runner.run(limited())
