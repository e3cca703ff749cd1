"""What of the history goes: what is too old, then what is too much, the eldest of whoever has left the most first.

Who goes first is decided here, by the rule that all journals share (`archive/shares.py`). What goes with a record, and
what of it is still needed, the store finds out by itself (`prune` in the statements): no record is read for that.

Some records go at a time, each time in a transaction of their own: what it has done counts, whatever comes after it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from holdfast.journal.archive.pruning import SOME, STEP_MAX
from holdfast.journal.archive.shares import choose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.journal.base import Keeping
    from holdfast.journal.postgres.archive_ground import Ground
    from holdfast.journal.postgres.driver import Row

STRETCHES = 4
"""How many stretches of 1,024 numbers are looked through at once."""
ELDEST = 256
"""How many of somebody's records are asked for at once."""
PRUNE_SECONDS = 120.0


class Pruning:
    """Drops what is not kept."""

    def __init__(self, ground: Ground, keeping: Keeping) -> None:
        self._ground = ground
        self._keeping = keeping
        self._left = 0
        self.pruned = 0
        """The newest that was ever dropped."""

    async def prune(self, wall_ms: int) -> None:
        """Drop what is too old or too much: at most so many records, and the next time more."""
        self._left = STEP_MAX
        newest = await self._ground.read("read_newest_wall")
        if newest:
            # Never the newest: it says since when nothing happened, and who held what since then.
            await self._drop_overdue(min(wall_ms - self._keeping.wall_ms, newest[0][0]))
        await self._drop_excess("records", self._keeping.records_max)
        await self._drop_excess("bytes", self._keeping.bytes_max)

    async def _drop_overdue(self, overdue_ms: int) -> None:
        read = self._ground.read
        while self._left > 0:
            stretches = [row[0] for row in await read("read_overdue_stretches", overdue_ms, STRETCHES)]
            if not stretches:
                return
            seqs = [row[0] for row in await read("read_overdue", overdue_ms, stretches)]
            await self._forget(seqs, stretches)

    async def _drop_excess(self, unit: str, most: int) -> None:
        while self._left > 0:
            shares = await self._ground.read("read_shares")
            excess = sum(row[unit] for row in shares) - most
            seqs = await self._chosen(shares, unit, excess) if excess > 0 else []
            if not seqs:
                return
            await self._forget(seqs, [])

    async def _chosen(self, shares: Sequence[Row], unit: str, excess: int) -> list[int]:
        """Return the eldest records of whoever has the largest share then, one after another."""
        eldest: dict[bytes, _Eldest] = {}
        choosing = choose([(row["principal"], row[unit]) for row in shares], excess, min(SOME, self._left))
        try:
            who = next(choosing)
            while True:
                known = eldest.setdefault(who, _Eldest(self._ground, who))
                found = await known.next()
                who = choosing.send(found and (found[0], 1 if unit == "records" else found[1]))
        except StopIteration as end:
            chosen: list[int] = end.value
            return chosen

    async def _forget(self, seqs: list[int], stretches: list[int]) -> None:
        rows = await self._ground.write("prune", seqs, stretches, seconds=PRUNE_SECONDS)
        self.pruned = rows[0]["pruned"]
        self._left -= max(1, len(seqs))
        await asyncio.sleep(0)


class _Eldest:
    """What one has left, eldest first, asked for some at a time."""

    def __init__(self, ground: Ground, who: bytes) -> None:
        self._ground = ground
        self._who = who
        self._some: deque[tuple[int, int]] = deque()
        self._after = -(2**62)
        self._is_over = False

    async def next(self) -> tuple[int, int] | None:
        """Return the number and the weight of the next; None if there is no more."""
        if not self._some and not self._is_over:
            rows = await self._ground.read("read_eldest_of", self._who, self._after, ELDEST)
            self._some.extend((seq, weight) for seq, weight in rows)
            self._is_over = len(rows) < ELDEST
            self._after = rows[-1][0] if rows else self._after
        return self._some.popleft() if self._some else None
