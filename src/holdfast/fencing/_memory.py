"""Fences in the memory of one process. One block runs at a time per resource, in order of arrival.

A token raises its fence on arrival, not when its turn comes: an older owner that still waits is refused instead of
running late. A running block may finish, and the newer owner waits for it.

Beyond `resources_max` the resources with the smallest tokens are evicted, and the greatest evicted token becomes the
fence of every unknown resource. All names share one token counter, so this refuses at most owners as old as that.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager

from holdfast.fencing._token import checked_resource, checked_token, stale

_DROPPED_AT_ONCE = 8  # One in eight: sorting is paid for by the many that come after.


class MemoryFence:
    """Fences for the threads and tasks of one process. A restart forgets them; other processes know none of them."""

    def __init__(self, *, resources_max: int = 10_000) -> None:
        """Remember up to `resources_max` resources, and those in use beyond that."""
        if resources_max < 1:
            raise ValueError(f"resources_max is at least 1, not {resources_max}")
        self._resources_max = resources_max
        self._mutex = threading.Lock()
        self._places: dict[str, _Place] = {}
        self._floor = 0

    @contextmanager
    def guard(self, resource: str, token: int) -> Iterator[None]:
        """Raise the fence, or raise `StaleToken`; keep every other owner out while the block runs.

        Guarding the same resource again inside the block would deadlock.
        """
        place, turn = self._arrive(checked_resource(resource), checked_token(token))
        try:
            turn.result()
        except BaseException:
            self._give_up(place, turn)
            raise
        try:
            self._compare(place, resource, token)
            yield
        finally:
            self._leave(place)

    @asynccontextmanager
    async def guard_async(self, resource: str, token: int) -> AsyncIterator[None]:
        """Do the same in asyncio; tasks and threads share one queue."""
        place, turn = self._arrive(checked_resource(resource), checked_token(token))
        try:
            if not turn.done():
                # Shielded: only `_give_up` decides, under the mutex, whether a cancelled turn had come.
                await asyncio.shield(asyncio.wrap_future(turn))
        except BaseException:
            self._give_up(place, turn)
            raise
        try:
            self._compare(place, resource, token)
            yield
        finally:
            self._leave(place)

    def _arrive(self, resource: str, token: int) -> tuple[_Place, Future[None]]:
        with self._mutex:
            place = self._places.get(resource)
            current = self._floor if place is None else place.token
            if token < current:
                raise stale(resource, token, current)
            if place is None:
                place = self._remember(resource)
            place.token = token
            turn: Future[None] = Future()
            if place.is_taken:
                place.line.append(turn)
            else:
                place.is_taken = True
                turn.set_result(None)
            return place, turn

    def _compare(self, place: _Place, resource: str, token: int) -> None:
        with self._mutex:
            if token < place.token:
                raise stale(resource, token, place.token)

    def _leave(self, place: _Place) -> None:
        with self._mutex:
            self._pass_on(place)

    def _give_up(self, place: _Place, turn: Future[None]) -> None:
        with self._mutex:
            if turn.done():
                self._pass_on(place)  # It came at the same moment.
            else:
                place.line.remove(turn)

    def _pass_on(self, place: _Place) -> None:
        if place.line:
            place.line.popleft().set_result(None)
        else:
            place.is_taken = False

    def _remember(self, resource: str) -> _Place:
        if len(self._places) >= self._resources_max:
            idle = sorted((place.token, name) for name, place in self._places.items() if not place.is_taken)
            for token, name in idle[: max(1, self._resources_max // _DROPPED_AT_ONCE)]:
                del self._places[name]
                self._floor = max(self._floor, token)
        place = self._places[resource] = _Place()
        return place


class _Place:
    """One resource: its fence, whether a block runs, and its queue."""

    __slots__ = ("is_taken", "line", "token")

    def __init__(self) -> None:
        self.token = 0
        self.is_taken = False
        self.line: deque[Future[None]] = deque()
