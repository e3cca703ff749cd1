"""Claims and groups of claims for coroutines: async context managers that are renewed in the background.

At a loss the block is cancelled, and leaves with `LeaseLost`.
"""

from __future__ import annotations

import asyncio
import inspect
import warnings
import weakref
from collections.abc import Callable, Coroutine, Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from holdfast.client import clock
from holdfast.client.flows import renewing
from holdfast.client.flows.claiming import Got
from holdfast.client.holding.claim import REMEMBER_SECONDS, Group, Held, mention
from holdfast.client.values.records import JobClaim, Metadata
from holdfast.client.values.term import Term
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.client.common.background import Kept
    from holdfast.client.coroutines.client import AsyncHoldfast

_telling: set[asyncio.Task[Any]] = set()


class AsyncLost(asyncio.Event):
    """Set at the loss. Asks the clock as well, so that a task which was held up sees the loss before it acts."""

    def __init__(self, terms: Sequence[Term]) -> None:
        super().__init__()
        self._terms = tuple(terms)
        tell_loss(self._terms, self.set)

    def is_set(self) -> bool:
        """Is any of it lost?"""
        now = clock.now()
        return super().is_set() or any(term.is_lost(now) for term in self._terms)


class Block:
    """The block of an `async with`: cancelled at a loss, as by a timeout."""

    def __init__(self, terms: Sequence[Term]) -> None:
        self._terms = tuple(terms)
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        self._before = 0

    def enter(self) -> None:
        """Begin."""
        self._task = asyncio.current_task()
        self._before = 0 if self._task is None else self._task.cancelling()
        tell_loss(self._terms, self._cancel)

    def leave(self, kind: type[BaseException] | None) -> bool:
        """End; True if it was our doing that the block was cancelled."""
        task, self._task = self._task, None
        if not self._cancelled or task is None:
            return False
        return task.uncancel() <= self._before and kind is asyncio.CancelledError

    def _cancel(self) -> None:
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()


class AsyncClaim(Held):
    """A job that is ours, renewed in the background until it is released or lost.

    Use it in an `async with` statement: leaving the block releases it, as failed if by an exception. At a loss the
    block is cancelled and raises `LeaseLost`.
    """

    def __init__(self, client: AsyncHoldfast, got: Got, on_lost: Callable[[AsyncClaim], object] | None) -> None:
        """Begin to keep it. Made by the client's `claim`."""
        super().__init__(got, client._policy)  # noqa: SLF001 - a part of it
        self._client = client
        self.lost = AsyncLost([self._term])
        """An event that is set when the claim is lost."""
        self._block = Block([self._term])
        if on_lost is not None:
            tell_loss([self._term], teller(weakref.ref(self), on_lost))
        self._kept = self._keep()

    async def __aenter__(self) -> Self:
        self.raise_if_lost()
        self._block.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ours = self._block.leave(kind)
        try:
            await self.release(outcome=None if error is None or ours else "failed")
        except HoldfastError as problem:
            if error is None or ours:
                raise
            # What happened in the block matters more.
            mention(problem, f"the claim on {self.job_id} was not released")
        finally:
            self._stop()
        if ours:
            raise self._term.error()  # The block was told before, and cut off all the same.

    async def note(self, text: str) -> None:
        """Say how far it is. Everybody sees it at once, and the next owner reads it if we die. Renews the claim."""
        await self.renew(note=text)

    async def renew(self, *, note: str | None = None, metadata: Metadata = None) -> None:
        """Renew now. Nobody has to: it happens in the background. Raises `LeaseLost`."""
        await self._client._run(self._renewing(note, metadata))  # noqa: SLF001 - a part of it

    async def release(
        self, *, outcome: str | None = None, result: str | None = None, remember: float | None = None
    ) -> None:
        """Give the job back; a second time is harmless. It goes through even if the task is cancelled meanwhile.

        `outcome` is `done` (then `remember` says for how many seconds nobody shall do it again) or `failed` (then it
        counts as an attempt). Raises `LeaseLost` if it was not ours any more.
        """
        try:
            await self._client._run(self._releasing(outcome, result, remember))  # noqa: SLF001 - a part of it
        finally:
            self._settle()

    async def done(self, result: str | None = None, *, remember: float = REMEMBER_SECONDS) -> None:
        """Give the job back as finished: whoever claims it within `remember` seconds gets `JobDone`."""
        await self.release(outcome="done", result=result, remember=remember)

    async def transfer(self, to_owner: str, *, ttl: float | None = None) -> JobClaim:
        """Hand the job to another owner without a gap; its lease id and token are in what is returned."""
        try:
            return await self._client._run(self._transferring(to_owner, ttl))  # noqa: SLF001 - a part of it
        finally:
            self._settle()

    def _keep(self) -> tuple[Kept, ...]:
        return keep(self._term, renewing.lease_beat(self._claim), self._client)

    def _stop(self) -> None:
        stop(self._kept, self._client)

    def _settle(self) -> None:
        """Stop renewing what is not ours any more. What was refused is still ours: renew it as before."""
        self._stop()
        if not self._term.ended and not self._is_foreign:
            self._kept = self._keep()

    def __del__(self) -> None:
        """Warn if it was never given back; it is not renewed any more and ends by itself."""
        if "_kept" not in self.__dict__ or self._term.ended or self._term.loss or self._is_foreign:
            return
        abandon(self._kept)
        warnings.warn(
            f"the claim on {self.job_id} was dropped while held; use `async with`, or await release()",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )


class AsyncClaims(Group[AsyncClaim]):
    """Several jobs that are ours, every one of them. An async context manager, as `AsyncClaim`."""

    def __init__(
        self, client: AsyncHoldfast, gots: Sequence[Got], on_lost: Callable[[AsyncClaims], object] | None
    ) -> None:
        """Begin to keep them. Made by the client's `claim_all`."""
        super().__init__([AsyncClaim(client, got, None) for got in gots])
        self._client = client
        self.lost = AsyncLost(self._terms)
        """An event that is set when the first of them is lost."""
        self._block = Block(self._terms)
        if on_lost is not None:
            tell_loss(self._terms, teller(weakref.ref(self), on_lost))

    async def __aenter__(self) -> Self:
        self.raise_if_lost()
        self._block.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ours = self._block.leave(kind)
        try:
            await self.release(outcome=None if error is None or ours else "failed")
        except HoldfastError as problem:
            if error is None or ours:
                raise
            # What happened in the block matters more.
            mention(problem, f"the claims on {', '.join(self.tokens)} were not all released")
        finally:
            for claim in self:
                claim._stop()  # noqa: SLF001 - one of ours
        if ours:
            raise self._loss()

    async def note(self, text: str) -> None:
        """Say how far it is, for each of them."""
        for claim in self:
            await claim.note(text)

    async def release(
        self, *, outcome: str | None = None, result: str | None = None, remember: float | None = None
    ) -> None:
        """Give all of them back; raises what went wrong first, after all were tried."""
        try:
            await self._client._run(self._releasing(outcome, result, remember))  # noqa: SLF001 - a part of it
        finally:
            for claim in self:
                claim._settle()  # noqa: SLF001 - one of ours


class Entered(Protocol):
    """An async context manager that gives itself."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


C = TypeVar("C", bound=Entered)


class Acquiring(Generic[C]):
    """Something that is about to be claimed: `await` it to have it, or enter it with `async with`."""

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


def keep(term: Term, beat: renewing.Beat, client: AsyncHoldfast) -> tuple[Kept, ...]:
    """Renew in the background, and watch the deadline beside it."""
    keeper, transport, policy = client._keeper, client._transport, client._policy  # noqa: SLF001 - parts of it
    flows = (renewing.watch(term), renewing.keep(term, beat, policy))
    return tuple(keeper.add(flow, transport.send) for flow in flows)


def stop(kept: Sequence[Kept], client: AsyncHoldfast) -> None:
    """Stop renewing."""
    for each in kept:
        client._keeper.drop(each)  # noqa: SLF001 - a part of it


def abandon(kept: Sequence[Kept]) -> None:
    """Stop renewing, from whichever thread the garbage collector runs in: the agenda is the event loop's alone."""
    for each in kept:
        each.stopped = True


def tell_loss(terms: Sequence[Term], action: Callable[[], object]) -> None:
    """Call this on the event loop at the first loss, whichever thread notices it; once."""
    loop = asyncio.get_running_loop()
    left = [action]

    def act() -> None:
        if left:
            left.pop()()

    def hear() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(act)

    for term in terms:
        term.on_loss(hear)


def teller(whom: weakref.ref[Any], on_lost: Callable[..., object]) -> Callable[[], None]:
    """Return what tells of a loss; a coroutine goes on in a task of its own."""

    def tell() -> None:
        held = whom()
        told = None if held is None else on_lost(held)
        if inspect.iscoroutine(told):
            task = asyncio.get_running_loop().create_task(told)
            _telling.add(task)
            task.add_done_callback(_telling.discard)

    return tell
