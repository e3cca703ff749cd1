"""The page of numbers: what the server has measured of itself in the last hours, drawn on the server.

    GET /ui/numbers?span=1h      the page; without a script it is as true as when it was loaded
    GET /ui/numbers/drawn?span=  the same as JSON: the page's script puts it into the drawing, after each new sample

What is drawn is made once for all readers (`metrics/charts`). No name is in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.server.observability import charts
from holdfast.server.observability.charts import STEP_MS
from holdfast.server.pages import site
from holdfast.server.render import encode

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.core.values import Moment
    from holdfast.server.api import Api
    from holdfast.server.operations.call import Call
    from holdfast.server.render import Answered

QUERY = {"span": "How far back: 15m, 1h or 6h; 1h unless told."}
_OK = 200


def numbers(api: Api, call: Call) -> None:
    """GET /ui/numbers."""

    def view(_state: State, now: Moment) -> Answered:
        drawn = api.meter.charts.of(call.query.get("span", ""))
        return site.page(api, call, now, "numbers.html", "numbers", drawn=drawn, frame=charts, step_ms=STEP_MS)

    api.read(call, view)


def drawn(api: Api, call: Call) -> None:
    """GET /ui/numbers/drawn."""

    def view(_state: State, now: Moment) -> Answered:
        body = {"now": now.wall_ms, "drawn": api.meter.charts.of(call.query.get("span", ""))}
        return _OK, encode(body), ()

    api.read(call, view)
