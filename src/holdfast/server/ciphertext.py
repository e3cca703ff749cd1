"""A connection where the server speaks TLS: its bytes as they are on the wire, before OpenSSL sees them.

    accepted ──► `Ciphertext`, counted as a stranger ──► `_Secured`, a lane, counted in its place
       bytes ──► whole records ──► a turn in the backlog ──► the loop's TLS ──► the lane

OpenSSL works through all that it is given in one go, and some records cost us much and their sender next to nothing:
for a ClientHello, 500 bytes that can be sent again and again, we sign; for an order to change keys, 27 bytes, we make
new ones. So it is given little at a time, in the turns that lanes have too (`Lanes.put_behind`):

      until the handshake is done    one whole record for each turn
      from then on                   RECORDS_PER_TURN at once, and what follows them in turns. Few send that many

Until its first record is whole, a connection has no TLS: who says nothing costs a descriptor and little else. Nobody is
waited for longer than `header_timeout_seconds`, and one that is gone already gets no handshake.

The TLS is that of the loop, with this object as the transport below it: that is how it hears when to read no more.
"""

from __future__ import annotations

import asyncio
from asyncio.sslproto import SSLProtocol
from typing import TYPE_CHECKING, Any

from holdfast.server.doors.gone import GONE
from holdfast.server.doors.lane import CONNECTIONS_TOLD_MAX, Lane

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from holdfast.server.doors.lanes import Lanes

RECORDS_PER_TURN = 4
HEADER_BYTES = 5
RECORD_BYTES_MAX = 16_384 + 2_048
_TYPES = range(20, 24)
"""What a record can be. Whatever begins with another byte is no TLS."""


class Ciphertext(asyncio.BufferedProtocol):
    """One connection, below its TLS."""

    __slots__ = (
        "_context",
        "_half_closed",
        "_held",
        "_is_behind",
        "_is_plain",
        "_is_secured",
        "_lanes",
        "_missing_bytes",
        "_raw",
        "_reading_pauses",
        "_secured",
        "_since",
        "_tls",
        "_tls_pauses",
        "is_known",
        "known_as",
        "loop",
    )

    known_as: str | None

    def __init__(
        self,
        lanes: Lanes,
        context: ssl.SSLContext,
        secured: Callable[[Lanes, Ciphertext], asyncio.BaseProtocol] | None = None,
    ) -> None:
        """`secured` makes what takes its place when TLS is ready; a lane, if nobody says otherwise."""
        self._lanes, self._context, self._secured = lanes, context, secured or _Secured
        self.loop = asyncio.get_running_loop()
        self._raw: asyncio.Transport = GONE
        self._tls: Any = None
        self._held = b""
        """What came and was not given to OpenSSL yet."""
        self._missing_bytes = 0
        """What has not come yet of the record that was given last."""
        self._since = lanes.now_seconds
        self._is_plain = False
        """Whether nothing stands before what comes next: it may be given as it is."""
        self._is_behind = self._is_secured = self._half_closed = self._tls_pauses = self._reading_pauses = False
        self.is_known, self.known_as = False, None

    # The connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count it in. If it is one too many, its lane says so; but not to a crowd."""
        self._raw = transport  # type: ignore[assignment]
        if self._lanes.add(self) > CONNECTIONS_TOLD_MAX or self._lanes.is_stopping:
            self._raw.abort()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's
        """Return where the next bytes go."""
        return self._lanes.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Give it to OpenSSL, or keep it for a turn."""
        buffer = self._lanes.buffer
        if self._is_plain and HEADER_BYTES + (buffer[3] << 8 | buffer[4]) == nbytes:
            # One whole record and nothing before it, as nearly always.
            self._tls.get_buffer(nbytes)[:nbytes] = buffer[:nbytes]
            self._tls.buffer_updated(nbytes)
            return
        self._held += buffer[:nbytes].tobytes()
        if self._is_secured and not self._is_behind:
            self._give()
        self._look_on()

    def eof_received(self) -> bool:
        """Know that nothing more comes. True: the connection stays open for what is kept."""
        self._half_closed = True
        return self._is_secured and (self._can_give() or self._end_tls())

    def connection_lost(self, exc: Exception | None) -> None:
        """Know that nobody is there any more."""
        self._lanes.remove(self)
        self._held, self._raw = b"", GONE
        tls, self._tls = self._tls, None
        if tls is not None:
            tls.connection_lost(exc)

    def pause_writing(self) -> None:
        """Write no more: the other side does not take it."""
        self._tls.pause_writing()

    def resume_writing(self) -> None:
        """Write again."""
        self._tls.resume_writing()

    # Records.

    def work_on(self) -> None:
        """Give the next records: all others have had their turn."""
        self._is_behind = False
        if self._raw is not GONE and not self._raw.is_closing():
            if self._tls is None:
                self._begin()
            self._give()
            self._look_on()

    def _begin(self) -> None:
        seconds = self._lanes.settings.header_timeout_seconds
        self._tls = _tls_of(self.loop)(
            self.loop,
            self._secured(self._lanes, self),
            self._context,
            None,
            server_side=True,
            ssl_handshake_timeout=seconds,
            ssl_shutdown_timeout=seconds,
        )
        self._tls.connection_made(self)

    def _give(self) -> None:
        size, missing_bytes = self._next_bytes()
        if size and not self._tls_pauses:
            data, self._held, self._missing_bytes = self._held[:size], self._held[size:], missing_bytes
            self._tls.get_buffer(size)[:size] = data
            self._tls.buffer_updated(size)

    def _next_bytes(self) -> tuple[int, int]:
        """Return how many bytes are to be given next, and how many their last record misses then."""
        held, missing = self._held, self._missing_bytes
        size = min(missing, len(held))
        missing -= size
        records, most = int(size > 0), RECORDS_PER_TURN if self._is_secured else 1
        while records < most and len(held) - size >= HEADER_BYTES:
            length = HEADER_BYTES + int.from_bytes(held[size + 3 : size + HEADER_BYTES], "big")
            is_whole = length <= len(held) - size
            if not (is_whole or self._is_secured) and held[size] in _TYPES and length <= RECORD_BYTES_MAX:
                break
            part = min(length, len(held) - size)
            size, missing, records = size + part, length - part, records + 1
        return size, missing

    def _can_give(self) -> bool:
        return bool(self._held) and self._next_bytes()[0] > 0

    def _look_on(self) -> None:
        """Stand behind if there is more to give, and read on if there is not."""
        can_give = self._can_give()
        if can_give and not (self._tls_pauses or self._is_behind):
            self._is_behind = True
            if self._is_secured:
                self._lanes.put_behind(self)
            else:
                # Behind the lanes: a crowd that says hello takes what they leave of the time, and one turn at least.
                self._lanes.put_behind(self, debtor="", owes=self)
        elif self._half_closed and not can_give and self._tls is not None and not self._end_tls():
            self._raw.close()
        # In a handshake it is read on, so that it is heard when somebody is gone who waits for a turn.
        is_enough = self._is_secured or len(self._held) > RECORD_BYTES_MAX
        pauses = (can_give and is_enough) or self._tls_pauses
        self._is_plain = self._is_secured and not (self._held or self._missing_bytes or self._tls_pauses)
        if pauses != self._reading_pauses and not self._raw.is_closing():
            self._reading_pauses = pauses
            if pauses:
                self._raw.pause_reading()
            else:
                self._raw.resume_reading()

    def _end_tls(self) -> bool:
        return bool(self._tls.eof_received())

    # What the lanes ask of a connection.

    def hand_over(self) -> None:
        """Count it out: TLS is ready, and a lane takes its place."""
        self._is_secured = True
        self._lanes.remove(self)

    def shutdown(self) -> None:
        """End it, for the server stops."""
        self._raw.abort()

    def check_time(self) -> None:
        """End a handshake that takes too long."""
        if self._lanes.now_seconds - self._since > self._lanes.settings.header_timeout_seconds:
            self._raw.abort()

    # What TLS asks of the transport below it.

    def write(self, data: bytes) -> None:
        """Write what is encrypted."""
        self._raw.write(data)

    def pause_reading(self) -> None:
        """Give no more: what was given is not taken."""
        self._tls_pauses = True
        self._look_on()

    def resume_reading(self) -> None:
        """Give more."""
        self._tls_pauses = False
        self._look_on()

    def is_closing(self) -> bool:
        """Tell whether the connection ends."""
        return self._raw.is_closing()

    def close(self) -> None:
        """End it when all is written."""
        self._raw.close()

    def abort(self) -> None:
        """Break it off."""
        self._raw.abort()

    def _force_close(self, exc: BaseException | None) -> None:  # noqa: ARG002 - asyncio's
        self._raw.abort()

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return what is known of the connection."""
        return self._raw.get_extra_info(name, default)


def _tls_of(loop: asyncio.AbstractEventLoop) -> Any:  # noqa: ANN401 - two classes that know nothing of each other
    """Return the TLS that belongs to a loop: its own is faster, and takes no other loop."""
    try:
        import uvloop.loop  # noqa: PLC0415 - not on every platform
    except ModuleNotFoundError:
        return SSLProtocol
    return uvloop.loop.SSLProtocol if isinstance(loop, uvloop.Loop) else SSLProtocol  # type: ignore[attr-defined]


class _Secured(Lane):
    """A lane on a connection whose TLS is ready."""

    __slots__ = ("_ciphertext",)

    def __init__(self, lanes: Lanes, ciphertext: Ciphertext) -> None:
        super().__init__(lanes)
        self._ciphertext = ciphertext

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._ciphertext.hand_over()
        super().connection_made(transport)
