"""One tenure: a journal, an engine and all that answers from it, made together and thrown away together (N-18)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.server.operations.routes import Routes

if TYPE_CHECKING:
    from holdfast.engine.build import Seat
    from holdfast.engine.engine import Engine
    from holdfast.server.api import Api
    from holdfast.server.doors.asgi import Door
    from holdfast.server.doors.request import Request
    from holdfast.server.operations.call import Reply


class CountedRoutes(Routes):
    """Routes that count their requests: a leader that nobody asks may be one that nobody reaches (N-37)."""

    requests = 0

    def handle(self, request: Request, reply: Reply) -> None:
        """Count it, and answer."""
        self.requests += 1
        super().handle(request, reply)


class Tenure:
    """What answers while this node leads. When it is over, nothing of it is believed any more."""

    def __init__(self, seat: Seat, engine: Engine, api: Api, routes: CountedRoutes, door: Door) -> None:
        """`seat` is ours, as we took it: its epoch, its tenure and its authority are those of this tenure."""
        self.seat = seat
        self.engine = engine
        self.api = api
        self.routes = routes
        self.door = door

    def requests(self) -> int:
        """Return how many requests were answered here, or are about to be."""
        return self.routes.requests

    async def end(self) -> None:
        """Answer what is owed, tell all who wait their places, and give the seat back; then nothing of it runs."""
        self.engine.feed.close()
        self.engine.end_waits()
        self.api.end()
        await self.engine.stop()
