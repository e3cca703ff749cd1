"""Pages are made in slices, and templates compiled in a thread: others are served in between."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest

from holdfast.api.auth.auth import Caller
from holdfast.core.state import State
from holdfast.core.values import Instant, Session
from holdfast.dashboard import site
from holdfast.dashboard.sessions import SessionRow

NOW = Instant(0, 1_800_000_000_000)
RUNS = [SessionRow(Session(f"id-{n}", "p", f"run-{n}", None, 60_000, 60_000, 0), NOW.wall_ms, n, 0) for n in range(500)]
SHOWN: dict[str, Any] = {"runs": RUNS, "total": 500, "whose": "p", "owners": [], "first": 0, "shown": 100}

# All that a page looks at of the server, of somebody who came by a token.
API: Any = SimpleNamespace(engine=SimpleNamespace(state=State()))
CALL: Any = SimpleNamespace(caller=Caller("p", frozenset({"read"})))


def make(*, again: bool) -> tuple[Any, int]:
    """Make the page, after it was made before or not, and count how often the loop turned meanwhile."""

    async def run() -> tuple[Any, int]:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        if again:
            await site.page(API, CALL, NOW, "sessions.html", "sessions", **SHOWN)
        turns = 0
        made = await site.page(API, CALL, NOW, "sessions.html", "sessions", **SHOWN)
        counting.cancel()
        return made, turns

    return asyncio.run(run())


def test_long_page_yields_to_other_requests() -> None:
    """While a long page is made, the loop goes on turning."""
    made, turned = make(again=True)
    assert made[1].count(b"run-") == 500
    assert turned >= 10


def test_templates_are_compiled_off_the_event_loop() -> None:
    """The first reader waits until all templates are compiled, and the loop goes on turning meanwhile."""
    site.environment.cache_clear()
    site.compiled.cache_clear()
    _, turned = make(again=False)
    assert turned >= 100


def test_templates_receive_all_their_variables() -> None:
    """A name that nobody gave is an error in a test, and not a gap on a page; and text is escaped."""
    known = site.environment()
    with pytest.raises(jinja2.UndefinedError):
        known.from_string("{{ nobody_gave_this }}").render()
    assert known.from_string("<p title='{{ x }}'>").render(x="'\"<&>") == "<p title='&#39;&#34;&lt;&amp;&gt;'>"
