"""History is counted against whoever left it."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING

import apsw

from holdfast.core.commands import EndSession, OpenSession
from holdfast.core.events import Ended, Left, SessionEnded, is_history, principal_of
from holdfast.journal.codec import decode_batch
from holdfast.journal.interface import Retention
from holdfast.journal.sqlite.archive import FILE as ARCHIVE
from holdfast.journal.sqlite.archive_writer import weight_of
from holdfast.journal.sqlite.journal import SqliteJournal
from tests.contract.tools import WALL_MS, grant, sample_events
from tests.engine.harness import acquire, events, run, serving
from tests.support.memory_journal import MemoryJournal

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.testing.clock import ManualClock


def opened(path: Path, **retention: int) -> SqliteJournal:
    return SqliteJournal(path, retention=Retention(**retention), disk_reserve_bytes=0)


def counted(path: Path) -> tuple[list[tuple[str, int, int]], list[tuple[str, int, int]]]:
    """Return the sums as they are kept, and as they should be by the records."""
    should: dict[str, tuple[int, int]] = {}
    with closing(apsw.Connection(str(path / ARCHIVE))) as db:
        stored = list(db.execute("SELECT name, records, bytes FROM who ORDER BY name"))
        for who, body in db.execute("SELECT who.name, body FROM history JOIN who ON who.id = history.who"):
            (record,) = decode_batch(body)
            records, size_bytes = should.get(who, (0, 0))
            should[who] = (records + 1, size_bytes + weight_of(record, body))
    return stored, [(who, *sums) for who, sums in sorted(should.items())]


def test_sums_are_in_step_with_the_history(tmp_path: Path) -> None:
    """After each step, also one that prunes, what is counted against each is what the history has of them."""

    async def scene() -> None:
        journal = opened(tmp_path, records_max=60, bytes_max=20_000)
        await journal.open()
        seq = 0
        for step in range(6):
            size = 10 * (step + 1)
            whose = [("ana", "ben", "")[each % (3 if step % 2 else 1)] for each in range(size)]
            records = [grant(seq + each, f"job/{seq + each}", principal=who) for each, who in enumerate(whose, 1)]
            await journal.append(records)
            seq += size
            await journal.archive(seq, b"head", [], WALL_MS)
            stored, truth = counted(tmp_path)
            assert stored == truth
            assert sum(records for _, records, _ in stored) <= 60
        await journal.close()

    asyncio.run(scene())


def test_every_history_event_has_a_principal() -> None:
    """What decisions leave in the history says whose it is; only what the server does by itself is nobody's."""
    nobodys = {type(event).__name__ for event in sample_events() if is_history(event) and not principal_of(event)}
    assert nobodys == {"Opened", "Restored"}


def test_end_events_name_their_principal() -> None:
    """The ends of a lease, of a place in line and of a session name the principal that had them."""

    async def scene(clock: ManualClock) -> None:
        journal = MemoryJournal()
        async with serving(journal, clock) as engine:
            for number, ttl_ms in enumerate((3_600_000, 10_000)):
                session = f"s-{number}"
                await engine.ask(OpenSession(principal="ana", session_id=session, ttl_ms=ttl_ms))
                await engine.ask(acquire(f"job/{number}", f"l-{number}", session=session, bound=True))
                waiter = {"session": session, "bound": True, "owner": "o", "wait_ms": 1, "new_ticket": f"t-{number}"}
                await engine.ask(acquire("job/0", f"w-{number}", **waiter))  # type: ignore[arg-type]
            await engine.ask(EndSession(principal="ana", session_id="s-0"))
            await asyncio.sleep(11)
            ends = [event for event in await events(journal) if isinstance(event, Ended | Left | SessionEnded)]
        assert [event.principal for event in ends] == ["ana"] * len(ends)
        sessions = [event for event in ends if isinstance(event, SessionEnded)]
        assert {event.how for event in sessions} == {"deleted", "expired"}
        assert {ended.principal for event in sessions for ended in event.leases} == {"ana"}
        assert {ticket.principal for event in sessions for ticket in event.left} == {"ana"}

    run(scene)
