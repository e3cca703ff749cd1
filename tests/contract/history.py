"""What a journal promises to those who read what happened: history, newest first, and following, oldest first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.core.events import Ended, Record, SessionEnded, TokenEnded, is_history
from holdfast.journal.interface import HistoryQuery, Retention
from tests.contract.tools import (
    WALL_MS,
    archived,
    check_in,
    expect,
    filled,
    followed,
    grant,
    names,
    newest_first,
    pages,
    renewal,
    reopened,
    sample_events,
)

if TYPE_CHECKING:
    from holdfast.core.events import Event
    from tests.contract.tools import Check, JournalFactory

DAY_MS = 86_400_000

CHECKS: list[Check] = []
_check = check_in(CHECKS)


@_check
async def _history_is_found_by_name(make: JournalFactory) -> None:
    """History of a name is newest first, in pages of any size, in the tail and the archive, none missing or twice."""
    records = [grant(seq, f"job/{seq % 3}") for seq in range(1, 31)]
    journal = await filled(make, [records[:10], records[10:20], records[20:]])
    for upto in (0, 10, 20, 30):
        await archived(journal, upto)
        for name in ("job/0", "job/1", "job/2", "job", "job/"):
            mine = [record for record in newest_first(records) if getattr(record.event, "name", "") == name]
            for limit in (1, 3, 100):
                expect(await pages(journal, limit, name=name), mine, f"history of {name} at {upto} by {limit}")
        expect(await pages(journal, 7), newest_first(records), f"history of all names at {upto}")
    journal = await reopened(journal, make)
    expect(await pages(journal, 7), newest_first(records), "history after a restart")
    await journal.close()


@_check
async def _history_is_found_by_time(make: JournalFactory) -> None:
    """History is found by wall time, both ends included, also where the wall clock went backwards."""
    walls_ms = [WALL_MS + offset for offset in (10, 20, 30, 15, 25, 40)]
    records = [grant(seq, "job", wall_ms) for seq, wall_ms in enumerate(walls_ms, 1)]
    journal = await filled(make, [records[:3], records[3:]])
    for upto in (0, 3, 6):
        await archived(journal, upto)
        for since, until in ((None, None), (15, None), (None, 25), (15, 25), (41, None), (None, 9), (20, 20)):
            since_wall_ms = None if since is None else WALL_MS + since
            until_wall_ms = None if until is None else WALL_MS + until
            expected = [r for r in reversed(records) if (since or 0) <= r.wall_ms - WALL_MS <= (until or 99)]
            for name in (None, "job"):
                found = await pages(journal, 2, name=name, since_wall_ms=since_wall_ms, until_wall_ms=until_wall_ms)
                expect(found, expected, f"history from {since} to {until} at {upto}")
    await journal.close()


@_check
async def _session_end_is_history_of_each_name(make: JournalFactory) -> None:
    """The end of a session is found under every name that it freed, and once among all names."""
    freed = tuple(Ended(name, f"lease-{name}", 1, "session_ended", False) for name in ("job/ä", "job/b"))
    end = Record(1, 1, WALL_MS, SessionEnded("s-1", "deleted", freed))
    journal = await filled(make, [[end]])
    for upto in (0, 1):
        await archived(journal, upto)
        for name, expected in (("job/ä", [end]), ("job/b", [end]), ("job/c", []), (None, [end])):
            expect((await journal.history(HistoryQuery(name=name))).records, expected, f"history of {name} at {upto}")
    await journal.close()


@_check
async def _renewals_have_no_history(make: JournalFactory) -> None:
    """What has no history value is gone once it is archived; all else is still there."""
    records = [Record(seq, seq, WALL_MS + seq, event) for seq, event in enumerate(sample_events(), 1)]
    journal = await filled(make, [records])
    await archived(journal, len(records))
    journal = await reopened(journal, make)
    expect(await pages(journal, 3), newest_first(records), "the history")
    await journal.close()


@_check
async def _history_holds_still_while_it_is_archived(make: JournalFactory) -> None:
    """Paging through history while it moves from the tail finds every record once."""
    records = [grant(seq, name) for seq, name in enumerate(names(60), 1)]
    journal = await filled(make, [[record] for record in records])
    archiving = asyncio.create_task(archived(journal, 60, count=3))
    while not archiving.done():
        expect(await pages(journal, 4), newest_first(records), "history of all names")
        await asyncio.sleep(0)
    await archiving
    expect(await pages(journal, 4), newest_first(records), "history afterwards")
    await journal.close()


@_check
async def _history_is_pruned_by_age(make: JournalFactory) -> None:
    """Archiving drops what is older than is kept, and nothing that is younger."""
    retention = Retention(wall_ms=30 * DAY_MS)
    records = [grant(seq, f"job/{seq}", WALL_MS + seq * DAY_MS) for seq in range(1, 41)]
    journal = await filled(make, [records], retention)
    await archived(journal, 40, WALL_MS + 35 * DAY_MS)
    expect(await pages(journal, 9), newest_first(records[4:]), "what is left after 35 days")
    await archived(journal, 40, WALL_MS + 60 * DAY_MS)
    expect(await pages(journal, 9), newest_first(records[29:]), "what is left after 60 days")
    expect(await pages(journal, 9, name="job/29"), [], "what is left of a name that is too old")
    journal = await reopened(journal, make, retention)
    expect(await pages(journal, 9), newest_first(records[29:]), "what is left after a restart")
    await journal.close()


@_check
async def _bad_ends_are_found(make: JournalFactory) -> None:
    """What ended a lease by time, by force, or as failed is found alone, in one end and in an end of many."""
    events: list[Event] = [
        Ended("a", "lease", 1, "released", True),
        Ended("a-expired", "lease", 1, "released", True, note="revoked, expired, failed"),
        Ended("b", "lease", 1, "expired", False),
        Ended("c", "lease", 1, "revoked", False, by="op", reason="stuck"),
        Ended("d", "lease", 1, "released", False, reason="failed"),
        SessionEnded("s-1", "deleted", (Ended("e", "lease", 1, "session_ended", False),)),
        SessionEnded("s-2", "expired", (Ended("f", "lease", 1, "session_ended", False),)),
        SessionEnded("s-3", "expired", ()),
        TokenEnded("t-1", "op", (SessionEnded("s-4", "revoked", (Ended("g", "lease", 1, "session_ended", False),)),)),
        TokenEnded("t-2", "op"),
    ]
    records = [Record(seq, seq, WALL_MS + seq, event) for seq, event in enumerate(events, 1)]
    journal = await filled(make, [records[:4], records[4:]])
    for upto in (0, 4, 10):
        await archived(journal, upto)
        found = [record.seq for record in await pages(journal, 2, badly=True)]
        expect(found, [9, 7, 5, 4, 3], f"what ended badly, with {upto} archived")
    await journal.close()


@_check
async def _history_is_pruned_by_number(make: JournalFactory) -> None:
    """Archiving drops the oldest beyond the number that is kept."""
    retention = Retention(records_max=12)
    journal = await filled(make, [], retention)
    records: list[Record] = []
    for _ in range(4):
        batch = [grant(seq, f"job/{seq}") for seq in range(len(records) + 1, len(records) + 8)]
        records.extend(batch)
        await journal.append(batch)
        await archived(journal, len(records))
        expect(await pages(journal, 5), newest_first(records[-12:]), f"what is left of {len(records)}")
    expect(await pages(journal, 5, name="job/1"), [], "what is left of the oldest name")
    await journal.close()


@_check
async def _flood_prunes_its_own_principal(make: JournalFactory) -> None:
    """Beyond the number that is kept, the eldest of whoever has left the most go first: nobody pushes out another's."""
    retention = Retention(records_max=20)
    mine = [grant(seq, f"mine/{seq}", principal="ana") for seq in range(1, 9)]
    flood = [grant(seq, f"flood/{seq}", principal="mallory") for seq in range(9, 101)]
    journal = await filled(make, [mine, flood], retention)
    await archived(journal, 100)
    expect(await pages(journal, 9), newest_first([*mine, *flood[-12:]]), "what is left of a flood")
    expect(await pages(journal, 9, name="mine/1"), [mine[0]], "the eldest of whoever left little")
    expect(journal.history_begins_after, 88, "where history begins")
    journal = await reopened(journal, make, retention)
    await journal.append([grant(seq, f"late/{seq}", principal="ana") for seq in range(101, 104)])
    await archived(journal, 103)
    left = [record.seq for record in await pages(journal, 9)]
    expect(left, [*range(103, 90, -1), *range(8, 1, -1)], "what is left of both")
    await journal.close()


@_check
async def _history_is_pruned_by_size(make: JournalFactory) -> None:
    """Beyond the bytes that are kept, the eldest of whoever has left the most bytes go first; none of 0 is kept."""
    small = [grant(seq, f"small/{seq:03d}", principal="ana") for seq in range(1, 41)]
    large = [grant(seq, f"large/{seq:03d}", principal="mallory", metadata="x" * 1_000) for seq in range(41, 61)]
    retention = Retention(bytes_max=18_000)
    journal = await filled(make, [small, large], retention)
    await archived(journal, 60)
    found = await pages(journal, 9)
    retained = len(found) - len(small)
    expect(found, newest_first([*small, *large[-retained:]]), "what is left: all of the small, the newest of the large")
    expect(retained in range(4, 17), True, f"that {retained} of the large ones are left is right")
    journal = await reopened(journal, make, Retention(bytes_max=0))
    await archived(journal, 60)
    expect(await pages(journal, 9), [], "what is left of a history without room")
    await journal.close()


@_check
async def _follow_returns_each_record_once(make: JournalFactory) -> None:
    """From any number on, all that has history value comes oldest first, while it is archived too (I16)."""
    records = [grant(seq, name) if seq % 3 else renewal(seq) for seq, name in enumerate(names(60), 1)]
    history = [record for record in records if is_history(record.event)]
    journal = await filled(make, [records[start : start + 4] for start in range(0, 60, 4)])
    for upto in (0, 20, 60):
        archiving = asyncio.create_task(archived(journal, upto, count=3))
        is_over = False
        while not is_over:
            is_over = archiving.done()
            expect(await followed(journal, 7), history, f"what is followed at {upto}")
            await asyncio.sleep(0)
        await archiving
        for after in (1, 19, 20, 21, 59, 60, 99):
            expected = [record for record in history if record.seq > after]
            expect(await followed(journal, 5, after), expected, f"what comes after {after} at {upto}")
    journal = await reopened(journal, make)
    expect(await followed(journal, 100), history, "what is followed after a restart")
    await journal.close()


@_check
async def _history_gap_is_reported(make: JournalFactory) -> None:
    """The number up to which history was dropped is known, also after a restart: what follows it is all there (I16)."""
    retention = Retention(records_max=12)
    journal = await filled(make, [[grant(seq, f"job/{seq}") for seq in range(1, 31)]], retention)
    expect(journal.history_begins_after, 0, "where history begins while nothing was dropped")
    await archived(journal, 30)
    for _ in range(2):
        expect(journal.history_begins_after, 18, "where history begins")
        expect([record.seq for record in await followed(journal, 5)], list(range(19, 31)), "what is followed")
        journal = await reopened(journal, make, retention)
    await journal.close()
