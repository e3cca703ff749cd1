"""One promise, one suite: every journal of ours passes what `tests.contract.suite` checks."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from holdfast.core.events import Record
from holdfast.journal.interface import (
    Changes,
    HeldPage,
    HeldQuery,
    HistoryPage,
    HistoryQuery,
    Journal,
    JournalLockedError,
    Recovered,
    Retention,
)
from holdfast.journal.sqlite.compactor import ChildCompactor
from holdfast.journal.sqlite.journal import SqliteJournal
from tests.contract.suite import CHECKS, Check, ContractError, JournalFactory, check_journal, run_check
from tests.journal.records import grants
from tests.support.memory_journal import MemoryJournal, MemorySnapshot, Shelf

BACKENDS = ["memory", "sqlite", "sqlite and a child"]

HOLD = """
import asyncio, sys
from pathlib import Path
from holdfast.journal.sqlite.journal import SqliteJournal
from tests.journal.records import grants

async def hold():
    journal = SqliteJournal(Path(sys.argv[1]), disk_reserve_bytes=0)
    await journal.open()
    await journal.append(grants(1, 3))
    print("held", flush=True)
    sys.stdin.read()

asyncio.run(hold())
"""


def factory_for(backend: str, directory: Path) -> JournalFactory:
    if backend == "memory":
        return partial(MemoryJournal, shelf=Shelf())
    if backend == "sqlite":
        return partial(SqliteJournal, directory, disk_reserve_bytes=0)

    def with_child(*, retention: Retention) -> SqliteJournal:
        return SqliteJournal(directory, retention=retention, disk_reserve_bytes=0, compactor=ChildCompactor())

    return with_child


@contextlib.contextmanager
def another_process(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has the journal open and three records in it."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", HOLD, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_journal_passes_the_contract(check: Check, backend: str, tmp_path: Path) -> None:
    """Every journal keeps every promise of the contract (I5, I6, I9)."""
    asyncio.run(run_check(check, factory_for(backend, tmp_path / "data")))


def test_suite_runs_without_a_framework(tmp_path: Path) -> None:
    """The contract is one call for whoever writes a journal, and every promise of it is a sentence of its own."""
    number = count()
    names = check_journal(lambda: factory_for("memory", tmp_path / str(next(number))))
    assert names == [check.name for check in CHECKS] and len(set(names)) == len(names) >= 18
    assert len({check.promise for check in CHECKS}) == len(CHECKS)
    assert all(check.promise.endswith(".") for check in CHECKS)


class LosesTheLast(MemoryJournal):
    async def close(self) -> None:
        del self._shelf.batches[-1:]
        await super().close()


class Reorders(MemoryJournal):
    async def open(self) -> Recovered:
        found = await super().open()
        return Recovered(found.epoch, found.values, reversed(list(found.records)))


class AllowsTwoWriters(MemoryJournal):
    async def open(self) -> Recovered:
        self._shelf.holder = None
        return await super().open()


class CountsHalfArchives(MemoryJournal):
    async def archive(self, upto: int, head: bytes, changes: Iterable[Changes], wall_ms: int) -> None:
        await super().archive(upto, head, self._as_far_as_they_come(changes), wall_ms)

    def _as_far_as_they_come(self, changes: Iterable[Changes]) -> Iterator[Changes]:
        with contextlib.suppress(ZeroDivisionError):
            yield from changes


class ForgetsHistory(MemoryJournal):
    async def archive(self, upto: int, head: bytes, changes: Iterable[Changes], wall_ms: int) -> None:
        await super().archive(upto, head, changes, wall_ms)
        del self._shelf.archive.history[:1]


class MovesWhatChanged(MemoryJournal):
    async def archive(self, upto: int, head: bytes, changes: Iterable[Changes], wall_ms: int) -> None:
        moved = [Changes(e.table, [*e.gone, *(key for key, _ in e.changed)], (), [*e.changed, *e.new]) for e in changes]
        await super().archive(upto, head, moved, wall_ms)


class ForgetsOldLeases(MemoryJournal):
    async def held(self, query: HeldQuery) -> HeldPage:
        page = await super().held(query)
        known = [held for held in page.held if held.granted_seq > self.history_begins_after]
        return HeldPage(known, page.next_after)


class TrustsTheWallClock(MemoryJournal):
    async def last_by(self, wall_ms: int) -> int:
        """The way that is wrong where the clock was set back: halve, as if wall times rose."""
        return bisect_right(self._shelf.history(), wall_ms, key=lambda record: record.wall_ms)


class SnapshotsLater(MemoryJournal):
    @contextlib.asynccontextmanager
    async def snapshot(self) -> AsyncIterator[MemorySnapshot]:
        async with super().snapshot() as snapshot:
            snapshot._batches = self._shelf.batches
            yield snapshot


class ReturnsTwice(MemoryJournal):
    async def history(self, query: HistoryQuery) -> HistoryPage:
        page = await super().history(query)
        return HistoryPage([record for record in page.records for _ in range(2)][: query.limit], page.next_before)


@pytest.mark.parametrize(
    "broken",
    [
        LosesTheLast,
        Reorders,
        AllowsTwoWriters,
        CountsHalfArchives,
        ForgetsHistory,
        ReturnsTwice,
        MovesWhatChanged,
        ForgetsOldLeases,
        TrustsTheWallClock,
        SnapshotsLater,
    ],
)
def test_suite_finds_broken_journals(broken: Callable[..., Journal]) -> None:
    """A suite that cannot fail proves nothing: each of these journals breaks one promise and is found out."""
    with pytest.raises(ContractError):
        check_journal(lambda: partial(broken, shelf=Shelf()))


def test_second_process_is_refused(tmp_path: Path) -> None:
    """A journal that another process has open is refused with what to do, and that process goes on (I9)."""
    with another_process(tmp_path) as process:
        with pytest.raises(JournalLockedError, match=r"another server has .* open\. Stop it"):
            asyncio.run(SqliteJournal(tmp_path, disk_reserve_bytes=0).open())
        assert process.poll() is None


def test_lock_is_free_after_kill(tmp_path: Path) -> None:
    """The leadership ends with its process: after kill -9 it is free, and what was acknowledged is there (I5)."""
    with another_process(tmp_path) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    async def after() -> tuple[int, list[Record]]:
        journal = SqliteJournal(tmp_path, disk_reserve_bytes=0)
        recovered = await journal.open()
        found = recovered.epoch, list(recovered.records)
        await journal.close()
        return found

    assert asyncio.run(after()) == (2, grants(1, 3))


def test_fork_equals_the_state_after_a_crash() -> None:
    """A copy of a journal in memory has its records and a free leadership, and then goes its own way."""

    async def scene() -> None:
        journal = MemoryJournal(Retention())
        await journal.open()
        await journal.append(grants(1, 2))
        other = journal.fork()
        await journal.append(grants(3, 3))
        recovered = await other.open()
        assert (recovered.epoch, list(recovered.records)) == (2, grants(1, 2))
        await other.append(grants(3, 5))
        assert [r.seq for r in (await journal.open()).records] == [1, 2, 3]

    asyncio.run(scene())
