"""What a follower knows of a leader that refuses: while its store is silent, and once it answers again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from holdfast.cluster import request_queue
from holdfast.cluster.link_frames import Ping
from holdfast.core.events import Record
from holdfast.engine import engine as engine_module
from tests.cluster.linked_nodes import Caller, LinkedNode, run, two_nodes, until
from tests.support.checks import refused
from tests.support.shared_journal import SharedMemoryJournal

CHECK_SECONDS = 0.02
CLAIM = {"ttl_seconds": 60}


def test_follower_is_not_ready_while_its_leader_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-34: a leader whose store is silent tells it over its links: a follower that nobody asks says it too."""
    monkeypatch.setattr(engine_module, "UNANSWERED_MS_MAX", 50)

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower), _ending() as quiet:
            caller = await follower.call()
            assert (await caller.ask("GET", "/readyz")).status == 200
            go_on = quiet.enter_context(_silent_store(leader))
            assert "the leader refuses requests" in await _until_status(caller, "/readyz", 503)
            assert "the leader refuses requests" in await _until_status(caller, "/health", 503)
            assert follower.node.is_linked
            go_on()
            await _until_status(caller, "/readyz", 200)
            assert (await caller.ask("POST", "/locks/a/acquire", CLAIM)).json()["status"] == "acquired"

    run(test)


def test_request_does_not_wait_for_a_refusing_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-31: while a leader refuses, nobody leads: who asks after the time for that is refused at once."""
    monkeypatch.setattr(engine_module, "UNANSWERED_MS_MAX", 50)
    monkeypatch.setattr(request_queue, "HELD_MS_MAX", 200)

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower), _ending() as quiet:
            go_on = quiet.enter_context(_silent_store(leader))
            caller = await follower.call()
            await _until_status(caller, "/readyz", 503)
            refused(await caller.ask("POST", "/locks/a/acquire", CLAIM), 503, "not_leader")
            go_on()
            await _until_status(caller, "/readyz", 200)
            assert (await caller.ask("POST", "/locks/a/acquire", CLAIM)).json()["status"] == "acquired"

    run(test)


def test_full_link_after_a_refusal_is_overloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N-31: a leader that refused once and serves again leads: a full link is told as `overloaded`, as before."""
    monkeypatch.setattr(engine_module, "UNANSWERED_MS_MAX", 50)
    monkeypatch.setattr(request_queue, "HELD_MAX", 2)

    async def test() -> None:
        async with two_nodes(tmp_path) as (leader, follower), _ending() as quiet:
            callers = [await follower.call() for _ in range(3)]
            for each in callers:
                assert (await each.ask("GET", "/locks/a")).status == 200
            go_on = quiet.enter_context(_silent_store(leader))
            await until(lambda: leader.term is not None and leader.term.engine.tick() is None)
            callers[0].send("POST", "/locks/a/acquire", CLAIM)
            link = follower.forwarder._link
            assert link is not None
            await until(lambda: link._backoff_until_ms > 0)
            go_on()
            assert (await callers[0].answer()).json()["status"] == "acquired"
            link.pause_writing()
            callers[0].send("GET", "/locks/a")
            refused(await callers[1].ask("GET", "/locks/a"), 503, "overloaded")
            link.resume_writing()
            assert (await callers[0].answer()).status == 200

    run(test)


def test_older_leader_without_status_is_trusted(tmp_path: Path) -> None:
    """N-36: a sign of life without a word on whether it serves, as older versions send it, changes nothing."""

    async def test() -> None:
        async with two_nodes(tmp_path) as (_, follower):
            link = follower.forwarder._link
            assert link is not None
            for serves in (False, True):
                link.receive(Ping(serves))
                link.receive(Ping())
                assert follower.node.is_served == serves

    run(test)


@asynccontextmanager
async def _ending() -> AsyncIterator[ExitStack]:
    """Let what is entered end before the nodes do: a store that stays silent would hold them up."""
    with ExitStack() as entered:
        yield entered


@contextmanager
def _silent_store(leader: LinkedNode) -> Iterator[Callable[[], None]]:
    """Let the store of a leader say nothing, until what is given is called or the block is over."""
    assert leader.term is not None
    journal, again = leader.term.engine.journal, asyncio.Event()
    assert isinstance(journal, SharedMemoryJournal)
    append, confirm = journal.append, journal.confirm

    async def late_append(batch: Sequence[Record]) -> None:
        await again.wait()
        await append(batch)

    async def late_confirm(now_ms: int) -> None:
        await again.wait()
        await confirm(now_ms)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "append", late_append)
        patch.setattr(journal, "confirm", late_confirm)
        leader.term.engine.heartbeat()
        try:
            yield again.set
        finally:
            again.set()


async def _until_status(caller: Caller, path: str, status: int) -> str:
    """Ask until a path is answered so; return what it says."""
    while (answer := await caller.ask("GET", path)).status != status:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(CHECK_SECONDS)
    return str(answer.json()["details"])
