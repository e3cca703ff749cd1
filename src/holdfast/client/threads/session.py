"""Sessions for threads: claims that all end together, when the session is closed or its process is gone."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from holdfast.client.flows import renewing
from holdfast.client.holding.claim import mention
from holdfast.client.holding.session import SessionBase
from holdfast.client.threads.claim import Claim, Claims, Lost, keep, stop, teller
from holdfast.client.values.options import ClaimAllOptions, ClaimAnyOptions, ClaimOptions
from holdfast.client.values.term import Term
from holdfast.errors import HoldfastError
from holdfast.wire.messages import SessionOpenedReply

if TYPE_CHECKING:
    from holdfast.client.threads.client import Holdfast


class Session(SessionBase[Claim]):
    """A session that is ours, kept alive in the background. Use it in a `with` statement: leaving the block ends it."""

    def __init__(
        self,
        client: Holdfast,
        opened: SessionOpenedReply,
        term: Term,
        on_lost: Callable[[Session], object] | None,
    ) -> None:
        """Begin to keep it. Made by the client's `session`."""
        super().__init__(client._policy, opened, term)  # noqa: SLF001 - a part of it
        self._client = client
        self.lost = Lost([term])
        """An event that is set when the session is lost."""
        if on_lost is not None:
            term.on_loss(teller(weakref.ref(self), on_lost))
        self._kept = keep(term, renewing.session_beat(opened.session_id), client)

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

    def claim(
        self, job_id: str, *, on_lost: Callable[[Claim], object] | None = None, **options: Unpack[ClaimOptions]
    ) -> Claim:
        """Claim a job for this session, as `Holdfast.claim`."""
        claim = self._client.claim(job_id, session=self.session_id, on_lost=on_lost, **options)
        self._add(claim)
        return claim

    def claim_any(
        self,
        job_ids: Sequence[str],
        *,
        on_lost: Callable[[Claim], object] | None = None,
        **options: Unpack[ClaimAnyOptions],
    ) -> Claim:
        """Claim the first free job of a list for this session, as `Holdfast.claim_any`."""
        claim = self._client.claim_any(job_ids, session=self.session_id, on_lost=on_lost, **options)
        self._add(claim)
        return claim

    def claim_all(
        self,
        job_ids: Sequence[str],
        *,
        on_lost: Callable[[Claims], object] | None = None,
        **options: Unpack[ClaimAllOptions],
    ) -> Claims:
        """Claim every job of a list or none for this session, as `Holdfast.claim_all`."""
        claims = self._client.claim_all(job_ids, session=self.session_id, on_lost=on_lost, **options)
        for claim in claims:
            self._add(claim)
        return claims

    def end(self) -> None:
        """End the session, and with it every claim of it, in one step; a second time is harmless."""
        try:
            self._client._run(self._ending())  # noqa: SLF001 - a part of it
        finally:
            stop(self._kept)
            for claim in tuple(self._members):
                claim._stop()  # noqa: SLF001 - one of ours

    def __del__(self) -> None:
        """Warn if it was never ended; it is not kept alive any more and ends by itself."""
        if not self._is_dropped:
            return
        stop(self._kept)
        warnings.warn(
            f"{self._term.title} was dropped while it lived; use `with`, or call end()",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )
