"""What an engine measures of itself: counted once it is durable, and timed once for all of a batch."""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING

import pytest

from holdfast.core.commands import EndSession, OpenSession, Revoke
from holdfast.engine.metrics import Histogram
from holdfast.journal.interface import JournalUnavailableError
from tests.engine.harness import Asked, GateJournal, acquire, release, renew, run, serving, turns
from tests.support.memory_journal import MemoryJournal

if TYPE_CHECKING:
    from holdfast.testing.clock import ManualClock


def counted(histogram: Histogram) -> int:
    return sum(histogram.counts)


def test_histogram_bound_is_inclusive() -> None:
    """As Prometheus counts: `le` means less or equal, and what is beyond the last bound has a place too."""
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.note(value)
    histogram.note(3.0, 4)
    assert histogram.counts == [2, 2, 5]
    assert histogram.total == pytest.approx(0.5 + 1 + 1.5 + 2 + 2.5 + 12)


def test_every_kind_of_end_is_counted() -> None:
    """Leases that were released, revoked, that ran out and that ended with a session are told apart."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(OpenSession(principal="ana", session_id="s", ttl_ms=60_000))
            for name in ("released", "revoked", "expired"):
                await engine.ask(acquire(name, ttl_ms=5_000 if name == "expired" else 600_000))
            await engine.ask(acquire("bound", session="s", bound=True, ttl_ms=600_000))
            await engine.ask(renew("released"))
            await engine.ask(release("released"))
            await engine.ask(Revoke(name="revoked", principal="ops", reason="maintenance"))
            await engine.ask(EndSession(principal="ana", session_id="s"))
            for _ in range(60):
                clock.advance(100)
                await engine.query(lambda _state, _now: None)
            tally = engine.metrics.tally
            assert (tally.grants, tally.renewals, tally.releases, tally.sessions) == (4, 1, 1, 1)
            assert tally.ends == {"released": 1, "revoked": 1, "expired": 1, "session_ended": 1}
            assert tally.session_ends == {"deleted": 1}

    run(test)


def test_hold_duration_is_observed() -> None:
    """A lease that was held for twelve seconds counts once, between five and fifteen, when its end is durable."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            await engine.ask(acquire("a"))
            clock.advance(12_000)
            await engine.ask(release("a"))
            holds = engine.metrics.holds
            assert holds.counts[holds.bounds.index(15.0)] == 1
            assert (counted(holds), holds.total) == (1, 12.0)

    run(test)


def test_wait_duration_is_observed_for_grants() -> None:
    """Who stood in line for three seconds and got the name counts as a wait of three; who gave up counts as none."""

    async def test(clock: ManualClock) -> None:
        async with serving(MemoryJournal(), clock) as engine:
            asked = Asked(engine)
            asked.submit("first", acquire("a", "one"))
            asked.submit("second", acquire("a", "two", principal="ben", wait_ms=10_000, new_ticket="place"))
            asked.submit("third", acquire("a", "three", principal="cid", wait_ms=1_000, new_ticket="place of cid"))
            await turns()
            for _ in range(30):
                clock.advance(100)
                await engine.query(lambda _state, _now: None)
            await engine.ask(release("a", "one"))
            await turns()
            assert "second" in asked.labels
            waits = engine.metrics.waits
            assert counted(waits) == 1
            assert waits.total == pytest.approx(3.0, abs=0.2)
            assert engine.metrics.tally.joins == 2

    run(test)


def test_refused_batch_is_not_counted() -> None:
    """A batch that was refused counts nowhere: neither its grants and ends, nor how long those were held."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("a"))
            before = counted(engine.metrics.commits)
            journal.is_shut = True
            asked = Asked(engine)
            asked.submit("release", release("a"))
            asked.submit("claim", acquire("b"))
            await turns()
            journal.let_through(JournalUnavailableError("append: no"))
            journal.is_shut = False
            await turns(20)
            tally = engine.metrics.tally
            assert asked.kinds == ["Unavailable", "Unavailable"]
            assert (tally.grants, tally.releases) == (1, 0)
            assert counted(engine.metrics.holds) == 0
            assert counted(engine.metrics.commits) == before
            clock.advance(2_000)
            await engine.ask(release("a"))
            assert engine.metrics.holds.total == 2.0, "what was refused left nothing behind"

    run(test)


def test_batch_is_timed_once_for_all_its_answers() -> None:
    """Fifty claims of a turn are one commit of fifty records, one turn, and fifty answers."""

    async def test(clock: ManualClock) -> None:
        journal = GateJournal()
        async with serving(journal, clock) as engine:
            metrics, asked = engine.metrics, Asked(engine)
            journal.is_shut = True
            for number in range(50):
                asked.submit(str(number), acquire(f"job/{number}"))
            await turns()
            clock.advance(70)
            journal.open_gate()
            await turns()
            assert len(asked.answers) == 50
            assert (counted(metrics.ticks), counted(metrics.commits), counted(metrics.batches)) == (1, 1, 1)
            assert metrics.batches.total == 50
            assert metrics.commits.total == pytest.approx(0.07)
            assert counted(metrics.answers) == 50
            assert metrics.answers.total == pytest.approx(50 * 0.07)

    run(test)


def test_metrics_are_updated_per_batch() -> None:
    """A hundred claims in a turn make as many calls into the measuring as ten do."""

    async def calls(clock: ManualClock, claims: int) -> int:
        async with serving(MemoryJournal(), clock) as engine:
            count = 0

            def profile(frame: FrameType, event: str, _arg: object) -> None:
                nonlocal count
                count += event == "call" and frame.f_code.co_filename.endswith("engine/metrics.py")

            asked = Asked(engine)
            sys.setprofile(profile)
            try:
                for number in range(claims):
                    asked.submit(str(number), acquire(f"job/{number}"))
                await turns()
            finally:
                sys.setprofile(None)
            assert len(asked.answers) == claims
            return count

    assert run(lambda clock: calls(clock, 100)) == run(lambda clock: calls(clock, 10)) < 10
