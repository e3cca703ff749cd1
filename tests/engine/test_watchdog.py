"""The watchdog: says that the disk is slow, ends a process whose disk hangs, and nothing else."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from holdfast.engine.watchdog import EXIT_DISK_HANGS, Watchdog
from holdfast.testing.clock import ManualClock
from tests.engine.harness import GateJournal, run, serving

if TYPE_CHECKING:
    from holdfast.journal.interface import Recovered


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    codes: list[int] = []
    monkeypatch.setattr("os._exit", codes.append)
    return codes


def test_quick_commit_is_not_logged(exits: list[int], caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is said while no commit is on its way, however long, or while one is within its bounds."""
    clock = ManualClock()
    dog = Watchdog(clock, warn_ms=1_000, end_ms=30_000)
    clock.advance(100_000)
    dog.check()
    number = dog.enter("append")
    clock.advance(999)
    dog.check()
    dog.leave(number)
    clock.advance(100_000)
    dog.check()
    assert exits == [] and caplog.messages == []


def test_a_slow_commit_is_reported_once(exits: list[int], caplog: pytest.LogCaptureFixture) -> None:
    """A commit over the first bound is reported once, the next slow one again, and neither ends the process."""
    clock = ManualClock()
    dog = Watchdog(clock, warn_ms=1_000, end_ms=30_000)
    for said in (1, 2):
        number = dog.enter("append")
        for _ in range(20):
            clock.advance(1_000)
            dog.check()
        dog.leave(number)
        assert len(caplog.messages) == said
    assert exits == []


def test_hanging_commit_ends_the_process(exits: list[int]) -> None:
    """A commit over the second bound ends the process with its own exit code, at the second look that sees it."""
    clock = ManualClock()
    dog = Watchdog(clock, warn_ms=1_000, end_ms=30_000)
    dog.enter("append")
    clock.advance(29_999)
    dog.check()
    clock.advance(1)
    dog.check()
    assert exits == []
    clock.advance(250)
    dog.check()
    assert exits == [EXIT_DISK_HANGS]


@pytest.mark.parametrize("slow_before_ms", [0, 5_000])
def test_paused_process_is_not_ended(slow_before_ms: int, exits: list[int]) -> None:
    """A pause of an hour in the middle of a commit ends nothing if the commit is over by the next look (T1)."""
    clock = ManualClock()
    dog = Watchdog(clock, warn_ms=1_000, end_ms=30_000)
    number = dog.enter("append")
    clock.advance(slow_before_ms)
    dog.check()
    clock.advance(3_600_000)
    dog.check()
    dog.leave(number)
    dog.enter("append")
    clock.advance(250)
    dog.check()
    clock.advance(3_600_000)
    dog.check()
    assert exits == []


def test_watchdog_thread_checks_and_stops(exits: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A started watchdog looks on its own, can be stopped twice, and started again."""
    monkeypatch.setattr("holdfast.engine.watchdog.CHECK_EVERY_SECONDS", 0.001)
    clock = ManualClock()
    dog = Watchdog(clock, warn_ms=1_000, end_ms=30_000)
    for _ in range(2):
        looked = threading.Event()
        monkeypatch.setattr(dog, "check", looked.set)
        dog.start()
        assert looked.wait(10)
        dog.stop()
        dog.stop()
    assert not _is_watching()


def test_concurrent_calls_are_tracked_separately(exits: list[int], caplog: pytest.LogCaptureFixture) -> None:
    """A call inside another, or in another thread, hides none: the end of a quick one is not the end of a hanging one,
    and the hanging one is named.
    """
    clock = ManualClock()
    dog = Watchdog(clock, warn_ms=1_000, end_ms=30_000)
    dog.enter("compact")
    for _ in range(40):
        clock.advance(1_000)
        quick = dog.enter("append")
        dog.check()
        dog.leave(quick)
    assert exits[:1] == [EXIT_DISK_HANGS]
    assert "a call to the disk has taken 1000 ms (compact): the disk is slow or hangs" in caplog.messages
    assert not any("append" in message for message in caplog.messages)


def test_engine_starts_and_stops_the_watchdog() -> None:
    """It watches from before the journal is opened until the journal is closed."""

    class AnnouncingJournal(GateJournal):
        async def open(self) -> Recovered:
            assert _is_watching()
            return await super().open()

    async def test(clock: ManualClock) -> None:
        async with serving(AnnouncingJournal(), clock, watchdog=Watchdog(clock)):
            assert _is_watching()
        assert not _is_watching()

    run(test)


def _is_watching() -> bool:
    return any(thread.name == "holdfast-watchdog" for thread in threading.enumerate())
