"""A listening socket, the connections that come in, the signals, and the order in which all of it stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.server.ciphertext import Ciphertext
from holdfast.server.doors.lane import Lane
from holdfast.server.doors.lanes import Lanes
from holdfast.server.starting.exits import EX_UNAVAILABLE, StartError
from holdfast.settings import parse_address

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import FrameType

    from holdfast.engine.clock import Clock
    from holdfast.server.access.proxies import Proxies
    from holdfast.server.doors.exchange import Application
    from holdfast.server.doors.lanes import Front
    from holdfast.server.tls import Certificate
    from holdfast.settings import Settings

FAREWELL_SECONDS = 0.5
SPARE_FILES = 512
"""Descriptors for all that is no connection; at most half of those that there are."""
BACKLOG = 2_048
"""How many connections the kernel keeps until we take them."""
ACCEPTS_PER_TURN = 16
"""The loop accepts one connection per socket and turn. With one socket, callers that open a connection for each request
would be served one per commit; so the loop listens on several descriptors of the same socket."""


log = logging.getLogger("holdfast.server")


class Served(Protocol):
    """What answers: an authority on a directory, or a node of several."""

    ended: asyncio.Event
    """Set when the process must end."""

    def tick(self) -> None:
        """Do what is done every second."""

    async def end_waits(self) -> None:
        """End the streams and answer all who wait: the server is about to stop."""


def listen(settings: Settings) -> socket.socket:
    """Listen on the address. Raises `StartError`."""
    host, port = parse_address(settings.listen)
    listener: socket.socket | None = None
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        if listener is not None:
            listener.close()
        text = f"cannot listen on {settings.listen}: {error.strerror or error}. Choose another with --listen HOST:PORT"
        raise StartError(text, EX_UNAVAILABLE) from error
    return listener


def url_of(listener: socket.socket, tls: Certificate | None) -> str:
    """Return the address that is listened on."""
    place = listener.getsockname()
    host = f"[{place[0]}]" if ":" in place[0] else place[0]
    return f"{'http' if tls is None else 'https'}://{host}:{place[1]}"


def within_files(settings: Settings) -> Settings:
    """Let the process have a descriptor for every connection, as far as the machine allows; it may start with few.

    Return the settings with as many connections as there are descriptors for. If there were more, strangers could take
    the last one, and nobody would give way.
    """
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


class _WithoutTrailers(HttpToolsProtocol):
    """uvicorn's own protocol, for the ASGI door alone. It takes trailers for headers, and so would let anybody in."""

    def on_headers_complete(self) -> None:
        """Let the trailers go where nobody looks."""
        super().on_headers_complete()
        self.headers = []


class Server(uvicorn.Server):
    """uvicorn, with our doors, our signals, and an end to the streams when it stops."""

    def __init__(self, settings: Settings, tls: Certificate | None, served: Served, door: Application) -> None:
        """`door` answers everything if there are no lanes."""
        self._settings = settings
        self._served = served
        self._tls = tls
        config = uvicorn.Config(
            door,
            http=_WithoutTrailers,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=settings.idle_timeout_seconds,
            timeout_graceful_shutdown=settings.stop_timeout_seconds,
        )
        config.load()
        super().__init__(config)
        self._lanes: Lanes | None = None
        self._takes: Callable[[Lanes], asyncio.BaseProtocol] = Lane
        self._takes_secured: Callable[[Lanes, Ciphertext], asyncio.BaseProtocol] | None = None

    def open_lanes(
        self,
        front: Front,
        clock: Clock,
        proxies: Proxies,
        *,
        takes: Callable[[Lanes], asyncio.BaseProtocol] = Lane,
        takes_secured: Callable[[Lanes, Ciphertext], asyncio.BaseProtocol] | None = None,
        observe: Callable[[Front], Front] | None = None,
    ) -> Lanes:
        """Let connections be ours. `takes` makes what takes a new one, `takes_secured` one whose TLS is ready."""
        self._lanes = Lanes(front, self._settings, clock, proxies, self.server_state, observe=observe)
        self._takes, self._takes_secured = takes, takes_secured
        return self._lanes

    async def run_until_told(self) -> None:
        """Let the second hand go round, and stop when the engine has failed."""
        while True:
            try:
                await asyncio.wait_for(self._served.ended.wait(), 1)
            except TimeoutError:
                self._served.tick()
                if self._tls is not None:
                    self._tls.tick()
                if self._lanes is not None:
                    await self._lanes.tick()
                continue
            # What is owed is the news that nobody knows: leave a moment for it to go out.
            await asyncio.sleep(FAREWELL_SECONDS)
            self.should_exit = True
            return

    async def run(self, listener: socket.socket, greet: Callable[[], None]) -> None:  # type: ignore[override]
        """Serve until told to stop."""
        self._greet = greet
        watcher = asyncio.create_task(self.run_until_told())
        try:
            await self.serve(sockets=[listener, *(listener.dup() for _ in range(ACCEPTS_PER_TURN - 1))])
        finally:
            watcher.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, then say so. It is not left to uvicorn, which has no time limits for TLS."""
        loop = asyncio.get_running_loop()
        tls: dict[str, Any] = {}
        if self._tls is not None and self._lanes is None:
            seconds = self._settings.header_timeout_seconds
            tls = {"ssl": self._tls.context, "ssl_handshake_timeout": seconds, "ssl_shutdown_timeout": seconds}
        self.servers = [
            await loop.create_server(self._new_connection, sock=listener, backlog=BACKLOG, **tls)
            for listener in sockets or []
        ]
        self.started = True
        self._greet()

    def _new_connection(self) -> asyncio.BaseProtocol:
        if self._lanes is not None and self._tls is not None:
            return Ciphertext(self._lanes, self._tls.context, self._takes_secured)
        if self._lanes is not None:
            return self._takes(self._lanes)
        return _WithoutTrailers(self.config, self.server_state, {})

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams and the waits, answer what is owed, close."""
        if self._lanes is not None:
            self._lanes.is_stopping = True
        await self._served.end_waits()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Stop on SIGTERM and SIGINT, and end with our own exit code instead of the signal's."""
        before = {number: signal.signal(number, self._told) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _told(self, _number: int, _frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
