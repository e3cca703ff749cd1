"""Memory limits of large bodies, per principal and in total; slow readers; scheduling delays.

`BodyBudget` counts request bodies over 16 KiB by their announced size, or else the largest of the route, from when the
sender is known until the response. Beyond `USER_BYTES_MAX` the next gets a 429, beyond `ALL_BYTES_MAX` a 503. The last
`SPARE_BYTES` are for principals that have little. Bodies of unauthenticated senders: `nodes/request_queue`.

`WriteBudget` counts response bodies that clients do not read: one per connection, but a principal may have thousands of
connections. Beyond `USER_BYTES_MAX` its oldest connection is aborted (unauthenticated: `ANONYMOUS_BYTES_MAX` in all),
beyond `ALL_BYTES_MAX` the oldest of the largest account.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Protocol

from holdfast.http.messages import Request
from holdfast.wire.problems import Problem

USER_BYTES_MAX = 32 * 2**20
ANONYMOUS_BYTES_MAX = 16 * 2**20
ALL_BYTES_MAX = 256 * 2**20
SPARE_BYTES, LITTLE_BYTES = 64 * 2**20, 4 * 2**20
RETRY_MS = 1_000
READ_BYTES_MIN = 1_024  # A client that reads less within the idle timeout is too slow.
SCHEDSTAT = "/proc/thread-self/schedstat"  # Nanoseconds on a processor, nanoseconds waiting for one, number of runs.


class Runnable(Protocol):
    loop: asyncio.AbstractEventLoop

    def resume(self) -> None: ...


class Connection(Runnable, Protocol):
    is_authenticated: bool  # Whether an authenticated caller has sent a request on it.
    principal: str | None  # The first principal seen. None: none yet, or the connection is a proxy's.

    def abort(self) -> None: ...

    def shutdown(self) -> None: ...  # Close it after the current response: the server stops.

    def check_time(self) -> None: ...


class BodyBudget:
    def __init__(self) -> None:
        self.reserved: dict[Request, tuple[object, str, int]] = {}  # Nearly always empty: check before you call `free`.
        self._by_connection: dict[object, dict[Request, None]] = {}
        self._by_principal: dict[str, int] = {}
        self.bytes = 0

    def take(self, connection: object, request: Request, principal: str, size: int) -> None:
        has = self._by_principal.get(principal, 0)
        if has and has + size > USER_BYTES_MAX:
            text = f"This access token has {has} bytes of large bodies under way, and {USER_BYTES_MAX} is the most:"
            text += " wait for answers before you send more, or send fewer names in one request."
            raise Problem("quota_exceeded", text, retry_after_ms=RETRY_MS)
        most = ALL_BYTES_MAX if has + size <= LITTLE_BYTES else ALL_BYTES_MAX - SPARE_BYTES
        if self.bytes and self.bytes + size > most:
            text = "Too many large bodies are under way: try again, or send fewer names in one request."
            raise Problem("overloaded", text, retry_after_ms=RETRY_MS)
        self.reserved[request] = connection, principal, size
        self._by_connection.setdefault(connection, {})[request] = None
        self._by_principal[principal] = has + size
        self.bytes += size

    def free(self, request: Request) -> None:
        found = self.reserved.pop(request, None)
        if found is None:
            return
        connection, principal, size = found
        self.bytes -= size
        self._by_principal[principal] -= size
        if not self._by_principal[principal]:
            del self._by_principal[principal]
        del self._by_connection[connection][request]
        if not self._by_connection[connection]:
            del self._by_connection[connection]

    def drop(self, connection: object) -> None:
        for request in list(self._by_connection.get(connection, ())):
            self.free(request)


class WriteBudget:
    def __init__(self, principal_of: Callable[[Request], str | None]) -> None:
        self._principal_of = principal_of
        self._bodies: dict[str | None, dict[Connection, int]] = {}  # Oldest first; None: unauthenticated.
        self._by_principal: dict[str | None, int] = {}
        self._owners: dict[Connection, str | None] = {}
        self.bytes = 0

    def note(self, connection: Connection, current: object, rest: memoryview) -> None:
        """Count the body of which `rest` is unwritten; called for each piece that was written."""
        if not rest:
            self.drop(connection)
        elif connection not in self._owners:
            principal = self._principal_of(current) if isinstance(current, Request) else None
            self._add(connection, principal, memoryview(rest.obj).nbytes)

    def _add(self, connection: Connection, principal: str | None, size: int) -> None:
        self._owners[connection] = principal
        self._bodies.setdefault(principal, {})[connection] = size
        self._by_principal[principal] = self._by_principal.get(principal, 0) + size
        self.bytes += size
        most = ANONYMOUS_BYTES_MAX if principal is None else USER_BYTES_MAX
        while self._by_principal.get(principal, 0) > most:
            self._abort_oldest(principal)
        while self.bytes > ALL_BYTES_MAX:
            # This visits every principal, but only when many of them do not read at the same time.
            self._abort_oldest(max(self._by_principal, key=lambda each: self._by_principal[each]))

    def _abort_oldest(self, principal: str | None) -> None:
        oldest = next(iter(self._bodies[principal]))
        self.drop(oldest)
        oldest.abort()

    def drop(self, connection: Connection) -> None:
        if connection not in self._owners:
            return
        principal = self._owners.pop(connection)
        size = self._bodies[principal].pop(connection)
        self._by_principal[principal] -= size
        self.bytes -= size
        if not self._bodies[principal]:
            del self._bodies[principal], self._by_principal[principal]


class SlowReaderTimer:
    """How much was written to one connection, and since when the client reads too little of it."""

    __slots__ = ("_read_bytes", "_since", "written_bytes")

    def __init__(self, now_seconds: int) -> None:
        self.written_bytes = self._read_bytes = 0
        self._since = now_seconds

    def slow_seconds(self, buffered_bytes: int, now_seconds: int) -> int:
        read_bytes = self.written_bytes - buffered_bytes
        if buffered_bytes == 0 or read_bytes - self._read_bytes >= READ_BYTES_MIN:
            self._read_bytes, self._since = read_bytes, now_seconds
        return now_seconds - self._since


class SchedDelay:
    """How long the current thread waited for a processor, as Linux counts it; zero elsewhere."""

    def __init__(self, path: str = SCHEDSTAT) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._seen_ns = self._read()

    def since_last(self) -> float:
        before, self._seen_ns = self._seen_ns, self._read()
        return (self._seen_ns - before) / 1e9

    def _read(self) -> int:
        if self._file is None:
            return 0
        try:
            return int(os.pread(self._file, 128, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return 0

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)
