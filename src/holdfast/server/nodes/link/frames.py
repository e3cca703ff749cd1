"""What goes over a link between two nodes: frames, each with its length before it, then MessagePack.

    ┌────────┬──────────────┬────────┬──────────────┬──
    │ length │ a frame      │ length │ a frame      │      all of one turn of the loop in one write
    └────────┴──────────────┴────────┴──────────────┴──
      4 bytes, the largest first

A connection that is to be a link begins with `PREFIX`, which no HTTP request begins with: so links come in on the port
that clients use. Then the follower and the leader prove to each other who they are (`handshake`), and from then on:

    follower ─► leader     Asked      a request, with a number that is never used again on this link
                           More       so many more bytes of a stream may come
                           Gone       nobody waits for the answer to this number any more
    leader ─► follower     Recognised who asks, of a request that waits in line: its answer may be long in coming
                           Answered   the whole answer to a number
                           Begun, Piece …, Over     an answer in pieces: a stream
    both                   Ping       we are still here; the leader's says whether it serves

**Lengths are never trusted.** A length beyond the most ends the link. One within it makes us keep nothing: what is kept
are the bytes that have come, and they are put together once, when all of a frame are there. What a frame holds is
checked against its type when it is read.
"""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

import msgspec

PREFIX = b"HFLINK/1\n"
NONCE_BYTES = 32
HELLO_BYTES_MAX = 1_024
"""The largest frame of one who has not proved itself yet."""
ASKED_SPARE_BYTES = 65_536
"""What a frame with a request may have beside the request's head and body."""
ANSWER_BYTES_MAX = 64 * 2**20
"""The largest answer. Lists are pages and streams come in pieces, so none of ours comes near."""

Fields: TypeAlias = tuple[tuple[bytes, bytes], ...]

_LENGTH = struct.Struct(">I")


class BadFrameError(Exception):
    """What came over a link is not what a node sends. The link is of no use any more."""


class _Frame(msgspec.Struct, array_like=True, gc=False):
    """One frame."""


class Hello(_Frame, tag=1):
    """The follower's first word: which tenure the link is for, and its random bytes."""

    authority: str
    epoch: int
    tenure: str
    nonce: bytes


class Greeting(_Frame, tag=2):
    """The leader's answer: its own random bytes, and the proof that it is the leader of that tenure."""

    nonce: bytes
    proof: bytes


class Proof(_Frame, tag=3):
    """The follower's proof that it is a node of the same authority."""

    proof: bytes


class Welcome(_Frame, tag=4):
    """The leader takes requests from now on."""

    asked_bytes_max: int
    """The largest frame with a request that it takes. Settings may differ: what is larger is not sent."""


class Ping(_Frame, tag=5):
    """The sender is still here."""

    serves: bool | None = None
    """Whether it answers requests now. A leader whose store is silent does not. None: it does not say."""


class Asked(_Frame, tag=6):
    """A request that a client sent to a follower."""

    number: int
    method: bytes
    path: bytes
    query: bytes
    headers: dict[bytes, bytes]
    """The fields that somebody looks at, by lower-case names."""
    body: bytes
    client: str
    """The client's address, as the follower knows it after its own trusted proxies."""
    scheme: str
    """`http` or `https`, whichever the client used."""
    held_ms: int
    """How long ago the follower received it."""
    request_id: str
    in_pieces: bool
    """Whether the answer is a stream."""


class More(_Frame, tag=7):
    """The follower's client took so many bytes of a stream: as many more may come."""

    number: int
    size: int


class Gone(_Frame, tag=8):
    """Nobody waits for the answer any more."""

    number: int


class Answered(_Frame, tag=9):
    """The whole answer to a request."""

    number: int
    status: int
    body: bytes
    headers: Fields
    principal: str | None
    """Who asked, as far as it is known; None for a stranger."""


class Begun(_Frame, tag=10):
    """The beginning of an answer in pieces."""

    number: int
    status: int
    headers: Fields
    principal: str | None


class Piece(_Frame, tag=11):
    """A piece of one."""

    number: int
    body: bytes


class Over(_Frame, tag=12):
    """The end of one. If it is not whole, the client must not take it for the whole."""

    number: int
    is_whole: bool


class Recognised(_Frame, tag=13):
    """Who asks, of a request that waits in line. The answer says it too, but that may take nearly a minute."""

    number: int
    principal: str


ToLeader: TypeAlias = Hello | Proof | Ping | Asked | More | Gone
ToFollower: TypeAlias = Greeting | Welcome | Ping | Answered | Begun | Piece | Over | Recognised

_encode = msgspec.msgpack.Encoder().encode


def framed(frame: ToLeader | ToFollower) -> bytes:
    """Return a frame as it is sent."""
    data = _encode(frame)
    return _LENGTH.pack(len(data)) + data


class Decoder:
    """Makes frames of the bytes that come in. `put` what came, then take with `next` until there is none."""

    def __init__(self, kinds: Any, bytes_max: int) -> None:  # noqa: ANN401 - a union of types is of no type
        """`kinds` are the frames that may come."""
        self.bytes_max = bytes_max
        self._decode = msgspec.msgpack.Decoder(kinds).decode
        self._parts: list[bytes] = []
        """What came and is not put together yet; the first begins with a length."""
        self._parts_bytes = 0
        self._wanted_bytes = _LENGTH.size
        """So many must be there before it is worth another look."""
        self._data = b""
        self._at = 0

    def put(self, data: bytes) -> None:
        """Take what came in."""
        self._parts.append(data)
        self._parts_bytes += len(data)

    def next(self) -> Any:  # noqa: ANN401 - one of `kinds`
        """Return the next frame, or None if not all of it is there. Raises `BadFrameError`."""
        if self._parts and not self._gather():
            return None
        data, at = self._data, self._at
        begins = at + _LENGTH.size
        if begins > len(data):
            return self._none(_LENGTH.size)
        (size,) = _LENGTH.unpack_from(data, at)
        if size > self.bytes_max:
            raise BadFrameError(f"a frame of {size} bytes was announced, and {self.bytes_max} is the most")
        ends = begins + size
        if ends > len(data):
            return self._none(_LENGTH.size + size)
        self._at = ends
        try:
            return self._decode(memoryview(data)[begins:ends])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadFrameError(f"a frame cannot be read: {error}") from error

    def _gather(self) -> bool:
        """Put together what came, if that makes at least one frame. Many small parts are joined once."""
        left_bytes = len(self._data) - self._at
        if left_bytes + self._parts_bytes < self._wanted_bytes:
            return False
        self._data = b"".join((self._data[self._at :], *self._parts))
        self._at = 0
        self._parts, self._parts_bytes = [], 0
        self._wanted_bytes = _LENGTH.size
        return True

    def _none(self, wanted_bytes: int) -> None:
        """Know how much is missing, and keep no more than that."""
        self._wanted_bytes = wanted_bytes
        self._data, self._at = self._data[self._at :], 0
