"""Claims and groups of claims for coroutines: async context managers that are renewed in the background.

At a loss the block is cancelled, and leaves with `LeaseLost`.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from holdfast.client import owners
from holdfast.client.common.keeping import Kept
from holdfast.client.coroutines.link import AsyncLink
from holdfast.client.coroutines.loss import AsyncLost, Block, tell_loss, teller
from holdfast.client.flows.claiming import Got
from holdfast.client.flows.renewing import renewal_of_lease
from holdfast.client.holding.claim import REMEMBER_SECONDS, ClaimGroup, HeldClaim, mention
from holdfast.client.values.records import JobClaim, Metadata
from holdfast.errors import HoldfastError


class AsyncClaim(HeldClaim):
    """A job that is ours, renewed in the background until it is released or lost.

    Use it in an `async with` statement: leaving the block releases it, as failed if by an exception. At a loss the
    block is cancelled and raises `LeaseLost`.
    """

    def __init__(self, link: AsyncLink, got: Got, on_lost: Callable[[AsyncClaim], object] | None) -> None:
        """Begin to keep it. Made by the client's `claim`."""
        super().__init__(got, link.policy)
        self._link = link
        self.lost = AsyncLost([self._term])
        """An event that is set when the claim is lost."""
        self._block = Block([self._term])
        if on_lost is not None:
            tell_loss([self._term], teller(weakref.ref(self), on_lost))
        self._kept = self._begin_keeping()

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
        await self._link.run(self._renewing(note, metadata))

    async def release(
        self, *, outcome: str | None = None, result: str | None = None, remember: float | None = None
    ) -> None:
        """Give the job back; a second time is harmless. It goes through even if the task is cancelled meanwhile.

        `outcome` is `done` (then `remember` says for how many seconds nobody shall do it again) or `failed` (then it
        counts as an attempt). Raises `LeaseLost` if it was not ours any more.
        """
        try:
            await self._link.run(self._releasing(outcome, result, remember))
        finally:
            self._settle()

    async def done(self, result: str | None = None, *, remember: float = REMEMBER_SECONDS) -> None:
        """Give the job back as finished: whoever claims it within `remember` seconds gets `JobDone`."""
        await self.release(outcome="done", result=result, remember=remember)

    async def transfer(self, to_owner: str, *, ttl: float | None = None, reason: str | None = None) -> JobClaim:
        """Hand the job to another owner without a gap; its lease id and token are in what is returned."""
        try:
            return await self._link.run(self._transferring(to_owner, ttl, reason))
        finally:
            self._settle()

    def _begin_keeping(self) -> Kept:
        return self._link.keep(self._term, renewal_of_lease(self._claim))

    def _stop(self) -> None:
        self._kept.stop()

    def _settle(self) -> None:
        """Stop renewing what is not ours any more. What was refused is still ours: renew it as before."""
        self._stop()
        if not self._term.ended and not self._is_foreign:
            self._kept = self._begin_keeping()

    def __del__(self) -> None:
        """Warn if it was never given back; it is not renewed any more and ends by itself."""
        if "_kept" not in self.__dict__ or self._term.ended or self._term.loss or self._is_foreign:
            return
        self._kept.abandon()
        owners.retire(self.owner)
        warnings.warn(
            f"the claim on {self.job_id} was dropped while held; use `async with`, or await release()",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )


class AsyncClaims(ClaimGroup[AsyncClaim]):
    """Several jobs that are ours, every one of them. An async context manager, as `AsyncClaim`."""

    def __init__(self, link: AsyncLink, gots: Sequence[Got], on_lost: Callable[[AsyncClaims], object] | None) -> None:
        """Begin to keep them. Made by the client's `claim_all`."""
        super().__init__([AsyncClaim(link, got, None) for got in gots])
        self._link = link
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
            await self._link.run(self._releasing(outcome, result, remember))
        finally:
            for claim in self:
                claim._settle()  # noqa: SLF001 - one of ours
