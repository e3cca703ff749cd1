"""The archive in PostgreSQL: what stands for the records that are gone from the tail, written by the one in the seat.

A *step* brings the archive up to a record. It is sent in pieces that are *staged*, each by one statement, and one call
of a function then lets all of it count, in one transaction on the server:

    stage ─► stage ─► stage ─►  apply: gone, changed, new values; history; names;  is the seat ours?  ─► commit
    fenced by the seat each     takes seconds, and holds up nobody                 last, for a moment

- **The fence.** The function looks at the seat last, and locks it until its commit a moment later. If the seat was
  taken meanwhile, all of it is undone. So whoever takes the seat waits for no more than a commit, and finds the archive
  whole: as it was before the step, or after it. The seat's row is never changed by it, so an append never waits.
- **A lost answer.** Whether a step counts cannot be seen by a look: the server may still hold the call, and do it
  later. So it is *settled* (`settle_steps`): that waits for a call that runs, and removes what was staged, without
  which a late call is refused. Then the number up to which the archive reaches tells. A step that was cancelled is
  settled by whoever comes next.
- **What is dropped** from the tail is named by the archive's own row, in the statement that drops it (N-5).
- **History that is too old or too much** goes afterwards, some records at a time (`archive_pruning`). A step counts
  without that: what could not be pruned is pruned by the next one.

Nothing of this is open between two messages: no transaction, no lock. Every part of it takes a few milliseconds of the
loop, and others have their turn in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from holdfast.journal.base import HEAD, JournalUnavailableError, OutcomeUnknownError
from holdfast.journal.postgres.archive_ground import Ground
from holdfast.journal.postgres.archive_pieces import (
    RecordsPiece,
    checksum_of,
    history_in_slices,
    values_in_pieces,
)
from holdfast.journal.postgres.archive_pruning import Pruning
from holdfast.journal.postgres.archive_reading import read_values
from holdfast.journal.postgres.driver import LostError, RefusedError
from holdfast.journal.tail.batches import FEED_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.journal.base import Changes, Keeping, Values
    from holdfast.journal.postgres.archive_reading import Ask
    from holdfast.journal.postgres.lines import Side
    from holdfast.journal.postgres.seat import Mine
    from holdfast.journal.tail.room import Room

FEED_ROWS = 1_024
DROP_ROWS = 512
"""How many batches one statement drops."""
PIECE_SECONDS = 30.0
APPLY_SECONDS = 600.0
"""How long a step may take on the server: far longer than a sound one does. Appends go on meanwhile."""
SETTLE_SECONDS = 120.0
"""How long it is tried to find out what became of a step. It may have to wait for the step itself."""
RETRY_SECONDS = 0.2

log = logging.getLogger("holdfast.journal")


class Archive:
    """Writes the archive, for one tenure."""

    def __init__(self, side: Side, mine: Mine, room: Room, keeping: Keeping) -> None:
        """`side` is for steps alone: one may keep it busy for seconds. `room` counts what waits for the archive."""
        self._ground = Ground(side, mine)
        self._room = room
        self._pruning = Pruning(self._ground, keeping)
        self._steps = 0
        self._is_settled = True
        """Whether no step of ours can be on its way."""
        self._state_rows = 0
        self.upto = 0
        """How far the archive reaches."""

    @property
    def pruned(self) -> int:
        """Up to which number history is no longer whole."""
        return self._pruning.pruned

    # Recovery.

    async def be_settled(self) -> None:
        """Let no step of ours be on its way. That may take as long as the step itself."""
        if not self._is_settled:
            await self.settle()

    async def begin(self, ask: Ask) -> None:
        """Find out how far the archive reaches, on the connection that has the seat. No step is on its way."""
        mine = self._ground.mine
        rows = await ask("read_position", mine.epoch, mine.tenure)
        if not rows:
            raise self._ground.deposed("open")
        self.upto, self._state_rows, self._pruning.pruned = rows[0]["upto"], rows[0]["state_rows"], rows[0]["pruned"]

    async def values(self, ask: Ask) -> Iterator[Values]:
        """Return all values, the head first. Raises for rows that are not those written."""
        found = deque([each async for each in read_values(ask, self._state_rows)])
        return (found.popleft() for _ in range(len(found)))

    # Steps.

    async def archive(self, upto: int, head: bytes, changes: Iterable[Changes], wall_ms: int) -> None:
        """Let the archive stand for the records up to a number, drop them from the tail, and prune the history."""
        is_step = upto > self.upto
        if is_step:
            await self._bring(upto, head, changes)
        try:
            await self._drop_archived()
            await self._pruning.prune(wall_ms)
        except JournalUnavailableError as error:
            if not is_step:
                raise
            # The step counts all the same: whoever gave it must not give it again.
            log.warning("%s; the rest is dropped the next time", error)

    async def settle(self) -> int:
        """Let no step of ours be on its way any more, and return how far the archive reaches."""
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while True:
                    try:
                        rows = await self._ground.write("settle_steps", seconds=SETTLE_SECONDS)
                    except JournalUnavailableError as error:
                        log.warning("%s; asking again what became of the archive", error)
                        await asyncio.sleep(RETRY_SECONDS)
                    else:
                        self._is_settled = True
                        return int(rows[0]["upto"])
        except TimeoutError as error:
            raise OutcomeUnknownError("archive: the store cannot be asked whether the last step counts") from error

    async def _bring(self, upto: int, head: bytes, changes: Iterable[Changes]) -> None:
        found = await self._ground.read("read_batch_end", upto)
        if not found or found[0]["last_seq"] != upto:
            raise JournalUnavailableError(f"archive: no durable batch ends with record {upto}")
        # What is left of a step that failed goes, and so does what is left of other tenures.
        if await self.settle() != self.upto:
            raise JournalUnavailableError("archive: it has changed since the journal was opened; open it again")
        self._steps += 1
        step = _Step(self._ground, self._steps)
        size_bytes = await self._stage_records(step, upto)
        await _stage_values(step, changes)
        self._is_settled = False
        try:
            await step.apply(upto, head)
            self._is_settled = True
        except (LostError, RefusedError) as error:
            if await self.settle() != upto:
                raise JournalUnavailableError(f"archive: {error.problem}") from error
        self.upto = upto
        self._room.drop(upto, size_bytes)

    async def _stage_records(self, step: _Step, upto: int) -> int:
        """Stage what has history value of the batches up to a number; return how many bytes these have in the tail."""
        piece, size_bytes, after = RecordsPiece(), 0, self.upto
        while after < upto:
            rows = await self._ground.read("read_batches", after, upto, FEED_ROWS, FEED_BYTES)
            if not rows or rows[0]["first_seq"] != after + 1:
                raise JournalUnavailableError(f"archive: record {after + 1} is not in the tail")
            for _, last, body in rows:
                for frames in history_in_slices(body):
                    piece.add(frames)
                    if piece.is_full:
                        await step.stage("stage_records", piece.staged())
                        piece = RecordsPiece()
                    await asyncio.sleep(0)
                size_bytes += len(body)
                after = last
        if piece.seqs:
            await step.stage("stage_records", piece.staged())
        return size_bytes

    async def _drop_archived(self) -> None:
        """Drop what the archive stands for from the tail. Who reads an instant of before goes on seeing it."""
        dropped = DROP_ROWS
        while dropped == DROP_ROWS:
            dropped = len(await self._ground.write("drop_batches", DROP_ROWS, seconds=PIECE_SECONDS))


class _Step:
    """One try of a step: no other has its number in this tenure."""

    def __init__(self, ground: Ground, number: int) -> None:
        self._ground = ground
        self._number = number
        self._pieces = 0

    async def stage(self, statement: str, values: tuple[object, ...]) -> None:
        """Stage a piece. Raises `DeposedError` if the seat is not ours."""
        rows = await self._ground.write(statement, self._number, self._pieces, *values, seconds=PIECE_SECONDS)
        if not rows:
            raise self._ground.deposed("archive")
        self._pieces += 1

    async def apply(self, upto: int, head: bytes) -> None:
        """Let all that was staged count."""
        checksum = checksum_of(HEAD, HEAD.encode(), head)
        values = (self._number, self._pieces, upto, head, checksum)
        await self._ground.write("apply_step", *values, seconds=APPLY_SECONDS)


async def _stage_values(step: _Step, changes: Iterable[Changes]) -> None:
    for piece in values_in_pieces(changes):
        if piece is None:
            await asyncio.sleep(0)
        else:
            await step.stage("stage_values", piece.staged())
