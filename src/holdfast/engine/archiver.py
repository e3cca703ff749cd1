"""Archiving: when it is due, and how changes go to the archive while commands go on.

The archive replaces all records up to a number, so that a start need not replay them. It may show only what is durable,
and only whole batches. So the writer takes the changes with a batch, and the archiver gets them as its last answer. It
encodes them in slices, between which the event loop serves. Taking them is cheap, however much changed.

If the journal refuses, the archiver keeps the changes and adds newer ones in the next attempt. Meanwhile the previous
archive stays valid, and the tail grows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from holdfast.core.state import State, StateChanges
from holdfast.core.values import Instant
from holdfast.engine import snapshot
from holdfast.engine.clock import Clock
from holdfast.engine.waiters import PendingReply, outcome_or_raise, resolve_future
from holdfast.journal.interface import DeposedError, Journal, JournalUnavailableError

RETRY_MS_MIN = 1_000  # how soon a refusal is followed by another attempt, however many records come
RETRY_MS_MAX = 30_000  # without new records: a journal that is too full takes no claims until archived
STEPS_PER_ITERATION = 1_000

log = logging.getLogger("holdfast.engine")


class ArchivePolicy(msgspec.Struct, frozen=True, kw_only=True):
    records: int = 100_000
    size_bytes: int = 256 * 2**20


class Archiver:
    """Hands changes to the journal, one archive at a time, in a task of its own."""

    def __init__(
        self,
        journal: Journal,
        archive_policy: ArchivePolicy,
        clock: Clock,
        wake_writer: Callable[[], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._journal = journal
        self._policy = archive_policy
        self._clock = clock
        self._wake_writer = wake_writer
        self._fail = fail
        self._last_seq = self._archived_seq = 0
        self._due_records = archive_policy.records
        self._due_bytes = archive_policy.size_bytes
        self._not_before_ms = 0
        self._retry: asyncio.TimerHandle | None = None
        self._refused: str | None = None
        self._pending: StateChanges | None = None
        self._task: asyncio.Task[None] | None = None
        self.wanted: asyncio.Future[Any] | None = None

    @property
    def unarchived_records(self) -> int:
        return self._last_seq - self._archived_seq

    @property
    def is_refused(self) -> bool:
        return self._refused is not None

    def restart(self, seq: int, replayed: int) -> None:
        """Count from the last record that a recovery found, of which so many are not archived.

        Archiving may be due immediately: a journal that takes no claims until then may get no record.
        """
        self._pending = None
        self._last_seq, self._archived_seq = seq, seq - replayed
        self._reset_thresholds()
        self.count(0)

    def count(self, records: int) -> None:
        self._last_seq += records
        is_due = self._last_seq - self._archived_seq >= self._due_records or self._journal.tail_bytes >= self._due_bytes
        if is_due and (self._refused is None or self._clock.monotonic_ms() >= self._not_before_ms):
            self._begin()

    async def archive(self) -> None:
        await asyncio.wait({self._begin()})

    def take(self, wanted: asyncio.Future[Any], state: State, now_ms: int) -> PendingReply:
        """Return the changes as the last answer of a batch, given once all that they show is durable."""
        self.wanted = None
        now = Instant(now_ms, self._clock.wall_ms())
        return (lambda outcome, _: resolve_future(wanted, outcome)), state.take_changes(), now

    def cancel(self) -> None:
        """Give up what is under way; the previous archive stays valid."""
        self.wanted = None
        if self._retry is not None:
            self._retry.cancel()
        if self._task is not None:
            self._task.cancel()

    async def end(self) -> None:
        self.cancel()
        if self._task is not None:
            await asyncio.wait({self._task})

    def _begin(self) -> asyncio.Task[None]:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._archive())
        return self._task

    async def _archive(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        self.wanted = asyncio.get_running_loop().create_future()
        self._wake_writer()
        try:
            pending = await self._add(outcome_or_raise(await self.wanted))
            scalars = pending.scalars
            rows = snapshot.changes(pending)
            await self._journal.archive(scalars.seq, snapshot.encode(scalars), rows, self._clock.wall_ms())
            await self._archived(pending)
        except (JournalUnavailableError, DeposedError) as error:
            self._on_refused(str(error))  # The next append finds out whether this node still leads.
        except Exception as error:  # noqa: BLE001 - Whatever it is, it ends the engine, which logs it.
            self._fail(error)

    async def _add(self, taken: StateChanges) -> StateChanges:
        if self._pending is None:
            self._pending = taken
        else:
            self._pending.scalars = taken.scalars
            for table, change_set in self._pending.tables.items():
                await _run_in_steps(change_set.add(taken.tables[table]))
        return self._pending

    async def _archived(self, pending: StateChanges) -> None:
        self._pending = None
        self._archived_seq = pending.scalars.seq
        self._reset_thresholds()
        if self._refused is not None:
            log.warning("archiving works again: all records up to %d are archived", self._archived_seq)
            self._refused = None
        for change_set in pending.tables.values():
            await _run_in_steps(change_set.clear_in_steps())

    def _reset_thresholds(self) -> None:
        self._due_records, self._due_bytes = self._policy.records, self._policy.size_bytes

    def _on_refused(self, why: str) -> None:
        """Try again later: what was refused now would most likely be refused after every batch."""
        if why != self._refused:
            log.warning("%s; nothing is lost, and archiving is tried again within half a minute", why)
        self._refused = why
        self._due_records = self._last_seq - self._archived_seq + max(1, self._policy.records // 10)
        self._due_bytes = self._journal.tail_bytes + max(1, self._policy.size_bytes // 10)
        self._not_before_ms = self._clock.monotonic_ms() + RETRY_MS_MIN
        self._retry = asyncio.get_running_loop().call_later(RETRY_MS_MAX / 1000, self._begin)


async def _run_in_steps(steps: Iterator[None]) -> None:
    for number, _ in enumerate(steps, 1):
        if number % STEPS_PER_ITERATION == 0:
            await asyncio.sleep(0)
