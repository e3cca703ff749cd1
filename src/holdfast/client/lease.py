"""Claims and sessions as their holder sees them, for threads and coroutines: everything that waits is a flow."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar
from weakref import WeakSet, ref

import msgspec

from holdfast.client import clock, lease_flows, requests
from holdfast.client.background import RenewalHandle
from holdfast.client.claim_flows import AcquiredClaim
from holdfast.client.clock import Instant
from holdfast.client.deadline import LeaseDeadline, Loss, lost_error
from holdfast.client.effects import NOW, Flow, Policy, operation, release_operation
from holdfast.client.records import JobClaim, Metadata, Previous, opened_session
from holdfast.errors import HoldfastError, LeaseLost, LeaseReleased, Refused, SettingsError
from holdfast.wire.replies import SessionOpenedReply

log = logging.getLogger("holdfast.client")

REMEMBER_SECONDS = 86_400
LAST_TRY_SECONDS = 2.0  # How long a release may take if the claim is lost already and the server may be down.
_GONE = frozenset({404, 410})

T = TypeVar("T")


def mention(problem: HoldfastError, what: str) -> None:
    """Log a problem that is not raised because a more important exception is. A loss may be that one's cause."""
    log.log(logging.DEBUG if isinstance(problem, LeaseLost) else logging.WARNING, "%s: %s", what, problem)


class Held:
    """A claim or a session and its local deadline."""

    _link: Any
    _renewal_handle: RenewalHandle
    _renewal: Any
    _ending_word = "released"
    _dropped_word = "was dropped while held"
    _how_to_end: ClassVar[str]  # For warnings.

    def __init__(self, policy: Policy, deadline: LeaseDeadline) -> None:
        self._policy = policy
        self._deadline = deadline
        self._pid = os.getpid()
        self._loss_reported = False  # Whether the caller knows of the loss.
        self._is_released = False  # Whether the server has confirmed that it ended.

    @property
    def remaining(self) -> float:
        """Seconds until it may be lost; 0 once it is lost or released."""
        return 0.0 if self._deadline.ended else self._deadline.left_ms(clock.now()) / 1_000

    @property
    def refused(self) -> str | None:
        """Why the server refused the last renewal; None if it did not. Renewal is retried until the time is over."""
        return self._deadline.refused

    def raise_if_lost(self) -> None:
        """Raise `LeaseLost` if it is no longer ours, `LeaseReleased` if we released it."""
        self._raise_unless_held(clock.now())

    def _raise_unless_held(self, now: Instant) -> None:
        if self._deadline.ended:
            raise LeaseReleased(f"{self._deadline.name} was {self._ending_word} before this call")
        if self._deadline.is_lost(now):
            self._loss_reported = True
            raise self._deadline.error()

    @property
    def _state(self) -> str:
        if self._deadline.ended:
            return self._ending_word
        return "lost" if self._deadline.loss else f"{self.remaining:.1f} s left"

    @property
    def _is_forked_copy(self) -> bool:
        """Whether this is a copy in a forked process: the parent owns it."""
        return os.getpid() != self._pid

    @property
    def _is_dropped(self) -> bool:
        """Whether it was not released. Called when nothing refers to it, even if it is only half constructed."""
        is_complete = "_renewal_handle" in self.__dict__
        return is_complete and not self._deadline.ended and self._deadline.loss is None and not self._is_forked_copy

    def _belongs_to_parent(self) -> bool:
        """Tell whether a parent process owns it, and warn. No error: the same code runs in the parent."""
        if self._is_forked_copy:
            text = (
                f"{self._deadline.name} belongs to process {self._pid}, which this one was forked from;"
                " nothing was given back here"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=3)
        return self._is_forked_copy

    def __del__(self) -> None:
        if self._is_dropped:
            self._stop()  # The lease then expires.
            requests.retire(getattr(self, "owner", None))
            self._warn(self._dropped_word)

    def _warn(self, what: str) -> None:
        text = f"{self._title} {what}; {self._how_to_end}"
        warnings.warn(text, ResourceWarning, stacklevel=3, source=self)

    @property
    def _title(self) -> str:
        return self._deadline.name

    def _loss(self) -> LeaseLost:
        return self._deadline.error()

    def _start_renewal(self) -> RenewalHandle:
        handle: RenewalHandle = self._link.start_renewal(self._deadline, self._renewal)
        return handle

    def _stop(self) -> None:
        self._renewal_handle.stop()


class _OfRecord(property, Generic[T]):
    """A property that comes from the record of a claim or session."""

    def __init__(self, name: str, doc: str) -> None:
        super().__init__(lambda held: getattr(held._record, name))  # noqa: SLF001 - it is a method
        self.__doc__ = doc  # Given to `property`, it would be hidden by that of this class.

    if TYPE_CHECKING:

        def __get__(self, owner: object, kind: object = None) -> T: ...  # type: ignore[override]


class HeldClaim(Held):
    # Outcome, result and remember of its release; the default is for a release at exit.
    _release_arguments: tuple[str | None, str | None, float | None] = ("failed", None, None)

    def __init__(self, got: AcquiredClaim, policy: Policy) -> None:
        super().__init__(policy, got.deadline)
        self._record = got.claim
        self._session: object = None  # Keeps its session alive while anything refers to this claim.

    job_id = _OfRecord[str]("job_id", "The job.")
    owner = _OfRecord[str | None]("owner", "Who claimed it, as others see it.")
    lease_id = _OfRecord[str]("lease_id", "The secret that renews and releases: not for logs.")
    fencing_token = _OfRecord[int]("fencing_token", "The fencing token: give it to whatever the job writes to.")
    claimed_at = _OfRecord[datetime]("claimed_at", "When it was claimed.")
    metadata = _OfRecord[Metadata]("metadata", "What was attached to the claim.")
    labels = _OfRecord[dict[str, str]]("labels", "What the claim is marked with.")
    previous = _OfRecord[Previous | None]("previous", "Who had the job before, how that ended, what it said last.")
    attempts = _OfRecord[int]("attempts", "How many claims it took since the job last ended well, this one included.")
    reacquired = _OfRecord[bool]("reacquired", "Whether it was ours already, and we asked for it back.")

    @property
    def expires_at(self) -> datetime:
        """The end of `remaining` as a time of day, for people."""
        return datetime.fromtimestamp(clock.wall_ms() / 1_000 + self.remaining, UTC)

    @property
    def released(self) -> bool:
        """Whether it was released."""
        return self._deadline.ended

    @property
    def record(self) -> JobClaim:
        """The claim as a plain value."""
        return self._record

    def __repr__(self) -> str:  # Everything but the secret.
        about = f"owner={self.owner!r} fencing_token={self.fencing_token}, {self._state}"
        return f"<{type(self).__name__} {self.job_id!r} {about}>"

    @operation
    def note(self, text: str) -> Flow[None]:
        """Publish progress: everyone sees it immediately, and the next owner if we die. Renews the claim."""
        return self._renewing(text, None)

    @operation
    def renew(self, *, note: str | None = None, metadata: Metadata = None) -> Flow[None]:
        """Renew now. Not needed: renewal runs in the background. Raises `LeaseLost`."""
        return self._renewing(note, metadata)

    @operation
    def transfer(self, to_owner: str, *, ttl: float | None = None, reason: str | None = None) -> Flow[JobClaim]:
        """Hand the job to another owner without a gap; the result has its lease id and fencing token."""
        try:
            return (yield from self._transferring(to_owner, ttl, reason))
        finally:
            self._after_release()

    def _transferring(self, to_owner: str, ttl: float | None, reason: str | None = None) -> Flow[JobClaim]:
        """Transfer it. It counts as released during the request, because it may be another's already."""
        self._raise_unless_held((yield NOW))
        self._deadline.end()
        how: dict[str, Any] = {"owner": self.owner, "ttl": ttl, "reason": reason}
        try:
            return (yield from lease_flows.transfer(self.job_id, self.lease_id, to_owner, self._policy, **how))
        except LeaseLost as error:
            self._deadline.resume()
            raise self._record_loss(error) from None
        except BaseException as error:
            self._deadline.resume()
            if not _is_refusal(error):  # The outcome is unknown: it may be another's by now.
                self._deadline.lose(Loss("unreachable", why="whether it was handed over is not known"))
            raise

    def _renewing(self, note: str | None, metadata: Metadata) -> Flow[None]:
        self._raise_unless_held((yield NOW))
        try:
            reply, sent = yield from lease_flows.renew(
                self.job_id, self.lease_id, self._policy, note=note, metadata=metadata
            )
        except LeaseLost as error:
            raise self._record_loss(error) from None
        self._deadline.extend(sent, reply.expires_in_ms)
        if metadata is not None:
            self._record = msgspec.structs.replace(self._record, metadata=metadata)

    @release_operation
    def release(
        self, *, outcome: str | None = None, result: str | None = None, remember: float | None = None
    ) -> Flow[None]:
        """Release the job; idempotent. It completes even if the task is cancelled meanwhile.

        `outcome` is `done` (then the job stays done for `remember` seconds) or `failed` (then it counts as an attempt).
        Raises `LeaseLost` if it was no longer ours.
        """
        self._end_as(outcome, result, remember)
        return self._releasing()

    @release_operation
    def done(self, result: str | None = None, *, remember: float = REMEMBER_SECONDS) -> Flow[None]:
        """Release the job as finished: claims within `remember` seconds get `JobDone`."""
        self._end_as("done", result, remember)
        return self._releasing()

    _release_on_exit = release

    def _end_as(self, outcome: str | None, result: str | None, remember: float | None) -> None:
        if (
            not self._deadline.ended
        ):  # A second release, by a signal handler say, must not change one that is under way.
            self._release_arguments = outcome, result, remember

    def _release(self, policy: Policy) -> Flow[None]:
        outcome, result, remember = self._release_arguments
        how: dict[str, Any] = {"owner": self.owner, "outcome": outcome, "result": result, "remember": remember}
        return lease_flows.release(self.job_id, self.lease_id, policy, **how)

    def _releasing(self) -> Flow[None]:
        """Release it once; a refused argument leaves it held. Raises `LeaseLost` if the caller was not told yet."""
        if self._belongs_to_parent():
            return
        now: Instant = yield NOW
        left_ms = self._deadline.left_ms(now)
        lost = left_ms == 0 and self._deadline.is_lost(now)
        policy = self._within(left_ms / 1_000)
        if not self._deadline.end():
            return
        if lost:
            if self._deadline.loss is not None and not self._deadline.loss.is_reported:
                # The server may still hold the lease; releasing it frees the job for the next owner.
                self._release_arguments = ("failed", None, None)
                yield from self._release_quickly()
            if self._loss_reported:
                return
            self._loss_reported = True
            raise self._deadline.error()
        try:
            yield from self._release(policy)
            self._is_released = True
        except LeaseLost as error:
            self._loss_reported = self._is_released = True
            error.fencing_token = self.fencing_token
            raise
        except (Refused, TypeError, ValueError) as error:
            if _is_refusal(error):
                self._deadline.resume()
                self._release_arguments = ("failed", None, None)
            raise

    def _within(self, left: float) -> Policy:
        """Limit a release to what is left of the lease, whose end frees the job too."""
        policy = self._policy
        if left >= policy.answer_seconds and left >= policy.retry_seconds:
            return policy
        answer_seconds = min(policy.answer_seconds, max(left, LAST_TRY_SECONDS))
        return policy.with_short_timeouts(answer_seconds, retry_seconds=min(policy.retry_seconds, left))

    def _release_quickly(self) -> Flow[None]:
        """Release it quickly if it is not released: after an interrupt, or at exit."""
        if self._is_released or self._is_forked_copy:
            return
        self._deadline.end()
        try:
            yield from self._release(self._policy.with_short_timeouts(LAST_TRY_SECONDS))
        except (HoldfastError, TypeError, ValueError) as error:
            log.info("%s could not be given back in haste: %s", self._deadline.name, error)
        self._is_released = True

    def _record_loss(self, error: LeaseLost) -> LeaseLost:
        """Mark it lost as the server reported, and return the exception."""
        self._deadline.lose(Loss(error.reason, error.by, error.why, is_reported=True))
        self._loss_reported = True
        return self._deadline.error()

    @property
    def _renewal(self) -> lease_flows.Renewal:
        return lease_flows.Renewal(self.lease_id, self.job_id)

    def _after_release(self) -> None:
        """Stop renewing it, unless a refusal left it ours."""
        self._stop()
        if not self._deadline.ended and not self._is_forked_copy:
            self._renewal_handle = self._start_renewal()


def _is_refusal(error: BaseException) -> bool:
    """Whether nothing was done: the server refused it, or an argument cannot be sent.

    A `SettingsError` is a `ValueError`, but not about an argument: with several addresses, it may be the second one
    that cannot be asked, after the answer of the first was lost.
    """
    return isinstance(error, Refused | TypeError | ValueError) and not isinstance(error, SettingsError)


H = TypeVar("H", bound=HeldClaim)


class ClaimGroup(Generic[H]):
    """Claims that were granted together. The group is lost with the first of them."""

    _ending_word = "released"

    def __init__(self, claims: Sequence[H]) -> None:
        self._claims = tuple(claims)
        self._deadlines = [claim._deadline for claim in claims]  # noqa: SLF001 - its own parts

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
    def fencing_tokens(self) -> dict[str, int]:
        """The fencing token of each job."""
        return {claim.job_id: claim.fencing_token for claim in self._claims}

    @property
    def remaining(self) -> float:
        """Seconds until the first of them may be lost."""
        return min(claim.remaining for claim in self._claims)

    @property
    def refused(self) -> str | None:
        """Why the server refused the last renewal of one of them; None if it did not."""
        return next((why for deadline in self._deadlines if (why := deadline.refused) is not None), None)

    def raise_if_lost(self) -> None:
        """Raise `LeaseLost` if any of them is no longer ours."""
        for claim in self._claims:
            claim.raise_if_lost()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(claim.job_id for claim in self._claims)}>"

    @operation
    def note(self, text: str) -> Flow[None]:
        """Publish progress on each of them."""
        for claim in self._claims:
            yield from claim._renewing(text, None)  # noqa: SLF001 - its own parts

    @release_operation
    def release(
        self, *, outcome: str | None = None, result: str | None = None, remember: float | None = None
    ) -> Flow[None]:
        """Release all of them; raises the first error after all were tried."""
        for claim in self._claims:
            claim._end_as(outcome, result, remember)  # noqa: SLF001 - its own parts
        return self._releasing()

    _release_on_exit = release

    def _releasing(self) -> Flow[None]:
        """Release all of them in one flow, so that an interrupt leaves none behind."""
        problem: BaseException | None = None
        for claim in self._claims:
            try:
                yield from claim._releasing()  # noqa: SLF001 - its own parts
            except HoldfastError as error:
                problem = problem or error
            except (Exception, GeneratorExit):
                raise
            except BaseException as interrupt:  # noqa: BLE001 - raised again when all are released
                problem = interrupt
        if problem is not None:
            try:
                raise problem
            finally:
                del problem  # A reference cycle of frame and error would keep all of these claims.

    def _release_quickly(self) -> Flow[None]:
        for claim in self._claims:
            yield from claim._release_quickly()  # noqa: SLF001 - its own parts

    def _stop(self) -> None:
        for claim in self._claims:
            claim._stop()  # noqa: SLF001 - its own parts

    def _after_release(self) -> None:
        for claim in self._claims:
            claim._after_release()  # noqa: SLF001 - its own parts

    @property
    def _title(self) -> str:
        return f"one of the claims on {', '.join(self.fencing_tokens)}"

    def _loss(self) -> LeaseLost:
        lost = [deadline for deadline in self._deadlines if deadline.loss is not None]
        return (lost or self._deadlines)[0].error()


class HeldSession(Held, Generic[H]):
    _ending_word = "ended"
    _dropped_word = "was dropped while it lived"

    def __init__(self, policy: Policy, opened: SessionOpenedReply, deadline: LeaseDeadline) -> None:
        super().__init__(policy, deadline)
        self._record = opened_session(opened, policy.url)
        self._members: WeakSet[H] = WeakSet()
        self._joining = threading.RLock()
        deadline.on_loss(partial(_lose_members, ref(self)))

    session_id = _OfRecord[str]("session_id", "Its id.")
    name = _OfRecord[str | None]("name", "Its name.")
    metadata = _OfRecord[Metadata]("metadata", "What was attached to it.")
    secret = _OfRecord[str]("secret", "A bearer token for this session alone: for a child process, not for logs.")
    url = _OfRecord[str]("url", "Its address for others: the server's `public_url` if it has one, else our own.")
    environment = _OfRecord[dict[str, str]]("environment", "What a child process needs for `rlock` and its variants.")

    def __repr__(self) -> str:  # Everything but the secret.
        return f"<{type(self).__name__} {self.name or self.session_id!r}, {self._state}>"

    def _adopt(self, got: T) -> T:
        """Register a claim or several, so that they are not renewed after the session's end."""
        members: Any = got if isinstance(got, ClaimGroup) else [got]
        for held in members:
            with self._joining:
                self._members.add(held)
            held._session = self  # noqa: SLF001 - one of ours
        self._lose_members()  # It may have ended since the claim was requested.
        return got

    def _lose_members(self) -> None:
        """Mark all its claims lost if the server reported its end, which ended them too (S2)."""
        loss = self._deadline.loss
        if loss is not None and loss.is_reported:
            for held in self._joined():
                held._deadline.lose(Loss("session_ended", loss.by, is_reported=True))  # noqa: SLF001 - one of ours

    def _joined(self) -> tuple[H, ...]:
        with self._joining:
            return tuple(self._members)

    @release_operation
    def end(self) -> Flow[None]:
        """End the session and all of its claims in one step; idempotent.

        Raises `LeaseLost` if it had ended by itself and the caller was not told yet.
        """
        return self._ending()

    @release_operation
    def _release_on_exit(self, *, outcome: str | None) -> Flow[None]:  # noqa: ARG002 - a session ends in one way
        return self._ending()

    def _ending(self) -> Flow[None]:
        if self._belongs_to_parent():
            return
        lost = self._deadline.is_lost((yield NOW))
        if not self._deadline.end():
            return
        for held in self._joined():
            held._deadline.end()  # noqa: SLF001 - one of ours
        policy = self._policy.with_short_timeouts(LAST_TRY_SECONDS) if lost else self._policy
        try:
            yield from lease_flows.end_session(self.session_id, policy)
            self._is_released = True
        except HoldfastError as error:
            if not lost and not (isinstance(error, Refused) and error.status in _GONE):
                raise
            if not lost and not self._loss_reported:
                self._loss_reported = True  # It had ended before, and its claims with it.
                raise lost_error(self._deadline.name, Loss("session_ended", is_reported=True)) from None
        if lost and not self._loss_reported:
            self._loss_reported = True
            raise self._deadline.error()

    def _release_quickly(self) -> Flow[None]:
        """End it quickly if it has not ended: after an interrupt, or at exit."""
        if self._is_released or self._is_forked_copy:
            return
        self._deadline.end()
        for held in tuple(self._members):
            held._deadline.end()  # noqa: SLF001 - one of ours
        try:
            yield from lease_flows.end_session(self.session_id, self._policy.with_short_timeouts(LAST_TRY_SECONDS))
        except HoldfastError as error:
            log.info("%s could not be ended in haste: %s", self._deadline.name, error)
        self._is_released = True

    @property
    def _renewal(self) -> lease_flows.Renewal:
        return lease_flows.Renewal(self.session_id, None, self.secret)

    def _after_release(self) -> None:
        """Stop renewing it and its claims."""
        self._stop()
        for held in tuple(self._members):
            held._stop()  # noqa: SLF001 - one of ours


def _lose_members(session: ref[HeldSession[Any]]) -> None:
    held = session()
    if held is not None:
        held._lose_members()  # noqa: SLF001 - one of ours
