"""The verbs that claim, with all their options: written once, for both clients. `sessions` has those of sessions.

Every option is a parameter of its own, so that `help()` and editors show it. The functions of the module repeat them
for their users; a test compares all of them with each other and with `values/options.py`.

What a verb gives differs between the twins: a client for threads gives the claim itself, one for coroutines something
that can be awaited or entered. So both are type variables here, and each twin says how it holds what it got.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeVar, overload

import msgspec

from holdfast.client import owners
from holdfast.client.common.client import JOB_TTL_SECONDS, Client
from holdfast.client.common.decorator import Skipping
from holdfast.client.flows import claiming
from holdfast.client.flows.claiming import Got
from holdfast.client.flows.effects import Flow, Policy, Trail
from holdfast.client.values.arguments import names
from holdfast.client.values.options import OnWait, Wanted, wanted
from holdfast.client.values.records import Metadata

T_co = TypeVar("T_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])
AnyClaim = TypeVar("AnyClaim")
"""A claim: `Claim` or `AsyncClaim`."""
AnyClaims = TypeVar("AnyClaims")
"""Several claims: `Claims` or `AsyncClaims`."""
GotClaim = TypeVar("GotClaim")
"""What the verbs for one claim give: it, or what can be awaited for it."""
GotClaims = TypeVar("GotClaims")
"""The same for several claims."""
GotJobClaim = TypeVar("GotJobClaim")
"""The same for a `JobClaim`."""
GotJobClaims = TypeVar("GotJobClaims")
"""The same for a list of them."""


class Ask(Protocol[T_co]):
    """Makes the flow that asks for a claim."""

    def __call__(self, terms: Wanted, policy: Policy, trail: Trail | None = None, /) -> Flow[T_co]: ...


class ClaimingClient(Client, Generic[AnyClaim, AnyClaims, GotClaim, GotClaims, GotJobClaim, GotJobClaims]):
    """The part of a client that claims."""

    @abstractmethod
    def _hold(self, ask: Ask[Got], terms: Wanted, on_lost: Callable[[AnyClaim], object] | None) -> GotClaim:
        """Claim, and keep it renewed."""

    @abstractmethod
    def _hold_all(self, ask: Ask[list[Got]], terms: Wanted, on_lost: Callable[[AnyClaims], object] | None) -> GotClaims:
        """Claim several, and keep them renewed."""

    @abstractmethod
    def _hand_over(self, ask: Ask[Got], terms: Wanted) -> GotJobClaim:
        """Claim, and leave it to the caller to renew."""

    @abstractmethod
    def _hand_over_all(self, ask: Ask[list[Got]], terms: Wanted) -> GotJobClaims:
        """Claim several, and leave it to the caller to renew them."""

    @abstractmethod
    def _decorator(
        self, job_id: str, claim: Callable[[str], GotClaim], *, remember: float | None, skip: bool
    ) -> Callable[[F], F]:
        """Return what lets a function run only while a job is ours."""

    def _named(self, terms: Wanted, worker: object) -> Wanted:
        """Put a name on a claim that has none: the client's, else that of the thread or task that claims."""
        if terms.owner:
            return terms
        return msgspec.structs.replace(terms, owner=self._owner or owners.owner_of(worker))

    def claim(
        self,
        job_id: str,
        *,
        ttl: float | None = None,
        wait: float | None = None,
        owner: str | None = None,
        metadata: Metadata = None,
        labels: Mapping[str, str] | None = None,
        resume: bool = False,
        redo: bool = False,
        lock_delay: float = 0,
        session: str | None = None,
        on_wait: OnWait | None = None,
        on_lost: Callable[[AnyClaim], object] | None = None,
    ) -> GotClaim:
        """Claim a job and keep it renewed. Raises `JobHeld`, `NotInTime`, `JobDone`, `Deadlock`.

        `ttl` is the life of the lease in seconds (the server's default, which is 60), `wait` how long to stand in line
        for it. `owner` is the name that others see, `metadata` what they see with it, `labels` what they find it by.
        `resume` asks for one's own live claim back, `redo` claims a job although it is done. `lock_delay` keeps the job
        closed for so many seconds after any end. `session` is the id of a session that the claim ends with. `on_wait`
        is called with the place in the line every few seconds. `on_lost` is called when the claim is lost: by
        `Holdfast` in a thread of its own, by `AsyncHoldfast` on the event loop, which awaits what it returns.
        """
        terms = wanted(
            ttl=ttl,
            wait=wait,
            owner=owner,
            metadata=metadata,
            labels=labels,
            resume=resume,
            redo=redo,
            lock_delay=lock_delay,
            session=session,
            on_wait=on_wait,
        )
        return self._hold(partial(claiming.claim, job_id), terms, on_lost)

    def claim_any(
        self,
        job_ids: Sequence[str],
        *,
        ttl: float | None = None,
        wait: float | None = None,
        owner: str | None = None,
        metadata: Metadata = None,
        labels: Mapping[str, str] | None = None,
        redo: bool = False,
        lock_delay: float = 0,
        session: str | None = None,
        on_wait: OnWait | None = None,
        on_lost: Callable[[AnyClaim], object] | None = None,
    ) -> GotClaim:
        """Claim the first free job of a list and keep it renewed: how a worker takes work from a backlog.

        Finished jobs are passed over. Raises `JobHeld` with `others`, or `JobDone` when only finished ones are left.
        With `wait` it asks again and again; there is no line for this. The options are those of `claim`.
        """
        terms = wanted(
            ttl=ttl,
            wait=wait,
            owner=owner,
            metadata=metadata,
            labels=labels,
            redo=redo,
            lock_delay=lock_delay,
            session=session,
            on_wait=on_wait,
        )
        return self._hold(partial(claiming.claim_any, names(job_ids)), terms, on_lost)

    def claim_all(
        self,
        job_ids: Sequence[str],
        *,
        ttl: float | None = None,
        wait: float | None = None,
        owner: str | None = None,
        metadata: Metadata = None,
        labels: Mapping[str, str] | None = None,
        redo: bool = False,
        lock_delay: float = 0,
        session: str | None = None,
        on_wait: OnWait | None = None,
        on_lost: Callable[[AnyClaims], object] | None = None,
    ) -> GotClaims:
        """Claim every job of a list or none, and keep all of them renewed. Options and exceptions as of `claim`."""
        terms = wanted(
            ttl=ttl,
            wait=wait,
            owner=owner,
            metadata=metadata,
            labels=labels,
            redo=redo,
            lock_delay=lock_delay,
            session=session,
            on_wait=on_wait,
        )
        return self._hold_all(partial(claiming.claim_all, names(job_ids)), terms, on_lost)

    @overload
    def exclusive(
        self,
        job_id: str,
        *,
        remember: float | None = None,
        skip: Literal[False] = False,
        ttl: float | None = None,
        wait: float | None = None,
        owner: str | None = None,
        metadata: Metadata = None,
        labels: Mapping[str, str] | None = None,
        resume: bool = False,
        redo: bool = False,
        lock_delay: float = 0,
        on_wait: OnWait | None = None,
    ) -> Callable[[F], F]: ...
    @overload
    def exclusive(
        self,
        job_id: str,
        *,
        remember: float | None = None,
        skip: Literal[True],
        ttl: float | None = None,
        wait: float | None = None,
        owner: str | None = None,
        metadata: Metadata = None,
        labels: Mapping[str, str] | None = None,
        resume: bool = False,
        redo: bool = False,
        lock_delay: float = 0,
        on_wait: OnWait | None = None,
    ) -> Skipping: ...
    def exclusive(
        self,
        job_id: str,
        *,
        remember: float | None = None,
        skip: bool = False,
        ttl: float | None = None,
        wait: float | None = None,
        owner: str | None = None,
        metadata: Metadata = None,
        labels: Mapping[str, str] | None = None,
        resume: bool = False,
        redo: bool = False,
        lock_delay: float = 0,
        on_wait: OnWait | None = None,
    ) -> Callable[[F], F] | Skipping:
        """Let a function run only while this job is ours; a coroutine function, if the client is `AsyncHoldfast`.

        `{date}` in `job_id` is today's date (UTC), `{name}` any argument of the call. With `remember` the job counts as
        done for so many seconds once the function has returned. Raises `JobHeld` or `JobDone` instead of calling it;
        with `skip` it returns None and logs the reason. The other options are those of `claim`.
        """
        claim = partial(
            self.claim,
            ttl=ttl,
            wait=wait,
            owner=owner,
            metadata=metadata,
            labels=labels,
            resume=resume,
            redo=redo,
            lock_delay=lock_delay,
            on_wait=on_wait,
        )
        return self._decorator(job_id, claim, remember=remember, skip=skip)

    def claim_job(
        self,
        job_id: str,
        owner: str | None = None,
        metadata: Metadata = None,
        ttl: float | None = JOB_TTL_SECONDS,
        *,
        wait: float | None = None,
        labels: Mapping[str, str] | None = None,
        resume: bool = False,
        redo: bool = False,
        lock_delay: float = 0,
        session: str | None = None,
        on_wait: OnWait | None = None,
    ) -> GotJobClaim:
        """Claim a job and leave it to the caller to renew. Options and exceptions as of `claim`."""
        terms = wanted(
            ttl=ttl,
            wait=wait,
            owner=owner,
            metadata=metadata,
            labels=labels,
            resume=resume,
            redo=redo,
            lock_delay=lock_delay,
            session=session,
            on_wait=on_wait,
        )
        return self._hand_over(partial(claiming.claim, job_id), terms)

    def claim_any_job(
        self,
        job_ids: Sequence[str],
        *,
        ttl: float | None = JOB_TTL_SECONDS,
        wait: float | None = None,
        owner: str | None = None,
        metadata: Metadata = None,
        labels: Mapping[str, str] | None = None,
        redo: bool = False,
        lock_delay: float = 0,
        session: str | None = None,
        on_wait: OnWait | None = None,
    ) -> GotJobClaim:
        """Claim the first free job of a list and leave it to the caller to renew. Raises as `claim_any`."""
        terms = wanted(
            ttl=ttl,
            wait=wait,
            owner=owner,
            metadata=metadata,
            labels=labels,
            redo=redo,
            lock_delay=lock_delay,
            session=session,
            on_wait=on_wait,
        )
        return self._hand_over(partial(claiming.claim_any, names(job_ids)), terms)

    def claim_all_jobs(
        self,
        job_ids: Sequence[str],
        *,
        ttl: float | None = JOB_TTL_SECONDS,
        wait: float | None = None,
        owner: str | None = None,
        metadata: Metadata = None,
        labels: Mapping[str, str] | None = None,
        redo: bool = False,
        lock_delay: float = 0,
        session: str | None = None,
        on_wait: OnWait | None = None,
    ) -> GotJobClaims:
        """Claim every job of a list or none, and leave it to the caller to renew each. Raises as `claim_all`."""
        terms = wanted(
            ttl=ttl,
            wait=wait,
            owner=owner,
            metadata=metadata,
            labels=labels,
            redo=redo,
            lock_delay=lock_delay,
            session=session,
            on_wait=on_wait,
        )
        return self._hand_over_all(partial(claiming.claim_all, names(job_ids)), terms)
