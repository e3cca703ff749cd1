"""What both ends of a link do alike: bytes become frames, frames become bytes, and silence is counted.

All that is sent in one turn of the loop is one write. Of what comes in, `FRAMES_PER_TURN` are taken before the other
connections have their turn; nothing more is read meanwhile, so what waits here is one read of the socket at most.

`tick` is called every second. It says that we are here, and counts for how long the other side said nothing:
`SILENT_TICKS_MAX` later the link is over. A pause of our own is no silence: it is one tick, however long it was. One
who takes what we write is not silent either, for while that is in the way nothing of its own may be read.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from holdfast.server.http.connection import NULL_TRANSPORT
from holdfast.server.nodes.link.frames import BadFrameError, Decoder, Ping, framed
from holdfast.server.nodes.link.handshake import HandshakeError

if TYPE_CHECKING:
    from holdfast.server.http.manager import ConnectionManager
    from holdfast.server.nodes.link.frames import ToFollower, ToLeader

FRAMES_PER_TURN = 64
SILENT_TICKS_MAX = 3
UNSENT_BYTES_MAX = 1_048_576
"""How much may be written before it is taken. Beyond it the leader reads no more, and the follower holds requests."""
LINGER_SECONDS = 1
"""How long the other side has to take the last that was sent."""

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

    # What each end does in its own way.

    def take(self, frame: ToLeader | ToFollower) -> None:
        """Take a frame. Raises `BadFrameError` or `HandshakeError` if the link is of no use any more."""
        raise BadFrameError(f"nobody takes {type(frame).__name__}")

    def ping(self) -> Ping:
        """Return what says that we are here."""
        return Ping()

    def lost(self) -> None:
        """Know that the link is over."""

    def complain(self, why: str) -> None:
        """Say why the link ends. What a stranger brings about is said where it cannot fill the log."""
        log.warning("a link with %s ends: %s", self.peer, why)

    def complain_of_bug(self, bug: Exception) -> None:
        """Say what nobody expected, with the way there."""
        log.error("a bug ended a link with %s", self.peer, exc_info=bug)

    @property
    def must_not_read(self) -> bool:
        """Whether nothing more may be read for now, for another reason than that others have their turn."""
        return False

    # The connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self.transport = transport  # type: ignore[assignment]
        self.transport.set_write_buffer_limits(UNSENT_BYTES_MAX)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """Know that the link is over."""
        self.end()
        self.transport = NULL_TRANSPORT

    def data_received(self, data: bytes) -> None:
        """Take the frames that came."""
        self._silent_ticks = 0
        self.decoder.put(data)
        if not self._is_behind:
            self._work()

    def resume(self) -> None:
        """Go on with what was left: all others have had their turn."""
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
        except Exception as bug:  # noqa: BLE001 - it is told, with the way there
            self.complain_of_bug(bug)
            self.end()
        self.look_at_reading()

    @property
    def peer(self) -> str:
        """The address at the other end, for the log."""
        name = self.transport.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) else "another node"

    def look_at_reading(self) -> None:
        """Let the other side send only what is taken."""
        pauses = (self._is_behind or self.must_not_read) and not self.is_over
        if pauses == self._reading_pauses or self.transport.is_closing():
            return
        self._reading_pauses = pauses
        if pauses:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """Know that what is written is not taken."""
        self.writing_pauses = True
        self.look_at_reading()

    def resume_writing(self) -> None:
        """Know that it is taken again."""
        self.writing_pauses = False
        self.look_at_reading()

    # Sending.

    def send(self, frame: ToLeader | ToFollower) -> None:
        """Send a frame, with all others of this turn."""
        self.send_data(framed(frame))

    def send_data(self, data: bytes) -> None:
        """Send a frame that is bytes already."""
        if not self._out:
            self.loop.call_soon(self.flush)
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes > UNSENT_BYTES_MAX:
            # What is much must not wait for the end of the turn: only what is written can make us pause.
            self.flush()

    def flush(self) -> None:
        """Write what was sent."""
        if self._out:
            data, self._out, self._out_bytes = b"".join(self._out), [], 0
            self._written_bytes += len(data)
            self.transport.write(data)

    @property
    def unsent_bytes(self) -> int:
        """How much is still here of what was written."""
        return self.transport.get_write_buffer_size() + self._out_bytes

    # Time, and the end.

    def tick(self) -> None:
        """Say that we are here, and end the link if the other side was silent for too long. Called every second."""
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
        """End the link; what was sent still goes out, unless it must end at once."""
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
