"""What tests of engines on a shared journal have in common: a shelf, nodes on it, and a gate before its answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from holdfast.journal.interface import Peer, Recovered
from tests.support.shared_journal import SharedMemoryJournal, SharedShelf

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.core.events import Record
    from holdfast.journal.interface import Changes

__all__ = ["GatedJournal", "SharedShelf", "journal_on", "peer"]


def peer(name: str) -> Peer:
    """A node of this name, as it tells of itself."""
    return Peer(node=name, process=name * 32, url=f"http://{name}:7420", version="test", format_max=1, tokens="")


class GatedJournal(SharedMemoryJournal):
    """A node's journal. While its gate is shut, an append or a confirm waits until it is let through or refused."""

    def __init__(self, shelf: SharedShelf, node: str, *, term_id: str, needs_token_gap: bool = False) -> None:
        super().__init__(shelf, peer(node), term_id=term_id)
        self.is_shut = False
        self.needs_token_gap = needs_token_gap
        self.appends: list[list[Record]] = []
        self.confirms: list[int] = []
        """The times that were confirmed."""
        self.archiving: Exception | None = None
        """What archiving fails with, if it is to."""
        self.waiting: asyncio.Future[Exception | None] | None = None
        self.hurries: list[float] = []

    async def open(self) -> Recovered:
        """Say that the store lost something, if it is to."""
        return msgspec.structs.replace(await super().open(), needs_token_gap=self.needs_token_gap)

    async def append(self, batch: Sequence[Record]) -> None:
        """Append behind the gate."""
        await self._pass()
        await super().append(batch)
        self.appends.append(list(batch))

    async def confirm(self, now_ms: int) -> None:
        """Confirm behind the gate."""
        await self._pass()
        await super().confirm(now_ms)
        self.confirms.append(now_ms)

    async def archive(self, upto: int, head: bytes, changes: Iterable[Changes], wall_ms: int) -> None:
        """Archive, or fail."""
        if self.archiving is not None:
            raise self.archiving
        await super().archive(upto, head, changes, wall_ms)

    def hurry(self, seconds: float) -> None:
        """Note it."""
        self.hurries.append(seconds)

    def let_through(self, error: Exception | None = None) -> None:
        """Let what waits have its way, or fail with an error."""
        if self.waiting is None:
            raise RuntimeError("nothing is waiting")
        self.waiting.set_result(error)

    async def _pass(self) -> None:
        if self.is_shut:
            self.waiting = asyncio.get_running_loop().create_future()
            error = await self.waiting
            self.waiting = None
            if error is not None:
                raise error


async def journal_on(shelf: SharedShelf, node: str = "a", *, needs_token_gap: bool = False) -> GatedJournal:
    """A journal that may take the seat from whoever has it now."""
    journal = GatedJournal(shelf, node, term_id=f"{node}{shelf.leadership.epoch + 1}", needs_token_gap=needs_token_gap)
    journal.depose(await journal.read_leadership())
    return journal
