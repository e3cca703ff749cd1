"""Who looks next: looks that take their time are made one after another, and those who ask take turns.

Such a look is made in slices, and between two of them everybody else is served. A hundred of them at once would be a
hundred slices between two requests. So there is one at a time, and whoever asks for many waits for its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Turns:
    """One at a time, by principal in turn."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By principal; the one whose turn it is next comes first."""

    @asynccontextmanager
    async def turn(self, principal: str) -> AsyncIterator[None]:
        if self._is_taken:
            await self._wait(principal)
        self._is_taken = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, principal: str) -> None:
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(principal, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                # It was given the turn, and will not take it.
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            principal = next(iter(self._waiting))
            those = self._waiting.pop(principal)
            following = those.popleft()
            if those:
                self._waiting[principal] = those
            if not following.done():
                following.set_result(None)
                return
        self._is_taken = False
