"""The server socket, the signals, and the order in which a server stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
from collections.abc import Callable, Generator
from typing import Protocol

import msgspec

from holdfast.config import Settings
from holdfast.http.connection import HttpConnection
from holdfast.http.manager import ConnectionManager
from holdfast.http.tls import Certificate, TlsAcceptor, TlsHandshake

FAILURE_SECONDS = 0.5
STOP_CHECK_SECONDS = 0.05
SPARE_FILES = 512  # File descriptors for everything but connections; at most half of all.
BACKLOG = 2_048
LISTENERS = 16  # Descriptors of one socket: the loop accepts one connection of each per tick, so per commit.


log = logging.getLogger("holdfast.server")


class Service(Protocol):
    ended: asyncio.Event  # Set when the process must end.

    def tick(self) -> None: ...  # Called every second.

    async def end_waits(self) -> None:
        """End the streams and answer all waiting requests: the server is about to stop."""


def url_of(listener: socket.socket, tls: Certificate | None) -> str:
    address = listener.getsockname()
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{'http' if tls is None else 'https'}://{host}:{address[1]}"


def fit_open_files(settings: Settings) -> Settings:
    """Raise the limit of open files, and return the settings with as many connections as there are descriptors for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.connections_max + SPARE_FILES
    enough = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
    if enough == wanted:
        return settings
    connections_max = max(1, enough - min(SPARE_FILES, enough // 2))
    text = "this process may have %d files open: %d connections are taken, and not %d. Raise that limit (ulimit -n)"
    log.warning(text, enough, connections_max, settings.connections_max)
    return msgspec.structs.replace(settings, connections_max=connections_max)


class HttpServer:
    def __init__(
        self,
        service: Service,
        manager: ConnectionManager,
        tls: Certificate | None,
        protocol: Callable[[ConnectionManager, TlsHandshake | None], asyncio.BaseProtocol] = HttpConnection,
    ) -> None:
        self._service = service
        self._manager = manager
        self._tls = tls
        self._protocol = protocol
        self._stop_requested = asyncio.Event()
        self._is_forced = False

    async def run(self, listener: socket.socket, greet: Callable[[], None]) -> None:
        ticker = asyncio.create_task(self._tick())
        close: list[Callable[[], None]] = []
        try:
            with self._signals():
                close = await self._listen(listener)
                greet()
                await self._stop_requested.wait()
                self._manager.is_stopping = True
                await self._service.end_waits()
                while close:
                    close.pop()()
                await self._end_connections()
        finally:
            for each in close:
                each()
            ticker.cancel()

    async def _listen(self, listener: socket.socket) -> list[Callable[[], None]]:
        loop = asyncio.get_running_loop()
        manager, protocol = self._manager, self._protocol
        if self._tls is not None:
            return [TlsAcceptor(listener, self._tls.context, manager, lambda shake: protocol(manager, shake)).close]
        sockets = [listener, *(listener.dup() for _ in range(LISTENERS - 1))]
        servers = [
            await loop.create_server(lambda: protocol(manager, None), sock=sock, backlog=BACKLOG) for sock in sockets
        ]
        return [server.close for server in servers]

    async def _tick(self) -> None:
        while True:
            try:
                await asyncio.wait_for(self._service.ended.wait(), 1)
            except TimeoutError:
                self._service.tick()
                if self._tls is not None:
                    self._tls.tick()
                await self._manager.tick()
                continue
            await asyncio.sleep(FAILURE_SECONDS)
            self._stop_requested.set()
            return

    async def _end_connections(self) -> None:
        """Close each connection after its current response; after the time limit or a second signal, immediately."""
        manager = self._manager
        for connection in list(manager.connections):
            connection.shutdown()
        ends_ms = manager.now_ms() + manager.settings.stop_timeout_seconds * 1000
        while not self._is_forced and manager.now_ms() < ends_ms and (manager.connections or manager.tasks):  # noqa: ASYNC110
            await asyncio.sleep(STOP_CHECK_SECONDS)
        for task in list(manager.tasks):
            task.cancel()
        for connection in list(manager.connections):
            connection.abort()

    @contextlib.contextmanager
    def _signals(self) -> Generator[None, None, None]:
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in before:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    def stop(self) -> None:
        self._is_forced = self._stop_requested.is_set()
        self._stop_requested.set()
