"""How many bytes of large bodies are kept until they are answered: bounded for each principal, and for all of them.

The counterpart of `doors/untaken`. A body over 16 KiB counts as soon as its sender is known and as large as its head
says, or as large as its route takes; until it is answered, for until then it is kept, or its request waits:

    ana       conn 7 ── conn 9 ── conn 12      over USER_BYTES_MAX: the next is refused, 429
    ben       conn 8
    all       ana + ben + ...                  over ALL_BYTES_MAX: the next is refused, 503

The last `SPARE_BYTES` of all are for those who have little, so that a few users cannot shut the others out. Small
bodies are never counted. Those of strangers have bounds of their own (`nodes/bearers`), and what a mounted application
keeps is its own to bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from holdfast.server.doors.request import Request

USER_BYTES_MAX = 32 * 2**20
ALL_BYTES_MAX = 256 * 2**20
SPARE_BYTES, LITTLE_BYTES = 64 * 2**20, 4 * 2**20
RETRY_MS = 1_000


class Receiving:
    """Counts the large bodies that are kept, and refuses the next where there are too many."""

    def __init__(self) -> None:
        self.kept: dict[Request, tuple[object, str, int]] = {}
        """On which connection each came, whose it is and how large. Empty nearly always: look before you `free`."""
        self._on: dict[object, dict[Request, None]] = {}
        self._has: dict[str, int] = {}
        self.bytes = 0
        """Of all together."""

    def take(self, connection: object, request: Request, who: str, size: int) -> None:
        """Count a body that is to be kept, or raise that it must not be."""
        has = self._has.get(who, 0)
        if has and has + size > USER_BYTES_MAX:
            text = f"This access token has {has} bytes of large bodies under way, and {USER_BYTES_MAX} is the most:"
            text += " wait for answers before you send more, or send fewer names in one request."
            raise Problem("quota_exceeded", text, retry_after_ms=RETRY_MS)
        most = ALL_BYTES_MAX if has + size <= LITTLE_BYTES else ALL_BYTES_MAX - SPARE_BYTES
        if self.bytes and self.bytes + size > most:
            text = "Too many large bodies are under way: try again, or send fewer names in one request."
            raise Problem("overloaded", text, retry_after_ms=RETRY_MS)
        self.kept[request] = connection, who, size
        self._on.setdefault(connection, {})[request] = None
        self._has[who] = has + size
        self.bytes += size

    def free(self, request: Request) -> None:
        """Know that a body is kept no more, if it was counted."""
        found = self.kept.pop(request, None)
        if found is None:
            return
        connection, who, size = found
        self.bytes -= size
        self._has[who] -= size
        if not self._has[who]:
            del self._has[who]
        del self._on[connection][request]
        if not self._on[connection]:
            del self._on[connection]

    def drop(self, connection: object) -> None:
        """Know that nothing is kept for a connection any more."""
        for request in list(self._on.get(connection, ())):
            self.free(request)
