"""TLS inside TLS: to a server that speaks it, through a proxy that is spoken to with TLS as well.

A socket of Python speaks TLS over a plain one only. This is as much of a socket as a connection needs, over another
that speaks TLS already.
"""

from __future__ import annotations

import io
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

T = TypeVar("T")

RECORD_BYTES = 16_384


class NestedTls:
    """Speaks TLS through a socket that speaks TLS."""

    def __init__(self, outer: socket.socket, context: ssl.SSLContext, host: str) -> None:
        """Shake hands."""
        self.outer = outer
        self._heard, self._said = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._heard, self._said, server_hostname=host)
        self._do(self._tls.do_handshake)

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        sent = 0
        while sent < len(data):
            sent += self._do(partial(self._tls.write, data[sent : sent + RECORD_BYTES]))

    def recv(self, size: int) -> bytes:
        """Read what there is, at most so much, after waiting for some; nothing at the end."""
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(buffer)])

    def recv_into(self, buffer: Any) -> int:  # noqa: ANN401 - any buffer
        """Read what there is, after waiting for some; 0 at the end."""
        try:
            # It says `bytes` of what it returns; into a buffer it returns how many.
            return cast("int", self._do(partial(self._tls.read, len(buffer), buffer)))
        except ssl.SSLZeroReturnError:
            return 0

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a file to read from. Closing it leaves the connection open."""
        return io.BufferedReader(_Reading(self))

    def settimeout(self, seconds: float | None) -> None:
        """Wait for so long at most."""
        self.outer.settimeout(seconds)

    def gettimeout(self) -> float | None:
        """Return how long it waits at most."""
        return self.outer.gettimeout()

    def fileno(self) -> int:
        """Return what can be looked at: whether there is something to read."""
        return self.outer.fileno()

    def close(self) -> None:
        """Hang up."""
        self.outer.close()

    def _do(self, step: Callable[[], T]) -> T:
        """Take one step of TLS, and carry between it and the outer connection what that needs."""
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                self._flush()
            else:
                self._flush()
                return result
            data = self.outer.recv(RECORD_BYTES)
            if data:
                self._heard.write(data)
            else:
                self._heard.write_eof()

    def _flush(self) -> None:
        if self._said.pending:
            self.outer.sendall(self._said.read())


class _Reading(io.RawIOBase):
    """The side that is read from, as a file."""

    def __init__(self, nested: NestedTls) -> None:
        super().__init__()
        self._nested = nested

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any buffer
        return self._nested.recv_into(buffer)
