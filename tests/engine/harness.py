"""What the engine's tests share: a loop whose waiting moves a clock, journals with a will of their own, commands."""

from __future__ import annotations

import asyncio
import math
import selectors
from collections import deque
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from hypothesis import settings

from holdfast.core.commands import Acquire, Command, Release, Renew
from holdfast.core.values import Limits
from holdfast.engine import snapshot
from holdfast.engine.archiver import ArchivePolicy
from holdfast.engine.engine import Engine
from holdfast.journal.interface import HistoryQuery, JournalUnavailableError, OutcomeUnknownError, SyncAppend
from holdfast.testing.clock import ManualClock
from tests.support import commands, proof
from tests.support.memory_journal import MemoryJournal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence

    from holdfast.core.events import Event, Record
    from holdfast.core.state import State
    from holdfast.core.values import Instant
    from holdfast.engine.clock import Clock
    from holdfast.engine.watchdog import Watchdog
    from holdfast.journal.interface import Changes, Journal, Values

T = TypeVar("T")

many_cases = settings(max_examples=proof.count("engine: examples"), deadline=None)


class _Impatient(selectors.PollSelector):
    """Where a loop would wait, the clock is moved instead."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("nothing is ready and no timer is set: the test would wait forever")
        if not ready and timeout:
            self._clock.advance(max(1, math.ceil(timeout * 1000 - 1e-6)))
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop on a manual clock: its timers are real, and an hour takes no time."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(_Impatient(clock))
        self._manual = clock

    def time(self) -> float:
        return self._manual.monotonic_ms() / 1000


class FineClock:
    """A manual clock that also knows microseconds; like the machine's, it tells whole milliseconds, rounded down."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.past_us = 0

    def monotonic_us(self) -> int:
        return self._clock.monotonic_ms() * 1000 + self.past_us

    def monotonic_seconds(self) -> float:
        return self.monotonic_us() / 1_000_000

    def monotonic_ms(self) -> int:
        return self.monotonic_us() // 1000

    def wall_ms(self) -> int:
        return self._clock.wall_ms() + self.past_us // 1000


def run(test: Callable[[ManualClock], Coroutine[Any, Any, T]]) -> T:
    """Run a test's coroutine on a loop of its own, with the clock of that loop."""
    clock = ManualClock(monotonic_ms=1_000_000)
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(test(clock))


@asynccontextmanager
async def serving(
    journal: Journal,
    clock: Clock,
    *,
    limits: Limits | None = None,
    archive_policy: ArchivePolicy | None = None,
    watchdog: Watchdog | None = None,
) -> AsyncIterator[Engine]:
    """Run an engine, and stop it at the end."""
    engine = Engine(
        journal, limits or Limits(), clock=clock, version="test", archive_policy=archive_policy, watchdog=watchdog
    )
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def turns(count: int = 5) -> None:
    """Let the loop go round without letting time pass."""
    for _ in range(count):
        await asyncio.sleep(0)


class Asked:
    """Commands submitted and reads asked, and the answers in the order in which they came."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.answers: list[tuple[str, Any]] = []
        self.moments: dict[str, Instant] = {}

    def submit(self, label: str, command: Command) -> None:
        self._engine.submit(command, lambda outcome, now: self._note(label, outcome, now))

    def read(self, label: str, view: Callable[[State, Instant], object]) -> None:
        self._engine.read(view, lambda outcome, now: self._note(label, outcome, now))

    @property
    def labels(self) -> list[str]:
        return [label for label, _ in self.answers]

    @property
    def kinds(self) -> list[str]:
        return [type(outcome).__name__ for _, outcome in self.answers]

    def __getitem__(self, label: str) -> Any:  # noqa: ANN401 - It is whatever was answered.
        return dict(self.answers)[label]

    def _note(self, label: str, outcome: object, now: Instant) -> None:
        self.answers.append((label, outcome))
        self.moments[label] = now


class GateJournal(MemoryJournal):
    """Remote in manner: while the gate is shut an append waits until it is let through or refused."""

    def __init__(self) -> None:
        super().__init__()
        self.is_shut = False
        self.appends: list[list[Record]] = []
        """The batches that became durable."""
        self.waiting: asyncio.Future[Exception | None] | None = None

    async def append(self, batch: Sequence[Record]) -> None:
        if self.is_shut:
            self.waiting = asyncio.get_running_loop().create_future()
            error = await self.waiting
            self.waiting = None
            if error is not None:
                raise error
        await super().append(batch)
        self.appends.append(list(batch))

    def let_through(self, error: Exception | None = None) -> None:
        """Let the waiting append have its way, or fail with an error."""
        if self.waiting is None:
            raise RuntimeError("no append is waiting")
        self.waiting.set_result(error)

    def open_gate(self) -> None:
        """Let it through, and every later one."""
        self.is_shut = False
        if self.waiting is not None:
            self.let_through()


class FateJournal:
    """A journal whose appends meet the fates laid down for them, then succeed.

    `refused`: known to have failed. `lost` and `kept`: the outcome is unknown, and the batch is gone or there.
    An append waits for somebody else, as over a network, unless it is done at once, as on a disk.
    """

    is_shared = False

    def __init__(self, inner: MemoryJournal | None = None, *, is_at_once: bool = False) -> None:
        self.inner = inner or MemoryJournal()
        self.is_at_once = is_at_once
        self.fates: deque[str] = deque()
        self.takes_claims = True
        self.open = self.inner.open
        self.archive = self.inner.archive
        self.snapshot = self.inner.snapshot
        self.last_by = self.inner.last_by
        self.held = self.inner.held
        self.history = self.inner.history
        self.follow = self.inner.follow
        self.health = self.inner.health
        self.why_no_claims = self.inner.why_no_claims
        self.close = self.inner.close

    @property
    def tail_bytes(self) -> int:
        return self.inner.tail_bytes

    @property
    def history_begins_after(self) -> int:
        return self.inner.history_begins_after

    def append(self, batch: Sequence[Record]) -> Awaitable[None]:
        return SyncAppend(partial(self._append, batch)) if self.is_at_once else self._append_later(batch)

    async def _append_later(self, batch: Sequence[Record]) -> None:
        await asyncio.sleep(0)
        self._append(batch)

    def _append(self, batch: Sequence[Record]) -> None:
        fate = self.fates.popleft() if self.fates else "ok"
        if fate == "refused":
            raise JournalUnavailableError("append: refused by fate")
        if fate != "lost":
            appending = self.inner.append(batch)
            assert isinstance(appending, SyncAppend)
            appending.now()
        if fate != "ok":
            raise OutcomeUnknownError(f"append: {fate} by fate")

    def after_crash(self) -> FateJournal:
        """Return what a crash at this instant leaves."""
        return FateJournal(self.inner.fork(), is_at_once=self.is_at_once)


class SlicedJournal(MemoryJournal):
    """Notes when it is to archive, and lets that fail at the last step before it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[int] = []
        self.counted: list[int] = []
        self.given: list[list[Changes]] = []
        """What was archived each time."""
        self.batch_ends: set[int] = set()
        self.errors: deque[Exception] = deque()

    async def append(self, batch: Sequence[Record]) -> None:
        await super().append(batch)
        self.batch_ends.add(batch[-1].seq)

    async def archive(self, upto: int, head: bytes, changes: Iterable[Changes], wall_ms: int) -> None:
        if upto not in self.batch_ends:
            raise RuntimeError(f"no durable batch ends with {upto}")
        self.begun.append(upto)
        pieces = []
        for piece in changes:
            pieces.append(piece)
            await asyncio.sleep(0)
        if self.errors:
            raise self.errors.popleft()
        await super().archive(upto, head, pieces, wall_ms)
        self.counted.append(upto)
        self.given.append(pieces)


def picture(state: State) -> list[Values]:
    """Return the durable state bit for bit."""
    return list(snapshot.values(state.freeze()))


async def history(journal: MemoryJournal) -> list[Event]:
    """Return every event with history value, oldest first, as a crash now would leave them."""
    fork = journal.fork()
    await fork.open()
    return [record.event for record in reversed((await fork.history(HistoryQuery(limit=1_000_000))).records)]


async def tail(journal: MemoryJournal) -> list[Record]:
    """Return every record that is not archived, as a crash now would leave them."""
    return list((await journal.fork().open()).records)


async def events(journal: MemoryJournal) -> list[Event]:
    return [record.event for record in await tail(journal)]


def acquire(name: str, lease_id: str = "", *, principal: str = "ana", ttl_ms: int = 60_000, **more: Any) -> Acquire:  # noqa: ANN401 - passed on as they are
    return commands.acquire(name=name, principal=principal, lease_id=lease_id or f"id-of-{name}", ttl_ms=ttl_ms, **more)


def renew(name: str, lease_id: str = "", *, principal: str = "ana", ttl_ms: int | None = None, **more: Any) -> Renew:  # noqa: ANN401 - passed on as they are
    return Renew(name=name, principal=principal, lease_id=lease_id or f"id-of-{name}", ttl_ms=ttl_ms, **more)


def release(name: str, lease_id: str = "", *, principal: str = "ana", **more: Any) -> Release:  # noqa: ANN401 - passed on as they are
    return Release(name=name, principal=principal, lease_id=lease_id or f"id-of-{name}", **more)
