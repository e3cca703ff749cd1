"""A turn has a budget of 50 ms; a slower one is a line in the log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast.core.outcomes import Acquired
from holdfast.engine.clock import BUDGET_MS, LOG_EVERY_MS
from tests.engine.harness import acquire, release, run, serving
from tests.support.memory_journal import MemoryJournal

if TYPE_CHECKING:
    import pytest

    from holdfast.core.state import State
    from holdfast.core.values import Instant
    from holdfast.engine.engine import Engine
    from holdfast.testing.clock import ManualClock


async def _turn_of(engine: Engine, clock: ManualClock, took_ms: int) -> None:
    """Let one turn claim a name and read the state, which takes so long."""

    def view(state: State, _: Instant) -> tuple[str, ...]:
        clock.advance(took_ms)
        return tuple(state.slots)

    got: list[object] = []
    engine.submit(acquire("job"), lambda outcome, _: got.append(outcome))
    await engine.query(view)
    assert isinstance(got[0], Acquired)
    await engine.ask(release("job"))


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "slow turn: " in record.getMessage()]


def test_slow_tick_is_logged_with_its_size(caplog: pytest.LogCaptureFixture) -> None:
    """More than 50 ms is a warning with the number of records and answers of the turn; it has no names."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await _turn_of(engine, clock, BUDGET_MS + 1)

    with caplog.at_level(logging.WARNING, "holdfast.engine"):
        run(test)
    (line,) = _lines(caplog)
    assert line == "slow turn: 51 ms (budget 50 ms), 1 records, 2 answers; 0 slow turns not logged before it"


def test_tick_within_its_budget_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Up to 50 ms nothing is said."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await _turn_of(engine, clock, BUDGET_MS)

    with caplog.at_level(logging.WARNING, "holdfast.engine"):
        run(test)
    assert _lines(caplog) == []


def test_slow_ticks_are_logged_once_in_ten_seconds_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """However many turns are slow, one line in 10 s tells of one, and the next tells how many were left out."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            for _ in range(5):
                await _turn_of(engine, clock, BUDGET_MS + 1)
            clock.advance(LOG_EVERY_MS)
            await _turn_of(engine, clock, BUDGET_MS + 1)

    with caplog.at_level(logging.WARNING, "holdfast.engine"):
        run(test)
    first, second = _lines(caplog)
    assert first.endswith("; 0 slow turns not logged before it")
    assert second.endswith("; 4 slow turns not logged before it")
