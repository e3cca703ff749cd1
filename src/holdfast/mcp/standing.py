"""Standing in lines, also between two calls: hosts give a call up after a minute, and a line may take longer.

A call waits for a while and is told the place. The task behind it stands on, so that nobody is served before the model
while it thinks. It may come back within `PLACE_SECONDS`. If it does not, the place is given up, and so is the job if
the turn has come meanwhile and the model was not told: it does not know that it has it, and others wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from holdfast import AsyncClaim
from holdfast.client.values.options import OnWait
from holdfast.client.values.records import Place
from holdfast.mcp.results import RefusedError
from holdfast.mcp.tools import PLACE_SECONDS

LINES_MAX = 20
"""Each is a request that is open."""

Claim: TypeAlias = Callable[[str, OnWait], Coroutine[Any, Any, AsyncClaim]]
"""Claims a job, for as long as it takes, and tells the place meanwhile."""


class _Standing:
    """In one line."""

    def __init__(self) -> None:
        self.task: asyncio.Task[AsyncClaim]
        self.place: Place | None = None
        self._visitors = 0
        """How many calls wait for it right now: a model may call twice at once."""
        self._giving_up: asyncio.TimerHandle | None = None

    def see(self, place: Place) -> None:
        self.place = place

    def come(self) -> None:
        """Wait for it."""
        self._visitors += 1
        self.stay()

    def go(self, give_up: Callable[[], None]) -> None:
        """Wait for it no more. If this was the last one, and nobody comes back, it is given up."""
        self._visitors -= 1
        self.stay()
        if not self._visitors:
            self._giving_up = asyncio.get_running_loop().call_later(PLACE_SECONDS, give_up)

    def stay(self) -> None:
        """Do not give up: somebody waits for it, or has heard of it."""
        if self._giving_up is not None:
            self._giving_up.cancel()


class Lines:
    """All lines that one process stands in."""

    def __init__(self, claim: Claim, give_back: Callable[[str], None]) -> None:
        """`give_back` is called for a job whose turn came, and for which nobody came back."""
        self._claim = claim
        self._give_back = give_back
        self._standing: dict[str, _Standing] = {}

    async def visit(self, job: str, seconds: float) -> AsyncClaim | Place | None:
        """Wait for the turn; return the place if it does not come in time, None if that is not known yet.

        The same is returned if nobody stands there any more: another call got the job, or this program ends.

        Raises what became of the wait instead, and `RefusedError` if there are too many.
        """
        standing = self._standing.get(job) or self._join(job)
        standing.come()
        try:
            await asyncio.wait({standing.task}, timeout=seconds)
        finally:
            standing.go(lambda: self._give_up(job, standing))
        # The result of a task that was cancelled would cancel whoever asks for it, and with it all that is served.
        if not standing.task.done() or standing.task.cancelled():
            return standing.place
        standing.stay()
        if self._standing.get(job) is standing:
            del self._standing[job]
        return standing.task.result()

    def has_turn(self, job: str) -> bool:
        """Tell whether the turn for a job came between two calls, and nobody was told yet."""
        standing = self._standing.get(job)
        return standing is not None and _has_claim(standing.task)

    def granted(self) -> list[str]:
        """Return the jobs whose turn came between two calls. Whoever is told of them has them from then on."""
        jobs = [job for job, standing in self._standing.items() if _has_claim(standing.task)]
        for job in jobs:
            self._standing.pop(job).stay()
        return jobs

    def told(self, job: str) -> None:
        """Know that whoever may stand in line for a job was told that it has it."""
        standing = self._standing.pop(job, None)
        if standing is not None:
            standing.stay()
            standing.task.cancel()

    def places(self) -> dict[str, int | None]:
        """Return where one stands, by job; None where it is not known yet."""
        return {
            job: None if standing.place is None else standing.place.position
            for job, standing in sorted(self._standing.items())
            if not standing.task.done()
        }

    def leave(self) -> set[asyncio.Task[AsyncClaim]]:
        """Give up all places; return what has to be waited for until that is done."""
        standing, self._standing = self._standing, {}
        for each in standing.values():
            each.stay()
            each.task.cancel()
        return {each.task for each in standing.values()}

    def _join(self, job: str) -> _Standing:
        if len(self._standing) >= LINES_MAX:
            raise RefusedError(f"you stand in {LINES_MAX} lines already: wait for one of those jobs first")
        standing = self._standing[job] = _Standing()
        standing.task = asyncio.create_task(self._claim(job, standing.see), name=f"waits for {job}")
        return standing

    def _give_up(self, job: str, standing: _Standing) -> None:
        if self._standing.get(job) is not standing:
            return
        del self._standing[job]
        if _has_claim(standing.task):
            self._give_back(job)
        elif not standing.task.cancel() and not standing.task.cancelled():
            standing.task.exception()  # Nobody asks for it any more.


def _has_claim(task: asyncio.Task[AsyncClaim]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
