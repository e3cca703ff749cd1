"""Turns: what is decided carries the time at which it was asked, wherever in a round of the loop that is (T1a)."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.deadline import safe_ms
from holdfast.core.events import Ended
from holdfast.core.outcomes import Acquired
from holdfast.engine.clock import BUDGET_MS
from tests.engine.harness import (
    Asked,
    FineClock,
    GateJournal,
    acquire,
    many_cases,
    release,
    run,
    serving,
    tail,
    turns,
)
from tests.engine.test_waiters import wait_for
from tests.support.memory_journal import MemoryJournal

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.engine.engine import Engine
    from holdfast.testing.clock import ManualClock


def test_expiry_time_is_measured_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a turn takes to end what is due is known: nobody who asks in it is charged for that."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(acquire("job"))
            before_ms = engine.ticks.expiry_ms
            monkeypatch.setattr("holdfast.engine.engine.next_due", lambda *_: clock.advance(30))
            clock.advance(1)
            await engine.ask(acquire("other"))
            assert engine.ticks.expiry_ms - before_ms >= 30

    run(test)


def test_later_request_of_an_iteration_gets_a_later_time() -> None:
    """A loop that hands over data twice within one round gives the second its own time, not the first's (T1a)."""

    async def test(clock: ManualClock) -> None:
        journal = MemoryJournal()
        async with serving(journal, clock) as engine:
            asked, loop = Asked(engine), asyncio.get_running_loop()
            loop.call_soon(asked.submit, "first", acquire("a"))
            # The first ones take 78 ms. Meanwhile the second is sent, and the loop asks the sockets again.
            loop.call_soon(clock.advance, 78)
            loop.call_soon(asked.submit, "second", acquire("b"))
            loop.call_soon(asked.read, "third", lambda _state, now: now)
            await turns()
            began, later = asked.moments["first"], asked.moments["second"]
            assert later.ms == began.ms + 78
            assert later.wall_ms == began.wall_ms + 78
            assert asked["second"].until_ms == asked["first"].until_ms + 78
            assert asked["third"] == later
            assert [record.at_ms for record in await tail(journal)][-2:] == [began.ms, later.ms]

    run(test)


def test_lease_due_within_an_iteration_has_ended() -> None:
    """A lease whose time is over is over for the next one that asks, also in the middle of a round (T3, T1a)."""

    async def test(clock: ManualClock) -> None:
        journal = MemoryJournal()
        async with serving(journal, clock) as engine:
            _, granted = await engine.ask(acquire("job", ttl_ms=1_000))
            await turns()
            asked = Asked(engine)
            for _ in range(11):
                asked.submit("other", acquire("other"))
                clock.advance(100)
            asked.submit("next", acquire("job", "next"))
            await turns()
            assert isinstance(asked["next"], Acquired)
            (end,) = [record for record in await tail(journal) if isinstance(record.event, Ended)]
            assert end.at_ms == granted.ms + 1_000

    run(test)


asks = st.lists(
    st.tuples(st.integers(0, 3_000), st.sampled_from(["submit", "read", "turn", "round"])), min_size=1, max_size=40
)


@many_cases
@given(asks)
def test_tick_time_is_less_than_a_millisecond_old(steps: list[tuple[int, str]]) -> None:
    """Whatever is asked, and wherever in a round: its time is what the clock shows then, in whole milliseconds, and one
    turn serves all of a millisecond in which the writer did not come by (T1a).
    """

    async def test(clock: ManualClock) -> None:
        fine = FineClock(clock)
        async with serving(GateJournal(), fine) as engine:
            first = engine.tick()
            assert first is not None
            began_ms = fine.monotonic_ms() - first.ms
            for number, (passed_us, kind) in enumerate(steps):
                fine.past_us += passed_us
                asked = Asked(engine)
                if kind == "round":
                    await turns()
                    continue
                if kind == "submit":
                    asked.submit("it", acquire(f"job/{number}"))
                elif kind == "read":
                    asked.read("it", lambda _state, _now: None)
                moment = engine.tick()
                assert moment is not None and moment.ms == fine.monotonic_ms() - began_ms
                if kind != "turn":
                    assert engine._answers[-1][2] is moment

    run(test)


@pytest.mark.parametrize("sent_us", [0, 1, 400, 999])
@pytest.mark.parametrize("age_us", [0, 1, 600, 999])
def test_client_margin_covers_the_tick(sent_us: int, age_us: int) -> None:
    """A lease stamped up to a millisecond before its request was sent outlives its client's belief (I4, T1a)."""

    async def test(clock: ManualClock) -> None:
        fine = FineClock(clock)
        async with serving(MemoryJournal(), fine) as engine:
            asked = Asked(engine)
            fine.past_us = sent_us
            asked.read("begins the turn", lambda _state, _now: None)
            fine.past_us += age_us
            sent_ms = fine.monotonic_ms()
            asked.submit("claim", acquire("job", ttl_ms=1_000))
            listener = engine.feed.listen("job")
            await turns()
            promised_ms = asked["claim"].until_ms - asked.moments["claim"].ms
            believed_until_ms = sent_ms + safe_ms(promised_ms)
            while not isinstance((await _next(listener))[1], Ended):
                pass
            assert believed_until_ms * 1000 < fine.monotonic_us()

    run(test)


async def _next(listener: Any) -> tuple[Any, Any]:  # noqa: ANN401 - a happening is a pair
    happening = await listener.next()
    assert happening is not None
    return happening[0], happening[1]


def test_long_iteration_of_many_ticks_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody else is served for as long as a round takes: it is told, however many turns it had."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            asked = Asked(engine)
            for number in range(BUDGET_MS + 1):
                asked.submit(str(number), acquire(f"job/{number}"))
                clock.advance(1)
            await turns()

    with caplog.at_level(logging.WARNING, "holdfast.engine"):
        run(test)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("slow turn: 51 ms (budget 50 ms), 51 records, 51 answers")


def test_wait_counts_from_the_tick_of_its_request() -> None:
    """`waited_ms` is never more than what passed between the request and its grant, both late in a round (W4)."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            asked = Asked(engine)
            asked.submit("holder", acquire("job"))
            clock.advance(40)
            asked.submit("waiter", wait_for("job", "ben"))
            clock.advance(30)
            asked.submit("release", release("job"))
            await turns()
            assert asked["waiter"].waited_ms == 29
            assert asked.moments["waiter"].ms == asked.moments["holder"].ms + 70

    run(test)


def test_reading_the_tick_keeps_the_writer_scheduled() -> None:
    """What is asked in a round that began while the writer was busy is answered, although the writer came by since."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            journal.is_shut = True
            asked, loop = Asked(engine), asyncio.get_running_loop()
            asked.submit("first", acquire("a"))
            await turns()
            # In one round: somebody looks at the time, the append ends, the writer finds nothing more, one more asks.
            loop.call_soon(engine.tick)
            journal.open_gate()
            loop.call_soon(asked.submit, "second", acquire("b"))
            await turns()
            assert asked.labels == ["first", "second"]

    run(test)


def _calls(work: Callable[[], object]) -> int:
    """Return how many functions the work calls."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_idle_tick_runs_in_constant_time() -> None:
    """There can be a thousand turns in a second, so one must not look at all leases or all who wait (T3)."""

    async def cost(engine: Engine, clock: ManualClock) -> int:
        await turns()
        clock.advance(1)
        count = _calls(engine.tick)
        await turns()
        return count

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            asked = Asked(engine)
            asked.submit("one", acquire("job/0", ttl_ms=3_600_000))
            asked.submit("two", wait_for("job/0", "o"))
            few = await cost(engine, clock)
            for number in range(1, 2_000):
                asked.submit("more", acquire(f"job/{number}", ttl_ms=3_600_000))
                asked.submit("waits", wait_for("job/0", f"o-{number}"))
            assert await cost(engine, clock) == few

    run(test)


def test_requests_of_one_millisecond_share_a_tick() -> None:
    """A turn is not begun for each request: a thousand of them in a millisecond share one."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await turns()
            asked = Asked(engine)
            for number in range(1_000):
                asked.submit(str(number), acquire(f"job/{number}"))
            await turns()
            assert len({id(moment) for moment in asked.moments.values()}) == 1

    run(test)
