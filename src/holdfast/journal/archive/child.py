"""The archivist: a process of its own that writes the archive, so that the server's loop does not.

It does what it is told over a socket pair, and ends when that ends: with the server, however that ends. What it was in
the middle of is rolled back then. It is niced: whoever claims comes first. A signal that is meant for the server does
not reach it (`SIGINT` of a terminal, `SIGTERM` of a supervisor): the server ends it by closing the socket.

Both send messages: a length, then MessagePack.

    server                                     archivist
    Setup                        ──────────►   opens the archive
                                 ◄──────────   Position: whose it is, and how far it has come
    Begin, Batches…, Changed…    ──────────►   writes them, as they come
    Commit                       ──────────►   commits
                                 ◄──────────   Position: as far as it has come now

Whatever fails, the archivist says `Failed` and ends. So what either says is always to the point.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import msgspec

from holdfast import __version__
from holdfast.journal.archive.file import Position, give_back, open_for_writing
from holdfast.journal.archive.writer import Writer
from holdfast.journal.base import Changes, JournalError, Keeping, OutcomeUnknownError
from holdfast.journal.failpoints import arm
from holdfast.journal.store import DiskFullError

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


NICE = 5
"""Behind whoever claims, and not so far that it would never catch up where every core is busy."""


def serve(connection: socket.socket) -> None:
    """Do what is asked until there is nobody to ask."""
    with connection.makefile("rb") as orders:
        try:
            setup = read_order(orders.read)
            if not isinstance(setup, Setup):
                return
            if setup.version != __version__:
                text = f"archive: Holdfast {__version__} was installed after the server, {setup.version}, was started"
                raise JournalError(text, "Restart the server")
            store = open_for_writing(Path(setup.path), setup.identity)
            try:
                writer = Writer(store, setup.keeping)
                connection.sendall(framed(Reached(writer.position)))
                while (order := read_order(orders.read)) is not None:
                    _do(order, writer, connection)
            except DiskFullError:
                give_back(store)
                raise
            finally:
                store.close()
        except (BrokenPipeError, ConnectionResetError):
            return
        except (DiskFullError, apsw.FullError) as error:
            _tell(connection, f"archive: the disk is full: {error}")
        except OutcomeUnknownError as error:
            # Unknown here alone: the server reads the file, and knows.
            _tell(connection, f"archive: the commit failed: {error.__cause__}")
        except JournalError as error:
            _tell(connection, "archive: " + str(error).removeprefix("archive: "))
        except Exception as error:  # noqa: BLE001 - Whatever it is, the server says it.
            _tell(connection, f"archive: the archivist failed: {type(error).__name__}: {error}")


def _do(order: Order, writer: Writer, connection: socket.socket) -> None:
    match order:
        case Begin(upto):
            if upto != writer.position.upto:
                raise JournalError(f"archive: it reaches up to record {writer.position.upto}, and not {upto}")
            writer.begin()
        case Batches(rows):
            for first, last, body in rows:
                writer.enter(first, last, body)
        case Changed(table, gone, changed, new):
            writer.change(Changes(table, gone, changed, new))
        case Commit(upto, head, wall_ms):
            if head is None:
                writer.prune(wall_ms)
            else:
                writer.commit(upto, head, wall_ms)
            connection.sendall(framed(Reached(writer.position)))
        case _:
            raise JournalError("archive: the archivist was set up twice")


def _tell(connection: socket.socket, text: str) -> None:
    try:
        connection.sendall(framed(Failed(text)))
    except OSError:
        # Nobody listens any more: the server ended.
        return


def main() -> None:
    """Be the archivist of the server at the other end of a socket, whose number is the argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(NICE)
    # A step makes some hundred thousand rows, none of them in a circle. Looking for circles would take as long again.
    gc.disable()
    os.umask(0o077)
    arm(os.environ)
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        serve(connection)


if __name__ == "__main__":
    main()
