"""A node from start to stop: it follows, leads and follows again, and goes on watching whatever it meets."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

from holdfast.cluster.election import WENT_BACK
from holdfast.core.outcomes import Acquired, Waiting
from holdfast.engine.waiters import NotLeader, after_wait
from holdfast.journal.interface import (
    JournalDamagedError,
    JournalError,
    JournalLockedError,
    JournalLostError,
    JournalTooNewError,
    JournalUnavailableError,
)
from tests.cluster.simulated_cluster import SimulatedCluster
from tests.engine.harness import Asked, acquire, run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.testing.clock import ManualClock


def cluster(test: Callable[[SimulatedCluster], Awaitable[None]]) -> None:
    """Run a test with a cluster, and stop all of it at the end."""

    async def with_clock(clock: ManualClock) -> None:
        nodes = SimulatedCluster(clock)
        try:
            await test(nodes)
        finally:
            await nodes.end()

    run(with_clock)


def test_one_node_leads_and_the_others_follow() -> None:
    """The first to look at a free seat leads; the others follow it, and know where it is (N-13)."""

    async def test(nodes: SimulatedCluster) -> None:
        a = nodes.start("a")
        await nodes.until(lambda: a.leads)
        b, c = nodes.start("b"), nodes.start("c")
        await nodes.until(lambda: b.follows == c.follows == "a")
        leader = b.node.leader()
        assert leader is not None
        assert (leader.url, leader.epoch, leader.authority) == ("http://a:7420", 1, "memory")
        term = a.node.term()
        assert term is not None
        assert (term.leadership.epoch, term.leadership.term_id) == (leader.epoch, leader.term_id)
        assert a.node.leader() is None and b.node.term() is None
        assert b.node.key == a.node.key == nodes.shelf.key
        assert a.prepared == [1] and b.prepared == c.prepared == []

    cluster(test)


def test_one_of_many_simultaneous_starts_leads() -> None:
    """Nodes that all see a free seat at once take it one after another's write: one of them leads (N-2)."""

    async def test(nodes: SimulatedCluster) -> None:
        several = [nodes.start(name) for name in "abcde"]
        await nodes.until(lambda: any(node.leads for node in several))
        await asyncio.sleep(5)
        assert sum(node.leads for node in several) == 1 and nodes.shelf.leadership.epoch == 1

    cluster(test)


def test_killed_leader_is_replaced() -> None:
    """Nothing is heard of the leader for two seconds: another takes the seat, under the next epoch (N-13)."""

    async def test(nodes: SimulatedCluster) -> None:
        a = nodes.start("a")
        await nodes.until(lambda: a.leads)
        b = nodes.start("b")
        await nodes.until(lambda: b.follows == "a")
        await a.engine.ask(acquire("job"))
        a.freeze()
        took = await nodes.until(lambda: b.leads)
        assert 1.5 <= took <= 2.6
        assert nodes.shelf.leadership.epoch == 2
        assert await b.engine.query(lambda state, _: list(state.index.held.walk())) == ["job"]

    cluster(test)


def test_woken_leader_follows() -> None:
    """A leader that was stopped finds out that it is deposed at its next write, says so, and follows (N-12, N-18)."""

    async def test(nodes: SimulatedCluster) -> None:
        a = nodes.start("a")
        await nodes.until(lambda: a.leads)
        b = nodes.start("b")
        await nodes.until(lambda: b.follows == "a")
        old = a.engine
        a.freeze()
        asked = Asked(old)
        asked.submit("too late", acquire("job"))
        await nodes.until(lambda: b.leads)
        a.thaw()
        took = await nodes.until(lambda: a.follows == "b")
        assert took < 1 and not a.leads
        assert asked.kinds == ["NotLeader"]
        assert isinstance((await old.ask(acquire("job")))[0], NotLeader)
        assert nodes.shelf.leadership.is_held and nodes.shelf.leadership.node == "b", (
            "what was left of a's tenure gave nothing back"
        )

    cluster(test)


def test_stopped_node_polls_no_more(caplog: pytest.LogCaptureFixture) -> None:
    """A follower that is told to stop while the store says nothing ends at once, and blames the store for nothing."""

    async def test(nodes: SimulatedCluster) -> None:
        a = nodes.start("a")
        await nodes.until(lambda: a.leads)
        b = nodes.start("b")
        await nodes.until(lambda: b.follows == "a")
        b.freeze()
        await nodes.until(lambda: b.election._poll_timeout is not None)
        b.election.stop()
        took = await nodes.until(b.task.done)
        assert took < 0.2 and "cannot be used" not in caplog.text

    cluster(test)


def test_stopped_leader_gives_up_leadership() -> None:
    """Told to stop, a leader answers who waits and gives the seat back: another has it at its next look (N-18)."""

    async def test(nodes: SimulatedCluster) -> None:
        a = nodes.start("a")
        await nodes.until(lambda: a.leads)
        b = nodes.start("b")
        await nodes.until(lambda: b.follows == "a")
        asked = Asked(a.engine)
        asked.submit("holds", acquire("job"))
        asked.submit("waits", acquire("job", "other", owner="ben", wait_ms=30_000, new_ticket="ticket-of-ben"))
        await nodes.until(lambda: asked.labels == ["holds"])
        stopping = asyncio.ensure_future(a.stop())
        took = await nodes.until(lambda: b.leads)
        await stopping
        assert took <= 0.35
        assert after_wait(asked["waits"])[0] == Waiting("ticket-of-ben", 1)

    cluster(test)


def test_follower_stops_immediately() -> None:
    """A follower that is told to stop leaves the seat as it is."""

    async def test(nodes: SimulatedCluster) -> None:
        a = nodes.start("a")
        await nodes.until(lambda: a.leads)
        b = nodes.start("b")
        await nodes.until(lambda: b.follows == "a")
        began_ms = nodes.clock.monotonic_ms()
        await b.stop()
        assert nodes.clock.monotonic_ms() - began_ms < 300
        assert b.node.leader() is None and nodes.shelf.leadership.is_held

    cluster(test)


def test_idle_leader_sends_heartbeats() -> None:
    """A leader that nobody asks writes twice a second, so nobody takes its seat (N-14)."""

    async def test(nodes: SimulatedCluster) -> None:
        a = nodes.start("a")
        await nodes.until(lambda: a.leads)
        nodes.start("b")
        heartbeat, now_ms = nodes.shelf.leadership.heartbeat, nodes.shelf.leadership.now_ms
        await asyncio.sleep(60)
        assert a.leads and nodes.shelf.leadership.epoch == 1
        assert 115 <= nodes.shelf.leadership.heartbeat - heartbeat <= 125
        assert nodes.shelf.leadership.now_ms > now_ms, "and the time is carried along (N-15)"

    cluster(test)


def test_paused_follower_does_not_depose_the_leader() -> None:
    """A follower that slept for four seconds finds the leader where it was, four times over (N-13)."""

    async def test(nodes: SimulatedCluster) -> None:
        a = nodes.start("a")
        await nodes.until(lambda: a.leads)
        b = nodes.start("b")
        await nodes.until(lambda: b.follows == "a")
        for _ in range(4):
            b.freeze()
            await asyncio.sleep(4)
            b.thaw()
            await asyncio.sleep(1)
        assert a.leads and nodes.shelf.leadership.epoch == 1

    cluster(test)


def test_restarted_node_leads_again_immediately() -> None:
    """A new process of the node that has the seat takes it at its first look, without waiting (N-13)."""

    async def test(nodes: SimulatedCluster) -> None:
        a = nodes.start("a")
        await nodes.until(lambda: a.leads)
        a.freeze()
        again = nodes.start("a", "another process")
        assert await nodes.until(lambda: again.leads) < 0.3
        assert nodes.shelf.leadership.epoch == 2

    cluster(test)


@pytest.mark.parametrize(
    "error",
    [JournalUnavailableError("look: no way there"), TimeoutError(), OSError("no route"), RuntimeError("a bug")],
)
def test_failed_poll_is_retried(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """No error ends the watching: when it is over, the node leads, and the log has said it once (N-6)."""

    async def test(nodes: SimulatedCluster) -> None:
        a = nodes.start("a")
        a.store.read_error = error
        await asyncio.sleep(60)
        assert not a.leads and a.node.trouble is not None and "since" in (a.election._log.trouble or "")
        a.store.read_error = None
        assert await nodes.until(lambda: a.leads) < 0.5
        assert a.node.trouble is None

    cluster(test)
    said = [record.message for record in caplog.records if "goes on looking" in record.message]
    assert len(said) == 1


@pytest.mark.parametrize(
    "error", [JournalLostError("it went back in time"), JournalTooNewError("format 9"), JournalDamagedError("holes")]
)
def test_different_store_is_not_followed(error: JournalError) -> None:
    """A store that went back, or is another, serves nothing: nobody is followed, and the node says why (N-21)."""

    async def test(nodes: SimulatedCluster) -> None:
        a = nodes.start("a")
        await nodes.until(lambda: a.leads)
        b = nodes.start("b")
        await nodes.until(lambda: b.follows == "a")
        b.store.read_error = error
        await nodes.until(lambda: b.follows is None)
        assert error.problem in (b.election._log.trouble or "")
        b.store.read_error = None
        await nodes.until(lambda: b.follows == "a")

    cluster(test)


def test_node_without_a_store_keeps_its_leader() -> None:
    """A follower that cannot reach the store keeps its leader: whether that answers, the link finds out (N-31)."""

    async def test(nodes: SimulatedCluster) -> None:
        a = nodes.start("a")
        await nodes.until(lambda: a.leads)
        b = nodes.start("b")
        await nodes.until(lambda: b.follows == "a")
        b.store.read_error = JournalUnavailableError("look: no way there")
        await asyncio.sleep(60)
        assert b.follows == "a" and nodes.shelf.leadership.epoch == 1

    cluster(test)


def test_node_that_cannot_lead_reports_why_meanwhile() -> None:
    """A seat that a dead node left is seen at every look. It does not hide why nobody could take it (N-21)."""

    async def test(nodes: SimulatedCluster) -> None:
        a = nodes.start("a")
        await nodes.until(lambda: a.leads)
        a.store.is_stopped = True
        b = nodes.start("b")
        b.store.open_error = JournalLostError("the store went back in time")
        await nodes.until(lambda: b.node.trouble is not None)
        for _ in range(100):
            await asyncio.sleep(0.3)
            assert "went back" in (b.node.trouble or ""), "at every look"
            assert b.node.trouble == WENT_BACK
        b.store.open_error = None
        await nodes.until(lambda: b.leads)
        assert b.node.trouble is None
        a.store.go_on()

    cluster(test)


def test_recovered_store_has_a_leader_soon() -> None:
    """After a store was away for whom it may concern, one leads again within a second, and nothing is lost (N-13)."""

    async def test(nodes: SimulatedCluster) -> None:
        a = nodes.start("a")
        await nodes.until(lambda: a.leads)
        b = nodes.start("b")
        await nodes.until(lambda: b.follows == "a")
        await a.engine.ask(acquire("job"))
        nodes.shelf.is_away = True
        await asyncio.sleep(10)
        assert not a.leads and not b.leads
        nodes.shelf.is_away = False
        assert await nodes.until(lambda: a.leads or b.leads) <= 1.5
        leader = next(node for node in nodes.nodes if node.leads)
        assert isinstance((await leader.engine.ask(acquire("other")))[0], Acquired)

    cluster(test)


@pytest.mark.parametrize(
    ("error", "seconds"), [(JournalUnavailableError("open: no"), 1), (JournalDamagedError("holes"), 10)]
)
def test_failed_term_start_is_retried(error: JournalError, seconds: int, caplog: pytest.LogCaptureFixture) -> None:
    """Who took the seat and cannot serve leaves it to others for a while, and tries again (N-6, N-37)."""

    async def test(nodes: SimulatedCluster) -> None:
        a = nodes.start("a")
        a.store.open_error = error
        await asyncio.sleep(3)
        assert not a.leads and a.node.trouble is not None and error.problem in caplog.text
        a.store.open_error = None
        assert await nodes.until(lambda: a.leads) <= seconds + 0.5
        assert a.node.trouble is None

    cluster(test)


def test_node_that_cannot_serve_yields_to_another() -> None:
    """A node that cannot begin a tenure does not keep others from theirs (N-37)."""

    async def test(nodes: SimulatedCluster) -> None:
        a = nodes.start("a")
        a.store.open_error = JournalDamagedError("holes")
        await asyncio.sleep(1)
        b = nodes.start("b")
        assert await nodes.until(lambda: b.leads) < 0.5
        await nodes.until(lambda: a.follows == "b")

    cluster(test)


def test_isolated_leader_gives_up_leadership() -> None:
    """With others alive, and neither a link nor a request for five seconds, the seat goes to another (N-37)."""

    async def test(nodes: SimulatedCluster) -> None:
        a = nodes.start("a")
        a.node.links = 0
        await nodes.until(lambda: a.leads)
        b = nodes.start("b")
        took = await nodes.until(lambda: b.leads)
        assert 5 <= took <= 10
        await nodes.until(lambda: a.follows == "b")
        await asyncio.sleep(20)
        assert b.leads, "whom somebody reaches stays"

    cluster(test)


def test_sole_leader_stays() -> None:
    """Where no other node is, nobody could do better: it stays, however little is asked (N-37)."""

    async def test(nodes: SimulatedCluster) -> None:
        a = nodes.start("a")
        a.node.links = 0
        await nodes.until(lambda: a.leads)
        await asyncio.sleep(60)
        assert a.leads and nodes.shelf.leadership.epoch == 1

    cluster(test)


def test_waiter_for_a_change_is_notified() -> None:
    """Who waits for another leader is woken by each change, and by nothing else."""

    async def test(nodes: SimulatedCluster) -> None:
        a = nodes.start("a")
        await nodes.until(lambda: a.leads)
        b = nodes.start("b")
        await nodes.until(lambda: b.follows == "a")
        waiting = asyncio.ensure_future(b.node.wait_for_change())
        await asyncio.sleep(30)
        assert not waiting.done(), "beats are no change"
        await a.stop()
        await asyncio.wait_for(waiting, 1)

    cluster(test)


def test_lost_link_causes_an_immediate_poll() -> None:
    """Who hears that its link is lost looks at the store at once: a leader that stopped has given the seat back."""

    async def test(nodes: SimulatedCluster) -> None:
        a = nodes.start("a")
        await nodes.until(lambda: a.leads)
        b = nodes.start("b")
        await nodes.until(lambda: b.follows == "a")
        await asyncio.sleep(0.2)
        await a.stop()
        b.node.poll_soon()
        assert await nodes.until(lambda: b.leads) <= 0.06

    cluster(test)


def test_unavailable_leadership_is_retried_with_backoff(caplog: pytest.LogCaptureFixture) -> None:
    """A free seat that the store keeps from us is tried once a second, and the log has it once (N-36)."""

    async def test(nodes: SimulatedCluster) -> None:
        a = nodes.start("a")
        a.store.open_error = JournalLockedError("open: a node that is still there cannot read format 9")
        await asyncio.sleep(10)
        a.store.open_error = None
        await nodes.until(lambda: a.leads)

    with caplog.at_level("INFO", "holdfast.node"):
        cluster(test)
    said = [record.message for record in caplog.records]
    assert sum("does not take the seat" in line for line in said) == 1
    assert sum("tries to take the seat" in line for line in said) <= 13


def test_log_names_the_leader(caplog: pytest.LogCaptureFixture) -> None:
    """The log has a line for each change that a tired operator understands, and no more."""

    async def test(nodes: SimulatedCluster) -> None:
        a = nodes.start("a")
        await nodes.until(lambda: a.leads)
        b = nodes.start("b")
        await nodes.until(lambda: b.follows == "a")
        await asyncio.sleep(30)
        a.freeze()
        await nodes.until(lambda: b.leads)
        a.thaw()
        await nodes.until(lambda: a.follows == "b")

    cluster(test)
    said = [each.message for each in caplog.records if each.name == "holdfast.node" and each.levelname != "INFO"]
    expected = [
        r"this node leads since \S+, epoch 1: nobody has the seat",
        r"node a leads since \S+, epoch 1; we follow",
        r"this node leads since \S+, epoch 2: node a was silent for 2.\d s",
        r"this node does not lead any more, its epoch 1 is over: .*b has the seat now",
        r"node b leads since \S+, epoch 2; we follow",
        r"this node does not lead any more, its epoch 2 is over: it was told to stop",
    ]
    assert [re.fullmatch(line, text) is not None for line, text in zip(expected, said, strict=True)] == [True] * 6
