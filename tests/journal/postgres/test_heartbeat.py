"""A node that takes the leadership and reads for long is seen to live, so nobody deposes it for that (N-13, N-14)."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from holdfast.journal.interface import DeposedError
from holdfast.journal.postgres import journal as postgres_journal
from holdfast.journal.postgres.writer import Ask
from tests.cluster.journals import connected
from tests.contract.tools import archived, grant
from tests.journal.postgres.archive_store import SchemaStore, play, until
from tests.journal.records import grants
from tests.journal.shared_stores import PostgresStore, postgres_store

SLICES = 12
DELAY_SECONDS = 0.1
"""Of each piece, there and back: so a slice takes twice as long at least, and all of them longer than others wait."""
READING_SECONDS_MIN = SLICES * 2 * DELAY_SECONDS


def heartbeat_of(store: PostgresStore) -> int:
    return int(store.sql("SELECT beat FROM {s}.seat"))


def test_heartbeat_rises_while_a_long_tail_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that reads a tail for longer than `takeover_seconds` proves its leadership between slices (N-13)."""
    # So every batch is more than a slice may have.
    monkeypatch.setattr(postgres_journal, "TAIL_BYTES", 1)

    class Slow(postgres_journal.PostgresJournal):
        async def _read_tail(self, ask: Ask) -> tuple[list[bytes], list[tuple[int, dict[str, int]]]]:
            store.proxy.delay_seconds = DELAY_SECONDS
            found = await super()._read_tail(ask)
            store.proxy.delay_seconds = 0
            return found

    async def scene(store: PostgresStore) -> None:
        first, taker = store(), store(kind=Slow)
        await first.open()
        for seq in range(1, SLICES + 1):
            await first.append(grants(seq, seq))
        await first.close()
        before = heartbeat_of(store)
        recovered = await taker.open()
        # One more is the write that took it. A heartbeat is due after 400 ms, and waits for the end of a slice.
        assert heartbeat_of(store) - before - 1 >= 3, f"in at least {READING_SECONDS_MIN} s"
        assert len(list(recovered.records)) == SLICES
        await taker.close()

    with postgres_store() as store:
        asyncio.run(scene(store))


def test_heartbeat_rises_while_an_archive_step_is_resolved() -> None:
    """A leader that opens again and waits for its own step on the server proves its leadership meanwhile (N-13)."""

    async def scene(store: SchemaStore) -> None:
        journal = store.journal()
        await journal.open()
        await journal.append([grant(1)])
        async with store.step_stopped() as db:
            step = asyncio.create_task(archived(journal, 1))
            await store.wait_for_stopped_step(db)
            step.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await step
            before = (await journal.read_leadership()).heartbeat
            opening = asyncio.create_task(journal.open())

            async def has_heartbeat() -> int:
                return (await journal.read_leadership()).heartbeat - before >= 4

            await until(has_heartbeat)
            assert not opening.done(), "the step is not settled yet"
        recovered = await opening
        assert list(recovered.records) == [], "the step counts"
        await journal.close()

    play(scene)


def test_deposed_node_notices_while_it_waits() -> None:
    """Whoever waits for a step, and loses the leadership meanwhile, waits no longer (N-13)."""

    async def scene(store: SchemaStore) -> None:
        journal = store.journal()
        await journal.open()
        await journal.append([grant(1)])
        async with store.step_stopped() as db:
            step = asyncio.create_task(archived(journal, 1))
            await store.wait_for_stopped_step(db)
            step.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await step
            opening = asyncio.create_task(journal.open())
            async with connected(store.url) as other:
                await other.execute(f"UPDATE {store.schema}.seat SET epoch = epoch + 1, tenure = 'x'")
            with pytest.raises(DeposedError):
                await opening
        await journal.close()

    play(scene)
