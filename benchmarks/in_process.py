"""A server without sockets: the shipped engine, journal, rights, routes and rendering, asked in this very process.

Time stands still in it, so that nothing falls due while something is measured. What counts is processor time.
"""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

import msgspec

from benchmarks import others
from holdfast.api.auth.auth import Auth, StaticTokens
from holdfast.api.auth.secrets import AuthorityKey
from holdfast.api.router import Routes
from holdfast.api.service import ApiService
from holdfast.config import Settings
from holdfast.core.values import Limits
from holdfast.engine.archiver import ArchivePolicy
from holdfast.engine.engine import Engine
from holdfast.http.messages import request_from
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.server.components import OPERATIONS
from holdfast.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from holdfast.api.handlers.events import Events

ME = "me"
TOKEN = "me-0123456789abcdef"
MANY = 2_000_000
"""More than any benchmark keeps: what others keep must not be dropped to make room."""
NEVER = 10**12
NO_SNAPSHOT = ArchivePolicy(records=NEVER, size_bytes=NEVER)
"""One that is due by bytes would be written while something is measured."""
_FOUND = 300


class WrongAnswerError(Exception):
    """The server did not do what was asked, so its cost says nothing."""


class InProcessServer:
    """One server, and one who asks it."""

    def __init__(self, api: ApiService) -> None:
        self.api = api
        self._routes = Routes(api, OPERATIONS)
        self._tasks: list[asyncio.Task[None]] = []

    async def ask(self, method: str, path: str, body: object = None, *, key: str | None = None) -> Any:  # noqa: ANN401
        """Ask and return what the answer says. Raises `WrongAnswerError` for one that is no success."""
        status, data = await self.answer(method, path, body, key=key)
        if status >= _FOUND:
            raise WrongAnswerError(f"{method} {path[:80]}: {status} {data[:300]!r}")
        return msgspec.json.decode(data) if data else None

    async def answer(self, method: str, path: str, body: object = None, *, key: str | None = None) -> tuple[int, bytes]:
        """Ask and return the answer as it is."""
        answered: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self.send(method, path, body, answered, key=key)
        return await answered

    def send(
        self,
        method: str,
        path: str,
        body: object,
        answered: asyncio.Future[tuple[int, bytes]] | None = None,
        *,
        key: str | None = None,
    ) -> None:
        """Ask without waiting for the answer, as one does who stands in line."""
        headers = {b"authorization": b"Bearer " + TOKEN.encode(), b"host": b"127.0.0.1"}
        if key is not None:
            headers[b"idempotency-key"] = key.encode()
        path_only, _, query = path.partition("?")
        encoded = b"" if body is None else msgspec.json.encode(body)
        if body is not None:
            headers[b"content-type"] = b"application/json"

        def reply(_request: object, status: int, data: bytes, _headers: object) -> None:
            if answered is not None and not answered.done():
                answered.set_result((status, data))

        self._routes.handle(request_from(method.encode(), path_only.encode(), query.encode(), headers, encoded), reply)

    async def drained(self) -> None:
        """Wait until all that was asked is decided, durable and told to those who follow."""
        await self.api.engine.query(lambda _state, _now: None)
        for _ in range(50):
            await asyncio.sleep(0)

    def follow(self) -> None:
        """Open a stream of all events, and read it."""
        route, segment = self._routes.find(b"GET", b"/events")
        headers = {b"authorization": b"Bearer " + TOKEN.encode(), b"host": b"127.0.0.1"}
        request = request_from(b"GET", b"/events", b"", headers, b"")
        stream: Events = route.handler(self.api, route.read(request, segment, lambda *_: None))
        self._tasks.append(asyncio.create_task(_read(stream)))

    async def stop_following(self) -> None:
        """Close every stream."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()


class Timer:
    """Counts the processor time of this process between its beginning and its end."""

    seconds = 0.0

    def __enter__(self) -> Self:
        gc.disable()
        self._began = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.process_time() - self._began
        gc.enable()


async def _read(stream: Events) -> None:
    try:
        async for _ in stream.frames():
            pass
    finally:
        stream.close()


@asynccontextmanager
async def server_with(kind: str, count: int, folder: Path) -> AsyncIterator[InProcessServer]:
    """Open a server in which others keep so much already."""
    journal = SqliteJournal(folder, synchronous="NORMAL", disk_reserve_bytes=0)
    await journal.open()
    for batch in others.batches(kind, count):
        await journal.append(batch)
    limits = Limits(retry_bytes_max=NEVER, ended_bytes_max=NEVER)
    clock = ManualClock(monotonic_ms=1_000_000)
    engine = Engine(journal, limits, clock=clock, version="benchmark", archive_policy=NO_SNAPSHOT)
    await engine.start()
    for ticket_id in engine.state.tickets:
        engine.state.attach(ticket_id)
    static = StaticTokens.parse(f"{ME}:{TOKEN}:read+claim+admin")
    server = InProcessServer(ApiService(engine, Auth(static, AuthorityKey.load(folder)), Settings(data=folder)))
    try:
        await server.drained()
        gc.collect()
        gc.freeze()
        yield server
    finally:
        await server.stop_following()
        await engine.stop()
        gc.unfreeze()
