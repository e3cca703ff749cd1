"""A journal in memory that several nodes share, for tests of what stands on one: the same promise without a store.

All journals on one `SharedShelf` are nodes of one authority. The shelf judges each write as a store would: by the epoch
and the term that it names, in one step. A node that was deposed believes to have the leadership until it writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.journal.codec import FORMAT
from holdfast.journal.interface import (
    DeposedError,
    JournalLockedError,
    JournalLostError,
    JournalUnavailableError,
    Leadership,
    Peer,
    Recovered,
    Retention,
)
from tests.support.memory_journal import MemoryJournal, Shelf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.core.events import Record


class SharedShelf(Shelf):
    """What a store is to its nodes: the records, the leadership, the key, and who told of themselves."""

    def __init__(self, authority: str = "memory", key: bytes = b"k" * 32) -> None:
        super().__init__()
        self.key = key
        self.is_away = False
        """Whether nobody can reach it. A test sets it."""
        self.peers: dict[str, Peer] = {}
        self.leadership = Leadership(
            authority=authority,
            epoch=0,
            term_id="",
            heartbeat=0,
            is_held=False,
            node="",
            process="",
            url="",
            last_seq=0,
            now_ms=0,
            since_wall_ms=0,
            format=FORMAT,
            version="",
        )

    def change_leadership(self, **changes: object) -> None:
        """Write the leadership: its heartbeat rises."""
        self.leadership = msgspec.structs.replace(self.leadership, heartbeat=self.leadership.heartbeat + 1, **changes)


class SharedMemoryJournal(MemoryJournal):
    """One node's journal on a shared shelf."""

    is_shared = True

    def __init__(
        self, shelf: SharedShelf, peer: Peer, *, term_id: str, wall_ms: int = 0, retention: Retention | None = None
    ) -> None:
        """`term_id` names the term that this journal may begin, and no other ever has the same."""
        super().__init__(retention, shelf)
        self._shared = shelf
        self._peer = peer
        self._term_id = term_id
        self._wall_ms = wall_ms
        self._seen: Leadership | None = None
        self._epoch: int | None = None
        """Of the term that this journal began; None before, and after it gave the leadership back."""
        self._known_seq = 0
        """A record that was durable: a shelf that has less went back in time."""

    async def read_leadership(self) -> Leadership:
        """Show the leadership."""
        self._reach("read_leadership")
        self._know("read_leadership")
        return msgspec.structs.replace(self._shared.leadership, last_seq=self._shared.last_seq)

    def depose(self, leadership: Leadership) -> None:
        """Let `open` take this leadership."""
        self._seen = leadership

    async def open(self) -> Recovered:
        """Take the leadership if it is free, or as it was seen."""
        self._reach("open")
        shelf = self._shared
        was_closed = not shelf.leadership.is_held
        if self._epoch is None:
            seen = self._seen
            is_as_seen = seen is not None and (seen.epoch, seen.heartbeat) == (
                shelf.leadership.epoch,
                shelf.leadership.heartbeat,
            )
            if shelf.leadership.is_held and not is_as_seen:
                raise JournalLockedError(f"open: {shelf.leadership.node} has the seat (epoch {shelf.leadership.epoch})")
            self._epoch = shelf.leadership.epoch + 1
            shelf.change_leadership(
                epoch=self._epoch,
                term_id=self._term_id,
                is_held=True,
                node=self._peer.node,
                process=self._peer.process,
                url=self._peer.url,
                version=self._peer.version,
                since_wall_ms=self._wall_ms,
            )
        else:
            was_closed = True
            self._require_open("open")
        self._know("open")
        self._weigh_tail()
        records = shelf.tail()
        return Recovered(
            self._epoch, shelf.archive.values(), records, was_closed, now_ms=shelf.leadership.now_ms, key=shelf.key
        )

    async def append(self, batch: Sequence[Record]) -> None:
        """Keep a batch, if the leadership is still ours."""
        self._require_open("append")
        self._know("append")
        await super().append(batch)
        if batch:
            self._known_seq = batch[-1].seq
            self._shared.change_leadership(now_ms=max(self._shared.leadership.now_ms, batch[-1].at_ms))

    async def confirm(self, now_ms: int) -> None:
        """Write nothing but that the leadership is ours."""
        self._require_open("confirm")
        self._know("confirm")
        self._shared.change_leadership(now_ms=max(self._shared.leadership.now_ms, now_ms))

    def hurry(self, seconds: float) -> None:
        """Do nothing: whoever asks is answered at once."""

    async def key(self) -> bytes:
        """Return the key of the shelf."""
        self._reach("key")
        return self._shared.key

    async def report(self, peer: Peer) -> None:
        """Put it on the shelf."""
        self._reach("report")
        self._shared.peers = {peer.node: peer, **{n: p for n, p in self._shared.peers.items() if n != peer.node}}

    async def peers(self) -> Sequence[Peer]:
        """Return who is on the shelf."""
        self._reach("peers")
        return list(self._shared.peers.values())

    async def close(self) -> None:
        """Give the leadership back, if it is ours."""
        if self._is_ours():
            self._shared.change_leadership(is_held=False)
        self._epoch = None

    def _is_ours(self) -> bool:
        leadership = self._shared.leadership
        return self._epoch is not None and (leadership.epoch, leadership.term_id) == (self._epoch, self._term_id)

    def _know(self, operation: str) -> None:
        found = self._shared.last_seq
        if found < self._known_seq:
            raise JournalLostError(f"{operation}: the shelf ends with {found}, and {self._known_seq} was durable")
        self._known_seq = found

    def _reach(self, operation: str) -> None:
        if self._shared.is_away:
            raise JournalUnavailableError(f"{operation}: nobody can reach the shelf")

    def _require_open(self, operation: str) -> Shelf:
        self._reach(operation)
        if self._epoch is None:
            raise JournalUnavailableError(f"{operation}: the journal is not open; open it first")
        if not self._is_ours():
            if self._shared.leadership.epoch < self._epoch:
                raise JournalLostError(f"{operation}: the shelf went back in time")
            raise DeposedError(f"{operation}: {self._shared.leadership.node} has the seat now")
        return self._shared
