"""What both ends of a link have in common: framing, flow control and keepalive.

All that is sent in one turn of the loop is one write. `FRAMES_PER_TURN` received frames are handled before other
connections have their turn. Reading is paused meanwhile, so at most one read of the socket waits here.

`tick` is called every second. It sends a ping and counts for how long the peer was silent: after `SILENT_TICKS_MAX` the
link is over. A pause of our own counts as one tick, however long it was. A peer that takes what we write is not silent
either, because while we pause reading nothing of its own is received.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from holdfast.server.http.connection import NULL_TRANSPORT
from holdfast.server.nodes.link.frames import BadFrameError, Decoder, HandshakeError, Ping, framed

if TYPE_CHECKING:
    from holdfast.server.http.manager import ConnectionManager
    from holdfast.server.nodes.link.frames import ToFollower, ToLeader

FRAMES_PER_TURN = 64
SILENT_TICKS_MAX = 3
UNSENT_BYTES_MAX = 1_048_576
"""The write buffer's limit. Beyond it the leader reads no more, and the follower holds requests."""
LINGER_SECONDS = 1
"""How long the peer has to take the last that was sent."""

log = logging.getLogger("holdfast.server.nodes")


class Framed(asyncio.Protocol):
    """One end of a link."""

    def __init__(self, manager: ConnectionManager, decoder: Decoder) -> None:
        self.loop = asyncio.get_running_loop()
        self.manager = manager
        self.decoder = decoder
        self.transport: asyncio.Transport = NULL_TRANSPORT
        self.is_over = False
        self.writing_pauses = False
        self._out: list[bytes] = []
        """What was sent in this turn."""
        self._out_bytes = 0
        self._written_bytes = self._taken_bytes = 0
        self._silent_ticks = 0
        self._is_behind = self._reading_pauses = False

    # What each end overrides.

    def take(self, frame: ToLeader | ToFollower) -> None:
        """Handle a frame. Raises `BadFrameError` or `HandshakeError` if the link must end."""
        raise BadFrameError(f"unexpected frame: {type(frame).__name__}")

    def ping(self) -> Ping:
        return Ping()

    def lost(self) -> None:
        """Called once, when the link is over."""

    def complain(self, why: str, bug: Exception | None = None) -> None:
        """Log why the link ends; `bug` is an unexpected error."""
        log.warning("a link with %s ends: %s", self.peer, why, exc_info=bug)

    @property
    def must_not_read(self) -> bool:
        """Whether reading is paused for a reason of this end."""
        return False

    # The connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.transport.set_write_buffer_limits(UNSENT_BYTES_MAX)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self.end()
        self.transport = NULL_TRANSPORT

    def data_received(self, data: bytes) -> None:
        self._silent_ticks = 0
        self.decoder.put(data)
        if not self._is_behind:
            self._work()

    def resume(self) -> None:
        """Continue: called by the run queue."""
        self._is_behind = False
        self._work()

    def _work(self) -> None:
        try:
            for _ in range(FRAMES_PER_TURN):
                frame = None if self.is_over else self.decoder.next()
                if frame is None:
                    break
                self.take(frame)
            else:
                self._is_behind = True
                self.manager.defer(self)
        except (BadFrameError, HandshakeError) as error:
            self.complain(str(error))
            self.end()
        except Exception as bug:  # noqa: BLE001 - it is logged
            self.complain("a bug", bug)
            self.end()
        self._update_reading()

    @property
    def peer(self) -> str:
        """The address at the other end, for the log."""
        name = self.transport.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) else "another node"

    def _update_reading(self) -> None:
        pauses = (self._is_behind or self.must_not_read) and not self.is_over
        if pauses == self._reading_pauses or self.transport.is_closing():
            return
        self._reading_pauses = pauses
        if pauses:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        self.writing_pauses = True
        self._update_reading()

    def resume_writing(self) -> None:
        self.writing_pauses = False
        self._update_reading()

    # Sending.

    def send(self, frame: ToLeader | ToFollower) -> None:
        self.send_data(framed(frame))

    def send_data(self, data: bytes) -> None:
        """Send an encoded frame."""
        if not self._out:
            self.loop.call_soon(self.flush)
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes > UNSENT_BYTES_MAX:
            # Not at the end of the turn: only what is written can pause us.
            self.flush()

    def flush(self) -> None:
        if self._out:
            data, self._out, self._out_bytes = b"".join(self._out), [], 0
            self._written_bytes += len(data)
            self.transport.write(data)

    @property
    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size() + self._out_bytes

    # Time, and the end.

    def tick(self) -> None:
        """Send a ping, and end the link if the peer was silent for too long. Called every second."""
        if self.is_over:
            return
        taken_bytes = self._written_bytes - self.unsent_bytes
        if self._reading_pauses and taken_bytes > self._taken_bytes:
            self._silent_ticks = 0
        self._taken_bytes = taken_bytes
        self._silent_ticks += 1
        if self._silent_ticks > SILENT_TICKS_MAX:
            log.warning("a link with %s ends: nothing was heard for %d s", self.peer, SILENT_TICKS_MAX)
            self.end(at_once=True)
        else:
            self.send(self.ping())

    def end(self, *, at_once: bool = False) -> None:
        """End the link after what was sent, or immediately."""
        if self.is_over:
            return
        self.is_over = True
        self.flush()
        if at_once:
            self.transport.abort()
        else:
            self.transport.close()
            self.loop.call_later(LINGER_SECONDS, self.transport.abort)
        self.lost()
