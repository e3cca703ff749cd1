"""All that the store holds at one instant: for a backup. It has a connection of its own, and locks nothing."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from holdfast.journal.postgres.archive_ground import LOOK_SECONDS, Ground
from holdfast.journal.postgres.archive_reading import read_batches, read_history, read_values, records_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from holdfast.core.events import Record
    from holdfast.journal.base import Values
    from holdfast.journal.postgres.archive_reading import Ask
    from holdfast.journal.postgres.driver import Row
    from holdfast.journal.postgres.lines import Side
    from holdfast.journal.postgres.seat import Mine


@asynccontextmanager
async def snapshot(beside: Side, mine: Mine) -> AsyncIterator[PostgresSnapshot]:
    """Give all that there is now, at the server of another connection."""
    async with beside.another().instant() as side:
        await side.rows("stay_at_instant")
        position = await Ground(side, mine).position()
        yield PostgresSnapshot(partial(side.rows, seconds=LOOK_SECONDS), position)


class PostgresSnapshot:
    """All there is at one instant."""

    def __init__(self, ask: Ask, position: Row) -> None:
        self._ask = ask
        self.upto: int = position["upto"]
        self.pruned: int = position["pruned"]
        self._state_rows: int = position["state_rows"]
        self.last_seq: int = position["last_seq"]

    async def tail(self) -> AsyncIterator[Sequence[Record]]:
        """Yield every record that is not archived, some at a time."""
        async for body in read_batches(self._ask, self.upto, self.last_seq):
            async for records in records_of(body):
                yield records

    def values(self) -> AsyncIterator[Values]:
        """Yield the archived state, the head first."""
        return read_values(self._ask, self._state_rows)

    def history(self) -> AsyncIterator[Sequence[Record]]:
        """Yield the archived records with history value, oldest first."""
        return read_history(self._ask, self.upto)
