"""State shared by all connections of one server: the handler, admission, throttling, time.

**Admission.** When there are too many connections, the oldest unauthenticated one is closed (TLS handshakes too), never
a user's. The last tenth of the places is for principals that have few connections (`admit`).

**Run queue.** A connection that has more to do than `MAX_STEPS_PER_TICK` goes on in the run queue, which runs for at
most `RUN_QUEUE_MS` between two polls of the sockets, round robin.

**Throttling.** While a principal whose request took long is throttled, its connections yield to all others, and one of
its requests is started between two polls, so others wait for one such request. If nobody else sends requests, throttled
principals get the whole run queue. A large response is written later, so it is charged by its size. Scheduling delays
(`SchedDelay`) and the time that leases took to expire are not charged. When the throttling ends, waiting connections go
on immediately: otherwise newer requests would overtake them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from typing import Generic, TypeAlias, TypeVar

import msgspec

from holdfast.config import Settings
from holdfast.engine.clock import Clock
from holdfast.http.limits import BodyBudget, Connection, Runnable, SchedDelay, WriteBudget
from holdfast.http.messages import SMALL_BODY_BYTES, Fields, Request, ResponsePrefix, StreamHandler
from holdfast.http.proxies import Proxies
from holdfast.wire.problems import Problem

RUN_QUEUE_MS = 4
LONG_SECONDS = 0.002  # A longer request is charged: nearly all take a tenth of it or less.
THROTTLE_FACTOR, THROTTLE_MS_MAX = 20, 1_000  # Throttle duration, as a multiple of the request's time.
RESPONSE_SECONDS_PER_BYTE = 4e-9  # The cost of a large response: 4 µs for each KiB.
READ_BYTES = 8_192
REFUSED_CONNECTIONS_MAX = 256  # So many beyond the limit get a response that says so; further ones are closed without.
WAIT_SECONDS_MAX = 60  # No request waits longer in line, with some to spare.
CHECKS_PER_TICK = 500  # Checked by `tick` before it yields: under a millisecond.

log = logging.getLogger("holdfast.server")

_LENGTH_DIGITS = 20
_LAST_SECOND = 253_402_300_799  # Of the year 9999, the last that a date can be formatted for.

T = TypeVar("T")
Reply: TypeAlias = Callable[[Request, int, bytes, Fields], None]


class Handler(msgspec.Struct, frozen=True, kw_only=True):
    """Answers requests, and what connections ask about them. Observers and mounts wrap it."""

    handle: Callable[[Request, Reply], None]
    refuse: Callable[[Problem, Request, Reply], None]
    is_streaming: Callable[[Request], bool]
    stream: StreamHandler
    body_limit: Callable[[Request], int]  # Given only the header; raises if only a small body may be sent.
    check_host: Callable[[Request], None]
    principal_of: Callable[[Request], str | None]
    route_of: Callable[[Request], str] = lambda _request: ""  # The route's path template, for observers.
    expiry_ms: Callable[[], int] = lambda: 0
    headers: Fields = ()


class RoundRobinQueue(Generic[T]):
    def __init__(self) -> None:
        self._by_principal: dict[str, deque[T]] = {}  # The principal whose turn it is first.

    def __bool__(self) -> bool:
        return bool(self._by_principal)

    def append(self, principal: str, entry: T) -> None:
        self._by_principal.setdefault(principal, deque()).append(entry)

    def popleft(self) -> T:
        principal = next(iter(self._by_principal))
        entries = self._by_principal.pop(principal)
        entry = entries.popleft()
        if entries:
            self._by_principal[principal] = entries
        return entry


class ConnectionManager:
    def __init__(
        self,
        handler: Handler,
        settings: Settings,
        clock: Clock,
        proxies: Proxies,
        *,
        wrap: Callable[[Handler], Handler] | None = None,
    ) -> None:
        self.settings = settings
        self._wrap = wrap
        self._proxies = proxies
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_stopping = False  # New connections are refused: one may still come out of its TLS handshake.
        self._anonymous: dict[Connection, None] = {}  # Oldest first; `add` removes those authenticated meanwhile.
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.now_seconds = 0  # A clock of whole seconds, counted by `tick`: precise enough for time limits.
        self.response_seconds_max = WAIT_SECONDS_MAX + settings.disk_hang_seconds  # A wait, then a disk that hangs.
        self._clock = clock
        self.now_ms = clock.monotonic_ms
        self.read_seconds = clock.monotonic_seconds
        self._by_principal: dict[str, int] = {}  # Connections of each principal; below, all of them together.
        self._authenticated = 0
        self.write_budget = WriteBudget(self._principal_of)
        self.body_budget = BodyBudget()
        self._delay = SchedDelay()
        self.throttled: dict[object, int] = {}  # Until which ms, by principal, or by a connection without one.
        self._response_seconds: dict[object, float] = {}  # Of large responses in this second, not yet charged.
        self._queue: deque[Runnable] = deque()
        self._throttled_queue: RoundRobinQueue[tuple[Runnable, object]] = RoundRobinQueue()
        self._others_asked = False  # An unthrottled principal asked since the last run. Kept only if any is throttled.
        self._run_is_due = False
        self.set_handler(handler)

    def set_handler(self, handler: Handler) -> None:
        """Replace the handler. Connections stay, and the previous handler completes what it began."""
        self.handler = handler if self._wrap is None else self._wrap(handler)
        self.handle, self.is_streaming = self.handler.handle, self.handler.is_streaming
        self._expiry_ms = self.handler.expiry_ms()
        self._format_date()

    def _principal_of(self, request: Request) -> str | None:
        return self.handler.principal_of(request)

    def add(self, connection: Connection) -> int:
        self.connections.add(connection)
        beyond = len(self.connections) - self.settings.connections_max
        while beyond > 0 and self._anonymous:
            oldest = next(iter(self._anonymous))
            del self._anonymous[oldest]
            if not oldest.is_authenticated:
                self.connections.discard(oldest)
                oldest.abort()
                beyond -= 1
        self._anonymous[connection] = None
        return beyond

    def remove(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._anonymous.pop(connection, None)
        if connection.principal is not None:
            self._authenticated -= 1
            self._by_principal[connection.principal] -= 1
            if not self._by_principal[connection.principal]:
                del self._by_principal[connection.principal]

    def admit(self, peer: object, principal: str) -> str | None:
        """Count a connection for its first principal, or raise if that has too many. None: many share a proxy's."""
        if isinstance(peer, tuple) and self._proxies.is_trusted_peer(peer[0]):
            return None
        most = self.settings.connections_max
        has = self._by_principal.get(principal, 0)
        if has >= max(1, most // 100) and self._authenticated >= most - most // 10:
            text = f"This access token has {has} connections open; the last are for others. Close some, or try again."
            raise Problem("quota_exceeded", text, retry_after_ms=1_000)
        self._authenticated += 1
        self._by_principal[principal] = has + 1
        return principal

    def body_limit(self, connection: Connection, request: Request) -> int:
        bytes_max = self.handler.body_limit(request)
        if bytes_max > SMALL_BODY_BYTES:
            principal = self._principal_of(request) or connection.principal
            if principal is not None:
                content_length = request.headers.get(b"content-length", b"")
                announced = int(content_length[-_LENGTH_DIGITS:]) if content_length.isdigit() else bytes_max
                self.body_budget.take(connection, request, principal, min(announced, bytes_max))
        return bytes_max

    def free_budgets(self, connection: Connection) -> None:
        self.write_budget.drop(connection)
        self.body_budget.drop(connection)

    async def tick(self) -> None:
        self.now_seconds += 1
        self._format_date()
        self._foreign_seconds()
        self._response_seconds.clear()
        for key in list(self.throttled):
            self.is_throttled(key)
        for number, connection in enumerate(list(self.connections), 1):
            if connection in self.connections:
                self._check_time(connection)
            if number % CHECKS_PER_TICK == 0:
                await asyncio.sleep(0)

    def _check_time(self, connection: Connection) -> None:
        try:
            connection.check_time()
        except Exception:
            log.exception("unhandled error in the time limits of a connection")
            connection.abort()

    def _format_date(self) -> None:
        seconds = min(max(self._clock.wall_ms() // 1000, 0), _LAST_SECOND)  # Clamp: no bad clock may crash us.
        date = (b"date", formatdate(seconds, usegmt=True).encode())
        self.common_fields: Fields = (date, *self.handler.headers)
        self.prefix = ResponsePrefix(self.common_fields)

    def charge(self, key: object, took_seconds: float) -> None:
        """Throttle a principal for a request that took long, minus foreign time, which excuses each principal once."""
        own_seconds = took_seconds - self._foreign_seconds()
        if own_seconds >= LONG_SECONDS:
            self.throttled[key] = self._throttled_until(own_seconds)

    def charge_response(self, key: object, size: int) -> None:
        """Throttle a principal for large responses: many in one second count as one request that took long."""
        seconds = self._response_seconds.get(key, 0.0) + size * RESPONSE_SECONDS_PER_BYTE
        if seconds >= LONG_SECONDS:
            until = self._throttled_until(seconds)
            self.throttled[key] = max(until, self.throttled.get(key, until))
            seconds = 0.0
        self._response_seconds[key] = seconds

    def _throttled_until(self, seconds: float) -> int:
        return self.now_ms() + min(int(THROTTLE_FACTOR * seconds * 1000), THROTTLE_MS_MAX)

    def _foreign_seconds(self) -> float:
        """Return the time since the last call that no request used."""
        before_ms, self._expiry_ms = self._expiry_ms, self.handler.expiry_ms()
        return self._delay.since_last() + (self._expiry_ms - before_ms) / 1000

    def is_throttled(self, key: object) -> bool:
        until = self.throttled.get(key)
        if until is None or self.now_ms() < until:
            return until is not None
        del self.throttled[key]
        return False

    def must_yield(self, key: object) -> bool:
        """Tell whether a principal that sends a request is throttled; note that others ask."""
        is_throttled = self.is_throttled(key)
        self._others_asked |= not is_throttled
        return is_throttled

    def defer(self, entry: Runnable, *, throttled: str | None = None, key: object = None) -> None:
        """Resume an entry later, after those that have waited longer.

        `throttled` is its principal (empty: unauthenticated), if it yields to all that are not throttled: as long as
        `key` is throttled, or always without a key.
        """
        if throttled is None:
            self._queue.append(entry)
        else:
            self._throttled_queue.append(throttled, (entry, key))
        if not self._run_is_due:
            self._run_is_due = True
            entry.loop.call_soon(self._run_queue)

    def _run_queue(self) -> None:
        loop = asyncio.get_running_loop()
        until_ms = self.now_ms() + RUN_QUEUE_MS
        for _ in range(len(self._queue)):
            self._queue.popleft().resume()
            if self.now_ms() >= until_ms:
                break
        is_alone, self._others_asked = not (self._others_asked or self._queue), False
        while self._throttled_queue:
            entry, key = self._throttled_queue.popleft()
            entry.resume()
            goes_on = key is not None and (is_alone or not self.is_throttled(key))
            if not goes_on or self.now_ms() >= until_ms:
                break
        self._run_is_due = bool(self._queue or self._throttled_queue)
        if self._run_is_due:
            loop.call_soon(self._run_queue)
