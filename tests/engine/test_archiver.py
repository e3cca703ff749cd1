"""When archiving is due, that what changed is given once at a time, and that it is given up cleanly."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import pytest

from holdfast.core.commands import EndSession, OpenSession
from holdfast.core.state import TrackedDict
from holdfast.core.values import Limits
from holdfast.engine import archiver, snapshot
from holdfast.engine.archiver import RETRY_MS_MAX, RETRY_MS_MIN, ArchivePolicy
from holdfast.journal.interface import Changes, JournalUnavailableError
from tests.engine.harness import SlicedJournal, acquire, picture, release, renew, run, serving, tail, turns
from tests.support.memory_journal import MemoryJournal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.engine.engine import Engine
    from holdfast.testing.clock import ManualClock


LARGE = Limits(metadata_chars_max=1_000_000)


async def renewals(engine: Engine, count: int) -> None:
    """Write so many records, one by one, and let whatever follows from them happen."""
    for _ in range(count):
        await engine.ask(renew("job/0"))
    await turns(100)


def test_archiving_starts_at_the_record_limit() -> None:
    """Archiving is begun by the record that makes it due, and by none before."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        async with serving(journal, clock, archive_policy=ArchivePolicy(records=10)) as engine:
            await engine.ask(acquire("job/0"))
            await engine.archive()
            first = journal.counted[-1]
            await renewals(engine, 9)
            assert journal.begun == [first]
            await renewals(engine, 1)
            assert journal.counted == [first, first + 10]

    run(test)


def test_archiving_cost_depends_on_changes_only() -> None:
    """It is due after so many records however many names there are, and what is given is what changed."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        async with serving(journal, clock, archive_policy=ArchivePolicy(records=5)) as engine:
            for number in range(1_000):
                engine.submit(acquire(f"job/{number}"), lambda *_: None)
            await turns()
            await engine.archive()
            begun = len(journal.begun)
            await renewals(engine, 4)
            assert len(journal.begun) == begun
            await renewals(engine, 1)
            assert len(journal.counted) == begun + 1
            (given,) = journal.given[-1]
            assert (given.table, given.gone, given.new) == ("slots", (), ())
            assert [key for key, _ in given.changed] == [b"job/0"]

    run(test)


def test_short_lived_values_are_not_archived() -> None:
    """A value that came and went since the last time was never archived: there is nothing to say of it."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("job/0"))
            await engine.archive()
            await engine.ask(OpenSession(principal="ana", session_id="s", ttl_ms=60_000))
            await engine.ask(EndSession(principal="ana", session_id="s"))
            await engine.archive()
            assert {piece.table for piece in journal.given[-1]} == {"remembered"}

    run(test)


def test_archiving_starts_at_the_byte_limit() -> None:
    """A few large records make it due as many small ones do: what the tail takes is bounded in bytes."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        async with serving(journal, clock, limits=LARGE, archive_policy=ArchivePolicy(size_bytes=100_000)) as engine:
            await engine.ask(acquire("job/0"))
            for _ in range(9):
                await engine.ask(renew("job/0", note="n" * 10_000))
            await turns(100)
            assert journal.begun == []
            for _ in range(11):
                await engine.ask(renew("job/0", note="n" * 10_000))
                await turns(100)
            assert len(journal.counted) == 2
            assert sum(len(data) for _, data in journal._shelf.batches) < 100_000

    run(test)


def test_replayed_bytes_count_towards_archiving() -> None:
    """A server that is started again and again with a long tail archives it all the same."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        often = ArchivePolicy(size_bytes=30_000)
        async with serving(journal, clock, limits=LARGE, archive_policy=often) as engine:
            await engine.ask(acquire("job/0"))
            await engine.ask(renew("job/0", note="n" * 20_000))
        async with serving(journal, clock, limits=LARGE, archive_policy=often) as engine:
            await engine.ask(renew("job/0", note="n" * 15_000))
            await turns(100)
            assert len(journal.counted) == 1

    run(test)


def test_start_with_a_long_tail_archives_immediately() -> None:
    """A tail that is too long at a start is archived though no record comes: it may be why no claims are taken."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        async with serving(journal, clock) as engine:
            for _ in range(30):
                await engine.ask(acquire("job/0"))
                await engine.ask(release("job/0"))
        async with serving(journal, clock, archive_policy=ArchivePolicy(records=20)) as engine:
            await turns(100)
            assert journal.counted == [engine.state.seq]

    run(test)


def test_refused_archive_is_retried_after_a_tenth_of_the_bytes() -> None:
    """An archive that the journal refused is tried again after a tenth of the bytes that make it due."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        journal.errors.append(JournalUnavailableError("no room for it"))
        async with serving(journal, clock, limits=LARGE, archive_policy=ArchivePolicy(size_bytes=100_000)) as engine:
            await engine.ask(acquire("job/0"))
            await engine.ask(renew("job/0", note="n" * 100_000))
            await turns(100)
            assert len(journal.begun) == 1 and journal.counted == []
            clock.advance(RETRY_MS_MIN)
            await engine.ask(renew("job/0", note="n" * 8_000))
            await turns(100)
            assert len(journal.begun) == 1
            await engine.ask(renew("job/0", note="n" * 2_000))
            await turns(100)
            assert len(journal.counted) == 1

    run(test)


def test_refused_archive_is_retried_after_a_tenth_of_the_records() -> None:
    """An archive that was refused is tried again after a tenth of the records that make it due, not within a second."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        journal.errors.extend([JournalUnavailableError("no room for it")] * 2)
        async with serving(journal, clock, archive_policy=ArchivePolicy(records=100)) as engine:
            await engine.ask(acquire("job/0"))
            await renewals(engine, 99)
            assert len(journal.begun) == 1 and journal.counted == []
            clock.advance(RETRY_MS_MIN)
            await renewals(engine, 9)
            assert len(journal.begun) == 1
            await renewals(engine, 1)
            assert len(journal.begun) == 2 and journal.counted == []
            clock.advance(RETRY_MS_MIN - 1)
            await renewals(engine, 50)
            assert len(journal.begun) == 2
            clock.advance(1)
            await renewals(engine, 1)
            assert len(journal.begun) == 3 and journal.counted == [engine.state.seq]

    run(test)


def test_refused_archive_is_retried_without_records() -> None:
    """Though no record comes, a refused archive is tried again: a journal that is too full takes no claims until then.
    And what could not be archived is archived then, with what changed since."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        journal.errors.extend([JournalUnavailableError("no room for it")] * 3)
        async with serving(journal, clock, archive_policy=ArchivePolicy(records=20)) as engine:
            for number in range(30):
                await engine.ask(acquire(f"job/{number}", ttl_ms=1_000))
            for number in range(30):
                await engine.ask(release(f"job/{number}"))
            await turns(100)
            assert len(journal.begun) == 1 and journal.counted == []
            await asyncio.sleep(4 * RETRY_MS_MAX / 1000)
            assert len(journal.begun) == 4 and journal.counted == [engine.state.seq]
            assert await tail(journal) == []
            async with serving(journal.fork(), clock) as again:
                assert picture(again.state)[1:] == picture(engine.state)[1:]

    run(test)


def test_archive_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """However often an archive is refused for the same reason, the log has one line, and one when it works again."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        journal.errors.extend([JournalUnavailableError("archive: no room")] * 9)
        async with serving(journal, clock) as engine:
            for _ in range(12):
                await engine.archive()

    with caplog.at_level("INFO", "holdfast.engine"):
        run(test)
    first, second = caplog.messages
    assert first == "archive: no room; nothing is lost, and archiving is tried again within half a minute"
    assert second == "archiving works again: all records up to 1 are archived"


def test_retried_archive_includes_later_changes() -> None:
    """What is archived after refusals is the state, bit for bit and in its order, whatever changed in between (I15)."""

    async def test(clock: ManualClock) -> None:
        journal, rng = SlicedJournal(), Random(3)
        async with serving(journal, clock, limits=Limits(retry_bytes_max=17_600, ended_bytes_max=6_000)) as engine:
            for step in range(60):
                for _ in range(rng.randrange(12)):
                    name, key = f"job/{rng.randrange(40)}", f"{step}-{rng.random()}"
                    if engine.state.lease_of(name) is None:
                        await engine.ask(acquire(name, key=key))
                    else:
                        await engine.ask(release(name, key=key) if rng.randrange(2) else renew(name, key=key))
                if rng.randrange(3):
                    journal.errors.append(JournalUnavailableError("archive: no"))
                await engine.archive()
                if not journal.errors and journal.counted and journal.counted[-1] == engine.state.seq:
                    archived = snapshot.load((await journal.fork().open()).values)
                    assert picture(archived) == picture(engine.state)
                journal.errors.clear()
        assert len(journal.counted) > 10

    run(test)


def test_archive_changes_are_merged_in_slices() -> None:
    """What is added to what was refused, and what is let go afterwards, is done some at a time: the loop serves."""

    async def longest(steps: Iterator[None]) -> int:
        """Let it run beside a task that notes how far it came each time it is served."""
        taken, most, last = 0, 0, 0

        def counted() -> Iterator[None]:
            nonlocal taken
            for each in steps:
                taken += 1
                yield each

        task = asyncio.create_task(archiver._run_in_steps(counted()))
        while not task.done():
            await asyncio.sleep(0)
            most, last = max(most, taken - last), taken
        return most

    async def test(_clock: ManualClock) -> None:
        table: TrackedDict[str, int] = TrackedDict()
        for number in range(5_000):
            table.put(f"job/{number}", number)
        first = table.take_changes()
        for number in range(5_000):
            table.put(f"job/{number}", -number)
        assert await longest(first.add(table.take_changes())) <= archiver.STEPS_PER_ITERATION
        assert list(first.new.values()) == [-number for number in range(5_000)]
        assert await longest(first.clear_in_steps()) <= archiver.STEPS_PER_ITERATION
        assert len(first) == 0

    run(test)


def test_concurrent_archive_requests_share_one_archive() -> None:
    """Two that ask at once wait for one archive, and both hear that it is there."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("job"))
            both = [asyncio.create_task(engine.archive()) for _ in range(2)]
            await turns(200)
            assert [task.done() for task in both] == [True, True]
            assert len(journal.begun) == len(journal.counted) == 1

    run(test)


def test_stop_cancels_the_archive_before_closing_the_journal() -> None:
    """A stop gives the archive up that is on its way, and closes the journal once nothing writes to it any more."""

    class Slow(MemoryJournal):
        def __init__(self) -> None:
            super().__init__()
            self.happened: list[str] = []

        async def archive(self, upto: int, head: bytes, changes: Iterable[Changes], wall_ms: int) -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                await asyncio.sleep(0)
                self.happened.append("given up")

        async def close(self) -> None:
            self.happened.append("closed")
            await super().close()

    async def test(clock: ManualClock) -> None:
        journal = Slow()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("job"))
            giving = asyncio.create_task(engine.archive())
            await turns(20)
            await engine.stop()
            assert journal.happened == ["given up", "closed"]
            await turns()
            assert giving.done()

    run(test)
