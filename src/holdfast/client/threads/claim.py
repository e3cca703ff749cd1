"""Claims and groups of claims for threads: context managers that are renewed in the background."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from holdfast.client import clock
from holdfast.client.flows import renewing
from holdfast.client.flows.claiming import Got
from holdfast.client.holding.claim import REMEMBER_SECONDS, Group, Held, log, mention
from holdfast.client.threads.background import keeper
from holdfast.client.values.records import JobClaim, Metadata
from holdfast.client.values.term import Term
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.client.common.background import Kept
    from holdfast.client.threads.client import Holdfast


class Lost(threading.Event):
    """Set at the loss. Asks the clock as well, so that a thread which was stopped sees the loss before it acts."""

    def __init__(self, terms: Sequence[Term]) -> None:
        super().__init__()
        self._terms = tuple(terms)
        for term in self._terms:
            term.on_loss(self.set)

    def is_set(self) -> bool:
        """Is any of it lost?"""
        now = clock.now()
        return super().is_set() or any(term.is_lost(now) for term in self._terms)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the loss, for so many seconds at most; True if it is lost."""
        return self.is_set() or super().wait(timeout) or self.is_set()


class Claim(Held):
    """A job that is ours, renewed in the background until it is released or lost.

    Use it in a `with` statement: leaving the block releases it, as failed if by an exception. Leaving it after a loss
    raises `LeaseLost`, unless `raise_if_lost` did so before.
    """

    def __init__(self, client: Holdfast, got: Got, on_lost: Callable[[Claim], object] | None) -> None:
        """Begin to keep it. Made by the client's `claim`."""
        super().__init__(got, client._policy)  # noqa: SLF001 - a part of it
        self._client = client
        self.lost = Lost([self._term])
        """An event that is set when the claim is lost."""
        if on_lost is not None:
            self._term.on_loss(teller(weakref.ref(self), on_lost))
        self._kept = self._keep()

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
        self._client._run(self._renewing(note, metadata))  # noqa: SLF001 - a part of it

    def release(self, *, outcome: str | None = None, result: str | None = None, remember: float | None = None) -> None:
        """Give the job back; a second time is harmless.

        `outcome` is `done` (then `remember` says for how many seconds nobody shall do it again) or `failed` (then it
        counts as an attempt). Raises `LeaseLost` if it was not ours any more.
        """
        try:
            self._client._run(self._releasing(outcome, result, remember))  # noqa: SLF001 - a part of it
        finally:
            self._settle()

    def done(self, result: str | None = None, *, remember: float = REMEMBER_SECONDS) -> None:
        """Give the job back as finished: whoever claims it within `remember` seconds gets `JobDone`."""
        self.release(outcome="done", result=result, remember=remember)

    def transfer(self, to_owner: str, *, ttl: float | None = None) -> JobClaim:
        """Hand the job to another owner without a gap; its lease id and token are in what is returned."""
        try:
            return self._client._run(self._transferring(to_owner, ttl))  # noqa: SLF001 - a part of it
        finally:
            self._settle()

    def _keep(self) -> tuple[Kept, ...]:
        return keep(self._term, renewing.lease_beat(self._claim), self._client)

    def _stop(self) -> None:
        if not self._is_foreign:
            stop(self._kept)

    def _settle(self) -> None:
        """Stop renewing what is not ours any more. What was refused is still ours: renew it as before."""
        self._stop()
        if not self._term.ended and not self._is_foreign:
            self._kept = self._keep()

    def __del__(self) -> None:
        """Warn if it was never given back; it is not renewed any more and ends by itself."""
        if "_kept" not in self.__dict__ or self._term.ended or self._term.loss or self._is_foreign:
            return
        self._stop()
        warnings.warn(
            f"the claim on {self.job_id} was dropped while held; use `with`, or call release()",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )


class Claims(Group[Claim]):
    """Several jobs that are ours, every one of them. A context manager, as `Claim`."""

    def __init__(self, client: Holdfast, gots: Sequence[Got], on_lost: Callable[[Claims], object] | None) -> None:
        """Begin to keep them. Made by the client's `claim_all`."""
        super().__init__([Claim(client, got, None) for got in gots])
        self._client = client
        self.lost = Lost(self._terms)
        """An event that is set when the first of them is lost."""
        if on_lost is not None:
            once = _once(teller(weakref.ref(self), on_lost))
            for term in self._terms:
                term.on_loss(once)

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
            self._client._run(self._releasing(outcome, result, remember))  # noqa: SLF001 - a part of it
        finally:
            for claim in self:
                claim._settle()  # noqa: SLF001 - one of ours


def keep(term: Term, beat: renewing.Beat, client: Holdfast) -> tuple[Kept, ...]:
    """Renew in the background, and watch the deadline beside it."""
    send = client._transport.send  # noqa: SLF001 - a part of it
    flows = (renewing.watch(term), renewing.keep(term, beat, client._policy))  # noqa: SLF001 - the same
    return tuple(keeper().add(flow, send) for flow in flows)


def stop(kept: Sequence[Kept]) -> None:
    """Stop renewing."""
    for each in kept:
        keeper().drop(each)


def teller(whom: weakref.ref[object], on_lost: Callable[..., object]) -> Callable[[], None]:
    """Return what tells of a loss: in a thread of its own, because nobody knows how long it takes."""

    def tell() -> None:
        held = whom()
        if held is None:
            return
        try:
            threading.Thread(target=on_lost, args=(held,), name="holdfast-on-lost", daemon=True).start()
        except RuntimeError as error:
            # Whoever noticed the loss must not be hindered by it; `lost` is set all the same.
            log.error("on_lost was not called for %r: %s", held, error)

    return tell


def _once(action: Callable[[], None]) -> Callable[[], None]:
    lock = threading.Lock()

    def act() -> None:
        if lock.acquire(blocking=False):  # Never given back: once is once.
            action()

    return act
