"""A long page is made in slices: it is the same as one that is made at once, and others are served in between."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from holdfast.core.state import State
from holdfast.core.values import Moment
from holdfast.server.access.auth import Caller
from holdfast.server.pages import site
from holdfast.server.pages.sessions import Run

NOW = Moment(0, 1_800_000_000_000)
RUNS = [Run(f"id-{number}", f"run-{number}", "p", 0, NOW.wall_ms, 60_000, number, 0, ()) for number in range(500)]
SHOWN: dict[str, Any] = {"runs": RUNS, "total": 500, "whose": "p", "owners": [], "first": 0, "shown": 100}

# All that a page looks at of the server, of somebody who came by a token.
API: Any = SimpleNamespace(engine=SimpleNamespace(state=State()))
CALL: Any = SimpleNamespace(caller=Caller("p", frozenset({"read"})))


def test_a_long_page_leaves_room_for_others() -> None:
    """While a long page is made, the loop goes on turning; what comes out is what `page` makes."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def make() -> tuple[Any, int]:
        counting = asyncio.create_task(count())
        await site.large_page(API, CALL, NOW, "sessions.html", "sessions", **SHOWN)
        before = turns
        made = await site.large_page(API, CALL, NOW, "sessions.html", "sessions", **SHOWN)
        counting.cancel()
        return made, turns - before

    made, turned = asyncio.run(make())
    assert made == site.page(API, CALL, NOW, "sessions.html", "sessions", **SHOWN)
    assert made[1].count(b"run-") == 500
    assert turned >= 10
