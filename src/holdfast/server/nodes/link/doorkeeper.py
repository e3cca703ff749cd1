"""Looks at the first bytes of a connection: a client that speaks HTTP gets a lane, another node gets a link.

    accepted ──► Doorkeeper, counted as a stranger ──┬─► Lane       anything that is not the prefix
                                                     └─► LinkEnd    the prefix of a link

It keeps no more than the prefix, reads no more at once than a lane, and has the time that a connection may be idle.
Where the server speaks TLS it takes the place of the `Ciphertext`, and looks at what was encrypted. A server on a
directory has none of this.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.server.doors.gone import GONE
from holdfast.server.doors.lane import Lane
from holdfast.server.nodes.link.frames import PREFIX

if TYPE_CHECKING:
    from holdfast.server.ciphertext import Ciphertext
    from holdfast.server.doors.lanes import Lanes
    from holdfast.server.nodes.link.leader import LinkServer


class Doorkeeper(asyncio.BufferedProtocol):
    """One connection before its first bytes."""

    __slots__ = (
        "_ciphertext",
        "_is_over",
        "_lanes",
        "_links",
        "_seen",
        "_since",
        "_transport",
        "is_known",
        "known_as",
        "loop",
    )

    known_as: str | None

    def __init__(self, lanes: Lanes, links: LinkServer, ciphertext: Ciphertext | None = None) -> None:
        """`ciphertext` is the one whose place it takes, where the server speaks TLS."""
        self.loop = asyncio.get_running_loop()
        self._lanes = lanes
        self._links = links
        self._ciphertext = ciphertext
        self._transport: asyncio.Transport = GONE
        self._seen = b""
        self._since = lanes.now_seconds
        self._is_over = False
        self.is_known, self.known_as = False, None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count it in. One too many gets its lane at once, which says so."""
        if self._ciphertext is not None:
            self._ciphertext.hand_over()
        self._transport = transport  # type: ignore[assignment]
        if self._lanes.is_stopping:
            self._transport.abort()
        elif self._lanes.add(self) > 0:
            self._become_lane(b"")

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's
        """Return where the next bytes go: as much as a lane reads at once, and no more."""
        return self._lanes.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Look at what came, and let go."""
        seen = self._seen + self._lanes.buffer[:nbytes].tobytes()
        if seen.startswith(PREFIX):
            self._let_go()
            self._links.begin(self._lanes, self._transport, seen[len(PREFIX) :])
        elif PREFIX.startswith(seen):
            self._seen = seen
        else:
            self._become_lane(seen)

    def eof_received(self) -> bool | None:
        """Know that nothing more comes: what came is judged as HTTP."""
        lane = self._become_lane(self._seen)
        return lane.eof_received()

    def _become_lane(self, data: bytes) -> Lane:
        self._let_go()
        lane = Lane(self._lanes)
        self._transport.set_protocol(lane)
        lane.connection_made(self._transport)
        size_max = len(self._lanes.buffer)
        for start in range(0, len(data), size_max):
            piece = data[start : start + size_max]
            lane.get_buffer(len(piece))[: len(piece)] = piece
            lane.buffer_updated(len(piece))
        return lane

    def _let_go(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._lanes.remove(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """Count it out."""
        self._let_go()
        self._transport = GONE

    # What the lanes ask of a connection.

    def abort(self) -> None:
        """Break it off."""
        self._transport.abort()

    def shutdown(self) -> None:
        """End it, for the server stops."""
        self._transport.close()

    def work_on(self) -> None:
        """Do nothing: no request stands behind here."""

    def check_time(self) -> None:
        """End it if it says nothing for too long: a prefix that is not whole is a head that does not come."""
        settings = self._lanes.settings
        seconds = settings.header_timeout_seconds if self._seen else settings.idle_timeout_seconds
        if self._lanes.now_seconds - self._since > seconds:
            self._transport.abort()
