"""Only the leader writes the archive in PostgreSQL, step by step; the contract says what it holds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.journal.interface import (
    Changes,
    DeposedError,
    HeldQuery,
    HistoryQuery,
    JournalDamagedError,
    JournalUnavailableError,
)
from holdfast.journal.postgres.journal import PostgresJournal
from tests.cluster.journals import connected
from tests.contract.tools import (
    WALL_MS,
    Tables,
    archived,
    grant,
    newest_first,
    pages,
    read,
    slot_changes,
    slot_tables,
)
from tests.journal.postgres.archive_store import SchemaStore, all_of, play
from tests.support import proof

STAGED = ("staged_values", "staged_records")


def test_a_deposed_leader_archives_nothing() -> None:
    """Whoever was deposed changes no row of archive or tail, neither by a step nor by pruning nor by dropping (N-5)."""

    async def scene(store: SchemaStore) -> None:
        first = store.journal("first")
        await first.open()
        await first.append([grant(1), grant(2, "other")])
        await archived(first, 2)
        await first.append([grant(3)])
        second = await store.successor()
        await second.append([grant(4)])
        before = await store.rows()
        for upto in (3, 4, 2):
            with pytest.raises(DeposedError):
                await archived(first, upto, WALL_MS + 10**12)
        assert await store.rows() == before
        assert await store.rows(*STAGED) == {table: [] for table in STAGED}
        await archived(second, 4)
        assert await read(second) == (slot_tables(2, 4), [])
        await second.close()
        await first.close()

    play(scene)


def test_a_takeover_waits_for_no_step_and_finds_the_archive_of_before() -> None:
    """A step that is on its way when the leadership is taken holds up nobody, and ends without a trace (N-4, N-5)."""

    async def scene(store: SchemaStore) -> None:
        first = store.journal("first")
        await first.open()
        await first.append([grant(1)])
        await archived(first, 1)
        await first.append([grant(2), grant(3, "other")])
        before = await store.rows()
        async with store.step_stopped() as db:
            step = asyncio.create_task(archived(first, 3, count=5))
            await store.wait_for_stopped_step(db)
            # The step has locked all that it changes by now, and stands still.
            async with asyncio.timeout(5):
                second = await store.successor()
                assert await read(second) == (slot_tables(1), [grant(2), grant(3, "other")])
                assert await pages(second, 5) == newest_first([grant(1), grant(2), grant(3, "other")])
                await second.append([grant(4)])
            assert not step.done()
        with pytest.raises(DeposedError):
            await step
        after = await store.rows()
        assert {**after, "batch": after["batch"][:-1]} == before
        await archived(second, 4)
        assert await read(second) == (slot_tables(1, 4), [])
        await second.close()
        await first.close()

    play(scene)


def test_takeover_finds_a_step_complete_or_absent() -> None:
    """If the leadership is acquired during a step, the new leader finds all of it or nothing (I5, N-5)."""
    chance = random.Random(20_13)
    found_new = []

    async def scene(store: SchemaStore) -> None:
        journal = store.journal()
        await journal.open()
        records, archived_at = 0, list[int]()
        for _ in range(proof.count("nodes: takeovers during a step of the archive")):
            size = chance.choice([1, 30, 300])
            await journal.append([grant(seq, f"job/{seq % 7}") for seq in range(records + 1, records + size + 1)])
            records += size
            successor = store.journal("successor")
            successor.depose(await successor.read_leadership())
            step, is_so_far = step_begun(journal, records, statements=chance.randint(0, 7))
            await is_so_far.wait()
            await successor.open()
            outcome = (await asyncio.gather(step, return_exceptions=True))[0]
            assert outcome is None or isinstance(outcome, DeposedError), outcome
            found = await all_of(successor, records)
            is_new = found[0] == slot_tables(*archived_at, records, count=3)
            found_new.append(is_new)
            assert is_new or outcome is not None
            archived_at += [records] if is_new else []
            assert found == expected(archived_at, records)
            await journal.close()
            journal = successor
        await journal.close()

    play(scene)
    assert len(set(found_new)) == 2, "each of both was found at least once"


def step_begun(journal: PostgresJournal, upto: int, statements: int) -> tuple[asyncio.Task[None], asyncio.Event]:
    """Begin a step; return it, and what is set once it has sent so many statements."""
    is_so_far, sent, side = asyncio.Event(), 0, journal._archive_client
    ask = side.rows

    async def rows(name: str, *values: object, seconds: float | None = 5.0) -> Sequence[Any]:
        nonlocal sent
        if sent >= statements:
            is_so_far.set()
        sent += 1
        return await ask(name, *values, seconds=seconds)

    side.rows = rows  # type: ignore[method-assign]
    return asyncio.create_task(archived(journal, upto, count=3)), is_so_far


def expected(archived_at: list[int], records: int) -> tuple[Tables, list[int], list[int], list[tuple[str, int]]]:
    """Return what `all_of` finds after steps at these numbers, if record N grants the name N modulo 7."""
    tail = list(range((archived_at or [0])[-1] + 1, records + 1))
    holders = {f"job/{seq % 7}": seq for seq in range(1, records + 1)}
    held = sorted(holders.items())
    return slot_tables(*archived_at, count=3), tail, list(range(records, 0, -1)), held


def test_deposed_leader_reads_no_history() -> None:
    """Whoever was deposed is told so by every look back, also by one that would find nothing (I9)."""

    async def scene(store: SchemaStore) -> None:
        first = store.journal("first")
        await first.open()
        await first.append([grant(1)])
        second = await store.successor()
        for read_task in (
            first.history(HistoryQuery()),
            first.history(HistoryQuery(name="unknown")),
            first.follow(0, 5),
            first.follow(9, 5),
            first.last_by(WALL_MS + 9),
            first.last_by(0),
            first.held(HeldQuery(seq=1)),
        ):
            with pytest.raises(DeposedError):
                await read_task
        with pytest.raises(DeposedError):
            async with first.snapshot():
                raise AssertionError("it was given")
        await second.close()
        await first.close()

    play(scene)


def test_missing_staged_rows_are_detected() -> None:
    """A crash of the server takes what was staged with it: such a step is refused, and taken when it is given again."""

    async def scene(store: SchemaStore) -> None:
        journal = store.journal()
        await journal.open()
        await journal.append([grant(1)])

        async def forget() -> None:
            async with connected(store.url) as db:
                assert await db.execute(f"DELETE FROM {store.schema}.staged_records") == "DELETE 1"

        def changes() -> Iterator[Changes]:
            with ThreadPoolExecutor() as threads:
                threads.submit(asyncio.run, forget()).result()
            yield from slot_changes(1)

        with pytest.raises(JournalUnavailableError, match="of 2 staged pieces 1 are there"):
            await journal.archive(1, b"head", changes(), WALL_MS)
        assert await read(journal) == ({}, [grant(1)])
        await archived(journal, 1)
        assert await read(journal) == (slot_tables(1), [])
        await journal.close()

    play(scene)


def test_a_damaged_state_is_refused() -> None:
    """A value that is missing, or not the one that was written, is damage: nothing is served from it (I5)."""

    async def scene(store: SchemaStore) -> None:
        journal = store.journal()
        await journal.open()
        await journal.append([grant(1)])
        await archived(journal, 1, count=3)
        for damage in ("UPDATE {}.value SET value = 'other' WHERE place = 2", "DELETE FROM {}.value WHERE place = 2"):
            async with connected(store.url) as db:
                await db.execute(damage.format(store.schema))
            with pytest.raises(JournalDamagedError):
                await read(journal)
        await journal.close()

    play(scene)


def test_an_append_waits_for_no_step() -> None:
    """While a step stands still on the server, appends and confirms go on (N-4)."""

    async def scene(store: SchemaStore) -> None:
        journal = store.journal()
        await journal.open()
        await journal.append([grant(1)])
        async with store.step_stopped() as db:
            step = asyncio.create_task(archived(journal, 1))
            await store.wait_for_stopped_step(db)
            async with asyncio.timeout(5):
                for seq in range(2, 12):
                    await journal.append([grant(seq)])
                    await journal.confirm(seq)
            assert not step.done()
        await step
        assert await read(journal) == (slot_tables(1), [grant(seq) for seq in range(2, 12)])
        await journal.close()

    play(scene)


def test_step_leaves_no_staged_rows() -> None:
    """What was staged is gone after a step, after one that did not fit, and after those of other terms (N-5)."""

    async def scene(store: SchemaStore) -> None:
        first = store.journal("first")
        await first.open()
        await first.append([grant(1)])
        with pytest.raises(JournalUnavailableError, match="values that are gone"):
            await first.archive(1, b"head", [*slot_changes(1), Changes("slots", gone=[b"unknown"])], WALL_MS)
        second = await store.successor()
        await archived(second, 1)
        assert await store.rows(*STAGED, "batch") == {table: [] for table in (*STAGED, "batch")}
        await second.close()
        await first.close()

    play(scene)
