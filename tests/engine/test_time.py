"""Authority time: slow at worst, never fast, still without a writer; expiry comes by itself (T1–T4, L1, L2)."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from holdfast.core.commands import OpenSession
from holdfast.core.events import Ended, SessionEnded, TimePassed
from holdfast.core.outcomes import Acquired, Delayed, Extended, NotCurrent
from holdfast.core.values import Limits
from holdfast.engine.clock import TICK_MS_MAX, UNRECORDED_MS_MAX, AuthorityTime, SystemClock
from holdfast.engine.engine import Engine
from holdfast.testing.clock import ManualClock
from tests.engine.harness import Asked, GateJournal, acquire, events, release, renew, run, serving, tail, turns
from tests.support.memory_journal import MemoryJournal

HOUR_MS = 3_600_000
MONTH_MS = 30 * 86_400_000


def test_tick_advances_time_by_at_most_250_ms() -> None:
    """Authority time moves with the monotonic clock, and a jump of an hour counts as one turn's worth (T1)."""
    time = AuthorityTime(50, 7_000)
    assert time.advance(50) == 7_000
    assert time.advance(299) == 7_249
    assert time.advance(299 + HOUR_MS) == 7_249 + TICK_MS_MAX
    assert time.advance(300 + HOUR_MS) == 7_250 + TICK_MS_MAX


def test_time_never_runs_fast() -> None:
    """A clock that falls back and catches up again does not count the same time twice (T1)."""
    time = AuthorityTime(0, 0)
    assert time.advance(100) == 100
    assert time.advance(10) == 100
    assert time.advance(100) == 100


def test_system_clock_reads_the_machine() -> None:
    """The machine's clocks come in whole milliseconds: one that only rises, one that people know (T1, T4)."""
    clock = SystemClock()
    assert clock.monotonic_ms() <= clock.monotonic_seconds() * 1000 <= clock.monotonic_ms() + 1
    assert clock.wall_ms() > 1_700_000_000_000


def test_manual_clock_moves_by_hand() -> None:
    """A manual clock stands still, advances both times together, steps the wall alone, and never runs backwards."""
    clock = ManualClock(monotonic_ms=5, wall_ms=50)
    clock.advance(10)
    assert (clock.monotonic_ms(), clock.monotonic_seconds(), clock.wall_ms()) == (15, 0.015, 60)
    clock.step_wall(-100)
    assert (clock.monotonic_ms(), clock.wall_ms()) == (15, -40)
    with pytest.raises(ValueError, match="time only passes"):
        clock.advance(-1)


@pytest.mark.parametrize("ttl_ms", [10_000, 10_037])
def test_lease_expires_without_requests(ttl_ms: int) -> None:
    """A first and only lease ends although nobody asks, at its deadline, not before and not a tick later (L1, L2)."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            listener = engine.feed.listen("job")
            (answer, now) = await engine.ask(acquire("job", ttl_ms=ttl_ms))
            asked_ms = clock.monotonic_ms()
            assert answer.until_ms == now.ms + ttl_ms
            await listener.next()
            happening = await listener.next()
            assert happening is not None
            record, event = happening
            assert isinstance(event, Ended) and event.how == "expired"
            assert answer.until_ms <= record.at_ms <= answer.until_ms + 1
            assert asked_ms + ttl_ms <= clock.monotonic_ms() <= asked_ms + ttl_ms + 250

    run(test)


def runs(engine: Engine) -> bool:
    """Is there a timer now?"""
    return engine.ticks.timer is not None


def test_time_passes_only_while_something_has_a_deadline() -> None:
    """No timer runs on an engine that holds nothing; a lease sets it, its release stops it (T1)."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            assert not runs(engine)
            await engine.ask(acquire("job"))
            await turns()
            assert runs(engine)
            await engine.ask(release("job"))
            await asyncio.sleep(0.3)
            assert not runs(engine)

    run(test)


@pytest.mark.parametrize("kind", ["session", "delay"])
def test_a_session_or_a_closed_name_keeps_time_moving(kind: str) -> None:
    """A session without leases lapses at its time, and a closed name opens at its own, though nobody asks (S1, L6)."""

    async def test(clock: ManualClock) -> None:
        journal = MemoryJournal()
        async with serving(journal, clock) as engine:
            begun_ms = engine.ticks.now_ms
            if kind == "session":
                await engine.ask(OpenSession(principal="ana", session_id="s", ttl_ms=10_000))
            else:
                await engine.ask(acquire("job", delay_ms=10_000))
                await engine.ask(release("job"))
                assert isinstance((await engine.ask(acquire("job", "next")))[0], Delayed)
            await asyncio.sleep(20)
            assert engine.ticks.timer is None
            if kind == "session":
                ends = [record for record in await tail(journal) if isinstance(record.event, SessionEnded)]
                assert [begun_ms + 10_000 <= record.at_ms <= begun_ms + 10_001 for record in ends] == [True]
            else:
                assert isinstance((await engine.ask(acquire("job", "next")))[0], Acquired)

    run(test)


def test_closed_name_opens_at_its_time() -> None:
    """A name with a lock delay is closed until the delay is over, and open from then on (L6, I14)."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(acquire("job", delay_ms=2_000))
            await engine.ask(release("job"))
            await asyncio.sleep(1.9)
            assert isinstance((await engine.ask(acquire("job", "next")))[0], Delayed)
            await asyncio.sleep(0.1)
            assert isinstance((await engine.ask(acquire("job", "next")))[0], Acquired)

    run(test)


def test_time_is_recorded_every_five_seconds() -> None:
    """While anything has a deadline, records are at most 5 s of authority time apart, and seldom much less (T2)."""

    async def test(clock: ManualClock) -> None:
        journal = MemoryJournal()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("job", ttl_ms=60_000))
            await asyncio.sleep(61)
            records = await tail(journal)
            assert max(after.at_ms - before.at_ms for before, after in pairwise(records)) <= UNRECORDED_MS_MAX
            assert 11 <= sum(isinstance(record.event, TimePassed) for record in records) <= 14
            assert isinstance(records[-1].event, Ended)

    run(test)


@pytest.mark.parametrize("late_ms", [130, 240, 250])
def test_time_is_recorded_when_timers_are_late(late_ms: int) -> None:
    """A loop that is slow to tick still writes a record within every 5 s of authority time (T2)."""

    async def test(clock: ManualClock) -> None:
        journal = MemoryJournal()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("job", ttl_ms=HOUR_MS))
            for _ in range(100):
                clock.advance(late_ms)
                engine._on_timer()
                await turns()
            records = await tail(journal)
            assert max(after.at_ms - before.at_ms for before, after in pairwise(records)) <= UNRECORDED_MS_MAX
            assert sum(isinstance(record.event, TimePassed) for record in records) >= 100 * late_ms // 5_000

    run(test)


def test_crash_sets_time_back_by_at_most_five_seconds() -> None:
    """After a crash time resumes at the last record, at most 5 s before the crash, and never after it (T2)."""

    async def test(clock: ManualClock) -> None:
        journal = MemoryJournal()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("job", ttl_ms=60_000))
            for _ in range(37):
                await asyncio.sleep(0.7)
                crashed = journal.fork()
                clock.advance(HOUR_MS)
                async with serving(crashed, clock) as recovered:
                    assert engine.ticks.now_ms - UNRECORDED_MS_MAX <= recovered.ticks.now_ms <= engine.ticks.now_ms

    run(test)


def test_downtime_does_not_count() -> None:
    """A lease with 10 s left has 10 s left after a month of downtime, and then ends (T2, L1)."""

    async def test(clock: ManualClock) -> None:
        journal = MemoryJournal()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("job", ttl_ms=10_000))
        clock.advance(MONTH_MS)
        async with serving(journal, clock) as engine:
            lease, now_ms = await engine.query(lambda state, now: (state.slots["job"].lease, now.ms))
            assert lease is not None and lease.until_ms - now_ms == 10_000
            await asyncio.sleep(9.9)
            assert await engine.query(lambda state, _: len(state.index.held)) == 1
            await asyncio.sleep(0.2)
            assert await engine.query(lambda state, _: len(state.index.held)) == 0

    run(test)


def test_stopped_process_expires_nothing() -> None:
    """After a pause of three ttls a renewal that waited is in time, whether timer or request comes first (T1)."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            for is_timer_first in (False, True):
                await engine.ask(acquire("job", ttl_ms=10_000))
                clock.advance(30_000)
                if is_timer_first:
                    engine._on_timer()
                assert isinstance((await engine.ask(renew("job")))[0], Extended)
                await engine.ask(release("job"))

    run(test)


@pytest.mark.parametrize("step_ms", [-MONTH_MS, MONTH_MS])
def test_the_wall_clock_decides_nothing(step_ms: int) -> None:
    """A wall clock stepped by a month moves what people are shown, and no deadline (T4, L1)."""

    async def test(clock: ManualClock) -> None:
        journal = MemoryJournal()
        async with serving(journal, clock) as engine:
            answer, before = await engine.ask(acquire("job", ttl_ms=10_000))
            clock.step_wall(step_ms)
            await asyncio.sleep(5)
            records, now = await engine.ask(renew("job"))
            assert now.wall_ms == before.wall_ms + 5_000 + step_ms
            assert now.ms == before.ms + 5_000
            assert records.until_ms == answer.until_ms + 5_000
            await asyncio.sleep(11)
            assert isinstance((await engine.ask(renew("job")))[0], NotCurrent)

    run(test)


def test_due_leases_end_before_the_next_decision() -> None:
    """However many leases fall due in one turn, all have ended before its first command is decided (T3)."""

    async def test(clock: ManualClock) -> None:
        journal = MemoryJournal()
        count = 12_000
        async with serving(journal, clock, limits=Limits(leases_per_principal_max=count)) as engine:
            asked = Asked(engine)
            for number in range(count):
                asked.submit("", acquire(f"job/{number}", ttl_ms=200))
            await turns()
            assert asked.kinds == ["Acquired"] * count
            clock.advance(200)
            asked.submit("again", acquire("another"))
            asked.submit("late", renew(f"job/{count - 1}"))
            asked.read("held", lambda state, _: len(state.index.held))
            await turns()
            assert [type(asked[label]) for label in ("again", "late")] == [Acquired, NotCurrent]
            assert asked["held"] == 1
            assert sum(isinstance(event, Ended) for event in await events(journal)) == count

    run(test)


def test_every_loop_iteration_has_its_own_time() -> None:
    """While an append is on its way, what is asked later is decided later: its ttl counts from its own turn (L1)."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            journal.is_shut = True
            asked.submit("first", acquire("first", ttl_ms=10_000))
            await turns()
            for label in ("second", "third"):
                clock.advance(200)
                asked.submit(label, acquire(label, ttl_ms=10_000))
                asked.submit(label + " too", acquire(label + "/too", ttl_ms=10_000))
                await turns()
            journal.open_gate()
            await turns()
            begun_ms = asked.moments["first"].ms
            assert [asked.moments[label].ms - begun_ms for label in asked.labels] == [0, 200, 200, 400, 400]
            assert [asked[label].until_ms - begun_ms - 10_000 for label in asked.labels] == [0, 200, 200, 400, 400]

    run(test)


def test_time_advances_during_a_slow_append() -> None:
    """A slow remote journal does not slow time down: what falls due meanwhile is ended in the next batch (L2)."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("short", ttl_ms=2_000))
            journal.is_shut = True
            pending = asyncio.create_task(engine.ask(acquire("long", ttl_ms=60_000)))
            begun_ms = engine.ticks.now_ms
            await asyncio.sleep(3)
            assert engine.ticks.now_ms - begun_ms >= 2_900
            assert "short" not in engine.state.index.held.walk()
            assert not pending.done()
            journal.open_gate()
            await pending
            await turns()
            ends = [record for record in journal.appends[-1] if isinstance(record.event, Ended)]
            assert [2_000 <= record.at_ms - begun_ms <= 2_001 for record in ends] == [True]

    run(test)
