"""Connections from their first moment on, where the server speaks TLS: each is counted before its handshake.

    accepted ──► `Handshake`, counted as a stranger ──► `_Secured`, a lane, counted in its place
                   └─ gives way to those who come, ends in time, or fails

The loop's own server tells of a connection after the handshake. Until then nobody could count it or end it, so
strangers who never go on would take descriptors and memory without a bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING

from holdfast.server.doors.lane import CONNECTIONS_TOLD_MAX, Lane

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from holdfast.server.doors.lanes import Lanes

ACCEPTS_PER_TURN = 16
AGAIN_SECONDS = 1
"""When there is no descriptor left: the kernel keeps those who come for so long."""

log = logging.getLogger("holdfast.server")


class SecureListener:
    """Takes the connections of one socket, and begins their handshakes."""

    def __init__(
        self,
        lanes: Lanes,
        listener: socket.socket,
        context: ssl.SSLContext,
        secured: Callable[[Lanes, Handshake], asyncio.BaseProtocol] | None = None,
    ) -> None:
        """`secured` makes what takes the place of a handshake that succeeded; a lane, if nobody says otherwise."""
        self._lanes = lanes
        self._secured = secured or _Secured
        self._listener = listener
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        """Take no more."""
        self._loop.remove_reader(self._listener)
        if self._again is not None:
            self._again.cancel()

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("no connection can be taken now: %s", error.strerror or error)
                self._loop.remove_reader(self._listener)
                self._again = self._loop.call_later(AGAIN_SECONDS, self._listen)
                return
            connection.setblocking(False)
            Handshake(self._lanes, connection, self._secured).begin(self._context)


class Handshake:
    """One connection until it can be asked on. Nobody is known there."""

    __slots__ = ("_connection", "_lanes", "_secured", "_task", "is_known", "known_as", "loop")

    known_as: str | None

    def __init__(
        self,
        lanes: Lanes,
        connection: socket.socket,
        secured: Callable[[Lanes, Handshake], asyncio.BaseProtocol],
    ) -> None:
        self._lanes = lanes
        self._secured = secured
        self._connection = connection
        self._task: asyncio.Task[None] | None = None
        self.loop = asyncio.get_running_loop()
        self.is_known, self.known_as = False, None

    def begin(self, context: ssl.SSLContext) -> None:
        """Count it in and begin. If it is one too many, its lane says so; but not to a crowd."""
        if self._lanes.add(self) > CONNECTIONS_TOLD_MAX:
            self.end()
            self._connection.close()
        else:
            self._task = self.loop.create_task(self._run(context))

    async def _run(self, context: ssl.SSLContext) -> None:
        seconds = self._lanes.settings.header_timeout_seconds
        try:
            await self.loop.connect_accepted_socket(
                lambda: self._secured(self._lanes, self),
                self._connection,
                ssl=context,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )
        except OSError:
            pass  # Whoever it was speaks no TLS, took too long, or is gone.
        finally:
            self.end()

    def end(self) -> None:
        """Count it out: it is over, or a lane takes its place."""
        self._lanes.remove(self)

    def abort(self) -> None:
        """Break it off: nothing can come or go any more, so the loop ends it at once."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def shutdown(self) -> None:
        """End it, for the server stops."""
        self.abort()

    def work_on(self) -> None:
        """Do nothing: no request stands behind here."""

    def check_time(self) -> None:
        """Do nothing: the loop has the time of handshakes."""


class _Secured(Lane):
    """A lane that takes the place of its handshake."""

    __slots__ = ("_handshake",)

    def __init__(self, lanes: Lanes, handshake: Handshake) -> None:
        super().__init__(lanes)
        self._handshake = handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._handshake.end()
        super().connection_made(transport)
