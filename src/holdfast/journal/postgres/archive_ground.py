"""What every call of the archive stands on: a connection beside the one that appends, and the tenure that it proves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.journal.base import DeposedError
from holdfast.journal.postgres.driver import RefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.journal.postgres.driver import Row
    from holdfast.journal.postgres.lines import Side
    from holdfast.journal.postgres.seat import Mine

LOOK_SECONDS = 30.0
"""How long a look may take on the server."""
NOT_OURS = "HF001"
"""What our functions say if the seat is not ours."""


class Ground:
    """A connection, and our tenure."""

    def __init__(self, side: Side, mine: Mine) -> None:
        self.side = side
        self.mine = mine
        self._turn = asyncio.Lock()

    async def write(self, name: str, *values: object, seconds: float) -> Sequence[Row]:
        """Run a statement that changes the archive, under our tenure. Raises `DeposedError` if it is over."""
        try:
            return await self.side.rows(name, self.mine.epoch, self.mine.tenure, *values, seconds=seconds)
        except RefusedError as error:
            if error.sqlstate == NOT_OURS:
                raise self.deposed("archive") from error
            raise

    async def read(self, name: str, *values: object) -> Sequence[Row]:
        """Run a statement that proves nothing: what rests on it is proved by another."""
        return await self.side.rows(name, *values, seconds=LOOK_SECONDS)

    async def look(self, name: str, *values: object) -> Sequence[Row]:
        """Run a statement that finds something only under our tenure. Raises `DeposedError` if it is over."""
        rows = await self._in_peace(name, self.mine.epoch, self.mine.tenure, *values)
        if not rows:
            await self.position()
        return rows

    async def _in_peace(self, name: str, *values: object) -> Sequence[Row]:
        """Run a statement to its end, though whoever asks may be cancelled: else the connection would be closed.

        The next one waits for that end. So however many are cancelled, one statement at most goes on for nobody.
        """
        await self._turn.acquire()
        task = asyncio.ensure_future(self.side.rows(name, *values, seconds=LOOK_SECONDS))
        task.add_done_callback(self._end_turn)
        return await asyncio.shield(task)

    def _end_turn(self, task: asyncio.Future[Sequence[Row]]) -> None:
        self._turn.release()
        if not task.cancelled():
            # Whoever was cancelled does not hear of its error.
            task.exception()

    async def position(self) -> Row:
        """Tell how far the archive and the journal reach. Raises `DeposedError` if the seat is not ours."""
        rows = await self._in_peace("read_position", self.mine.epoch, self.mine.tenure)
        if not rows:
            raise self.deposed("look")
        return rows[0]

    def deposed(self, operation: str) -> DeposedError:
        """Make the error of a tenure that is over."""
        return DeposedError(f"{operation}: another node has the seat; tenure {self.mine.epoch} is over")

    async def close(self) -> None:
        """Take leave; of a statement that goes on for nobody, without a word."""
        if self._turn.locked():
            self.side.drop()
        await self.side.close()
