"""History is counted against whoever left it, also what was kept by a release that did not count."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING

import apsw

from holdfast.core.commands import EndSession, OpenSession
from holdfast.core.events import Ended, Left, SessionEnded, is_history, principal_of
from holdfast.journal.base import HistoryQuery, Keeping
from holdfast.journal.memory import MemoryJournal
from holdfast.journal.shares import UNCOUNTED
from holdfast.journal.sqlite import FILE, SCHEMA, SqliteJournal
from holdfast.testing._contract_tools import WALL_MS, grant, sample_events
from tests.engine.driving import acquire, events, run, serving

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.testing.clock import ManualClock

KEPT = 900


def opened(path: Path, **keeping: int) -> SqliteJournal:
    return SqliteJournal(path, keeping=Keeping(**keeping), ballast_bytes=0)


async def filled(path: Path) -> None:
    """Leave a journal whose history has 900 records of two, and take away all that schema 2 added."""
    journal = opened(path)
    await journal.open()
    records = [grant(seq, f"job/{seq}", principal="ana" if seq % 9 else "ben") for seq in range(1, KEPT + 1)]
    await journal.append(records)
    await journal.compact(KEPT, [b"x"], WALL_MS)
    await journal.close()
    with closing(apsw.Connection(str(path / FILE))) as db:
        for statement in (
            "DROP TABLE history_share",
            "DROP TABLE history_sum",
            "DELETE FROM meta WHERE key IN ('history_bytes', 'uncounted_upto')",
            "UPDATE meta SET value = 1 WHERE key = 'schema'",
        ):
            db.execute(statement)


def counted(path: Path) -> tuple[list[tuple[str, int, int]], list[tuple[str, int, int]]]:
    """Return the sums as they are kept, and as they should be."""
    with closing(apsw.Connection(str(path / FILE))) as db:
        kept = list(db.execute("SELECT who, records, bytes FROM history_sum ORDER BY who"))
        shares = (
            "SELECT who, count(*), sum(bytes) FROM history_share JOIN history USING (seq) GROUP BY who ORDER BY who"
        )
        return kept, list(db.execute(shares))


def test_a_journal_of_before_is_brought_up(tmp_path: Path) -> None:
    """A file of schema 1 is opened and is of schema 2 then; its history counts for nobody, and goes before others'."""

    async def scene() -> None:
        await filled(tmp_path)
        journal = opened(tmp_path, records_max=500)
        await journal.open()
        await journal.append([grant(seq, f"new/{seq}", principal="ana") for seq in range(KEPT + 1, KEPT + 201)])
        await journal.compact(KEPT + 200, [b"x"], WALL_MS)
        left = (await journal.history(HistoryQuery(limit=10_000))).records
        assert [record.seq for record in left] == list(range(KEPT + 200, 600, -1))
        assert journal.history_begins_after == 600
        await journal.close()

    asyncio.run(scene())
    kept, truth = counted(tmp_path)
    assert kept == truth
    assert [(who, records) for who, records, _ in kept] == [("", 300), ("ana", 200)]
    with closing(apsw.Connection(str(tmp_path / FILE))) as db:
        assert db.execute("SELECT value FROM meta WHERE key = 'schema'").get == SCHEMA
        assert db.execute("SELECT value FROM meta WHERE key = 'history_bytes'").get == sum(row[2] for row in kept)


def test_counting_what_was_kept_can_be_cut_short(tmp_path: Path) -> None:
    """Counting goes in slices, and each takes up where the last one ended: cut short anywhere, nothing counts twice."""

    async def scene() -> None:
        await filled(tmp_path)
        for slices in range(1, 4):
            journal = opened(tmp_path)
            await journal.open()
            compaction = asyncio.create_task(journal.compact(KEPT, [], WALL_MS))
            for _ in range(slices):
                await asyncio.sleep(0)
            compaction.cancel()
            await asyncio.wait({compaction})
            store = journal._seated("test")
            uncounted = store.meta(UNCOUNTED)
            assert 0 < uncounted < KEPT
            assert store.db.execute("SELECT count(*) FROM history_share").get == KEPT - uncounted
            await journal.close()
        journal = opened(tmp_path)
        await journal.open()
        await journal.compact(KEPT, [], WALL_MS)
        assert journal._seated("test").meta(UNCOUNTED) == 0
        await journal.close()

    asyncio.run(scene())
    kept, truth = counted(tmp_path)
    assert kept == truth
    assert kept[0][:2] == ("", KEPT)


def test_every_kind_of_history_has_somebody_to_count_against() -> None:
    """What decisions leave in the history says whose it is; only what the server does by itself is nobody's."""
    nobodys = {type(event).__name__ for event in sample_events() if is_history(event) and not principal_of(event)}
    assert nobodys == {"Opened", "Restored"}


def test_ends_say_whose_they_are() -> None:
    """The ends of a lease, of a place in line and of a session name the principal that had them."""

    async def scene(clock: ManualClock) -> None:
        journal = MemoryJournal()
        async with serving(journal, clock) as engine:
            for number, ttl_ms in enumerate((3_600_000, 10_000)):
                session = f"s-{number}"
                await engine.ask(OpenSession(principal="ana", session_id=session, ttl_ms=ttl_ms))
                await engine.ask(acquire(f"job/{number}", f"l-{number}", session=session, bound=True))
                place = {"session": session, "bound": True, "owner": "o", "wait_ms": 1, "new_ticket": f"t-{number}"}
                await engine.ask(acquire("job/0", f"w-{number}", **place))  # type: ignore[arg-type]
            await engine.ask(EndSession(principal="ana", session_id="s-0"))
            await asyncio.sleep(11)
            ends = [event for event in await events(journal) if isinstance(event, Ended | Left | SessionEnded)]
        assert [event.principal for event in ends] == ["ana"] * len(ends)
        sessions = [event for event in ends if isinstance(event, SessionEnded)]
        assert {event.how for event in sessions} == {"deleted", "expired"}
        assert {ended.principal for event in sessions for ended in event.leases} == {"ana"}
        assert {place.principal for event in sessions for place in event.left} == {"ana"}

    run(scene)
