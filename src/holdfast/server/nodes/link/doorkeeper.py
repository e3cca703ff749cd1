"""Detects by its first bytes whether a connection comes from an HTTP client or from another node.

    accepted ──► Doorkeeper, unauthenticated ──┬─► HttpConnection    anything that is not the prefix
                                               └─► LinkEnd           the prefix of a link

It keeps no more than the prefix, reads no more at once than an HTTP connection, and has the time that a connection may
be idle. With TLS it follows the handshake, and sees decrypted data. A server on a directory has none of this.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.server.http.connection import NULL_TRANSPORT, HttpConnection
from holdfast.server.nodes.link.frames import PREFIX

if TYPE_CHECKING:
    from holdfast.server.http.manager import ConnectionManager
    from holdfast.server.http.tls import TlsHandshake
    from holdfast.server.nodes.link.leader import LinkServer


class Doorkeeper(asyncio.BufferedProtocol):
    """One connection before its first bytes."""

    __slots__ = (
        "_handshake",
        "_is_over",
        "_links",
        "_manager",
        "_seen",
        "_since",
        "_transport",
        "is_authenticated",
        "loop",
        "principal",
    )

    principal: str | None

    def __init__(self, manager: ConnectionManager, links: LinkServer, handshake: TlsHandshake | None = None) -> None:
        """`handshake` is the TLS handshake that the connection comes from."""
        self.loop = asyncio.get_running_loop()
        self._manager = manager
        self._links = links
        self._handshake = handshake
        self._transport: asyncio.Transport = NULL_TRANSPORT
        self._seen = b""
        self._since = manager.now_seconds
        self._is_over = False
        self.is_authenticated, self.principal = False, None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count it in. One too many becomes an HTTP connection at once, which says so."""
        if self._handshake is not None:
            self._handshake.finish()
            self._handshake = None
        self._transport = transport  # type: ignore[assignment]
        if self._manager.is_stopping:
            self._transport.abort()
        elif self._manager.add(self) > 0:
            self._become_http(b"")

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's
        """Return where the next bytes go: the shared receive buffer of all connections."""
        return self._manager.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Look at what came, and let go."""
        seen = self._seen + self._manager.buffer[:nbytes].tobytes()
        if seen.startswith(PREFIX):
            self._let_go()
            self._links.begin(self._manager, self._transport, seen[len(PREFIX) :])
        elif PREFIX.startswith(seen):
            self._seen = seen
        else:
            self._become_http(seen)

    def eof_received(self) -> bool | None:
        """Know that nothing more comes: what came is judged as HTTP."""
        connection = self._become_http(self._seen)
        return connection.eof_received()

    def _become_http(self, data: bytes) -> HttpConnection:
        self._let_go()
        connection = HttpConnection(self._manager)
        self._transport.set_protocol(connection)
        connection.connection_made(self._transport)
        size_max = len(self._manager.buffer)
        for start in range(0, len(data), size_max):
            piece = data[start : start + size_max]
            connection.get_buffer(len(piece))[: len(piece)] = piece
            connection.buffer_updated(len(piece))
        return connection

    def _let_go(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._manager.remove(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """Count it out."""
        self._let_go()
        self._transport = NULL_TRANSPORT

    # What the manager asks of a connection.

    def abort(self) -> None:
        """Break it off."""
        self._transport.abort()

    def shutdown(self) -> None:
        """End it, for the server stops."""
        self._transport.close()

    def resume(self) -> None:
        """Do nothing: no request stands behind here."""

    def check_time(self) -> None:
        """End it if it says nothing for too long: a prefix that is not whole is a head that does not come."""
        settings = self._manager.settings
        seconds = settings.header_timeout_seconds if self._seen else settings.idle_timeout_seconds
        if self._manager.now_seconds - self._since > seconds:
            self._transport.abort()
