"""Copies all that a journal holds: backups, restores and moves differ only in what stands at the two ends.

    backup     a journal                               ──►  a file
    restore    a file, behind a gap in the tokens      ──►  an empty data directory
    move       a data directory, sealed before the end ──►  an empty store in PostgreSQL

Each end is read as a `Snapshot`, one instant of a store, and written as a `StoreWriter`, whose store counts for nothing
until all of it was written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine import snapshot as rows
from holdfast.engine.recovery import replay
from holdfast.journal.base import History, Tail

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from holdfast.core.state import State
    from holdfast.journal.base import Part, Snapshot, StoreWriter

TELL_EVERY = 10_000


async def parts(source: Snapshot) -> AsyncIterator[Part]:
    """Yield all that a snapshot holds: the tail, then the archived state, then the archived history."""
    async for records in source.tail():
        yield Tail(records)
    async for values in source.values():
        yield values
    async for records in source.history():
        yield History(records)


async def copy(source: Snapshot, target: StoreWriter, saw: Callable[[Part], None]) -> None:
    """Write all that a snapshot holds into an empty store. `saw` is called after each part."""
    async for part in parts(source):
        await target.put(part)
        saw(part)
    await target.end(source)


async def state_of(source: Snapshot) -> State:
    """Return the state as of the end of a snapshot, as a start would make it."""
    tail = [record async for records in source.tail() for record in records]
    state = rows.load([values async for values in source.values()])
    replay(state, tail)
    return state


class Progress:
    """Tells a person how far a copy is, once for every ten thousand rows."""

    def __init__(self, tell: Callable[[str], None], what: str) -> None:
        self._tell = tell
        self._what = what
        self._count = self._told = 0

    def add(self, part: Part) -> None:
        """Count the rows of a part."""
        self._count += len(part.records if isinstance(part, Tail | History) else part.rows)
        if self._count >= self._told + TELL_EVERY:
            self._told = self._count
            self._tell(f"{self._count} rows {self._what}")
