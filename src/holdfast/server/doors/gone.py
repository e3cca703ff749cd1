"""The transport of a connection that is over: it takes everything and does nothing.

A lane lets go of its own transport at its end. With TLS that one holds on to the lane, and such a circle would stay,
with all that was encrypted for it, until the garbage collector comes.
"""

from __future__ import annotations

import asyncio


class _Gone(asyncio.Transport):
    """Nobody is there."""

    def is_closing(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


GONE = _Gone()
