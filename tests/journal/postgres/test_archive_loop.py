"""A step of the archive in PostgreSQL, and a look at it, take the leader's loop a few milliseconds at a time."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator

import pytest

from holdfast.core.events import Ended, Record
from holdfast.journal.interface import Changes, HeldQuery, HistoryQuery
from holdfast.journal.postgres.archive import PIECE_BYTES, PIECE_ROWS, values_in_pieces
from tests.contract.tools import WALL_MS, grant
from tests.journal.postgres.archive_store import SchemaStore, play

STALL_SECONDS_MAX = 0.08
"""Of processor time, on a machine that others use too. In one piece the least of it takes several times as long."""
RECORDS = 20_000
VALUES = 20_000


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """How many seconds of processor time each callback of the loop took. Whatever else runs here is not counted."""
    seconds: list[float] = []
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        begun = time.thread_time()
        run(handle)
        seconds.append(time.thread_time() - begun)

    monkeypatch.setattr(asyncio.Handle, "_run", timed)
    gc.collect()
    gc.disable()
    yield seconds
    gc.enable()


def record(seq: int) -> Record:
    """Draw a grant, and then its end."""
    name = f"queue/{(seq - 1) // 2}"
    if seq % 2:
        return grant(seq, name)
    return Record(seq, seq, WALL_MS + seq, Ended(name, f"lease-{seq - 1}", seq - 1, "released", True, principal="ci"))


def values(kind: str) -> Iterator[Changes]:
    """Draw values, in slices as the engine gives them."""
    for first in range(0, VALUES, PIECE_ROWS):
        rows = [(b"job/%08d" % number, b"value" * 40) for number in range(first, min(VALUES, first + PIECE_ROWS))]
        yield Changes("slots", new=rows) if kind == "new" else Changes("slots", changed=rows)


def test_no_part_of_a_step_takes_the_loop_for_long(parts: list[float]) -> None:
    """Many records, most of them of one batch, and many values: no part of a step takes the loop for long (N-5)."""

    async def scene(store: SchemaStore) -> None:
        journal = store.journal()
        await journal.open()
        for kind, first in (("new", 1), ("changed", RECORDS + 1)):
            # All that fell due at once is one batch.
            half, last = first + RECORDS // 2, first + RECORDS - 1
            await journal.append([record(seq) for seq in range(first, half)])
            for seq in range(half, last, 100):
                await journal.append([record(each) for each in range(seq, seq + 100)])
            parts.clear()
            await journal.archive(last, b"head", values(kind), WALL_MS)
            assert max(parts) < STALL_SECONDS_MAX, f"{max(parts)} s"
        for query in (HistoryQuery(), HistoryQuery(owner="nobody"), HistoryQuery(name="queue/77")):
            parts.clear()
            await journal.history(query)
            assert max(parts) < STALL_SECONDS_MAX, f"{max(parts)} s for {query}"
        parts.clear()
        await journal.held(HeldQuery(seq=RECORDS))
        await journal.follow(0, 1_000)
        await journal.last_by(WALL_MS + 9)
        assert max(parts) < STALL_SECONDS_MAX, f"{max(parts)} s"
        await journal.close()

    play(scene)


def test_large_tail_is_read_in_parts(parts: list[float]) -> None:
    """A look at what is not archived yet takes the loop as little, though all of it is one batch (N-32)."""

    async def scene(store: SchemaStore) -> None:
        journal = store.journal()
        await journal.open()
        await journal.append([record(seq) for seq in range(1, RECORDS + 1)])
        parts.clear()
        assert (await journal.history(HistoryQuery(owner="nobody"))).records == []
        assert len(await journal.follow(0, 50)) == 50
        assert await journal.last_by(WALL_MS + 9) == 9
        assert (await journal.held(HeldQuery(seq=1))).held[0].granted_seq == 1
        assert max(parts) < STALL_SECONDS_MAX, f"{max(parts)} s"
        await journal.close()

    play(scene)


def test_a_piece_has_a_bound() -> None:
    """Whatever is given, a piece has a bounded number of rows and bytes: one more row than fits, at most."""
    rows = [(b"%d" % number, b"v" * (number % 5_000)) for number in range(3_000)]
    given = [Changes("slots", gone=[key for key, _ in rows[:700]], changed=rows[700:1_500], new=rows[1_500:])]
    pieces = [piece for piece in values_in_pieces(given) if piece is not None]
    assert [key for piece in pieces for key in piece.keys] == [key for key, _ in rows]
    assert [(piece.kind, len(piece.keys) <= PIECE_ROWS) for piece in pieces if len(piece.keys) > PIECE_ROWS] == []
    assert max(piece.size_bytes for piece in pieces) <= PIECE_BYTES + 5_000
