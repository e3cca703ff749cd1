"""Waits without a server: concurrent calls, and when a place is given up."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import AsyncClaim
from holdfast.agents.mcp import stdio_backend
from holdfast.agents.mcp.stdio_backend import WaitTasks
from holdfast.client.options import OnWait
from tests.agents.mcp.hosts import run


async def _for_ever(_job: str, _on_wait: OnWait) -> AsyncClaim:
    await asyncio.Event().wait()
    raise AssertionError("the turn never comes")


def test_position_is_held_for_the_longest_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two calls for one job the one that ends first gives up nothing: the other waits on, and comes back."""
    monkeypatch.setattr(stdio_backend, "POLL_SECONDS", 0.05)

    joined: list[str] = []

    async def join(job: str, on_wait: OnWait) -> AsyncClaim:
        joined.append(job)
        return await _for_ever(job, on_wait)

    async def test() -> None:
        wait_tasks = WaitTasks(join, lambda _job: None)
        waits = asyncio.create_task(wait_tasks.wait_for("job", 0.3))
        assert await wait_tasks.wait_for("job", 0.01) is None
        assert await waits is None
        assert await wait_tasks.wait_for("job", 0.3) is None
        assert wait_tasks.positions() == {"job": None}
        assert joined == ["job"], "the place was given up, and taken anew at the end of the line"
        await asyncio.wait(wait_tasks.end_all())

    run(test())


def test_wait_ended_by_another_call_returns_nothing() -> None:
    """A wait whose place is given up meanwhile ends as one that got nothing, and cancels nobody."""

    async def test() -> None:
        wait_tasks = WaitTasks(_for_ever, lambda _job: None)
        waits = asyncio.create_task(wait_tasks.wait_for("job", 30))
        await wait_tasks.wait_for("job", 0.01)
        wait_tasks.end("job")
        assert await waits is None
        assert not wait_tasks.positions()

    run(test())
