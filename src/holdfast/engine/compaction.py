"""Snapshots: when one is due, and how it is written while commands go on.

A snapshot stands for all records up to a number, so that a start need not replay them. It may show only what is
durable, and only whole batches. The writer alone knows where a batch ends, so the picture is taken by it:

    compactor                    engine's writer                     journal
    a picture is wanted ──────►  freeze the state, then
                                 append the batch  ───────────────►  durable
    the picture  ◄─────────────  as the last answer of that batch
    encode it, part by part  ─────────────────────────────────────►  compact(number, parts)

Freezing copies a few dictionaries. Encoding is most of the work; it is done in slices on the event loop, and the loop
serves between two of them. If the journal refuses, the snapshot before goes on counting, and another is tried later.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.values import Moment
from holdfast.engine import snapshot
from holdfast.engine.replies import outcome_or_raise, settle_future
from holdfast.journal.base import JournalUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.core.state import Frozen, State
    from holdfast.engine.clock import Clock
    from holdfast.engine.replies import OwedAnswer
    from holdfast.journal.base import Journal

log = logging.getLogger("holdfast.engine")


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """When a snapshot is due: after so many records, or after so many bytes of them.

    But never before as many records as there are names, or as many bytes as the last snapshot had: writing snapshots
    must not cost more than writing records.
    """

    records: int = 100_000
    size_bytes: int = 256 * 2**20


class Compactor:
    """Writes one snapshot at a time, in a task of its own."""

    def __init__(
        self,
        journal: Journal,
        compaction: Compaction,
        clock: Clock,
        wake_writer: Callable[[], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """`wake_writer` lets the writer look at `wanted_picture`; `fail` ends the engine."""
        self._journal = journal
        self._compaction = compaction
        self._clock = clock
        self._wake_writer = wake_writer
        self._fail = fail
        self._since_snapshot = 0
        self._due = compaction.records
        self._bytes_before = 0
        """What the journal had been given when the last snapshot was begun."""
        self._bytes_due = compaction.size_bytes
        self._task: asyncio.Task[None] | None = None
        self.wanted_picture: asyncio.Future[Any] | None = None
        """Where a snapshot waits for its picture of the state."""

    def begin_anew(self, replayed: int) -> None:
        """Count from what a recovery found."""
        self._since_snapshot = replayed
        self._bytes_before = 0

    def count(self, records: int, names: int) -> None:
        """Count records that became durable, and begin a snapshot if one is due."""
        self._since_snapshot += records
        self._due = max(self._compaction.records, names)
        size_bytes = self._journal.appended_bytes - self._bytes_before
        if self._since_snapshot >= self._due or size_bytes >= self._bytes_due:
            self._begin()

    async def compact(self) -> None:
        """Let a snapshot be written and wait until it is; if one is on its way already, wait for that."""
        await asyncio.wait({self._begin()})

    def take_picture(self, wanted: asyncio.Future[Any], state: State, now_ms: int) -> OwedAnswer:
        """Return the picture as the last answer of a batch: it is given once all that it shows is durable.

        So a snapshot never holds what the journal does not, nor half of an append.
        """
        self.wanted_picture = None
        now = Moment(now_ms, self._clock.wall_ms())
        return (lambda outcome, _: settle_future(wanted, outcome)), state.freeze(), now

    def cancel(self) -> None:
        """Give up the snapshot that is on its way, if one is; the one before goes on counting."""
        self.wanted_picture = None
        if self._task is not None:
            self._task.cancel()

    async def end(self) -> None:
        """Give up what is on its way, and wait until nothing runs."""
        self.cancel()
        if self._task is not None:
            await asyncio.wait({self._task})

    def _begin(self) -> asyncio.Task[None]:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._compact())
        return self._task

    async def _compact(self) -> None:
        self._since_snapshot = 0
        self._bytes_before = self._journal.appended_bytes
        self.wanted_picture = asyncio.get_running_loop().create_future()
        self._wake_writer()
        try:
            await self._write(outcome_or_raise(await self.wanted_picture))
        except JournalUnavailableError as error:
            # Not at once: what refused a snapshot now would most likely do so again after every batch.
            self._since_snapshot += self._due - max(1, self._due // 10)
            self._bytes_before -= self._bytes_due - max(1, self._bytes_due // 10)
            log.warning("%s; the snapshot is tried again after some more records", error)
        except Exception as error:  # noqa: BLE001 - Whatever it is, it ends the engine, which logs it.
            self._fail(error)

    async def _write(self, frozen: Frozen) -> None:
        """Encode the picture and hand it to the journal: the work that could be done elsewhere."""
        size_bytes = 0

        def parts() -> Iterator[bytes]:
            nonlocal size_bytes
            for part in snapshot.encode(frozen):
                size_bytes += len(part)
                yield part

        await self._journal.compact(frozen.head.seq, parts(), self._clock.wall_ms())
        self._bytes_due = max(self._compaction.size_bytes, size_bytes)
