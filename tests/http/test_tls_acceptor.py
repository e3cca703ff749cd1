"""Handshakes are started when the client's first record is there, a few at a time, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from holdfast.config import Settings
from holdfast.engine.clock import SystemClock
from holdfast.http import tls
from holdfast.http.tls import TlsAcceptor, TlsHandshake

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Manager:
    """Counts connections, and nothing else."""

    def __init__(self) -> None:
        self.connections: list[TlsHandshake] = []
        self.settings = Settings(header_timeout_seconds=10)
        self.now_seconds = 0
        self.is_stopping = False
        self.now_ms = SystemClock().monotonic_ms

    def add(self, connection: TlsHandshake) -> int:
        self.connections.append(connection)
        return 0

    def remove(self, connection: TlsHandshake) -> None:
        self.connections.remove(connection)


class Echo(asyncio.Protocol):
    """Sends back what it receives."""

    def __init__(self, handshake: TlsHandshake) -> None:
        self._handshake = handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._handshake.finish()
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class Scarce(socket.socket):
    """A listening socket of a process that has no file descriptor left for a while."""

    failures = 2

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


class Scene:
    """An acceptor and its clients."""

    def __init__(self, pem: Path) -> None:
        manager: Any = Manager()
        self.manager: Manager = manager
        self.listener = Scarce()
        self.listener.failures = 0
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        self.listener.setblocking(False)
        self.address = self.listener.getsockname()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        self.trusted = ssl.create_default_context(cafile=str(pem))
        self.acceptor = TlsAcceptor(self.listener, context, manager, Echo)
        self._stack = contextlib.ExitStack()

    async def connect(self, data: bytes = b"") -> socket.socket:
        """Open a connection that sends this."""
        sock = self._stack.enter_context(socket.create_connection(self.address))
        sock.sendall(data)
        sock.setblocking(False)
        return sock

    def hello(self) -> bytes:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            self.trusted.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1").do_handshake()
        return outgoing.read()

    async def is_served(self) -> bool:
        """Tell whether a client gets its data back."""
        reader, writer = await asyncio.open_connection(*self.address, ssl=self.trusted, server_hostname="127.0.0.1")
        writer.write(b"hello")
        data = await asyncio.wait_for(reader.readexactly(5), 20)
        writer.transport.abort()
        return data == b"hello"

    def close(self) -> None:
        self.acceptor.close()
        for each in list(self.manager.connections):
            each.abort()
        self.listener.close()
        self._stack.close()


@asynccontextmanager
async def scene_of(pem: Path) -> AsyncIterator[Scene]:
    scene = Scene(pem)
    try:
        yield scene
    finally:
        scene.close()
        await asyncio.sleep(0.05)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def ended(sock: socket.socket) -> bool:
    """Read to the end. True: the server closed the connection."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ConnectionError):
        while await asyncio.wait_for(loop.sock_recv(sock, 65_536), 20):
            pass
    return True


def each_loop(test: Callable[[Scene], Awaitable[None]]) -> Callable[[str, Path], None]:
    """Run a test on both loops: each has a TLS of its own."""

    @pytest.mark.parametrize("kind", LOOPS)
    def on_loop(kind: str, pem: Path) -> None:
        async def run() -> None:
            async with scene_of(pem) as scene:
                await test(scene)

        with asyncio.Runner(loop_factory=LOOPS[kind]) as runner:
            runner.run(run())

    on_loop.__doc__ = test.__doc__
    return on_loop


@each_loop
async def test_half_a_hello_starts_no_handshake(scene: Scene) -> None:
    """Until the first record is complete, nothing is started; each byte of it may come by itself."""
    hello = scene.hello()
    sock = await scene.connect()
    for at in range(len(hello) - 1):
        sock.send(hello[at : at + 1])
        if at % 50 == 0:
            await asyncio.sleep(0.005)
    await until(lambda: len(scene.manager.connections) == 1)
    assert not scene.acceptor._ready and not scene.acceptor._under_way
    sock.send(hello[-1:])
    await until(lambda: len(scene.acceptor._under_way) == 1)
    assert await asyncio.get_running_loop().sock_recv(sock, 65_536), "the server says hello"
    assert await scene.is_served()


@each_loop
async def test_silent_connection_ends_in_time(scene: Scene) -> None:
    """Neither silence, nor half a hello, nor a client that never answers outlasts the time for a header."""
    socks = [await scene.connect(data) for data in (b"", scene.hello()[:-1])]
    await until(lambda: len(scene.manager.connections) == 2)
    scene.manager.now_seconds = 11
    for each in list(scene.manager.connections):
        each.check_time()
    assert not scene.manager.connections
    assert all([await ended(sock) for sock in socks])


@each_loop
async def test_non_tls_connection_is_closed(scene: Scene) -> None:
    """Plain HTTP, a record that is too long, and a client that left are closed at once."""
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff"):
        assert await ended(await scene.connect(data))
    gone = await scene.connect(scene.hello()[:-1])
    gone.shutdown(socket.SHUT_WR)
    assert await ended(gone)
    assert not scene.manager.connections and not scene.acceptor.tasks


@each_loop
async def test_reset_after_half_a_hello_is_noticed(scene: Scene) -> None:
    """Both may arrive at once. libuv stops watching a socket with an error, so nothing would be called again."""
    loop = asyncio.get_running_loop()
    loop.remove_reader(scene.listener)
    for part in (3, 200):
        gone = await scene.connect(scene.hello()[:part])
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.close()
    scene.acceptor._listen()
    assert await scene.is_served()
    await until(lambda: not scene.manager.connections)


def test_stalled_handshake_gives_way(pem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When too many handshakes are under way, the oldest ends once it has had its time, and the next is started."""
    monkeypatch.setattr(tls, "HANDSHAKES_MAX", 2)
    monkeypatch.setattr(tls, "HANDSHAKE_MS_MIN", 100)

    async def test(scene: Scene) -> None:
        socks = [await scene.connect(scene.hello()) for _ in range(6)]
        assert await scene.is_served()
        assert all([await ended(sock) for sock in socks[:4]])
        assert len(scene.acceptor._under_way) <= 2

    for kind in LOOPS:
        each_loop(test)(kind, pem)


@each_loop
async def test_process_without_descriptors_accepts_later(scene: Scene) -> None:
    """When no file descriptor is free, accepting pauses, and nothing is lost."""
    scene.listener.failures = 3
    assert await scene.is_served()
    assert scene.listener.failures == 0 and not scene.manager.connections


@each_loop
async def test_failed_handshake_frees_its_resources(scene: Scene) -> None:
    """A client that does not trust the certificate is not counted any more, and its task is over."""
    untrusting = ssl.create_default_context()
    with pytest.raises(ssl.SSLError):
        await asyncio.open_connection(*scene.address, ssl=untrusting, server_hostname="127.0.0.1")
    await until(lambda: not scene.manager.connections and not scene.acceptor.tasks)
