"""What is dropped of the history goes as a whole: records, names, and grants that nobody can ask for any more."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from holdfast.core.events import Ended, Granted, GrantedMany, Record, SessionEnded, grants_of, names_of
from holdfast.journal.codec import decode_batch
from holdfast.journal.failpoints import arm
from holdfast.journal.interface import HeldQuery, HistoryQuery, JournalUnavailableError, Retention
from holdfast.journal.sqlite import archive_writer
from holdfast.journal.sqlite.archive import FILE as ARCHIVE
from holdfast.journal.sqlite.archive import OPEN
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.journal.sqlite.store import Store
from tests.contract.tools import grant
from tests.journal.records import WALL_MS, grants

NAMES = 3_000
LATER_MS = WALL_MS + 10**12


def _journal(directory: Path, retention: Retention) -> SqliteJournal:
    return SqliteJournal(directory, retention=retention, synchronous="NORMAL", disk_reserve_bytes=0)


def _end(seq: int, name: str, wall_ms: int | None = None) -> Record:
    ended = Ended(name, f"lease-{seq}", seq, "released", True, principal="ci")
    return Record(seq, seq, WALL_MS + seq if wall_ms is None else wall_ms, ended)


def nothing_is_left_over(directory: Path) -> None:
    """Each row of a name leads to a record of it or to a grant that is kept, and each grant that is kept is needed."""
    with closing(apsw.Connection(str(directory / ARCHIVE))) as db:
        history = {seq: next(decode_batch(body)) for seq, body in db.execute("SELECT seq, body FROM history")}
        retained = {seq: (names, body) for seq, names, body in db.execute("SELECT seq, names, body FROM grant_kept")}
        rows = list(db.execute("SELECT name, seq, until FROM name"))
        living = dict(db.execute("SELECT name, seq FROM living"))
        segments = {segment for (segment,) in db.execute("SELECT id FROM segment")}
    listed = {(name, seq) for name, seq, _ in rows}
    assert {(name, seq) for seq, record in history.items() for name in names_of(record.event)} <= listed
    for name, seq, until in rows:
        assert seq >> 17 in segments
        if seq in retained:
            assert name in dict(grants_of(next(decode_batch(retained[seq][1])).event))
            assert until == OPEN or until in history, "a grant is kept for its life or for its end"
        else:
            assert name in names_of(history[seq].event)
        assert (until == OPEN) == (living.get(name) == seq)
    assert {seq: names for seq, (names, _) in retained.items()} == {
        seq: sum(1 for _, each, _ in rows if each == seq) for seq in retained
    }


@pytest.mark.parametrize("seed", range(12))
def test_pruning_leaves_no_orphans(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each step, whatever limit was passed, names and kept grants are those of what is left, and no more.

    It is so too where what a step may hold of them at once is soon too much.
    """
    if seed % 2:
        monkeypatch.setattr(archive_writer, "BYTES_MAX", 900)
        monkeypatch.setattr(archive_writer, "LIVING_MAX", 800)
        monkeypatch.setattr(archive_writer, "PRUNE_BYTES", 500)
    chance = random.Random(seed)
    retention = [Retention(wall_ms=50), Retention(records_max=20), Retention(bytes_max=4_000)][seed % 3]

    async def scene() -> None:
        journal = _journal(tmp_path, retention)
        await journal.open()
        held: dict[str, None] = {}
        seq = 0
        for _ in range(12):
            records = []
            for _ in range(chance.randrange(1, 30)):
                seq += 1
                name = f"job/{chance.randrange(12)}"
                # The wall clock is set back now and then.
                wall_ms = WALL_MS + seq - (40 if chance.random() < 0.1 else 0)
                if name in held:
                    records.append(_end(seq, name, wall_ms))
                    del held[name]
                else:
                    principal = chance.choice(("ana", "ben", "ben"))
                    records.append(grant(seq, name, wall_ms, principal=principal))
                    held[name] = None
            await journal.append(records)
            await journal.archive(seq, b"head", [], WALL_MS + seq)
            nothing_is_left_over(tmp_path)
            now = await journal.held(HeldQuery(seq=seq))
            assert [each.name for each in now.held] == sorted(held), "who holds what now is known, however old it is"
        await journal.archive(seq, b"head", [], LATER_MS if seed % 3 == 0 else WALL_MS)
        await journal.close()

    asyncio.run(scene())
    nothing_is_left_over(tmp_path)


def test_pruning_drops_a_record_for_all_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that breaks off in the end has dropped nothing; the next one drops a record for all of its names."""
    ends = tuple(Ended(f"many/{number}", f"lease-{number}", 1, "session_ended", False) for number in range(NAMES))

    async def found(journal: SqliteJournal) -> list[int]:
        names = [f"many/{number}" for number in range(0, NAMES, 500)]
        pages = [await journal.history(HistoryQuery(name=name)) for name in names]
        assert len({len(page.records) for page in pages}) == 1, "all of its names lead to it, or none"
        return [record.seq for record in pages[0].records]

    async def scene() -> None:
        journal = _journal(tmp_path, Retention(wall_ms=1000))
        await journal.open()
        many = Record(41, 41, WALL_MS, SessionEnded("s-1", "expired", ends))
        await journal.append([*grants(1, 40), many, grant(42, "newest")])
        await journal.archive(42, b"head", [], WALL_MS)
        monkeypatch.setenv("HOLDFAST_TESTING", "1")
        arm({"HOLDFAST_TESTING": "1", "HOLDFAST_FAILPOINTS": "archive_before_commit=error"})
        with pytest.raises(JournalUnavailableError):
            await journal.archive(42, b"head", [], LATER_MS)
        assert await found(journal) == [41]
        await journal.archive(42, b"head", [], LATER_MS)
        assert await found(journal) == []
        await journal.close()

    try:
        asyncio.run(scene())
    finally:
        arm({})
    nothing_is_left_over(tmp_path)


def test_a_step_drops_a_bounded_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where much is to go, because a limit was lowered, each step drops some of it, until nothing is too much."""
    monkeypatch.setattr(archive_writer, "STEP_MAX", 50)
    monkeypatch.setattr(archive_writer, "PRUNE_ROWS", 10)

    async def scene() -> None:
        journal = _journal(tmp_path, Retention())
        await journal.open()
        await journal.append([grant(seq, f"job/{seq}") for seq in range(1, 201)])
        await journal.archive(200, b"head", [], WALL_MS)
        await journal.close()
        journal = _journal(tmp_path, Retention(records_max=20))
        list((await journal.open()).records)
        left = []
        for _ in range(5):
            await journal.archive(200, b"head", [], WALL_MS)
            left.append(len((await journal.history(HistoryQuery(limit=1_000))).records))
        assert left == [150, 100, 50, 20, 20]
        await journal.close()

    asyncio.run(scene())
    nothing_is_left_over(tmp_path)


MANY, LARGE = 400, 100_000
"""So many records, of so many bytes: 40 MB."""
HELD_MAX = 24 * 1024 * 1024
"""What a step may hold of them."""


@pytest.mark.parametrize("lowered", [{"wall_ms": 0}, {"records_max": 40}, {"bytes_max": 40 * LARGE}])
@pytest.mark.parametrize("people", [1, 40])
def test_a_step_holds_a_bounded_number_of_bytes(lowered: dict[str, int], people: int, tmp_path: Path) -> None:
    """However large records are, of what a step enters and of what it drops only some MiB are in memory at once."""

    async def held(journal: SqliteJournal) -> int:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        await journal.archive(MANY, b"head", [], LATER_MS)
        return tracemalloc.get_traced_memory()[1] - before

    async def scene() -> None:
        journal = _journal(tmp_path, Retention(wall_ms=2 * LATER_MS))
        await journal.open()
        for seq in range(1, MANY + 1):
            await journal.append([grant(seq, f"job/{seq}", principal=f"p{seq % people}", metadata="x" * LARGE)])
        assert await held(journal) < HELD_MAX, "entering"
        await journal.close()
        journal = _journal(tmp_path, Retention(**{"wall_ms": 2 * LATER_MS, **lowered}))
        list((await journal.open()).records)
        assert await held(journal) < HELD_MAX, "dropping"
        assert len((await journal.history(HistoryQuery(limit=MANY))).records) <= 40
        await journal.close()

    tracemalloc.start()
    try:
        asyncio.run(scene())
    finally:
        tracemalloc.stop()
    nothing_is_left_over(tmp_path)


def test_retained_grant_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grant of many names may have megabytes: an end of many of them changes what is kept of it once."""
    changed: list[object] = []
    do = Store.do

    def recorded(store: Store, name: str, rows: list[tuple[int, ...]]) -> None:
        if name == "change_retained_grant":
            changed.extend(rows)
        do(store, name, rows)

    grants_of_many = tuple(_granted(number) for number in range(100))
    ends = tuple(Ended(each.name, each.lease.lease_id, 1, "session_ended", False) for each in grants_of_many[1:])
    records = [
        Record(1, 1, WALL_MS, GrantedMany(grants_of_many)),
        Record(2, 2, WALL_MS + 1, SessionEnded("s-1", "expired", ends)),
        grant(3, "newest", WALL_MS + 2),
    ]

    async def scene() -> None:
        journal = _journal(tmp_path, Retention(wall_ms=1_000))
        await journal.open()
        await journal.append(records)
        await journal.archive(3, b"head", [], WALL_MS + 1_001)
        nothing_is_left_over(tmp_path)
        await journal.archive(3, b"head", [], LATER_MS)
        assert [each.name for each in (await journal.held(HeldQuery(seq=2))).held] == ["many/0"]
        await journal.close()

    monkeypatch.setattr(Store, "do", recorded)
    asyncio.run(scene())
    nothing_is_left_over(tmp_path)
    assert changed == [(1, 1)]


def _granted(number: int) -> Granted:
    event = grant(1, f"many/{number}").event
    assert isinstance(event, Granted)
    return event
