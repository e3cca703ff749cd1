"""Lines, without a server: who waits, who leaves, and when a place is given up."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import AsyncClaim
from holdfast.client.values.options import OnWait
from holdfast.mcp import standing
from holdfast.mcp.standing import Lines
from tests.mcp.hosts import run


async def _for_ever(_job: str, _on_wait: OnWait) -> AsyncClaim:
    await asyncio.Event().wait()
    raise AssertionError("the turn never comes")


def test_a_place_is_kept_for_the_call_that_waits_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two calls for one job the one that ends first gives up nothing: the other waits on, and comes back."""
    monkeypatch.setattr(standing, "PLACE_SECONDS", 0.05)

    joined: list[str] = []

    async def join(job: str, on_wait: OnWait) -> AsyncClaim:
        joined.append(job)
        return await _for_ever(job, on_wait)

    async def test() -> None:
        lines = Lines(join, lambda _job: None)
        waits = asyncio.create_task(lines.visit("job", 0.3))
        assert await lines.visit("job", 0.01) is None
        assert await waits is None
        assert await lines.visit("job", 0.3) is None
        assert lines.places() == {"job": None}
        assert joined == ["job"], "the place was given up, and taken anew at the end of the line"
        await asyncio.wait(lines.leave())

    run(test())


def test_a_wait_that_another_call_made_needless_just_ends() -> None:
    """A wait whose place is given up meanwhile ends as one that got nothing, and cancels nobody."""

    async def test() -> None:
        lines = Lines(_for_ever, lambda _job: None)
        waits = asyncio.create_task(lines.visit("job", 30))
        await lines.visit("job", 0.01)
        lines.told("job")
        assert await waits is None
        assert not lines.places()

    run(test())
