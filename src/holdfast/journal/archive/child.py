"""The archivist: a process of its own that writes the archive, so that the server's loop does not.

It takes orders from a socket pair, and ends when that closes: with the server, however that ends. The open transaction
is rolled back then. It is niced: claims come first. It ignores signals that are meant for the server (`SIGINT` of a
terminal, `SIGTERM` of a supervisor): the server ends it by closing the socket.

Both send messages: a length, then MessagePack.

    server                                     archivist
    Setup                        ──────────►   opens the archive
                                 ◄──────────   Position: whose it is, and how far it has come
    Batches…, Changes…           ──────────►   writes them, as they come
    Commit                       ──────────►   commits
                                 ◄──────────   Position: as far as it has come now

On any failure the archivist answers `Failed` and ends.
"""

from __future__ import annotations

import contextlib
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
from holdfast.journal.archive.writer import Batches, Commit, Writer
from holdfast.journal.base import Changes, JournalError, Keeping, OutcomeUnknownError
from holdfast.journal.failpoints import arm
from holdfast.journal.store import DiskFullError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

LENGTH = struct.Struct("<I")


class Setup(msgspec.Struct, frozen=True, array_like=True, tag="setup"):
    """Which archive, and how much history is kept."""

    path: str
    identity: int
    keeping: Keeping
    version: str
    """Of the server. Only an archivist of the same version may write what that one reads."""


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """Why the archivist ends."""

    text: str


Order = Setup | Batches | Changes | Commit
Answer = Position | Failed

_encode = msgspec.msgpack.Encoder().encode
_order_of = msgspec.msgpack.Decoder(Order).decode
answer_of: Callable[[bytes], Answer] = msgspec.msgpack.Decoder(Answer).decode


def framed(message: Order | Answer) -> bytes:
    """Return a message as it is sent."""
    body = _encode(message)
    return LENGTH.pack(len(body)) + body


def _read_order(orders: BinaryIO) -> Order | None:
    """Return the next order; None at the end."""
    head = orders.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    body = orders.read(length)
    return _order_of(body) if len(body) == length else None


NICE = 5
"""Behind the server, and not so far that it would never catch up where every core is busy."""


def serve(connection: socket.socket) -> None:
    """Follow orders until the connection ends."""
    with connection.makefile("rb") as orders:
        try:
            setup = _read_order(orders)
            if not isinstance(setup, Setup):
                return
            if setup.version != __version__:
                text = f"archive: Holdfast {__version__} was installed after the server, {setup.version}, was started"
                raise JournalError(text, "Restart the server")
            store = open_for_writing(Path(setup.path), setup.identity)
            try:
                writer = Writer(store, setup.keeping)
                connection.sendall(framed(writer.position))
                while (order := _read_order(orders)) is not None:
                    if isinstance(order, Setup):
                        raise JournalError("archive: the archivist was set up twice")
                    writer.do(order)
                    if isinstance(order, Commit):
                        connection.sendall(framed(writer.position))
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
            # Only unknown here: the server reads the file.
            _tell(connection, f"archive: the commit failed: {error.__cause__}")
        except JournalError as error:
            _tell(connection, "archive: " + str(error).removeprefix("archive: "))
        except Exception as error:  # noqa: BLE001 - Whatever it is, the server says it.
            _tell(connection, f"archive: the archivist failed: {type(error).__name__}: {error}")


def _tell(connection: socket.socket, text: str) -> None:
    with contextlib.suppress(OSError):  # The server may have ended.
        connection.sendall(framed(Failed(text)))


def main() -> None:
    """Serve the socket whose descriptor is the argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(NICE)
    # A step makes some hundred thousand rows, none of them in a cycle. Collecting would take as long again.
    gc.disable()
    os.umask(0o077)
    arm(os.environ)
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        serve(connection)


if __name__ == "__main__":
    main()
