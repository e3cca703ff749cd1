"""Places in queues that outlive a call: hosts cancel a call after a minute, and a queue may take longer.

A call waits for a while and returns the place. The task behind it goes on waiting, so that nobody is served before the
model while it thinks. The model may come back within `PLACE_SECONDS`. If it does not, the place is given up, and so is
the job if it was granted meanwhile: the model does not know that it has it, and others wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from holdfast import AsyncClaim
from holdfast.client.options import OnWait
from holdfast.client.records import Place
from holdfast.mcp.results import RefusedError
from holdfast.mcp.tools import PLACE_SECONDS

WAITS_MAX = 20
"""Each is an open request."""

Claim: TypeAlias = Callable[[str, OnWait], Coroutine[Any, Any, AsyncClaim]]
"""Claims a job, for as long as it takes, and reports the place meanwhile."""


class _Wait:
    """The wait for one job, and the calls that wait for it: a model may call twice at once."""

    def __init__(self) -> None:
        self.task: asyncio.Task[AsyncClaim]
        self.place: Place | None = None
        self._calls = 0
        self._give_up_timer: asyncio.TimerHandle | None = None

    def set_place(self, place: Place) -> None:
        self.place = place

    def enter(self) -> None:
        self._calls += 1
        self.stop_timer()

    def leave(self, give_up: Callable[[], None]) -> None:
        """Unless another call waits or comes back in time, give up."""
        self._calls -= 1
        self.stop_timer()
        if not self._calls:
            self._give_up_timer = asyncio.get_running_loop().call_later(PLACE_SECONDS, give_up)

    def stop_timer(self) -> None:
        if self._give_up_timer is not None:
            self._give_up_timer.cancel()

    @property
    def has_claim(self) -> bool:
        return self.task.done() and not self.task.cancelled() and self.task.exception() is None


class Waits:
    """All waits of one session."""

    def __init__(self, claim: Claim, give_back: Callable[[str], None]) -> None:
        """`give_back` is called for a job that was granted and for which no call came back."""
        self._claim = claim
        self._give_back = give_back
        self._waits: dict[str, _Wait] = {}

    async def visit(self, job: str, seconds: float) -> AsyncClaim | Place | None:
        """Wait for a job; return the place if it is not granted in time, or None if that is not known yet.

        The same is returned if the wait ended meanwhile: another call got the job, or this program ends.
        Raises what the wait raised, and `RefusedError` if there are too many waits.
        """
        wait = self._waits.get(job) or self._begin(job)
        wait.enter()
        try:
            await asyncio.wait({wait.task}, timeout=seconds)
        finally:
            wait.leave(lambda: self._give_up(job, wait))
        # The result of a cancelled task would cancel its reader, and with it the whole server.
        if not wait.task.done() or wait.task.cancelled():
            return wait.place
        wait.stop_timer()
        if self._waits.get(job) is wait:
            del self._waits[job]
        return wait.task.result()

    def is_granted(self, job: str) -> bool:
        """Tell whether a job was granted between two calls, and the model does not know it yet."""
        wait = self._waits.get(job)
        return wait is not None and wait.has_claim

    def take_granted(self) -> list[str]:
        """Return the jobs that were granted between two calls; the caller tells the model."""
        jobs = [job for job, wait in self._waits.items() if wait.has_claim]
        for job in jobs:
            self._waits.pop(job).stop_timer()
        return jobs

    def end(self, job: str) -> None:
        """End the wait for a job, if there is one."""
        wait = self._waits.pop(job, None)
        if wait is not None:
            wait.stop_timer()
            wait.task.cancel()

    def places(self) -> dict[str, int | None]:
        """Return the positions, by job; None where it is not known yet."""
        return {
            job: None if wait.place is None else wait.place.position
            for job, wait in sorted(self._waits.items())
            if not wait.task.done()
        }

    def end_all(self) -> set[asyncio.Task[Any]]:
        """End all waits; return the tasks to wait for until that is done."""
        tasks = {wait.task for wait in self._waits.values()}
        for job in tuple(self._waits):
            self.end(job)
        return tasks

    def _begin(self, job: str) -> _Wait:
        if len(self._waits) >= WAITS_MAX:
            raise RefusedError(f"you stand in {WAITS_MAX} lines already: wait for one of those jobs first")
        wait = self._waits[job] = _Wait()
        wait.task = asyncio.create_task(self._claim(job, wait.set_place), name=f"waits for {job}")
        return wait

    def _give_up(self, job: str, wait: _Wait) -> None:
        if self._waits.get(job) is not wait:
            return
        del self._waits[job]
        if wait.has_claim:
            self._give_back(job)
        elif not wait.task.cancel() and not wait.task.cancelled():
            wait.task.exception()  # Nobody reads it any more; retrieving it keeps asyncio from reporting it.
