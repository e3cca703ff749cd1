"""The client for coroutines: `AsyncHoldfast`, `AsyncClaim`, `AsyncClaims` and `AsyncSession`.

One timer on the caller's event loop renews all claims. A loss cancels the block of an `async with`, which then raises
`LeaseLost`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, Unpack
from weakref import ref

from holdfast.client import clock, effects
from holdfast.client.background import SLICE_MS, Background, RenewalHandle, Schedule, ScheduledFlow
from holdfast.client.base import ClaimingSession, Client
from holdfast.client.claim_flows import AcquiredClaim
from holdfast.client.deadline import LeaseDeadline
from holdfast.client.effects import Flow
from holdfast.client.event_flows import Follower
from holdfast.client.lease import ClaimGroup, HeldClaim, HeldSession, mention
from holdfast.client.lease_flows import Renewal
from holdfast.client.loss_stream import LossStream
from holdfast.client.options import ClaimOptions
from holdfast.client.records import JobEvent
from holdfast.errors import HoldfastError
from holdfast.wire.replies import SessionOpenedReply

if TYPE_CHECKING:
    from holdfast.client.aio_transport import AsyncTransport

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


async def drive(
    flow: Flow[T], transport: AsyncTransport, step: Callable[[Any], effects.Effect], next_sent: list[Any]
) -> T:
    """Perform the effects of a flow until it returns. Errors are thrown into the flow, which cleans up.

    `next_sent` holds the value for the next step, and is emptied as it is sent: an error in a variable of this frame
    would be a reference cycle that keeps the callers' objects alive until the next garbage collection. A cancelled flow
    is finished by a task of its own, so that it cleans up however often it is cancelled.
    """
    try:
        while True:
            effect = step(next_sent.pop())
            try:
                act = effects.IMMEDIATE.get(type(effect))
                next_sent.append(await _perform(effect, transport) if act is None else act())
                step = flow.send
            except asyncio.CancelledError as error:
                return await shielded(drive(flow, transport, flow.throw, [error]), transport)
            except BaseException as error:  # noqa: BLE001 - it is thrown on, into the flow
                step, next_sent[:] = flow.throw, [error]
    except StopIteration as returned:
        result: T = returned.value
        return result


def _start(work: Coroutine[Any, Any, T], tasks: set[asyncio.Task[Any]], name: str | None = None) -> asyncio.Task[T]:
    """Start a task and keep it in a set while it runs: asyncio refers to tasks weakly."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


async def shielded(work: Coroutine[Any, Any, T], transport: AsyncTransport) -> T:
    """Run a coroutine to its end even if the caller is cancelled; the transport stays open until then."""
    task = _start(work, transport.finishing)
    # Keeps asyncio from logging the exception: if the caller was cancelled, nothing else retrieves it.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
    finally:
        del task  # It holds the error that is raised here: a reference cycle.


async def _perform(effect: effects.Effect, transport: AsyncTransport) -> Any:  # noqa: ANN401 - each has a result of its own
    match effect:
        case effects.Send():
            return await transport.send(effect)
        case effects.Sleep(seconds=seconds):
            return await asyncio.sleep(seconds)
        case effects.Open():
            return await transport.stream(effect)
        case effects.Read(stream=stream):
            return await stream.read()
        case effects.Close(stream=stream):
            return stream.close()
        case _:
            raise TypeError(f"{type(effect).__name__} needs no waiting")


class AsyncLink:
    """What a claim or a session needs of its client: runs flows and renews, on one event loop."""

    def __init__(self, transport: AsyncTransport, policy: effects.Policy, background: BackgroundLoop) -> None:
        self.policy = policy
        self._transport = transport
        self._background = background
        self._loss_stream = LossStream(policy, partial(background.add, send=transport.send), self._listen)
        self._listening: set[asyncio.Task[None]] = set()

    async def run(self, flow: Flow[T]) -> T:
        return await drive(flow, self._transport, flow.send, [None])

    def start_renewal(self, deadline: LeaseDeadline, renewal: Renewal) -> RenewalHandle:
        return RenewalHandle(
            self._background, deadline, renewal, send=self._transport.send, loss_stream=self._loss_stream
        )

    async def close(self) -> None:
        while self._listening:
            task = self._listening.pop()
            task.cancel()
            await asyncio.wait([task])

    def _listen(self, flow: Flow[None]) -> None:
        _start(self.run(flow), self._listening, "holdfast-ends")


class BackgroundLoop(Background):
    def __init__(self) -> None:
        self._schedule = Schedule()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._requests: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for scheduled in self._schedule.clear():
            scheduled.stopped = True
        for task in self._requests:
            task.cancel()

    def _ask(self, running: ScheduledFlow, request: effects.Send) -> None:
        async def ask() -> None:
            try:
                step = partial(running.flow.send, await running.send(request))
            except Exception as error:  # noqa: BLE001 - the flow handles it
                step = partial(running.flow.throw, error)
            self._advance(running, step)

        _start(ask(), self._requests)

    def _resume_at(self, scheduled: ScheduledFlow, due_ms: int) -> None:
        if scheduled.is_over:
            return
        self._schedule.add(due_ms, scheduled)
        if self._timer is None or due_ms < self._timer_ms:
            self._arm(due_ms)

    def _arm(self, due_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now_ms = clock.boot_ms()
        self._timer_ms = min(due_ms, now_ms + SLICE_MS)
        delay = max(self._timer_ms - now_ms, 0) / 1_000
        self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        for scheduled in self._schedule.take(clock.boot_ms()):
            self._resume(scheduled)
        due_ms = self._schedule.next_due_ms()
        if due_ms is not None:
            self._arm(due_ms)


_reporting: set[asyncio.Task[Any]] = set()


class AsyncLost(asyncio.Event):
    """Set at the loss. `is_set` also reads the clock, so that a delayed task sees the loss before it acts."""

    def __init__(self, deadlines: Sequence[LeaseDeadline]) -> None:
        super().__init__()
        self._deadlines = tuple(deadlines)
        _at_loss(self._deadlines, self.set)

    def is_set(self) -> bool:
        now = clock.now()
        return super().is_set() or any(deadline.is_lost(now) for deadline in self._deadlines)


class Block:
    """Cancels the block of an `async with` at a loss, as a timeout would."""

    def __init__(self, deadlines: Sequence[LeaseDeadline]) -> None:
        self._deadlines = tuple(deadlines)
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        self._before = 0

    def enter(self) -> None:
        self._task = asyncio.current_task()
        self._before = 0 if self._task is None else self._task.cancelling()
        _at_loss(self._deadlines, self._cancel)

    def leave(self, kind: type[BaseException] | None) -> bool:
        """End it; True if the block ended by our cancellation alone."""
        task, self._task = self._task, None
        if not self._cancelled or task is None:
            return False
        return task.uncancel() <= self._before and kind is asyncio.CancelledError

    def _cancel(self) -> None:
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()


def _at_loss(deadlines: Sequence[LeaseDeadline], action: Callable[[], object]) -> None:
    """Call `action` once on the event loop, at the first loss, whichever thread detects it."""
    loop = asyncio.get_running_loop()
    left = [action]

    def act() -> None:
        if left:
            left.pop()()

    def on_loss() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(act)

    for deadline in deadlines:
        deadline.on_loss(on_loss)


def _report_loss(deadlines: Sequence[LeaseDeadline], held: object, on_lost: Callable[[Any], object] | None) -> None:
    """Call `on_lost` at the first loss; a coroutine that it returns runs in a task of its own."""
    if on_lost is None:
        return
    holder = ref(held)

    def report() -> None:
        lost = holder()
        returned = None if lost is None else on_lost(lost)
        if inspect.iscoroutine(returned):
            _start(returned, _reporting)

    _at_loss(deadlines, report)


C = TypeVar("C", bound="AsyncEntered")


class Acquiring(Generic[C]):
    """A claim or session about to be obtained: `await` it, or enter it with `async with`."""

    def __init__(self, get: Callable[[], Coroutine[Any, Any, C]]) -> None:
        self._get = get
        self._held: C | None = None

    def __await__(self) -> Generator[Any, None, C]:
        return self._get().__await__()

    async def __aenter__(self) -> C:
        self._held = await self._get()
        return await self._held.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held, self._held = self._held, None
        if held is not None:
            await held.__aexit__(kind, error, trace)


class AsyncEntered(effects.Awaiting):
    """A claim, several, or a session: an `async with` statement releases it at its end."""

    lost: AsyncLost
    _how_to_end: ClassVar[str] = "use `async with`, or await release()"
    _title: Any
    _ending_word: str
    _release_on_exit: Any
    _stop: Any
    _loss: Any

    def _begin(
        self, link: AsyncLink, deadlines: Sequence[LeaseDeadline], on_lost: Callable[[Any], object] | None
    ) -> None:
        self._link = link
        self.lost = AsyncLost(deadlines)
        self._block = Block(deadlines)
        _report_loss(deadlines, self, on_lost)

    async def __aenter__(self) -> Self:
        self.raise_if_lost()  # type: ignore[attr-defined] # Declared here, it would hide the method from editors.
        self._block.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ours = self._block.leave(kind)
        try:
            await self._release_on_exit(outcome=None if error is None or ours else "failed")
        except HoldfastError as problem:
            if error is None or ours:
                raise
            mention(problem, f"{self._title} was not {self._ending_word}")  # The block's own error matters more.
        finally:
            self._stop()
        if ours:
            raise self._loss()  # `_release_on_exit` does not raise if the caller knew of the loss before.


class AsyncClaim(AsyncEntered, HeldClaim):
    """A job that is ours, renewed in the background until it is released or lost.

    Use it in an `async with` statement: leaving the block releases it, as failed if by an exception. At a loss the
    block is cancelled and raises `LeaseLost`.
    """

    def __init__(self, link: AsyncLink, got: AcquiredClaim, on_lost: Callable[[AsyncClaim], object] | None) -> None:
        super().__init__(got, link.policy)
        self._begin(link, [self._deadline], on_lost)
        self._renewal_handle = self._start_renewal()


class AsyncClaims(AsyncEntered, ClaimGroup[AsyncClaim]):
    """Several jobs that are ours, every one of them. An async context manager, as `AsyncClaim`."""

    def __init__(
        self, link: AsyncLink, acquired: Sequence[AcquiredClaim], on_lost: Callable[[AsyncClaims], object] | None
    ) -> None:
        super().__init__([AsyncClaim(link, got, None) for got in acquired])
        self._begin(link, self._deadlines, on_lost)


class AsyncSession(
    AsyncEntered,
    HeldSession[AsyncClaim],
    ClaimingSession[AsyncClaim, AsyncClaims, Acquiring[AsyncClaim], Acquiring[AsyncClaims]],
):
    """A session that is ours, kept alive in the background. Use it in an `async with` statement: leaving it ends it."""

    _how_to_end = "use `async with`, or await end()"

    def __init__(
        self,
        link: AsyncLink,
        claimer: AsyncHoldfast,
        opened: tuple[SessionOpenedReply, LeaseDeadline],
        on_lost: Callable[[AsyncSession], object] | None,
    ) -> None:
        super().__init__(link.policy, *opened)
        self._claimer = claimer
        self._begin(link, [self._deadline], on_lost)
        self._renewal_handle = self._start_renewal()

    def _adopt(self, got: Any) -> Any:  # noqa: ANN401 - what is about to be claimed
        async def get() -> Any:  # noqa: ANN401 - a claim, or several
            return super(AsyncSession, self)._adopt(await got)

        return Acquiring(get)


class AsyncHoldfast(
    Client[
        AsyncClaim,
        AsyncClaims,
        AsyncSession,
        Acquiring[AsyncClaim],
        Acquiring[AsyncClaims],
        Acquiring[AsyncSession],
        AsyncIterator[JobEvent],
    ],
    effects.Awaiting,
):
    """A client of one server, for the coroutines of one event loop. Close it, or use it as an async context manager.

    >>> async with AsyncHoldfast() as holdfast, holdfast.claim("github-issue-1842", ttl=120) as claim:
    ...     await push(branch, fencing_token=claim.fencing_token)
    """

    def _prepare(self) -> None:
        self._transport = self._make_transport()
        self._background = BackgroundLoop()
        self._link = AsyncLink(self._transport, self._policy, self._background)

    def _make_transport(self) -> Any:  # noqa: ANN401 - whatever sends as an `AsyncTransport` does
        from holdfast.client.aio_transport import transport_to  # noqa: PLC0415 - `help(holdfast)` works without aiohttp

        return transport_to(self._target, environment=self._environment)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Claims that are still held are no longer renewed."""
        self._background.close()
        await self._link.close()
        await self._transport.close()

    def _worker(self) -> object:
        return asyncio.current_task()

    def _enter(
        self, flow: Callable[[effects.Cleanup], Flow[Any]], kind: str, on_lost: Callable[[Any], object] | None
    ) -> Any:  # noqa: ANN401
        async def get() -> Any:  # noqa: ANN401 - of this kind
            got = await self._link.run(flow(effects.Cleanup()))
            if kind == "session":
                return AsyncSession(self._link, self, got, on_lost)
            return (AsyncClaim if kind == "claim" else AsyncClaims)(self._link, got, on_lost)

        return Acquiring(get)

    _awaits = True

    async def _follow(self, follower: Follower) -> AsyncIterator[JobEvent]:
        try:
            while True:
                for event in await self._run(follower.more()):
                    yield event
        finally:
            await self._run(follower.close())


def claim_alone(**options: Unpack[ClaimOptions]) -> Callable[[str], AbstractAsyncContextManager[AsyncClaim]]:
    """Return a context manager factory that claims a job with a client of its own."""
    from holdfast.client import aio_transport as _needed  # noqa: F401, PLC0415 - raises here if aiohttp is missing

    @asynccontextmanager
    async def managed(job_id: str) -> AsyncIterator[AsyncClaim]:
        async with (
            AsyncHoldfast() as client,
            client.claim(job_id, **options) as claim,
        ):
            yield claim

    return managed
