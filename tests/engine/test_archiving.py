"""When a snapshot is due, that one is written at a time, and that it is given up cleanly."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.core.values import Limits
from holdfast.engine.compaction import Compaction
from holdfast.journal.base import JournalUnavailableError
from holdfast.journal.memory import MemoryJournal
from tests.engine.driving import SlicedJournal, acquire, renew, run, serving, turns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.engine.engine import Engine
    from holdfast.testing.clock import ManualClock


LARGE = Limits(metadata_chars_max=1_000_000)


async def renewals(engine: Engine, count: int) -> None:
    """Write so many records, one by one, and let whatever follows from them happen."""
    for _ in range(count):
        await engine.ask(renew("job/0"))
    await turns(100)


def test_a_snapshot_is_due_after_so_many_records() -> None:
    """A snapshot is begun by the record that makes it due, and by none before."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        async with serving(journal, clock, compaction=Compaction(records=10)) as engine:
            await engine.ask(acquire("job/0"))
            await engine.compact()
            first = journal.counted[-1]
            await renewals(engine, 9)
            assert journal.begun == [first]
            await renewals(engine, 1)
            assert journal.counted == [first, first + 10]

    run(test)


def test_a_snapshot_is_never_due_before_as_many_records_as_names() -> None:
    """With many names a snapshot costs more, so it comes after as many records as there are names."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        async with serving(journal, clock, compaction=Compaction(records=5)) as engine:
            for number in range(50):
                await engine.ask(acquire(f"job/{number}"))
            await engine.compact()
            begun = len(journal.begun)
            await renewals(engine, 49)
            assert len(journal.begun) == begun
            await renewals(engine, 1)
            assert len(journal.counted) == begun + 1

    run(test)


def test_a_snapshot_is_due_after_so_many_bytes() -> None:
    """A few large records make a snapshot due as many small ones do: what the tail takes is bounded in bytes."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        async with serving(journal, clock, limits=LARGE, compaction=Compaction(size_bytes=100_000)) as engine:
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


def test_the_bytes_that_a_start_replays_count() -> None:
    """A server that is started again and again with a long tail writes its snapshot all the same."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        compaction = Compaction(size_bytes=30_000)
        async with serving(journal, clock, limits=LARGE, compaction=compaction) as engine:
            await engine.ask(acquire("job/0"))
            await engine.ask(renew("job/0", note="n" * 20_000))
        async with serving(journal, clock, limits=LARGE, compaction=compaction) as engine:
            await engine.ask(renew("job/0", note="n" * 15_000))
            await turns(100)
            assert len(journal.counted) == 1

    run(test)


def test_a_snapshot_is_never_due_before_as_many_bytes_as_the_last_had() -> None:
    """A large state is not written again and again for few bytes of records."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        async with serving(journal, clock, limits=LARGE, compaction=Compaction(size_bytes=1_000)) as engine:
            for number in range(50):
                await engine.ask(acquire(f"job/{number}", metadata="m" * 1_000))
            await turns(100)
            await engine.compact()
            begun = len(journal.begun)
            for _ in range(49):
                await engine.ask(renew("job/0", note="n" * 900))
                await turns(100)
            assert len(journal.begun) == begun
            for _ in range(20):
                await engine.ask(renew("job/0", note="n" * 900))
            await turns(100)
            assert len(journal.begun) == begun + 1

    run(test)


def test_a_snapshot_for_bytes_that_was_refused_comes_after_a_tenth() -> None:
    """A snapshot that the journal refused is tried again after a tenth of the bytes that make one due."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        journal.errors.append(JournalUnavailableError("no room for it"))
        async with serving(journal, clock, limits=LARGE, compaction=Compaction(size_bytes=100_000)) as engine:
            await engine.ask(acquire("job/0"))
            await engine.ask(renew("job/0", note="n" * 100_000))
            await turns(100)
            assert len(journal.begun) == 1 and journal.counted == []
            await engine.ask(renew("job/0", note="n" * 8_000))
            await turns(100)
            assert len(journal.begun) == 1
            await engine.ask(renew("job/0", note="n" * 2_000))
            await turns(100)
            assert len(journal.counted) == 1

    run(test)


def test_a_refused_snapshot_comes_after_a_tenth() -> None:
    """A snapshot that the journal refused is tried again after a tenth of the records that make one due."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        journal.errors.append(JournalUnavailableError("no room for it"))
        async with serving(journal, clock, compaction=Compaction(records=100)) as engine:
            await engine.ask(acquire("job/0"))
            await renewals(engine, 99)
            assert len(journal.begun) == 1 and journal.counted == []
            await renewals(engine, 9)
            assert len(journal.begun) == 1
            await renewals(engine, 1)
            assert len(journal.begun) == 2 and len(journal.counted) == 1

    run(test)


def test_all_who_ask_for_a_snapshot_get_the_same_one() -> None:
    """Two that ask for a snapshot at once wait for one snapshot, and both hear that it is there."""

    async def test(clock: ManualClock) -> None:
        journal = SlicedJournal()
        async with serving(journal, clock) as engine:
            await engine.ask(acquire("job"))
            both = [asyncio.create_task(engine.compact()) for _ in range(2)]
            await turns(200)
            assert [task.done() for task in both] == [True, True]
            assert len(journal.begun) == len(journal.counted) == 1

    run(test)


def test_the_journal_is_closed_after_its_snapshot_was_given_up() -> None:
    """A stop gives the snapshot up that is on its way, and closes the journal once nothing writes to it any more."""

    class Slow(MemoryJournal):
        def __init__(self) -> None:
            super().__init__()
            self.happened: list[str] = []

        async def compact(self, upto: int, snapshot: Iterable[bytes], wall_ms: int) -> None:
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
            compacting = asyncio.create_task(engine.compact())
            await turns(20)
            await engine.stop()
            assert journal.happened == ["given up", "closed"]
            await turns()
            assert compacting.done()

    run(test)
