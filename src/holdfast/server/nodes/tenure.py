"""One leader term: a journal, an engine and all that answers from it, made together and thrown away together (N-18)."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import msgspec

from holdfast.server.access.auth import Auth
from holdfast.server.access.secrets import AuthorityKey
from holdfast.server.api import Api
from holdfast.server.observability.event_log import EventLog
from holdfast.server.operations.router import Routes
from holdfast.server.operations.table import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.engine.build import Seat
    from holdfast.engine.engine import Engine
    from holdfast.server.access.auth import StaticTokens
    from holdfast.server.http.messages import Request
    from holdfast.server.observability.metrics import Meter
    from holdfast.server.operations.call import Reply
    from holdfast.settings import Settings


class CountedRoutes(Routes):
    """Routes that count their requests: a leader without requests may be unreachable (N-37)."""

    requests = 0

    def handle(self, request: Request, reply: Reply) -> None:
        self.requests += 1
        super().handle(request, reply)


class Tenure:
    """What answers while this node leads."""

    def __init__(
        self, seat: Seat, engine: Engine, api: Api, routes: CountedRoutes, events: EventLog | None = None
    ) -> None:
        """`seat` is ours, as we took it. `events` logs grants and ends."""
        self.seat = seat
        self.engine = engine
        self.api = api
        self.routes = routes
        self._events = events

    async def end(self) -> None:
        """Answer what is pending, tell all waiters their tickets, and give the seat back; then nothing of it runs."""
        try:
            self.api.meter.sources.serve_no_more(self.engine)
            self.engine.feed.close()
            self.engine.end_waits()
            self.api.end()
        finally:
            await self.engine.stop()
            if self._events is not None:
                self._events.end()
            gc.unfreeze()


async def begin_tenure(  # noqa: PLR0917 - the parts of a term
    seat: Seat,
    engine: Engine,
    settings: Settings,
    static: StaticTokens,
    prepare: Callable[[Api], Awaitable[None]],
    meter: Meter | None = None,
) -> Tenure:
    """Take the seat and get ready to serve. Raises as `Journal.open` does; then nothing of it is left.

    `prepare` is done before requests are served. `meter` has the metrics of the process.
    """
    await engine.start()
    try:
        if engine.key is None:
            raise RuntimeError("the store gave no key of its authority")
        api = Api(engine, Auth(static, AuthorityKey(engine.key)), settings, meter)
        await prepare(api)
        routes = CountedRoutes(api, OPERATIONS)
    except BaseException:
        await engine.stop()
        raise
    # What was loaded stays for the whole term: the garbage collector need not visit it.
    gc.freeze()
    events = EventLog(engine) if settings.log_events else None
    return Tenure(msgspec.structs.replace(seat, epoch=engine.state.epoch), engine, api, routes, events)
