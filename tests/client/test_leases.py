"""Giving back, as flows, and the two backgrounds: what is lost is given up, what is interrupted is seen through."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

import pytest

from holdfast.client.aio import BackgroundLoop
from holdfast.client.answers import Answer
from holdfast.client.claim_flows import AcquiredClaim, claim
from holdfast.client.deadline import Loss
from holdfast.client.effects import Flow, Send, Sleep
from holdfast.client.lease import ClaimGroup, HeldClaim
from holdfast.client.options import ClaimRequest
from holdfast.client.sync import BackgroundThread
from holdfast.errors import LeaseLost, LeaseReleased, SettingsError, Unreachable
from tests.client.driving import BROKEN, LEASE, POLICY, World, acquired, answer, bodies, problem, renewed, scripted
from tests.support.checks import wait_until

FREED = answer(200)
SECONDS_MAX = 20.0


def got(job: str = "j", ttl_ms: int = 60_000) -> tuple[World, AcquiredClaim]:
    world = World(scripted(acquired(ttl_ms)))
    return world, world.run(claim(job, ClaimRequest(ttl=60, owner="o"), POLICY))


def test_lost_claim_is_released() -> None:
    """What we stopped believing in is released as failed, in case the server has it still; then the loss is raised."""
    world, mine = got()
    held = HeldClaim(mine, POLICY)
    world.advance(61)
    world.network = scripted(FREED)
    with pytest.raises(LeaseLost) as caught:
        world.run(held._releasing())
    assert (caught.value.reason, caught.value.fencing_token) == ("expired", 7)
    assert bodies(world.sent)[-1] == {"lease_id": LEASE, "outcome": "failed"}
    world.run(held._releasing())
    assert len(world.sent) == 2


def test_failed_release_does_not_hide_the_loss() -> None:
    """A server that is gone when we give up changes nothing: the loss is raised, after one short try."""
    world, mine = got()
    held = HeldClaim(mine, POLICY)
    world.advance(61)
    world.network = scripted(BROKEN)
    held._release_arguments = ("done", None, 5)
    with pytest.raises(LeaseLost):
        world.run(held._releasing())
    assert len(world.sent) == 2 and world.sent[1].answer_seconds <= 2


def test_a_second_release_does_not_change_the_first() -> None:
    """A signal handler that releases while `done` is under way, and then ends the program, leaves it done."""
    world, mine = got()
    held = HeldClaim(mine, POLICY)
    flow = vars(HeldClaim)["done"].flow(held, "result")
    flow.send(None)
    flow.send(world.now())
    world.run(vars(HeldClaim)["release"].flow(held, outcome="failed"))
    flow.close()
    world.network = scripted(FREED)
    world.run(held._release_quickly())
    sent = bodies(world.sent)[-1]
    assert (sent["outcome"], sent["result"]) == ("done", "result")


def test_reported_loss_sends_no_release() -> None:
    """L7: what the server has ended is not released once more."""
    world, mine = got()
    held = HeldClaim(mine, POLICY)
    mine.deadline.lose(Loss("revoked", "op", "because", is_reported=True))
    with pytest.raises(LeaseLost, match="op has revoked it"):
        world.run(held._releasing())
    assert len(world.sent) == 1


def test_lost_release_reply_is_retried() -> None:
    """A release without an answer is `Unreachable`; the claim is not ours any more all the same."""
    world, mine = got()
    held = HeldClaim(mine, POLICY)
    world.network = scripted(BROKEN)
    with pytest.raises(Unreachable):
        world.run(held._releasing())
    assert held.released and held.remaining == 0
    with pytest.raises(LeaseReleased):
        held.raise_if_lost()


def test_release_is_tried_no_longer_than_the_lease_lives() -> None:
    """The end of the lease gives the job back too: nobody answers, and the release is given up by then."""
    world, mine = got()
    held = HeldClaim(mine, POLICY)
    world.advance(58)
    world.network = scripted(BROKEN)
    began = world.now()
    with pytest.raises(Unreachable):
        world.run(held._releasing())
    assert world.now().boot_ms - began.boot_ms <= 2_000
    assert max(sent.answer_seconds for sent in world.sent[1:]) <= 2


def test_note_extends_and_reported_loss_stays() -> None:
    """A note renews the claim; if that tells of the end, the claim is lost with that reason and raised once."""
    world, mine = got()
    held = HeldClaim(mine, POLICY)
    world.advance(30)
    world.network = scripted(renewed(60_000))
    world.run(held._renewing("n", {"a": 1}))
    assert mine.deadline.left_ms(world.now()) > 59_000 and held.metadata == {"a": 1}
    world.network = scripted(problem(404, "revoked", by="op", reason="because"))
    with pytest.raises(LeaseLost, match="because"):
        world.run(held._renewing("n", None))
    assert mine.deadline.loss is not None and mine.deadline.loss.is_reported
    world.run(held._releasing())


UNUSABLE = SettingsError("ca_file", "/ca.pem", "its certificates cannot be used")


@pytest.mark.parametrize("unheard", [BROKEN, KeyboardInterrupt(), UNUSABLE])
def test_lost_transfer_reply_loses_the_claim(unheard: BaseException) -> None:
    """From when a transfer is sent the job may be another's: it is not believed in, and given up if nobody answers."""
    world, mine = got()
    held = HeldClaim(mine, POLICY)

    def vanish(_world: World, _request: Send) -> Answer:
        assert held.remaining == 0
        raise unheard

    world.network = vanish
    with pytest.raises(type(unheard)):
        world.run(held._transferring("ben", None))
    assert mine.deadline.loss is not None and mine.deadline.loss.reason == "unreachable"
    world.network = scripted(FREED)
    with pytest.raises(LeaseLost):
        world.run(held._releasing())
    assert world.paths[-1] == "POST /locks/j/release"


def test_release_that_no_other_address_can_be_asked_for_leaves_nothing_held() -> None:
    """A `SettingsError` is a `ValueError`, but no refused argument: the answer of another address may be lost."""
    world, mine = got()
    held = HeldClaim(mine, POLICY)
    world.network = scripted(UNUSABLE)
    with pytest.raises(SettingsError):
        world.run(held._releasing())
    assert held.released and held.remaining == 0


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), asyncio.CancelledError()])
def test_interrupted_group_releases_every_claim(interrupt: BaseException) -> None:
    """An interrupt while a group is given back goes on when every one of it is given back."""
    world, _ = got()
    group = ClaimGroup([HeldClaim(got()[1], POLICY) for _ in range(3)])
    world.network = scripted(interrupt, FREED)
    with pytest.raises(type(interrupt)):
        world.run(group._releasing())
    assert all(held.released for held in group)
    assert len({request.key for request in world.sent[1:]}) == 3


def test_group_raises_its_first_error() -> None:
    """One that cannot be given back does not keep the others; what went wrong first is raised."""
    world, _ = got()
    group = ClaimGroup([HeldClaim(got()[1], POLICY) for _ in range(3)])
    gone = problem(404, "lease_not_current", ended="expired")
    world.network = scripted(gone, FREED, problem(404, "revoked"))
    with pytest.raises(LeaseLost) as caught:
        world.run(group._releasing())
    assert caught.value.reason == "expired"
    assert len(world.sent) == 4


# The background: one thread, or one event loop, for any number of flows.


def heartbeat_flow(done: Callable[[], object], count: int) -> Flow[None]:
    for _ in range(count):
        yield Sleep(0.001)
        assert (yield Send("POST", "/beat")) == "answer"
    done()


def broken(world: str) -> Flow[None]:
    yield Sleep(0.001)
    raise RuntimeError(world)


def test_thread_renews_many_claims(caplog: pytest.LogCaptureFixture) -> None:
    """One thread keeps any number of flows; a hanging request and a bug in one delay none of the others."""
    background = BackgroundThread()
    hanging = threading.Event()
    done: list[int] = []

    def hang(request: Send) -> str:
        hanging.wait(SECONDS_MAX)
        return "answer"

    background.add(heartbeat_flow(lambda: done.append(-1), 1), hang)
    with caplog.at_level(logging.ERROR, "holdfast.client"):
        background.add(broken("a mistake"), hang)
        finished = [threading.Event() for _ in range(20)]
        for event in finished:
            background.add(heartbeat_flow(event.set, 3), lambda _: "answer")
        assert all(event.wait(SECONDS_MAX) for event in finished)
    assert done == []
    assert "a bug while renewing" in caplog.text
    hanging.set()


def test_missing_renewal_thread_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    """When no thread can be started for a renewal, that renewal has failed, and the next one is tried."""
    background = BackgroundThread()
    received: list[Exception] = []
    done = threading.Event()
    start = threading.Thread.start

    def flow() -> Flow[None]:
        try:
            yield Send("POST", "/beat")
        except Unreachable as error:
            received.append(error)
        yield Sleep(0)
        yield Send("POST", "/beat")
        done.set()

    def start_no_renewal(thread: threading.Thread) -> None:
        if thread.name == "holdfast-renew" and not received:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_no_renewal)
    background.add(flow(), lambda _: "answer")
    assert done.wait(SECONDS_MAX)
    assert len(received) == 1


def test_missing_timer_thread_is_retried(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """When the thread that waits for time cannot be started, that is logged, and the next flow tries again."""
    background = BackgroundThread()
    first, second = threading.Event(), threading.Event()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        background.add(heartbeat_flow(first.set, 1), lambda _: "answer")
        wait_until(lambda: "nothing is renewed for now" in caplog.text)
    background.add(heartbeat_flow(second.set, 1), lambda _: "answer")
    assert first.wait(SECONDS_MAX) and second.wait(SECONDS_MAX)


def test_dropped_flow_is_not_resumed() -> None:
    """A flow that was dropped is not resumed, also when it waits for an answer."""
    background = BackgroundThread()
    asked, answered = threading.Event(), threading.Event()
    went_on: list[int] = []

    def hang(request: Send) -> str:
        asked.set()
        answered.wait(SECONDS_MAX)
        return "answer"

    def flow() -> Flow[None]:
        yield Send("POST", "/beat")
        yield Sleep(0)
        went_on.append(1)

    requesting = background.add(flow(), hang)
    scheduled = background.add(heartbeat_flow(lambda: went_on.append(2), 1), hang)
    assert asked.wait(SECONDS_MAX)
    for each in (requesting, scheduled):
        each.stopped = True
    answered.set()
    other = threading.Event()
    background.add(heartbeat_flow(other.set, 5), lambda _: "answer")
    assert other.wait(SECONDS_MAX)
    assert went_on == []


def test_closed_background_resumes_nothing() -> None:
    """Closing lets everything be; what is dropped afterwards is not counted as if it had been there."""

    async def main() -> None:
        background = BackgroundLoop()
        running = [background.add(heartbeat_flow(pytest.fail, 1), lambda _: None) for _ in range(3)]
        background.close()
        for each in running:
            each.stopped = True
        assert len(background._schedule) == 0 and all(each.stopped for each in running)

    asyncio.run(main())


def test_loop_renews_many_claims() -> None:
    """One timer keeps any number of flows on an event loop, and closing it lets all of them be."""

    async def main() -> None:
        background = BackgroundLoop()
        finished = [asyncio.Event() for _ in range(20)]

        async def answering(request: Send) -> str:
            await asyncio.sleep(0)
            return "answer"

        async def hanging(request: Send) -> str:
            await asyncio.Event().wait()
            return "answer"

        background.add(heartbeat_flow(pytest.fail, 1), hanging)
        for event in finished:
            background.add(heartbeat_flow(event.set, 3), answering)
        async with asyncio.timeout(SECONDS_MAX):
            for event in finished:
                await event.wait()
        dropped = background.add(heartbeat_flow(pytest.fail, 1), answering)
        dropped.stopped = True
        background.close()
        again = asyncio.Event()
        background.add(heartbeat_flow(again.set, 2), answering)
        async with asyncio.timeout(SECONDS_MAX):
            await again.wait()

    asyncio.run(main())
