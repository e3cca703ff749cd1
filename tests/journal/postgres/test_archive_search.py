"""Looks back in PostgreSQL have a budget, read no further than this term knows, and may be given up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from holdfast.journal.interface import HeldQuery, HistoryQuery, Retention
from holdfast.journal.postgres.connection import PgConnection, Row
from holdfast.journal.sqlite import tail
from tests.cluster.journals import connected
from tests.contract.tools import archived, followed, grant, held_pages, newest_first, pages
from tests.journal.postgres.archive_store import SchemaStore, play, until

RECORDS = 60


@pytest.mark.parametrize("upto", [0, 30, RECORDS])
@pytest.mark.parametrize(
    ("bound", "asked"),
    [("SEARCHED_BYTES_MAX", HistoryQuery(owner="nobody")), ("DECODED_BYTES_MAX", HistoryQuery(until_wall_ms=1))],
)
def test_search_ends_at_its_budget(monkeypatch: pytest.MonkeyPatch, upto: int, bound: str, asked: HistoryQuery) -> None:
    """A page ends early in tail and archive, and says where to go on; pages together have each record once (P3)."""
    monkeypatch.setattr(tail, bound, 5_000)
    for name in ("SEARCH_BYTES", "SLICE_BYTES"):
        monkeypatch.setattr(f"holdfast.journal.postgres.history.{name}", 1_000)
    records = [grant(seq, f"job/{seq % 3}", metadata="m" * 500) for seq in range(1, RECORDS + 1)]

    async def scene(store: SchemaStore) -> None:
        journal = store.journal()
        await journal.open()
        for record in records:
            await journal.append([record])
        if upto:
            await archived(journal, upto)
        page = await journal.history(asked)
        assert page.records == []
        if upto < RECORDS or bound == "SEARCHED_BYTES_MAX":
            assert page.next_before is not None
            assert page.next_before > RECORDS - 30
        assert await pages(journal, 100) == newest_first(records)
        assert await pages(journal, 100, name="job/1") == newest_first(records[::3])
        await journal.close()

    play(scene)


def test_history_omits_records_not_known_to_be_durable() -> None:
    """A batch that the store has and whose answer did not come yet is in no look back (N-32)."""

    async def scene(store: SchemaStore) -> None:
        journal = store.journal()
        await journal.open()
        await journal.append([grant(1), grant(2)])
        async with connected(store.url) as db:
            # As if its answer was still on the way.
            await db.execute(f"INSERT INTO {store.schema}.batch SELECT 3, 4, epoch, body FROM {store.schema}.batch")
        assert await pages(journal, 9) == [grant(2), grant(1)]
        assert await followed(journal, 9) == [grant(1), grant(2)]
        assert await journal.last_by(2**50) == 2
        assert [held.granted_seq for held in await held_pages(journal, 9)] == [2]
        await journal.close()

    play(scene)


def test_cancelled_read_costs_no_connection() -> None:
    """Whoever gives up a look leaves its connection as it is; the next look waits for the end of the statement."""

    async def scene(store: SchemaStore) -> None:
        journal = store.journal()
        await journal.open()
        await journal.append([grant(1)])
        assert await pages(journal, 9) == [grant(1)]
        reading = journal._history_reader._client
        before = (await reading.exclusive()).pid
        async with connected(store.url) as db, db.transaction():
            await db.execute(f"LOCK TABLE {store.schema}.batch IN ACCESS EXCLUSIVE MODE")
            reads = [asyncio.create_task(journal.history(HistoryQuery())) for _ in range(20)]

            async def is_waiting() -> int:
                await db.execute("SELECT pg_stat_clear_snapshot()")
                waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = $1"
                return int(await db.fetchval(waiting, before))

            assert await until(is_waiting) == 1
            for read_task in reads:
                read_task.cancel()
            await asyncio.wait(reads)
            assert all(read_task.cancelled() for read_task in reads)
        assert await pages(journal, 9) == [grant(1)]
        assert (await reading.exclusive()).pid == before
        await journal.close()

    play(scene)


def test_a_look_that_is_given_up_as_it_begins_leaves_no_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is dropped: the next look has an instant of its own, and sees what was written since."""
    ask = PgConnection.ask

    async def ask_and_be_cancelled(
        line: PgConnection, name: str, *values: object, seconds: float | None
    ) -> Sequence[Row]:
        rows = await ask(line, name, *values, seconds=seconds)
        if name == "begin_instant":
            raise asyncio.CancelledError
        return rows

    async def scene(store: SchemaStore) -> None:
        journal = store.journal()
        await journal.open()
        await journal.append([grant(1)])
        with monkeypatch.context() as patched:
            patched.setattr(PgConnection, "ask", ask_and_be_cancelled)
            with pytest.raises(asyncio.CancelledError):
                await journal.held(HeldQuery(seq=1))
        await journal.append([grant(2)])
        assert [held.granted_seq for held in await held_pages(journal, 2)] == [2]
        await journal.close()

    play(scene)


def test_pending_read_does_not_block_close() -> None:
    """A journal closes at once though the store has not answered a look that was given up."""

    async def scene(store: SchemaStore) -> None:
        journal = store.journal(retention=Retention())
        await journal.open()
        await journal.append([grant(1)])
        async with connected(store.url) as db, db.transaction():
            await db.execute(f"LOCK TABLE {store.schema}.batch IN ACCESS EXCLUSIVE MODE")
            reads = [
                asyncio.create_task(journal.history(HistoryQuery())),
                asyncio.create_task(journal.held(HeldQuery(seq=1))),
            ]

            async def are_waiting() -> int:
                await db.execute("SELECT pg_stat_clear_snapshot()")
                waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1"
                return int(await db.fetchval(waiting, f"%{store.schema}.batch%")) == 2

            await until(are_waiting)
            for read_task in reads:
                read_task.cancel()
            await asyncio.wait(reads)
            async with asyncio.timeout(5):
                await journal.close()

    play(scene)
