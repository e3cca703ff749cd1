"""The protocol between two nodes: length-prefixed MessagePack frames, and the handshake.

    ┌────────┬──────────────┬────────┬──────────────┬──
    │ length │ a frame      │ length │ a frame      │      all of one tick of the loop in one write
    └────────┴──────────────┴────────┴──────────────┴──
      4 bytes, the largest first

A connection that is to be a link begins with `PREFIX`, which no HTTP request begins with: so links arrive on the port
that clients use. After the handshake:

    follower ─► leader     RequestFrame   a request, with a number that is never reused on this link
                           WindowUpdate   flow control: so many more bytes of a stream may be sent
                           CancelFrame    the client of this number disconnected
    leader ─► follower     CallerFrame    the principal of a request that waits in the queue: it may take a minute
                           ResponseFrame  the complete response to a number
                           StreamStart, StreamData …, StreamEnd     a streamed response
    both                   Ping           keepalive; the leader's says whether it serves

A length beyond the limit ends the link; one within it reserves nothing. Decoding checks a frame against its type.

**The handshake** proves to both sides that they belong together, before anything else is sent:

    follower                                              leader
       │  Hello(authority, epoch, term, f)                  │      f: 32 random bytes of the follower
       ├───────────────────────────────────────────────────►│
       │  Greeting(l, HMAC(key, "leader", …, f, l))         │      l: 32 random bytes of the leader
       │◄───────────────────────────────────────────────────┤
       │  Proof(HMAC(key, "follower", …, f, l))             │
       ├───────────────────────────────────────────────────►│
       │  Welcome                                           │
       │◄───────────────────────────────────────────────────┤

The key is the authority's; it never leaves a node. `…` is the leader term: its authority, epoch and random digits. So a
link is for one term, a proof is good for one link, and the role in it keeps it from being reflected. The leader proves
itself first, because the bearer tokens of clients go to it. Confidentiality is left to TLS.

**Both ends** handle `FRAMES_PER_TICK` received frames before other connections have their turn. Reading is paused
meanwhile, so at most one read of the socket waits here.

`tick` sends a ping every second, and ends the link after `SILENT_TICKS_MAX` ticks without a sign of the peer. A pause
of our own counts as one tick, however long it was. While we pause reading, a peer that takes what we write is not
silent.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import struct
from typing import Any, TypeAlias

import msgspec

from holdfast.http.connection import NULL_TRANSPORT
from holdfast.http.manager import ConnectionManager

PREFIX = b"HFLINK/1\n"
NONCE_BYTES = 32
HELLO_BYTES_MAX = 1_024  # The largest frame before the proof.
REQUEST_SPARE_BYTES = 65_536  # A request frame's overhead, beyond head and body.
ANSWER_BYTES_MAX = 64 * 2**20  # Lists are paginated and streams come in pieces, so no response comes near.

Fields: TypeAlias = tuple[tuple[bytes, bytes], ...]

_LEADER, _FOLLOWER = "leader", "follower"
_PURPOSE = "holdfast link 1"
_LENGTH = struct.Struct(">I")


class BadFrameError(Exception):
    """The peer sent what no node sends; the link must be closed."""


class HandshakeError(Exception):
    """The peer is not who it must be. The text says what to check."""


class _Frame(msgspec.Struct, array_like=True, gc=False):
    pass


class Hello(_Frame, tag=1):
    authority: str
    epoch: int
    term: str
    nonce: bytes


class Greeting(_Frame, tag=2):
    nonce: bytes
    proof: bytes


class Proof(_Frame, tag=3):
    proof: bytes


class Welcome(_Frame, tag=4):
    request_bytes_max: int  # The leader's limit for a request frame; settings may differ. Larger ones are not sent.


class Ping(_Frame, tag=5):
    serves: bool | None = None  # Whether the leader answers: not while its store is silent. None: from a follower.


class RequestFrame(_Frame, tag=6):
    number: int
    method: bytes
    path: bytes
    query: bytes
    headers: dict[bytes, bytes]  # Those read at the leader, by lower-case names.
    body: bytes
    client: str  # The address, after the follower's trusted proxies.
    scheme: str
    held_ms: int  # How long ago the follower received it.
    request_id: str
    is_streaming: bool


class WindowUpdate(_Frame, tag=7):
    number: int
    size: int


class CancelFrame(_Frame, tag=8):
    number: int


class ResponseFrame(_Frame, tag=9):
    number: int
    status: int
    body: bytes
    headers: Fields
    principal: str | None  # None: the caller was not authenticated.


class StreamStart(_Frame, tag=10):
    number: int
    status: int
    headers: Fields
    principal: str | None


class StreamData(_Frame, tag=11):
    number: int
    body: bytes


class StreamEnd(_Frame, tag=12):
    number: int
    is_complete: bool  # False: the client must not take it for a complete response.


class CallerFrame(_Frame, tag=13):
    number: int
    principal: str


ToLeader: TypeAlias = Hello | Proof | Ping | RequestFrame | WindowUpdate | CancelFrame
ToFollower: TypeAlias = Greeting | Welcome | Ping | ResponseFrame | StreamStart | StreamData | StreamEnd | CallerFrame

_encode = msgspec.msgpack.Encoder().encode


def framed(frame: ToLeader | ToFollower) -> bytes:
    data = _encode(frame)
    return _LENGTH.pack(len(data)) + data


class Decoder:
    """Decodes received bytes: `put` them, then call `next` until it returns None."""

    def __init__(self, kinds: Any, bytes_max: int) -> None:  # noqa: ANN401 - a union of types is of no type
        self.bytes_max = bytes_max
        self._decode = msgspec.msgpack.Decoder(kinds).decode
        self._data = bytearray()
        self._at = 0  # Where the next frame begins.

    def put(self, data: bytes) -> None:
        del self._data[: self._at]
        self._at = 0
        self._data += data

    def next(self) -> Any:  # noqa: ANN401 - one of `kinds`
        """Return the next frame, or None if it is incomplete. Raises `BadFrameError`."""
        begins = self._at + _LENGTH.size
        if begins > len(self._data):
            return None
        (size,) = _LENGTH.unpack_from(self._data, self._at)
        if size > self.bytes_max:
            raise BadFrameError(f"a frame of {size} bytes was announced, and {self.bytes_max} is the most")
        ends = begins + size
        if ends > len(self._data):
            return None
        self._at = ends
        with memoryview(self._data) as data, data[begins:ends] as frame:
            try:
                return self._decode(frame)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise BadFrameError(f"a frame cannot be read: {error}") from error


class TermCredentials(msgspec.Struct, frozen=True):
    """The leader term that a link is for, and the key that proves membership."""

    authority: str
    epoch: int
    term: str
    key: bytes


class Handshake:
    """One side of a handshake: the follower calls `hello` and `answer`, the leader `greet` and `check`."""

    def __init__(self, credentials: TermCredentials, nonce: bytes) -> None:
        """`nonce` is 32 unguessable bytes, made for this link."""
        self._credentials = credentials
        self._nonce = nonce
        self._expected: bytes | None = None

    def hello(self) -> Hello:
        return Hello(self._credentials.authority, self._credentials.epoch, self._credentials.term, self._nonce)

    def greet(self, hello: Hello) -> Greeting:
        """Prove that we lead the term that the follower names. Raises `HandshakeError` if it names another."""
        credentials = self._credentials
        if (hello.authority, hello.epoch, hello.term) != (
            credentials.authority,
            credentials.epoch,
            credentials.term,
        ):
            raise HandshakeError(f"it wants a link that is not ours: epoch {hello.epoch} of {hello.authority!r}")
        _check_nonce(hello.nonce)
        self._expected = self._proof(_FOLLOWER, hello.nonce, self._nonce)
        return Greeting(self._nonce, self._proof(_LEADER, hello.nonce, self._nonce))

    def answer(self, greeting: Greeting) -> Proof:
        """Return our proof. Raises `HandshakeError` if the leader's is wrong."""
        _check_nonce(greeting.nonce)
        if not hmac.compare_digest(greeting.proof, self._proof(_LEADER, self._nonce, greeting.nonce)):
            raise HandshakeError("it does not know the authority's key: no request is passed on to it")
        return Proof(self._proof(_FOLLOWER, self._nonce, greeting.nonce))

    def check(self, proof: Proof) -> None:
        if self._expected is None or not hmac.compare_digest(proof.proof, self._expected):
            raise HandshakeError("it does not know the authority's key")

    def _proof(self, role: str, followers: bytes, leaders: bytes) -> bytes:
        # As MessagePack, so that no two lists of parts have the same encoding.
        credentials = self._credentials
        parts = (_PURPOSE, role, credentials.authority, credentials.epoch, credentials.term, followers, leaders)
        return hmac.digest(credentials.key, msgspec.msgpack.encode(parts), hashlib.sha256)


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise HandshakeError(f"nonce is {len(nonce)} bytes, expected {NONCE_BYTES}")


FRAMES_PER_TICK = 64
SILENT_TICKS_MAX = 3
UNSENT_BYTES_MAX = 1_048_576  # In the write buffer: beyond it the leader stops reading, the follower holds requests.
LINGER_SECONDS = 1  # How long the peer has to take the last that was sent.

log = logging.getLogger("holdfast.server.nodes")


class FramedProtocol(asyncio.Protocol):
    has_backpressure = False  # Whether reading is paused while writing is.

    def __init__(self, manager: ConnectionManager, decoder: Decoder) -> None:
        self.loop = asyncio.get_running_loop()
        self.manager = manager
        self.decoder = decoder
        self.transport: asyncio.Transport = NULL_TRANSPORT
        self.is_over = False
        self.is_writing_paused = False
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._written_bytes = self._taken_bytes = 0
        self._silent_ticks = 0
        self._is_deferred = self._is_reading_paused = False

    # What each end overrides.

    def receive(self, frame: ToLeader | ToFollower) -> None:
        """Handle a frame. Raises `BadFrameError` or `HandshakeError` if the link must end."""
        raise BadFrameError(f"unexpected frame: {type(frame).__name__}")

    def ping(self) -> Ping:
        return Ping()

    def lost(self) -> None:
        """Called once, when the link is over."""

    def log_end(self, why: str, bug: Exception | None = None) -> None:
        """Log why the link ends; `bug` is an unexpected error."""
        log.log(logging.ERROR if bug else logging.WARNING, "a link with %s ends: %s", self.peer, why, exc_info=bug)

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
        if not self._is_deferred:
            self._process_frames()

    def resume(self) -> None:
        """Continue: called by the run queue."""
        self._is_deferred = False
        self._process_frames()

    def _process_frames(self) -> None:
        try:
            for _ in range(FRAMES_PER_TICK):
                frame = None if self.is_over else self.decoder.next()
                if frame is None:
                    break
                self.receive(frame)
            else:
                self._is_deferred = True
                self.manager.defer(self)
        except (BadFrameError, HandshakeError) as error:
            self.log_end(str(error))
            self.end()
        except Exception as bug:  # noqa: BLE001 - it is logged
            self.log_end("a bug", bug)
            self.end()
        self._update_reading()

    @property
    def peer(self) -> str:
        name = self.transport.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) else "another node"

    def _update_reading(self) -> None:
        must_pause = (self._is_deferred or (self.has_backpressure and self.is_writing_paused)) and not self.is_over
        if must_pause == self._is_reading_paused or self.transport.is_closing():
            return
        self._is_reading_paused = must_pause
        if must_pause:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        self.is_writing_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        self.is_writing_paused = False
        self._update_reading()

    # Sending.

    def send(self, frame: ToLeader | ToFollower) -> None:
        self.send_data(framed(frame))

    def send_data(self, data: bytes) -> None:
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
        if self._is_reading_paused and taken_bytes > self._taken_bytes:
            self._silent_ticks = 0
        self._taken_bytes = taken_bytes
        self._silent_ticks += 1
        if self._silent_ticks > SILENT_TICKS_MAX:
            log.warning("a link with %s ends: nothing was heard for %d s", self.peer, SILENT_TICKS_MAX)
            self.end(at_once=True)
        else:
            self.send(self.ping())

    def end(self, *, at_once: bool = False) -> None:
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
