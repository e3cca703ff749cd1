"""A pruning that is cut short, wherever, leaves no record of the history without some of its names."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.core.events import Ended, Record, SessionEnded
from holdfast.journal import archive
from holdfast.journal.base import HistoryQuery, Keeping
from holdfast.journal.inspect import inspect
from holdfast.journal.sqlite import SqliteJournal
from tests.journal.records import WALL_MS, grants

NAMES = 3 * archive.SLICE_ROWS + 7
LAST = 41
LATER_MS = WALL_MS + 10**12


def _session_end(seq: int) -> Record:
    ends = tuple(Ended(f"many/{number}", f"lease-{number}", 1, "session_ended", False) for number in range(NAMES))
    return Record(seq, seq, WALL_MS, SessionEnded("s-1", "expired", ends))


def _journal(directory: Path) -> SqliteJournal:
    return SqliteJournal(directory, keeping=Keeping(wall_ms=1000), synchronous="NORMAL", ballast_bytes=0)


async def _prune(directory: Path, steps: int) -> bool:
    """Let so many steps of a pruning be made, then cancel it. Tell whether it was over before."""
    journal = _journal(directory)
    await journal.open()
    await journal.append([*grants(1, LAST - 1), _session_end(LAST)])
    await journal.compact(LAST, [b"part"], WALL_MS)
    pruning = asyncio.create_task(journal.compact(LAST, [], LATER_MS))
    for _ in range(steps):
        await asyncio.sleep(0)
    is_over = pruning.done()
    pruning.cancel()
    await asyncio.gather(pruning, return_exceptions=True)
    await _names_lead_to_records(journal)
    await journal.close()
    return is_over


async def _names_lead_to_records(journal: SqliteJournal) -> None:
    """Each name of a record leads to it, or the record is gone for all of them."""
    there = {record.seq for record in (await journal.history(HistoryQuery(limit=1_000))).records}
    for number in range(0, NAMES, 50):
        found = (await journal.history(HistoryQuery(name=f"many/{number}"))).records
        assert [record.seq for record in found] == ([LAST] if LAST in there else []), f"many/{number}"


def test_a_pruning_that_is_cut_short_leaves_no_half_record(tmp_path: Path) -> None:
    """Cancelled after each of its steps, a pruning has dropped a record with thousands of names for all of them or for
    none. The next one takes what it left, and the journal is sound all the while.
    """
    steps, is_over = 0, False
    while not is_over:
        directory = tmp_path / str(steps)
        is_over = asyncio.run(_prune(directory, steps))
        assert inspect(directory).problems == ()
        asyncio.run(_finish(directory))
        steps += 1
    assert steps > NAMES // archive.SLICE_ROWS


async def _finish(directory: Path) -> None:
    """Prune once more, after a restart: nothing is left, neither records nor names."""
    journal = _journal(directory)
    list((await journal.open()).records)
    await journal.compact(LAST, [], LATER_MS)
    store = journal._seated("test")
    assert store.db.execute("SELECT count(*) FROM history").get == 0
    assert store.db.execute("SELECT count(*) FROM history_name").get == 0
    assert store.meta(archive.NAMES_LEFT) == 0
    await journal.close()
