"""Waits without a server: concurrent calls, and when a place is given up."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import AsyncClaim
from holdfast.client.options import OnWait
from holdfast.mcp import stdio_backend
from holdfast.mcp.stdio_backend import Waits
from tests.mcp.hosts import run


async def _for_ever(_job: str, _on_wait: OnWait) -> AsyncClaim:
    await asyncio.Event().wait()
    raise AssertionError("the turn never comes")


def test_a_place_is_kept_for_the_call_that_waits_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two calls for one job the one that ends first gives up nothing: the other waits on, and comes back."""
    monkeypatch.setattr(stdio_backend, "PLACE_SECONDS", 0.05)

    joined: list[str] = []

    async def join(job: str, on_wait: OnWait) -> AsyncClaim:
        joined.append(job)
        return await _for_ever(job, on_wait)

    async def test() -> None:
        places = Waits(join, lambda _job: None)
        waits = asyncio.create_task(places.visit("job", 0.3))
        assert await places.visit("job", 0.01) is None
        assert await waits is None
        assert await places.visit("job", 0.3) is None
        assert places.places() == {"job": None}
        assert joined == ["job"], "the place was given up, and taken anew at the end of the line"
        await asyncio.wait(places.end_all())

    run(test())


def test_a_wait_that_another_call_made_needless_just_ends() -> None:
    """A wait whose place is given up meanwhile ends as one that got nothing, and cancels nobody."""

    async def test() -> None:
        places = Waits(_for_ever, lambda _job: None)
        waits = asyncio.create_task(places.visit("job", 30))
        await places.visit("job", 0.01)
        places.end("job")
        assert await waits is None
        assert not places.places()

    run(test())
