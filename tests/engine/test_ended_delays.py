"""What time alone has changed is answered after a record of that time, so that no restart takes it back (T3a)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from holdfast.core.commands import Reopen
from holdfast.core.events import DoneExpired, TimePassed
from holdfast.core.outcomes import AllHeld, NotDone
from tests.engine.harness import Asked, GateJournal, acquire, events, release, run, serving, turns
from tests.support import commands
from tests.support.memory_journal import MemoryJournal

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.core.values import Instant
    from holdfast.engine.engine import Engine
    from holdfast.testing.clock import ManualClock

STEPS_MS = (0, 1, 249, *(250 for _ in range(10)), 240, *(1 for _ in range(20)), 85, *(1 for _ in range(10)))
"""Up to the end of what lasts 3 s and 3.1 s, millisecond by millisecond around it. Each is a turn's worth at most."""


def over(state: State, now: Instant) -> frozenset[str]:
    """What is over by time alone: the names whose delay is over, and those that are done no more."""
    delays = {f"delay of {name}" for name, slot in state.slots.items() if 0 < slot.closed_until_ms <= now.ms}
    done = {
        f"work of {name}"
        for name, slot in state.slots.items()
        if name.startswith("done") and (slot.done is None or slot.done.until_ms <= now.ms)
    }
    return frozenset(delays | done)


async def prepare(engine: Engine) -> None:
    await engine.ask(acquire("closed", delay_ms=3_000))
    await engine.ask(release("closed"))
    await engine.ask(acquire("done"))
    await engine.ask(release("done", done=True, remember_ms=3_100))


@pytest.mark.parametrize("is_ticking", [False, True], ids=["asked first", "ticked first"])
def test_ended_delay_stays_ended_after_a_crash(is_ticking: bool) -> None:
    """T3a: a delay that was said to be over, or work that was said to be forgotten, is so again after any crash."""

    async def test(clock: ManualClock) -> None:
        journal = MemoryJournal()
        async with serving(journal, clock) as engine:
            await prepare(engine)
            reported: frozenset[str] = frozenset()
            for number, step_ms in enumerate(STEPS_MS):
                clock.advance(step_ms)
                if is_ticking:
                    engine._on_timer()
                    await turns()
                reported |= await engine.query(over)
                async with serving(journal.fork(), clock) as recovered:
                    assert reported <= await recovered.query(over), f"taken back after step {number}"
            assert reported == {"delay of closed", "work of done"}

    run(test)


@pytest.mark.parametrize("what", ["read", "reopen", "all"])
def test_answer_waits_for_a_record_of_its_time(what: str) -> None:
    """T3a: reads and refusals that rest on time alone are told when a record as late as that is durable."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("held", ttl_ms=60_000))
            await prepare(engine)
            await asyncio.sleep(2.95)
            await turns()
            asked = Asked(engine)
            journal.is_shut = True
            clock.advance(200 if what == "reopen" else 100)
            match what:
                case "read":
                    asked.read("it", over)
                case "reopen":
                    asked.submit("it", Reopen(name="done", principal="op"))
                case _:
                    asked.submit(
                        "it",
                        commands.claim_all(
                            names=("held", "closed"), lease_ids=("L1", "L2"), principal="ben", ttl_ms=60_000
                        ),
                    )
            await turns()
            assert not asked.answers
            journal.open_gate()
            await turns()
            match asked["it"]:
                case NotDone():
                    pass
                case AllHeld(names=names):
                    assert [name for name, _ in names] == ["held"]
                case found:
                    assert found == {"delay of closed"}

    run(test)


def test_one_record_covers_all_names_that_open_together() -> None:
    """T3a: the end of a hundred delays is one record, and none if another says the time already."""

    async def test(clock: ManualClock) -> None:
        journal = MemoryJournal()
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            for number in range(100):
                asked.submit("", acquire(f"job/{number}", f"L{number}", delay_ms=2_000))
                asked.submit("", release(f"job/{number}", f"L{number}"))
            await turns()
            await asyncio.sleep(4)
            assert sum(isinstance(event, TimePassed) for event in await events(journal)) == 1

        journal = MemoryJournal()
        async with serving(journal, clock) as engine:
            asked = Asked(engine)
            asked.submit("", acquire("both", delay_ms=2_000))
            asked.submit("", release("both", done=True, remember_ms=2_000))
            await turns()
            await asyncio.sleep(4)
            kinds = [type(event) for event in await events(journal)]
            assert (kinds.count(TimePassed), kinds.count(DoneExpired)) == (0, 1)

    run(test)


def test_claim_of_a_free_name_writes_one_record() -> None:
    """T3a costs a claim nothing: its own record says the time."""

    async def test(clock: ManualClock) -> None:
        journal = MemoryJournal()
        async with serving(journal, clock) as engine:
            before = len(await events(journal))
            await engine.ask(acquire("job", delay_ms=1_000))
            await engine.ask(release("job"))
            clock.advance(250)
            await engine.ask(acquire("other"))
            assert len(await events(journal)) == before + 3

    run(test)
