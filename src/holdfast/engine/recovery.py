"""Recovery: read the state that the journal holds, and record that a new authority opened it.

    archive ──► State ──► record ──► record ──► … ──► the last durable one ──► Opened, by this authority

It runs at every start, and again, without `Opened`, after an append that is known to have failed: what was decided on
top of it is in no journal, so the memory is discarded.

**Time** goes on at the last record's, or at a later one that the term before may have answered with, if the journal
knows it (N-17). `Opened` has that time, so time never goes back before it.

**A store that may have lost records** (`needs_token_gap`) may have lost grants that were answered. So `Restored` comes
first, in the same append, and the next fencing token is greater than any that was given out (C6).

If a record does not fit the records before it, the journal is damaged or had two writers, and the start is refused.
"""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING, cast

import msgspec

from holdfast.core.events import Event, Opened, Record, Restored
from holdfast.core.evolve import event_fits, evolve
from holdfast.core.values import TOKEN_MAX
from holdfast.engine import snapshot
from holdfast.engine.snapshot import all_steps
from holdfast.journal.interface import RESTORE, HistoryQuery, JournalDamagedError, JournalError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable

    from holdfast.core.state import State
    from holdfast.engine.clock import Clock
    from holdfast.journal.interface import Journal, Recovered, SharedJournal

STEP_RECORDS = 1_000
REPORT_EVERY = 10 * STEP_RECORDS
HEARTBEAT_MS = 400  # about how often a shared store gets a heartbeat while it is read

TOKEN_GAP = 2**32
TOKEN_GAP_PER_MS = 1_024
UNKNOWN_MS = 366 * 86_400_000  # assumed where nothing tells: no history is kept, and all records are archived

log = logging.getLogger("holdfast.engine")


class Found(msgspec.Struct, frozen=True):
    state: State
    replayed: int
    now_ms: int
    key: bytes | None


async def recover(
    journal: Journal,
    *,
    clock: Clock,
    version: str,
    append: Callable[[list[Record]], Awaitable[None]],
    reached_ms: int = 0,
) -> Found:
    """Open the journal, or read it again. `reached_ms` is a time that this very term may have answered with."""
    was_on = gc.isenabled()
    # All that is made stays, and none of it is in a cycle: the collector would visit it again and again.
    gc.disable()
    try:
        recovered = await journal.open()
        state, replayed = await _read(recovered, journal, clock)
    finally:
        if was_on:
            gc.enable()
    now_ms = max(state.now_ms, recovered.now_ms, reached_ms)
    events: list[Event] = []
    if recovered.needs_token_gap:
        events.append(await _restored(state, replayed, journal, clock, version=version, why=recovered.token_gap_reason))
    if recovered.epoch != state.epoch:
        if not recovered.was_closed and not journal.is_shared:
            _report_crash(state, replayed, clock)
        events.append(Opened(recovered.epoch, version))
    if events:
        wall_ms = clock.wall_ms()
        records = [Record(seq, now_ms, wall_ms, event) for seq, event in enumerate(events, state.seq + 1)]
        for record in records:
            evolve(state, record)
        await append(records)
    state.detach_all(now_ms)  # Every waiter has a full minute to come back from now on (W2).
    return Found(state, replayed.count, now_ms, recovered.key)


async def _read(recovered: Recovered, journal: Journal, clock: Clock) -> tuple[State, Replayed]:
    """Load and replay in steps. On a shared store, heartbeat now and then: others take over from a silent leader."""
    heartbeat_ms = clock.monotonic_ms()
    steps = _reading(recovered)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return cast("tuple[State, Replayed]", done.value)
        if journal.is_shared and clock.monotonic_ms() - heartbeat_ms >= HEARTBEAT_MS:
            await cast("SharedJournal", journal).confirm(0)
            heartbeat_ms = clock.monotonic_ms()


def _reading(recovered: Recovered) -> Generator[None, None, tuple[State, Replayed]]:
    state = yield from snapshot.loading(recovered.values)
    return state, (yield from replaying(state, recovered.records))


async def _restored(
    state: State, replayed: Replayed, journal: Journal, clock: Clock, *, version: str, why: str
) -> Restored:
    last_wall_ms = replayed.last_wall_ms
    if last_wall_ms is None:
        newest = (await journal.history(HistoryQuery(limit=1))).records
        last_wall_ms = newest[0].wall_ms if newest else None
    last_token = state.last_token + token_gap_since(last_wall_ms, clock.wall_ms())
    if last_token >= TOKEN_MAX:
        problem = f"the store lost records, and fencing tokens would go on after {last_token}; {TOKEN_MAX} is the last"
        raise JournalError(problem, "Check that the clock of this machine is right")
    log.log(
        logging.WARNING if why else logging.ERROR,
        "%s. The last record is %d, and fencing tokens go on after %d, beyond all that were given out",
        why or "the store may have lost records: the newest grants, renewals and releases may be gone",
        state.seq,
        last_token,
    )
    return Restored(last_token, state.seq, last_wall_ms or 0, version)


def _report_crash(state: State, replayed: Replayed, clock: Clock) -> None:
    away = "nobody knows how long ago"
    if replayed.last_wall_ms is not None:
        away = f"its last record is {_span(clock.wall_ms() - replayed.last_wall_ms)} old"
    log.warning(
        "the server before this one did not stop: it was killed, or the power failed; %s. %d records were replayed."
        " %d leases, %d sessions and %d places in line live on with the time that they had left: none ended meanwhile",
        away,
        replayed.count,
        len(state.index.held),
        len(state.sessions),
        len(state.tickets),
    )


def _span(passed_ms: int) -> str:
    seconds = max(0, passed_ms) / 1000
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def token_gap_since(since_wall_ms: int | None, wall_ms: int) -> int:
    """Return how far to advance a counter whose value was last known at `since_wall_ms`.

    By 2^32, and by 1,024 more for each millisecond since:

        the backup has token 41     tokens 42 … 900 are lost     restored ten minutes later: 41 + 2^32 + 600,000 × 1,024
        ────●───────────────────────────────────●──────────────────────●────────────────────────────────────────────►

    No server gives out a million tokens in a second. So the jump ends beyond all that were given out, also if the same
    backup is restored twice. Wall clocks may be wrong by an hour: a million a second make 2^32 in 71 minutes.
    """
    passed_ms = UNKNOWN_MS if since_wall_ms is None else max(0, wall_ms - since_wall_ms)
    return TOKEN_GAP + TOKEN_GAP_PER_MS * passed_ms


class Replayed(msgspec.Struct, frozen=True):
    count: int
    last_wall_ms: int | None


def replay(state: State, records: Iterable[Record]) -> Replayed:
    """Apply every record, in order. Raises for one that does not fit."""
    return all_steps(replaying(state, records))


def replaying(state: State, records: Iterable[Record]) -> Generator[None, None, Replayed]:
    """The same in steps."""
    count, last_wall_ms = 0, None
    for record in records:
        if record.seq != state.seq + 1 or record.at_ms < state.now_ms or not event_fits(state, record.event):
            raise JournalDamagedError(f"record {record.seq} does not fit what came before it", RESTORE)
        evolve(state, record)
        count += 1
        last_wall_ms = record.wall_ms
        if count % STEP_RECORDS == 0:
            yield
            if count % REPORT_EVERY == 0:
                log.info("recovering: %d records replayed", count)
    return Replayed(count, last_wall_ms)
