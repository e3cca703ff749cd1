"""Sessions for threads: claims that all end together, when the session is closed or its process is gone."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeAlias

from holdfast.client.common.claiming import ClaimingClient
from holdfast.client.common.sessions import ClaimingSession
from holdfast.client.flows.renewing import renewal_of_session
from holdfast.client.holding import leaving
from holdfast.client.holding.claim import mention
from holdfast.client.holding.leaving import Leaving
from holdfast.client.holding.session import HeldSession
from holdfast.client.threads.claim import Claim, Claims
from holdfast.client.threads.link import Link
from holdfast.client.threads.loss import Lost, teller
from holdfast.client.values.term import Term
from holdfast.errors import HoldfastError
from holdfast.wire.replies import SessionOpenedReply

Claimer: TypeAlias = ClaimingClient[Claim, Claims, Claim, Claims, Any, Any]
"""Who claims for a session: its client."""


class Session(HeldSession[Claim], ClaimingSession[Claim, Claims, Claim, Claims], Leaving):
    """A session that is ours, kept alive in the background. Use it in a `with` statement: leaving the block ends it."""

    def __init__(
        self,
        link: Link,
        claimer: Claimer,
        opened: SessionOpenedReply,
        term: Term,
        on_lost: Callable[[Session], object] | None,
    ) -> None:
        """Begin to keep it. Made by the client's `session`."""
        super().__init__(link.policy, opened, term)
        self._link = link
        self._claimer = claimer
        self.lost = Lost([term])
        """An event that is set when the session is lost."""
        if on_lost is not None:
            term.on_loss(teller(weakref.ref(self), on_lost))
        leaving.note(self)
        self._kept = link.keep(term, renewal_of_session(opened.session_id, opened.session_secret))

    def __enter__(self) -> Self:
        self.raise_if_lost()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.end()
        except HoldfastError as problem:
            if error is None:
                raise
            # What happened in the block matters more.
            mention(problem, f"the session {self.session_id} was not ended")

    def _adopt(self, got: Claim) -> Claim:
        self._add(got)
        return got

    def _adopt_all(self, got: Claims) -> Claims:
        for claim in got:
            self._add(claim)
        return got

    def end(self) -> None:
        """End the session, and with it every claim of it, in one step; a second time is harmless."""
        try:
            self._link.give_back(self._ending(), self._leaving)
        finally:
            leaving.forget(self)
            self._kept.stop()
            for claim in tuple(self._members):
                claim._stop()  # noqa: SLF001 - one of ours

    def __del__(self) -> None:
        """Warn if it was never ended; it is not kept alive any more and ends by itself."""
        if not self._is_dropped:
            return
        self._kept.stop()
        self._warn("was dropped while it lived")

    def _leave_at_exit(self) -> None:
        if self._is_dropped:
            self._warn("lived to the end of the program, and is ended now")
            self._link.run(self._leaving())

    def _warn(self, what: str) -> None:
        text = f"{self._term.title} {what}; use `with`, or call end()"
        warnings.warn(text, ResourceWarning, stacklevel=3, source=self)
