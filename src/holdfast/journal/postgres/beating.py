"""Signs of life of a node that reads under the seat, and serves nothing yet.

To the others, a leader whose seat stands still is gone (N-13). Whoever takes the seat and reads for longer than they
wait would be deposed, and so would the next one, for ever. So between two slices it proves its seat, on the same
connection; and beside what is done on another one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from typing import Self

    from holdfast.journal.postgres.driver import Line, Row
    from holdfast.journal.postgres.seat import Tenancy

BEAT_SECONDS = 0.4
READ_SECONDS = 30.0

T = TypeVar("T")


class Beating:
    """Reads on the connection under the seat, and proves the seat now and then, for as long as the block lasts."""

    def __init__(self, tenancy: Tenancy, line: Line) -> None:
        """`line` has just taken the seat, or proven it."""
        self._tenancy = tenancy
        self._line = line
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._wind_up()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def ask(self, name: str, *values: object) -> Sequence[Row]:
        """Run a named statement, behind a proof of the seat if the last was too long ago. Raises as both do."""
        if self._is_due:
            await self._beat()
        return await self._line.ask(name, *values, seconds=READ_SECONDS)

    async def beside(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for what does not use this connection. It is given up if the seat is lost meanwhile."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait((task,), timeout=BEAT_SECONDS)
                if not task.done():
                    await self._beat()
        except BaseException:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        return task.result()

    async def _beat(self) -> None:
        await self._tenancy.confirm(0)
        self._wind_up()

    def _wind_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._is_due = False
        self._timer = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._fall_due)

    def _fall_due(self) -> None:
        self._is_due = True
