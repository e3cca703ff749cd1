"""Claims and groups of claims for threads: context managers that are renewed in the background."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from holdfast.client import owners
from holdfast.client.common.keeping import Kept
from holdfast.client.flows.claiming import Got
from holdfast.client.flows.renewing import renewal_of_lease
from holdfast.client.holding import leaving
from holdfast.client.holding.claim import REMEMBER_SECONDS, ClaimGroup, HeldClaim, mention
from holdfast.client.holding.leaving import Leaving
from holdfast.client.threads.link import Link
from holdfast.client.threads.loss import Lost, once, teller
from holdfast.client.values.records import JobClaim, Metadata
from holdfast.errors import HoldfastError


class Claim(HeldClaim, Leaving):
    """A job that is ours, renewed in the background until it is released or lost.

    Use it in a `with` statement: leaving the block releases it, as failed if by an exception. Leaving it after a loss
    raises `LeaseLost`, unless `raise_if_lost` did so before.
    """

    def __init__(self, link: Link, got: Got, on_lost: Callable[[Claim], object] | None) -> None:
        """Begin to keep it. Made by the client's `claim`."""
        super().__init__(got, link.policy)
        self._link = link
        self.lost = Lost([self._term])
        """An event that is set when the claim is lost."""
        if on_lost is not None:
            self._term.on_loss(teller(weakref.ref(self), on_lost))
        self._kept = self._begin_keeping()

    def __enter__(self) -> Self:
        self.raise_if_lost()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release(outcome=None if error is None else "failed")
        except HoldfastError as problem:
            if error is None:
                raise
            # What happened in the block matters more.
            mention(problem, f"the claim on {self.job_id} was not released")
        finally:
            self._stop()

    def note(self, text: str) -> None:
        """Say how far it is. Everybody sees it at once, and the next owner reads it if we die. Renews the claim."""
        self.renew(note=text)

    def renew(self, *, note: str | None = None, metadata: Metadata = None) -> None:
        """Renew now. Nobody has to: it happens in the background. Raises `LeaseLost`."""
        self._link.run(self._renewing(note, metadata))

    def release(self, *, outcome: str | None = None, result: str | None = None, remember: float | None = None) -> None:
        """Give the job back; a second time is harmless.

        `outcome` is `done` (then `remember` says for how many seconds nobody shall do it again) or `failed` (then it
        counts as an attempt). Raises `LeaseLost` if it was not ours any more.
        """
        try:
            how = (outcome, result, remember)
            self._link.give_back(self._releasing(*how), partial(self._leaving, *how))
        finally:
            self._settle()

    def done(self, result: str | None = None, *, remember: float = REMEMBER_SECONDS) -> None:
        """Give the job back as finished: whoever claims it within `remember` seconds gets `JobDone`."""
        self.release(outcome="done", result=result, remember=remember)

    def transfer(self, to_owner: str, *, ttl: float | None = None, reason: str | None = None) -> JobClaim:
        """Hand the job to another owner without a gap; its lease id and token are in what is returned."""
        try:
            return self._link.run(self._transferring(to_owner, ttl, reason))
        finally:
            self._settle()

    def _begin_keeping(self) -> Kept:
        leaving.note(self)
        return self._link.keep(self._term, renewal_of_lease(self._claim))

    def _stop(self) -> None:
        if self._kept.stopped or self._is_foreign:
            return
        leaving.forget(self)
        self._kept.stop()

    def _leave_at_exit(self) -> None:
        if self._term.ended or self._term.loss or self._is_foreign:
            return
        self._warn("was held to the end of the program, and is given back now")
        self._link.run(self._leaving("failed", None, None))

    def _settle(self) -> None:
        """Stop renewing what is not ours any more. What was refused is still ours: renew it as before."""
        self._stop()
        if not self._term.ended and not self._is_foreign:
            self._kept = self._begin_keeping()

    def __del__(self) -> None:
        """Warn if it was never given back; it is not renewed any more and ends by itself."""
        if "_kept" not in self.__dict__ or self._term.ended or self._term.loss or self._is_foreign:
            return
        self._stop()
        owners.retire(self.owner)
        self._warn("was dropped while held")

    def _warn(self, what: str) -> None:
        text = f"the claim on {self.job_id} {what}; use `with`, or call release()"
        warnings.warn(text, ResourceWarning, stacklevel=3, source=self)


class Claims(ClaimGroup[Claim]):
    """Several jobs that are ours, every one of them. A context manager, as `Claim`."""

    def __init__(self, link: Link, gots: Sequence[Got], on_lost: Callable[[Claims], object] | None) -> None:
        """Begin to keep them. Made by the client's `claim_all`."""
        super().__init__([Claim(link, got, None) for got in gots])
        self._link = link
        self.lost = Lost(self._terms)
        """An event that is set when the first of them is lost."""
        if on_lost is not None:
            tell = once(teller(weakref.ref(self), on_lost))
            for term in self._terms:
                term.on_loss(tell)

    def __enter__(self) -> Self:
        self.raise_if_lost()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release(outcome=None if error is None else "failed")
        except HoldfastError as problem:
            if error is None:
                raise
            # What happened in the block matters more.
            mention(problem, f"the claims on {', '.join(self.tokens)} were not all released")
        finally:
            for claim in self:
                claim._stop()  # noqa: SLF001 - one of ours

    def note(self, text: str) -> None:
        """Say how far it is, for each of them."""
        for claim in self:
            claim.note(text)

    def release(self, *, outcome: str | None = None, result: str | None = None, remember: float | None = None) -> None:
        """Give all of them back; raises what went wrong first, after all were tried."""
        try:
            how = (outcome, result, remember)
            self._link.give_back(self._releasing(*how), partial(self._leaving, *how))
        finally:
            for claim in self:
                claim._settle()  # noqa: SLF001 - one of ours
