"""What a claim is to whoever holds it, in threads and in coroutines alike: all of it but waiting.

What has to be waited for is a flow here, and is driven by `threads/claim.py` and `coroutines/claim.py`.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Generic, TypeVar

import msgspec

from holdfast.client import clock
from holdfast.client.clock import Instant
from holdfast.client.flows import leases
from holdfast.client.flows.claiming import Got
from holdfast.client.flows.effects import NOW, Flow, Policy
from holdfast.client.values.records import JobClaim, Metadata, Previous
from holdfast.client.values.term import Loss, Term
from holdfast.errors import HoldfastError, LeaseLost, LeaseReleased, Refused

log = logging.getLogger("holdfast.client")

REMEMBER_SECONDS = 86_400
LAST_TRY_SECONDS = 2.0
"""How long giving back may take when the claim is lost already and the server may be gone."""


def mention(problem: HoldfastError, what: str) -> None:
    """Log a problem that is not raised, because another exception is on its way that matters more.

    A loss is worth less of a line: it may be the reason for that other one.
    """
    log.log(logging.DEBUG if isinstance(problem, LeaseLost) else logging.WARNING, "%s: %s", what, problem)


def warn_of_fork(what: str, parent: int) -> None:
    """Say that something is not this process's to give back. No error: the code may be the parent's as well."""
    text = f"{what} belongs to process {parent}, which this one was forked from; nothing was given back here"
    warnings.warn(text, RuntimeWarning, stacklevel=2)


class HeldClaim:
    """A claim and its term."""

    def __init__(self, got: Got, policy: Policy) -> None:
        self._claim = got.claim
        self._term = got.term
        self._policy = policy
        self._pid = os.getpid()
        self._told = False
        self._is_back = False
        """Whether the server was told that it is given back, and has answered."""
        self._session: object = None
        """The session it is bound to, which lives for as long as somebody has a claim of it."""

    @property
    def job_id(self) -> str:
        """The job."""
        return self._claim.job_id

    @property
    def owner(self) -> str | None:
        """Who claimed it, as others see it."""
        return self._claim.owner

    @property
    def lease_id(self) -> str:
        """The secret that renews and releases: not for logs."""
        return self._claim.lease_id

    @property
    def token(self) -> int:
        """The fencing token: give it to whatever the job writes to."""
        return self._claim.token

    @property
    def claimed_at(self) -> datetime:
        """When it was claimed."""
        return self._claim.claimed_at

    @property
    def metadata(self) -> Metadata:
        """What was attached to the claim."""
        return self._claim.metadata

    @property
    def labels(self) -> dict[str, str]:
        """What the claim is marked with."""
        return self._claim.labels

    @property
    def previous(self) -> Previous | None:
        """Who had the job before, how that ended, and what it said last."""
        return self._claim.previous

    @property
    def attempts(self) -> int:
        """How many claims it took since the job last ended well, this one included."""
        return self._claim.attempts

    @property
    def reacquired(self) -> bool:
        """Whether it was ours already, and we asked for it back."""
        return self._claim.reacquired

    @property
    def remaining(self) -> float:
        """Seconds until we must stop believing that the job is ours; 0 once it is lost or given back."""
        return 0.0 if self._term.ended else self._term.left_ms(clock.now()) / 1_000

    @property
    def refused(self) -> str | None:
        """Why the server refused the last renewal; None if it did not. It is tried again until the time is over."""
        return self._term.refused

    @property
    def expires_at(self) -> datetime:
        """The same as a time of day, for people."""
        return datetime.fromtimestamp(clock.wall_ms() / 1_000 + self.remaining, UTC)

    @property
    def released(self) -> bool:
        """Whether it was given back."""
        return self._term.ended

    @property
    def record(self) -> JobClaim:
        """The claim as a plain value."""
        return self._claim

    def raise_if_lost(self) -> None:
        """Raise `LeaseLost` if the job is not ours any more, `LeaseReleased` if we gave it back."""
        self._raise_unless_held(clock.now())

    def _raise_unless_held(self, now: Instant) -> None:
        if self._term.ended:
            raise LeaseReleased(f"the claim on {self.job_id} was released before this call")
        if self._term.is_lost(now):
            self._told = True
            raise self._term.error()

    def __repr__(self) -> str:
        """Show everything but the secret."""
        state = "released" if self._term.ended else "lost" if self._term.loss else f"{self.remaining:.1f} s left"
        return f"<{type(self).__name__} {self.job_id!r} owner={self.owner!r} token={self.token}, {state}>"

    @property
    def _is_foreign(self) -> bool:
        """Whether this is a copy in a forked process: the claim is the parent's."""
        return os.getpid() != self._pid

    def _renewing(self, note: str | None, metadata: Metadata) -> Flow[None]:
        """Renew now, and say something by it."""
        self._raise_unless_held((yield NOW))
        try:
            reply, sent = yield from leases.renew(
                self.job_id, self.lease_id, self._policy, note=note, metadata=metadata
            )
        except LeaseLost as error:
            raise self._told_of(error) from None
        self._term.extend(sent, reply.expires_in_ms)
        if metadata is not None:
            self._claim = msgspec.structs.replace(self._claim, metadata=metadata)

    def _releasing(self, outcome: str | None, result: str | None, remember: float | None) -> Flow[None]:
        """Give it back, once. Raises `LeaseLost` if there was nothing left to give back and nobody was told yet.

        What is refused, for a word that the server does not take, leaves the claim as it was.
        """
        if self._is_foreign:
            warn_of_fork(f"the claim on {self.job_id}", self._pid)
            return
        now: Instant = yield NOW
        left_ms = self._term.left_ms(now)
        lost = left_ms == 0 and self._term.is_lost(now)
        policy = self._within(left_ms / 1_000)
        if not self._term.end():
            return
        if lost:
            yield from self._giving_up()
            if self._told:
                return
            self._told = True
            raise self._term.error()
        try:
            yield from leases.release(
                self.job_id,
                self.lease_id,
                policy,
                owner=self.owner,
                outcome=outcome,
                result=result,
                remember=remember,
            )
            self._is_back = True
        except LeaseLost as error:
            self._told = self._is_back = True
            raise LeaseLost(
                str(error), job_id=self.job_id, token=self.token, reason=error.reason, by=error.by, why=error.why
            ) from None
        except (Refused, TypeError, ValueError):
            self._term.resume()
            raise

    def _within(self, left: float) -> Policy:
        """Return how patient to be about a release: not beyond the end of the lease, which gives the job back too."""
        if left >= self._policy.answer_seconds and left >= self._policy.retry_seconds:
            return self._policy
        answer_seconds = min(self._policy.answer_seconds, max(left, LAST_TRY_SECONDS))
        return msgspec.structs.replace(
            self._policy, answer_seconds=answer_seconds, retry_seconds=min(self._policy.retry_seconds, left)
        )

    def _giving_up(self) -> Flow[None]:
        """Release what we stopped believing in, in case the server still does: the next one need not wait."""
        if self._term.loss is not None and not self._term.loss.told:
            yield from self._leaving("failed", None, None)

    def _leaving(self, outcome: str | None, result: str | None, remember: float | None) -> Flow[None]:
        """Give it back in haste, unless that is done: whoever was about to do it was interrupted, or ends."""
        if self._is_back or self._is_foreign:
            return
        self._term.end()
        hasty = msgspec.structs.replace(self._policy, answer_seconds=LAST_TRY_SECONDS, retry_seconds=0)
        try:
            yield from leases.release(
                self.job_id,
                self.lease_id,
                hasty,
                owner=self.owner,
                outcome=outcome,
                result=result,
                remember=remember,
            )
        except (HoldfastError, TypeError, ValueError) as error:
            log.info("the claim on %s could not be given back in haste: %s", self.job_id, error)
        self._is_back = True

    def _transferring(self, to_owner: str, ttl: float | None, reason: str | None = None) -> Flow[JobClaim]:
        """Hand it over. From when that is asked for it may not be ours, so it is not believed in meanwhile."""
        self._raise_unless_held((yield NOW))
        self._term.end()
        try:
            return (
                yield from leases.transfer(
                    self.job_id, self.lease_id, to_owner, self._policy, owner=self.owner, ttl=ttl, reason=reason
                )
            )
        except LeaseLost as error:
            self._term.resume()
            raise self._told_of(error) from None
        except (Refused, TypeError, ValueError):
            self._term.resume()
            raise
        except BaseException:
            # Nobody knows whose it is by now.
            self._term.resume()
            self._term.lose(Loss("unreachable", why="whether it was handed over is not known"))
            raise

    def _told_of(self, error: LeaseLost) -> LeaseLost:
        """Lose it as the server says, and return the exception that says so of this claim."""
        self._term.lose(Loss(error.reason, error.by, error.why, told=True))
        self._told = True
        return self._term.error()


H = TypeVar("H", bound=HeldClaim)


class ClaimGroup(Generic[H]):
    """Several claims that were had together. All of them are ours, or the group is lost."""

    def __init__(self, claims: Sequence[H]) -> None:
        self._claims = tuple(claims)

    def __len__(self) -> int:
        return len(self._claims)

    def __iter__(self) -> Iterator[H]:
        return iter(self._claims)

    def __getitem__(self, job_id: str) -> H:
        """Return the claim on one of the jobs."""
        for claim in self._claims:
            if claim.job_id == job_id:
                return claim
        raise KeyError(job_id)

    @property
    def tokens(self) -> dict[str, int]:
        """The fencing token of each job."""
        return {claim.job_id: claim.token for claim in self._claims}

    @property
    def remaining(self) -> float:
        """Seconds until the first of them may be lost."""
        return min(claim.remaining for claim in self._claims)

    @property
    def refused(self) -> str | None:
        """Why the server refused the last renewal of one of them; None if it did not."""
        return next((why for term in self._terms if (why := term.refused) is not None), None)

    def raise_if_lost(self) -> None:
        """Raise `LeaseLost` if any of them is not ours any more."""
        for claim in self._claims:
            claim.raise_if_lost()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(claim.job_id for claim in self._claims)}>"

    def _releasing(self, outcome: str | None, result: str | None, remember: float | None) -> Flow[None]:
        """Give all of them back, in one flow: what interrupts it leaves none of them behind."""
        problem: BaseException | None = None
        for claim in self._claims:
            try:
                yield from claim._releasing(outcome, result, remember)  # noqa: SLF001 - its own parts
            except HoldfastError as error:
                problem = problem or error
            except (Exception, GeneratorExit):
                raise
            except BaseException as interrupt:  # noqa: BLE001 - raised again when all are given back
                problem = interrupt
        if problem is not None:
            try:
                raise problem
            finally:
                del problem  # This frame and the error would keep each other, and all of these claims.

    def _leaving(self, outcome: str | None, result: str | None, remember: float | None) -> Flow[None]:
        """Give back in haste what was not given back."""
        for claim in self._claims:
            yield from claim._leaving(outcome, result, remember)  # noqa: SLF001 - its own parts

    def _loss(self) -> LeaseLost:
        """Return the exception for the first loss among them."""
        lost = [term for term in self._terms if term.loss is not None]
        return (lost or self._terms)[0].error()

    @property
    def _terms(self) -> list[Term]:
        return [claim._term for claim in self._claims]  # noqa: SLF001 - its own parts
