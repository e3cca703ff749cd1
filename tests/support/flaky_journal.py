"""A journal that fails on demand, around any other: for tests of what stands on a journal."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Literal

from holdfast.journal.interface import (
    Changes,
    Health,
    HeldPage,
    HeldQuery,
    HistoryPage,
    HistoryQuery,
    Journal,
    JournalUnavailableError,
    OutcomeUnknownError,
    Recovered,
    Snapshot,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractAsyncContextManager

    from holdfast.core.events import Record

Fate = Literal["ok", "unavailable", "unknown", "unknown_kept", "slow"]
"""What becomes of one append.

`ok` is kept. `unavailable` is refused and not kept. `unknown` is not kept and `unknown_kept` is, and in both cases
nobody is told which. `slow` is kept once `release` is called.
"""


class FlakyJournal:
    """Lets each append meet the next fate of a script; after the script's end all goes well."""

    def __init__(self, journal: Journal, script: Iterable[Fate] = ()) -> None:
        self.journal = journal
        self.script: deque[Fate] = deque(script)
        """What is still to come. A test may add to it at any time."""
        self.appends = 0
        """How many appends were asked for."""
        self.is_waiting = asyncio.Event()
        """Set while a slow append waits for `release`."""
        self._released = asyncio.Event()

    @property
    def is_shared(self) -> bool:
        """What the journal inside says."""
        return self.journal.is_shared

    @property
    def takes_claims(self) -> bool:
        """What the journal inside says."""
        return self.journal.takes_claims

    @takes_claims.setter
    def takes_claims(self, value: bool) -> None:
        self.journal.takes_claims = value

    @property
    def tail_bytes(self) -> int:
        """What the journal inside says."""
        return self.journal.tail_bytes

    @property
    def history_begins_after(self) -> int:
        """What the journal inside says."""
        return self.journal.history_begins_after

    async def follow(self, after_seq: int, limit: int) -> Sequence[Record]:
        """Follow the journal inside."""
        return await self.journal.follow(after_seq, limit)

    def release(self) -> None:
        """Let the slow append go on."""
        self._released.set()

    async def open(self) -> Recovered:
        """Open the journal inside."""
        return await self.journal.open()

    async def append(self, batch: Sequence[Record]) -> None:
        """Meet the next fate."""
        self.appends += 1
        fate = self.script.popleft() if self.script else "ok"
        match fate:
            case "unavailable":
                raise JournalUnavailableError("append: the script says that the store cannot take it")
            case "unknown":
                raise OutcomeUnknownError("append: the script says that nobody knows")
            case "unknown_kept":
                await self.journal.append(batch)
                raise OutcomeUnknownError("append: the script says that nobody knows")
            case "slow":
                await self._wait()
                await self.journal.append(batch)
            case _:
                await self.journal.append(batch)

    async def archive(self, upto: int, head: bytes, changes: Iterable[Changes], wall_ms: int) -> None:
        """Let the journal inside archive."""
        await self.journal.archive(upto, head, changes, wall_ms)

    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        """Look at all of the journal inside."""
        return self.journal.snapshot()

    async def history(self, query: HistoryQuery) -> HistoryPage:
        """Ask the journal inside."""
        return await self.journal.history(query)

    async def last_by(self, wall_ms: int) -> int:
        """Ask the journal inside."""
        return await self.journal.last_by(wall_ms)

    async def held(self, query: HeldQuery) -> HeldPage:
        """Ask the journal inside."""
        return await self.journal.held(query)

    def health(self) -> Health:
        """Ask the journal inside."""
        return self.journal.health()

    def why_no_claims(self, principal: str) -> str | None:
        """Ask the journal inside."""
        return self.journal.why_no_claims(principal)

    async def close(self) -> None:
        """Close the journal inside."""
        await self.journal.close()

    async def _wait(self) -> None:
        self._released.clear()
        self.is_waiting.set()
        try:
            await self._released.wait()
        finally:
            self.is_waiting.clear()
