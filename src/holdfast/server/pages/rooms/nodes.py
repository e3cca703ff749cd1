"""GET /ui/nodes: who leads, who follows, and how the store is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.server.handlers import health as handler
from holdfast.server.pages import site

if TYPE_CHECKING:
    from holdfast.core.values import Moment
    from holdfast.server.api import Api
    from holdfast.server.operations.call import Call
    from holdfast.server.render import Answered


def nodes(api: Api, call: Call) -> None:
    """GET /ui/nodes. What is told is what `GET /nodes` and `GET /health` tell."""

    async def look() -> Answered:
        found = await handler.found(api)
        now: Moment = await api.engine.look(lambda _state, now: now)
        journal = api.engine.journal
        health = journal.health()
        return site.page(api, call, now, "nodes.html", "nodes", found=found, health=health, is_shared=journal.is_shared)

    api.answer_later(call, look)
