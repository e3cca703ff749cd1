"""Sessions for coroutines: claims that all end together, when the session is closed or its process is gone."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeAlias

from holdfast.client.common.claiming import ClaimingClient
from holdfast.client.common.sessions import ClaimingSession
from holdfast.client.coroutines.acquiring import Acquiring, C
from holdfast.client.coroutines.claim import AsyncClaim, AsyncClaims
from holdfast.client.coroutines.link import AsyncLink
from holdfast.client.coroutines.loss import AsyncLost, Block, tell_loss, teller
from holdfast.client.flows.renewing import renewal_of_session
from holdfast.client.holding.claim import mention
from holdfast.client.holding.session import HeldSession
from holdfast.client.values.term import Term
from holdfast.errors import HoldfastError
from holdfast.wire.replies import SessionOpenedReply

Claimer: TypeAlias = ClaimingClient[AsyncClaim, AsyncClaims, Acquiring[AsyncClaim], Acquiring[AsyncClaims], Any, Any]
"""Who claims for a session: its client."""


class AsyncSession(
    HeldSession[AsyncClaim], ClaimingSession[AsyncClaim, AsyncClaims, Acquiring[AsyncClaim], Acquiring[AsyncClaims]]
):
    """A session that is ours, kept alive in the background. Use it in an `async with` statement: leaving it ends it."""

    def __init__(
        self,
        link: AsyncLink,
        claimer: Claimer,
        opened: SessionOpenedReply,
        term: Term,
        on_lost: Callable[[AsyncSession], object] | None,
    ) -> None:
        """Begin to keep it. Made by the client's `session`."""
        super().__init__(link.policy, opened, term)
        self._link = link
        self._claimer = claimer
        self.lost = AsyncLost([term])
        """An event that is set when the session is lost."""
        if on_lost is not None:
            tell_loss([term], teller(weakref.ref(self), on_lost))
        self._block = Block([term])
        self._kept = link.keep(term, renewal_of_session(opened.session_id, opened.session_secret))

    async def __aenter__(self) -> Self:
        self.raise_if_lost()
        self._block.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ours = self._block.leave(kind)
        try:
            await self.end()
        except HoldfastError as problem:
            if error is None or ours:
                raise
            # What happened in the block matters more.
            mention(problem, f"the session {self.session_id} was not ended")
        if ours:
            raise self._term.error()  # The block was told before, and cut off all the same.

    def _adopt(self, got: Acquiring[AsyncClaim]) -> Acquiring[AsyncClaim]:
        return self._adopting(got, self._add)

    def _adopt_all(self, got: Acquiring[AsyncClaims]) -> Acquiring[AsyncClaims]:
        return self._adopting(got, self._add_all)

    def _adopting(self, acquiring: Acquiring[C], adopt: Callable[[C], None]) -> Acquiring[C]:
        """Remember what comes of a claim, so that it is not renewed after the session's end."""

        async def get() -> C:
            got = await acquiring
            adopt(got)
            return got

        return Acquiring(get)

    def _add_all(self, claims: AsyncClaims) -> None:
        for claim in claims:
            self._add(claim)

    async def end(self) -> None:
        """End the session, and with it every claim of it, in one step; a second time is harmless."""
        try:
            await self._link.run(self._ending())
        finally:
            self._kept.stop()
            for claim in tuple(self._members):
                claim._stop()  # noqa: SLF001 - one of ours

    def __del__(self) -> None:
        """Warn if it was never ended; it is not kept alive any more and ends by itself."""
        if not self._is_dropped:
            return
        self._kept.abandon()
        warnings.warn(
            f"{self._term.title} was dropped while it lived; use `async with`, or await end()",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )
