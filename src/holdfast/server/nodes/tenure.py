"""One tenure: a journal, an engine and all that answers from it, made together and thrown away together (N-18)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.build import Seat
    from holdfast.engine.engine import Engine
    from holdfast.server.api import Api
    from holdfast.server.doors.asgi import Door
    from holdfast.server.operations.routes import Routes


class Tenure:
    """What answers while this node leads. When it is over, nothing of it is believed any more."""

    def __init__(self, seat: Seat, engine: Engine, api: Api, routes: Routes, door: Door) -> None:
        """`seat` is ours, as we took it: its epoch, its tenure and its authority are those of this tenure."""
        self.seat = seat
        self.engine = engine
        self.api = api
        self.routes = routes
        self.door = door
