"""The client for threads: every operation is a flow, driven here over sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.client import owners
from holdfast.client.common import decorator
from holdfast.client.common.claiming import Ask, ClaimingClient
from holdfast.client.common.client import HISTORY_LIMIT, TTL_SECONDS
from holdfast.client.flows import leases, operators, reading
from holdfast.client.flows import sessions as session_flows
from holdfast.client.flows.claiming import Got
from holdfast.client.flows.effects import Flow, Trail
from holdfast.client.flows.following import Follower, OnAway
from holdfast.client.threads.claim import Claim, Claims
from holdfast.client.threads.link import Link
from holdfast.client.threads.session import Session
from holdfast.client.threads.several import way_to
from holdfast.client.threads.transport import Transport
from holdfast.client.values.arguments import whole_seconds
from holdfast.client.values.moments import JobsThen
from holdfast.client.values.options import Wanted
from holdfast.client.values.records import (
    Happened,
    JobClaim,
    JobOwner,
    JobStatus,
    Metadata,
    OpenedSession,
    SessionInfo,
    opened_session,
    plain_labels,
)
from holdfast.wire.replies import StatusReply, TokenMadeReply, TokenReply, WhyReply

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Holdfast(ClaimingClient[Claim, Claims, Claim, Claims, JobClaim, list[JobClaim]]):
    """A client of one server, for any number of threads. Close it, or use it as a context manager.

    >>> with Holdfast() as holdfast, holdfast.claim("github-issue-1842", ttl=120) as claim:
    ...     push(branch, fencing_token=claim.token)
    """

    def _prepare(self) -> None:
        self._transport: Transport = way_to(self._target, environment=self._environment)
        self._link = Link(self._transport, self._policy)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Claims that are still held go on being renewed."""
        self._transport.close()

    def _run(self, flow: Flow[T]) -> T:
        return self._link.run(flow)

    # Claiming.

    def _hold(self, ask: Ask[Got], terms: Wanted, on_lost: Callable[[Claim], object] | None) -> Claim:
        return self._link.hold(self._flow(ask, terms), lambda got: Claim(self._link, got, on_lost))

    def _hold_all(self, ask: Ask[list[Got]], terms: Wanted, on_lost: Callable[[Claims], object] | None) -> Claims:
        return self._link.hold(self._flow(ask, terms), lambda gots: Claims(self._link, gots, on_lost))

    def _hand_over(self, ask: Ask[Got], terms: Wanted) -> JobClaim:
        return self._link.hold(self._flow(ask, terms), _record)

    def _hand_over_all(self, ask: Ask[list[Got]], terms: Wanted) -> list[JobClaim]:
        return self._link.hold(self._flow(ask, terms), lambda gots: list(map(_record, gots)))

    def _flow(self, ask: Ask[T], terms: Wanted) -> Callable[[Trail], Flow[T]]:
        return partial(ask, self._named(terms, threading.current_thread()), self._policy)

    def _decorator(
        self, job_id: str, claim: Callable[[str], Claim], *, remember: float | None, skip: bool
    ) -> Callable[[F], F]:
        return decorator.for_function(job_id, claim, remember=remember, skip=skip)

    def session(
        self,
        name: str | None = None,
        *,
        ttl: float = TTL_SECONDS,
        metadata: Metadata = None,
        on_lost: Callable[[Session], object] | None = None,
    ) -> Session:
        """Open a session and keep it alive: claims made through it all end with it.

        `name` is what others see of it, and `metadata` what they see with it. `ttl` is its life in seconds if this
        process dies. `on_lost` is called when the session is lost: by `Holdfast` in a thread of its own, by
        `AsyncHoldfast` on the event loop, which awaits what it returns.
        """
        options: dict[str, Any] = {"name": name, "ttl_seconds": whole_seconds(ttl), "metadata": metadata}
        flow = partial(session_flows.open_session, self._policy, **options)
        return self._link.hold(flow, lambda opened: Session(self._link, self, *opened, on_lost))

    # Claims by their lease id and sessions by their id: for those who renew themselves.

    def heartbeat_job(
        self,
        job_id: str,
        lease_id: str,
        *,
        ttl: float | None = None,
        note: str | None = None,
        metadata: Metadata = None,
    ) -> float:
        """Renew a claim for its own ttl, or another; return how many seconds it lives. Raises `LeaseLost`."""
        flow = leases.renew(job_id, lease_id, self._policy, ttl=ttl, note=note, metadata=metadata)
        return self._run(flow)[0].expires_in_ms / 1_000

    def release_job(
        self,
        job_id: str,
        lease_id: str,
        *,
        outcome: str | None = None,
        result: str | None = None,
        remember: float | None = None,
    ) -> None:
        """Give a claim back; a second time is harmless. Raises `LeaseLost` if it had ended in another way."""
        owner = owners.owner_of(threading.current_thread())
        flow = leases.release(
            job_id, lease_id, self._policy, owner=owner, outcome=outcome, result=result, remember=remember
        )
        self._run(flow)

    def transfer_job(
        self, job_id: str, lease_id: str, to_owner: str, *, ttl: float | None = None, reason: str | None = None
    ) -> JobClaim:
        """Hand a claim to another owner without a gap. Raises `LeaseLost`."""
        owner = owners.owner_of(threading.current_thread())
        flow = leases.transfer(job_id, lease_id, to_owner, self._policy, owner=owner, ttl=ttl, reason=reason)
        return self._run(flow)

    def claim_secret(self, job_id: str, lease_id: str) -> str:
        """Return a token for a command that works on a claim: it can only look at, renew and release what that holds.

        It dies with the claim, and with the token of this client. Raises `LeaseLost`.
        """
        return self._run(leases.claim_secret(job_id, lease_id, self._policy))

    def open_session(
        self, name: str | None = None, *, ttl: float = TTL_SECONDS, metadata: Metadata = None
    ) -> OpenedSession:
        """Open a session and leave it to the caller to keep it alive: any call with its secret does.

        Claims that are made with `session=` its id end with it. `end_session` ends it.
        """
        options: dict[str, Any] = {"name": name, "ttl_seconds": whole_seconds(ttl), "metadata": metadata}
        flow = partial(session_flows.open_session, self._policy, **options)
        return self._link.hold(flow, lambda opened: opened_session(opened[0], self.url))

    # Asking.

    def get_job_owner(self, job_id: str) -> JobOwner | None:
        """Return who owns a job; None if nobody does."""
        return self._run(reading.status(job_id, self._policy)).owner

    def job(self, job_id: str) -> JobStatus:
        """Return all that is known of a job."""
        return self._run(reading.status(job_id, self._policy))

    def list_claimed_jobs(
        self,
        prefix: str | None = None,
        *,
        owner: str | None = None,
        session: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> list[JobOwner]:
        """List the claimed jobs, ordered by name: all of them, or the first `limit`."""
        flow = reading.jobs(
            self._policy, prefix=prefix, owner=owner, session=session, labels=plain_labels(labels), limit=limit
        )
        return self._run(flow)

    def list_claimed_jobs_at(
        self,
        at: datetime | str,
        prefix: str | None = None,
        *,
        owner: str | None = None,
        session: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> JobsThen:
        """List who had which job at a moment of the kept history, ordered by name: all of them, or the first `limit`.

        `at` is a `datetime`, in local time if it has no zone, or a text in RFC 3339. Raises `Refused` for a moment in
        the future, and for one whose history is not kept any more.
        """
        flow = reading.jobs_then(
            at, self._policy, prefix=prefix, owner=owner, session=session, labels=plain_labels(labels), limit=limit
        )
        return self._run(flow)

    def history(
        self,
        job_id: str,
        *,
        limit: int = HISTORY_LIMIT,
        owner: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> list[Happened]:
        """Return what happened to a job, newest first. `since` and `until` are times in RFC 3339."""
        flow = reading.history(job_id, self._policy, limit=limit, owner=owner, since=since, until=until)
        return self._run(flow)

    def why(self, job_id: str) -> WhyReply:
        """Say why a job cannot be had: the chain from it to the owner everybody waits for."""
        return self._run(reading.why(job_id, self._policy))

    def check(self, job_id: str, token: int) -> bool:
        """Tell whether a fencing token is that of the live claim."""
        return self._run(reading.check(job_id, token, self._policy))

    def events(
        self,
        prefix: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        after: int | None = None,
        on_away: OnAway | None = None,
    ) -> Iterator[Happened]:
        """Follow everything that happens but renewals, for ever, through broken connections.

        `after` is the `seq` of the last event one has seen; without it, it begins now. What the server no longer keeps
        comes as an event `resync`. `on_away` is called with the reason if the server is away, and with None when it is
        back.
        """
        follower = Follower(self._policy, prefix, after, plain_labels(labels), on_away)
        try:
            while True:
                yield from self._run(follower.more())
        finally:
            self._run(follower.close())

    def server_status(self) -> StatusReply:
        """Ask the server how it is."""
        return self._run(reading.server_status(self._policy))

    # Operators.

    def revoke(self, job_id: str, reason: str) -> None:
        """End somebody's claim; that one is told who did it and why. Needs the scope admin."""
        self._run(operators.revoke(job_id, reason, self._policy))

    def reopen(self, job_id: str, reason: str | None = None) -> None:
        """Let finished work be claimed again. Needs the scope admin."""
        self._run(operators.reopen(job_id, reason, self._policy))

    def sessions(self) -> list[SessionInfo]:
        """List one's sessions."""
        return self._run(session_flows.sessions(self._policy))

    def end_session(self, session_id: str) -> None:
        """End a session and all that is bound to it."""
        self._run(session_flows.end_session(session_id, self._policy))

    def create_token(
        self,
        name: str,
        *,
        scopes: Sequence[str] | None = None,
        prefix: str | None = None,
        expires_in_seconds: int | None = None,
    ) -> TokenMadeReply:
        """Make a token; this is the only time it is shown. Needs the scope admin."""
        flow = operators.create_token(
            name, self._policy, scopes=scopes, prefix=prefix, expires_in_seconds=expires_in_seconds
        )
        return self._run(flow)

    def list_tokens(self) -> list[TokenReply]:
        """List the tokens, without the tokens. Needs the scope admin."""
        return self._run(operators.list_tokens(self._policy))

    def revoke_token(self, name: str, *, keep_sessions: bool = False) -> None:
        """Shut a token out, with its sessions unless they are kept for the next one. Needs the scope admin."""
        self._run(operators.revoke_token(name, self._policy, keep_sessions=keep_sessions))

    def rotate_token(
        self,
        name: str,
        *,
        keep_sessions: bool = False,
        expires_in_seconds: int | None = None,
        never_expires: bool = False,
    ) -> TokenMadeReply:
        """Let another token of the same name and rights take the place of one. Needs the scope admin.

        It lives as long as the old one was to live, unless told otherwise. This is the only time it is shown.
        """
        flow = operators.rotate_token(
            name,
            self._policy,
            keep_sessions=keep_sessions,
            expires_in_seconds=expires_in_seconds,
            never_expires=never_expires,
        )
        return self._run(flow)


def _record(got: Got) -> JobClaim:
    return got.claim
