"""Recovery: read the state that the journal holds, and write down that a new authority took the writer's seat.

    snapshot ──► State ──► record ──► record ──► … ──► the last durable one ──► Opened, by this authority

It runs at every start, and again after an append that is known to have failed: what was decided on top of it is in
memory and in no journal, so the memory is thrown away. The same engine still has the seat then, and writes no `Opened`.

A record that does not fit what came before it means that the journal is damaged or was written by two: the start is
refused, and nothing is changed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast.core.events import Opened, Record
from holdfast.core.evolve import evolve
from holdfast.core.fits import event_fits
from holdfast.core.state import State
from holdfast.engine import snapshot
from holdfast.journal.base import RESTORE, JournalDamagedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from holdfast.engine.clock import Clock
    from holdfast.journal.base import Journal

REPORT_EVERY = 10_000
"""After how many records a long recovery says that it goes on."""

log = logging.getLogger("holdfast.engine")


async def recover(
    journal: Journal, *, clock: Clock, version: str, append: Callable[[list[Record]], Awaitable[None]]
) -> tuple[State, int]:
    """Take the seat, or read anew if it is ours already. Return the state and how many records were replayed."""
    recovered = await journal.open()
    state = State.thaw(snapshot.decode(recovered.snapshot))
    replayed = replay(state, recovered.records)
    if recovered.epoch != state.epoch:
        opened = Record(state.seq + 1, state.now_ms, clock.wall_ms(), Opened(recovered.epoch, version))
        evolve(state, opened)
        await append([opened])
    # Whoever stood in line has its full minute to come back from now on, however long ago it joined (W2).
    state.send_everybody_away()
    return state, replayed


def replay(state: State, records: Iterable[Record]) -> int:
    """Let every record take effect, in order, and return how many there were. Raises for one that does not fit."""
    count = 0
    for record in records:
        if record.seq != state.seq + 1 or record.at_ms < state.now_ms or not event_fits(state, record.event):
            raise JournalDamagedError(f"record {record.seq} does not fit what came before it", RESTORE)
        evolve(state, record)
        count += 1
        if count % REPORT_EVERY == 0:
            log.info("recovering: %d records replayed", count)
    return count
