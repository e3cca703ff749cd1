"""A step of the archive whose answer is lost counts once, or never: it is settled, and not guessed."""

from __future__ import annotations

import asyncio
import random

import pytest

from holdfast.journal.interface import JournalUnavailableError, OutcomeUnknownError
from holdfast.journal.postgres import archive
from tests.cluster.journals import address_of, connected, through
from tests.cluster.proxy import TcpProxy, at_random, pass_all
from tests.contract.tools import archived, grant, read, slot_tables
from tests.journal.postgres.archive_store import SchemaStore, all_of, play
from tests.support import proof

STEPS_OF_A_STORE = 25


def test_a_step_that_is_done_after_its_connection_was_lost_counts() -> None:
    """A step that the server does after we lost it is waited for, and counts: it is not given again (N-5, N-8)."""

    async def scene(store: SchemaStore) -> None:
        journal = store.journal()
        await journal.open()
        await journal.append([grant(1), grant(2)])
        async with store.step_stopped() as db:
            step = asyncio.create_task(archived(journal, 2, count=4))
            await store.wait_for_stopped_step(db)
            # The server does not look at its socket while it waits for a lock.
            journal._archive_client.drop()
            await asyncio.wait({step}, timeout=0.1)
            assert not step.done(), "nobody can know yet"
        await step
        assert await read(journal) == (slot_tables(2, count=4), [])
        await journal.append([grant(3)])
        await archived(journal, 3, count=4)
        assert await read(journal) == (slot_tables(2, 3, count=4), [])
        await journal.close()

    play(scene)


def test_a_step_whose_process_was_ended_does_not_count() -> None:
    """A step that the server ended is refused, nothing of it is there, and it is taken when it is given again (I5)."""

    async def scene(store: SchemaStore) -> None:
        journal = store.journal()
        await journal.open()
        await journal.append([grant(1)])
        before = await store.rows()
        async with store.step_stopped() as db:
            step = asyncio.create_task(archived(journal, 1))
            pid = await store.wait_for_stopped_step(db)
            assert await db.fetchval("SELECT pg_terminate_backend($1)", pid)
            with pytest.raises(JournalUnavailableError):
                await step
        assert await store.rows() == before
        assert journal.health().text.startswith("nothing could be archived since")
        await archived(journal, 1)
        assert await read(journal) == (slot_tables(1), [])
        assert journal.health().text == "ok"
        await journal.close()

    play(scene)


def test_late_step_is_refused_after_resolution() -> None:
    """What was settled cannot happen any more: a late copy of the call finds nothing staged (N-8)."""

    async def scene(store: SchemaStore) -> None:
        journal = store.journal()
        await journal.open()
        await journal.append([grant(1)])
        async with store.step_stopped() as db:
            step = asyncio.create_task(archived(journal, 1))
            pid = await store.wait_for_stopped_step(db)
            await db.execute("SELECT pg_terminate_backend($1)", pid)
            with pytest.raises(JournalUnavailableError):
                await step
        mine = journal._term
        late = (mine.epoch, mine.term_id, 1, 2, 1, b"head", 0)
        before = await store.rows()
        async with connected(store.url) as db:
            with pytest.raises(Exception, match="of 2 staged pieces 0 are there"):
                await db.fetchval(f"SELECT {store.schema}.apply_step($1, $2, $3, $4, $5, $6, $7)", *late)
        assert await store.rows() == before
        await journal.close()

    play(scene)


def test_cancelled_step_is_resolved_by_the_next_open() -> None:
    """After a cancelled step the holder reads anew only what cannot change any more: the step is waited for (I5)."""

    async def scene(store: SchemaStore) -> None:
        journal = store.journal()
        await journal.open()
        await journal.append([grant(1)])
        async with store.step_stopped() as db:
            step = asyncio.create_task(archived(journal, 1))
            await store.wait_for_stopped_step(db)
            step.cancel()
            await asyncio.wait({step})
            reading = asyncio.create_task(read(journal))
            await asyncio.wait({reading}, timeout=0.1)
            assert not reading.done(), "the step may still count"
        assert await reading == (slot_tables(1), [])
        await journal.append([grant(2)])
        await archived(journal, 2)
        assert await read(journal) == (slot_tables(1, 2), [])
        await journal.close()

    play(scene)


def test_unresolvable_step_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store cannot be asked for too long what became of a step, nobody says that it failed (N-8)."""
    monkeypatch.setattr(archive, "RESOLVE_SECONDS", 0.3)

    async def scene(store: SchemaStore) -> None:
        journal = store.journal()
        await journal.open()
        await journal.append([grant(1)])
        async with store.step_stopped() as db:
            step = asyncio.create_task(archived(journal, 1))
            await store.wait_for_stopped_step(db)
            journal._archive_client.drop()
            with pytest.raises(OutcomeUnknownError):
                await step
        await journal.close()
        successor = await store.successor()
        state, tail, history, _ = await all_of(successor, 1)
        assert history == [1]
        assert (state, tail) in ((slot_tables(1), []), ({}, [1]))
        await successor.close()

    play(scene)


def test_steps_over_a_broken_network_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a way that loses questions and answers, or delivers them late, steps count once or not at all (N-5, I5)."""
    steps, chance = proof.count("nodes: steps of the archive with lost answers"), random.Random(13)
    monkeypatch.setattr(archive, "RETRY_SECONDS", 0.01)
    outcomes: list[bool] = []

    async def scene(store: SchemaStore) -> None:
        with TcpProxy(*address_of(store.url), seed=5) as proxy:
            journal = store.journal(url=through(store.url, proxy.port))
            await journal.open()
            counted, records = list[int](), 0
            for _ in range(STEPS_OF_A_STORE):
                size = chance.choice([1, 2, 400])
                await journal.append([grant(seq, f"job/{seq % 5}") for seq in range(records + 1, records + size + 1)])
                records += size
                proxy.draw = at_random(random.Random(chance.random()), 0.1, bytes_min=60)
                try:
                    await archived(journal, records, count=2)
                except JournalUnavailableError:
                    outcomes.append(False)
                else:
                    outcomes.append(True)
                    counted.append(records)
                proxy.draw = pass_all
                state, tail, history, held = await all_of(journal, records)
                assert state == slot_tables(*counted, count=2)
                assert tail == list(range((counted or [0])[-1] + 1, records + 1))
                assert history == list(range(records, 0, -1))
                assert len(held) == min(5, records)
            await journal.close()

    for _ in range(0, steps, STEPS_OF_A_STORE):
        play(scene)
    assert set(outcomes) == {True, False}, "some failed and some did not"
