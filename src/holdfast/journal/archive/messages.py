"""What a server and its archivist say to each other, over a socket pair: a length, then MessagePack.

    server                                     archivist
    Setup                        ──────────►   opens the archive
                                 ◄──────────   Position: whose it is, and how far it has come
    Begin, Batches…, Changed…    ──────────►   writes them, as they come
    Commit                       ──────────►   commits
                                 ◄──────────   Position: as far as it has come now

Whatever fails, the archivist says `Failed` and ends. So what either says is always to the point.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import msgspec

from holdfast.journal.archive.file import Position
from holdfast.journal.base import Keeping

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTH = struct.Struct("<I")


class Setup(msgspec.Struct, frozen=True, array_like=True, tag="setup"):
    """Which archive, and how much history is kept."""

    path: str
    identity: int
    keeping: Keeping
    version: str
    """Of the server. Only an archivist of the same version may write what that one reads."""


class Begin(msgspec.Struct, frozen=True, array_like=True, tag="begin"):
    """A step begins after this record."""

    upto: int


class Batches(msgspec.Struct, frozen=True, array_like=True, tag="batches"):
    """Some batches, as the journal has them: first number, last number, bytes."""

    rows: list[tuple[int, int, bytes]]


class Changed(msgspec.Struct, frozen=True, array_like=True, tag="changed"):
    """Some values that changed, as `Changes` has them."""

    table: str
    gone: list[bytes]
    changed: list[tuple[bytes, bytes]]
    new: list[tuple[bytes, bytes]]


class Commit(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """That was all of the step. With no head there was nothing new, and history is looked through."""

    upto: int
    head: bytes | None
    wall_ms: int


class Reached(msgspec.Struct, frozen=True, array_like=True, tag="reached"):
    """How far the archive has come, durably."""

    position: Position


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """Why the archivist ends."""

    text: str


Order = Setup | Begin | Batches | Changed | Commit
Answer = Reached | Failed

_encode = msgspec.msgpack.Encoder().encode
_order_of = msgspec.msgpack.Decoder(Order).decode
_answer_of = msgspec.msgpack.Decoder(Answer).decode


def framed(message: Order | Answer) -> bytes:
    """Return a message as it is sent."""
    body = _encode(message)
    return LENGTH.pack(len(body)) + body


def read_order(receive: Callable[[int], bytes]) -> Order | None:
    """Return the next order; None at the end. `receive` returns so many bytes, or fewer at the end."""
    head = receive(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    body = receive(length)
    return _order_of(body) if len(body) == length else None


def answer_of(body: bytes) -> Answer:
    """Return what an answer says."""
    answer: Answer = _answer_of(body)
    return answer
