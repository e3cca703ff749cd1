"""GET /ui/waits: who waits for whom, drawn and as nested lists, and the circles that were refused in the last day."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.server.handlers import paging
from holdfast.server.pages import site
from holdfast.server.pages.views import graph
from holdfast.server.pages.views.tangle import Longest, circles_for, tangle_of

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.core.values import Moment
    from holdfast.server.api import Api
    from holdfast.server.operations.call import Call
    from holdfast.server.pages.views.tangle import Tangle
    from holdfast.server.render import Answered


def waits(api: Api, call: Call) -> None:
    """GET /ui/waits."""
    prefix = call.caller.prefix
    longest = Longest(prefix)

    def view(state: State, now: Moment) -> tuple[Tangle, Moment]:
        return tangle_of(state, longest.names, prefix), now

    async def look() -> Answered:
        seq = api.engine.state.seq
        await paging.in_slices(api.engine, longest.take_slice)
        tangle, now = await api.engine.look(view)
        return await site.large_page(
            api,
            call,
            now,
            "waits.html",
            "waits",
            seq=seq,
            drawing=graph.draw(tangle.knots, tangle.edges),
            nested=graph.nest(tangle.knots, tangle.edges),
            lines=longest.found,
            lines_shown=len(longest.names),
            left_out=longest.left_out,
            circles=circles_for(api.circles.newest_first(api.engine.clock.monotonic_ms()), prefix),
            circles_since_ms=api.circles.since_wall_ms,
        )

    api.answer_later(call, look)
