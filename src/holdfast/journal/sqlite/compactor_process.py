"""The compactor: a child process that writes the archive instead of the server's loop.

It reads orders from a socket pair. When that closes, with the server, it rolls back and ends. It is niced: claims come
first. It ignores `SIGINT` and `SIGTERM`, which are meant for the server. A message is a length, then MessagePack.

    server                                     compactor
    Setup                        ──────────►   opens the archive
                                 ◄──────────   Position: its journal, and how far it has come
    Batches…, Changes…           ──────────►   writes each
    Commit                       ──────────►   commits
                                 ◄──────────   Position: how far it has come now

On any failure the compactor answers `Failed` and ends.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import apsw
import msgspec

from holdfast import __version__
from holdfast.journal.failpoints import arm
from holdfast.journal.interface import Changes, JournalError, OutcomeUnknownError, Retention
from holdfast.journal.sqlite.archive import Position, open_for_writing, truncate_wal
from holdfast.journal.sqlite.archive_writer import Batches, Commit, Writer
from holdfast.journal.sqlite.store import DiskFullError

LENGTH = struct.Struct("<I")


class Setup(msgspec.Struct, frozen=True, array_like=True, tag="setup"):
    path: str
    identity: int
    retention: Retention
    version: str  # Of the server: only a compactor of the same version may write.


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    text: str


Order = Setup | Batches | Changes | Commit
Answer = Position | Failed

_encode = msgspec.msgpack.Encoder().encode
_order_of = msgspec.msgpack.Decoder(Order).decode
answer_of: Callable[[bytes], Answer] = msgspec.msgpack.Decoder(Answer).decode


def framed(message: Order | Answer) -> bytes:
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


NICE = 5  # After the server, but high enough to catch up when every core is busy.


def serve(connection: socket.socket) -> None:
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
                writer = Writer(store, setup.retention)
                connection.sendall(framed(writer.position))
                while (order := _read_order(orders)) is not None:
                    if isinstance(order, Setup):
                        raise JournalError("archive: the archivist was set up twice")
                    writer.do(order)
                    if isinstance(order, Commit):
                        connection.sendall(framed(writer.position))
            except DiskFullError:
                truncate_wal(store)
                raise
            finally:
                store.close()
        except (BrokenPipeError, ConnectionResetError):
            return
        except (DiskFullError, apsw.FullError) as error:
            _send_failure(connection, f"archive: the disk is full: {error}")
        except OutcomeUnknownError as error:
            # The server reads the file to know.
            _send_failure(connection, f"archive: the commit failed: {error.__cause__}")
        except JournalError as error:
            _send_failure(connection, "archive: " + str(error).removeprefix("archive: "))
        except Exception as error:  # noqa: BLE001 - the server reports whatever it is
            _send_failure(connection, f"archive: the archivist failed: {type(error).__name__}: {error}")


def _send_failure(connection: socket.socket, text: str) -> None:
    with contextlib.suppress(OSError):  # The server may have ended.
        connection.sendall(framed(Failed(text)))


def main() -> None:
    """Serve the socket whose descriptor is the argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(NICE)
    # A step creates 100,000s of rows, none of them in a cycle: collecting would double its time.
    gc.disable()
    os.umask(0o077)
    arm(os.environ)
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        serve(connection)


if __name__ == "__main__":
    main()
