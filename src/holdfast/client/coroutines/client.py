"""The client for coroutines: every operation is a flow, driven here over aiohttp."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from holdfast.client import owners
from holdfast.client.common import decorator
from holdfast.client.common.claiming import Ask, ClaimingClient
from holdfast.client.common.client import HISTORY_LIMIT, TTL_SECONDS
from holdfast.client.coroutines.acquiring import Acquiring
from holdfast.client.coroutines.background import BackgroundLoop
from holdfast.client.coroutines.claim import AsyncClaim, AsyncClaims
from holdfast.client.coroutines.link import AsyncLink
from holdfast.client.coroutines.session import AsyncSession
from holdfast.client.flows import leases, operators, reading
from holdfast.client.flows import sessions as session_flows
from holdfast.client.flows.claiming import Got
from holdfast.client.flows.effects import Flow
from holdfast.client.flows.following import Follower, OnAway
from holdfast.client.values.arguments import whole_seconds
from holdfast.client.values.moments import JobsThen
from holdfast.client.values.options import ClaimOptions, Wanted
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

if TYPE_CHECKING:
    from holdfast.client.coroutines.transport import AsyncTransport

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class AsyncHoldfast(
    ClaimingClient[
        AsyncClaim,
        AsyncClaims,
        Acquiring[AsyncClaim],
        Acquiring[AsyncClaims],
        Coroutine[Any, Any, JobClaim],
        Coroutine[Any, Any, list[JobClaim]],
    ]
):
    """A client of one server, for the coroutines of one event loop. Close it, or use it as an async context manager.

    >>> async with AsyncHoldfast() as holdfast, holdfast.claim("github-issue-1842", ttl=120) as claim:
    ...     await push(branch, fencing_token=claim.token)
    """

    def _prepare(self) -> None:
        self._transport = _way_to()(self._target, environment=self._environment)
        self._background = BackgroundLoop()
        self._link = AsyncLink(self._transport, self._policy, self._background)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Claims that are still held are not renewed any more."""
        self._background.close()
        await self._link.close()
        await self._transport.close()

    async def _run(self, flow: Flow[T]) -> T:
        return await self._link.run(flow)

    # Claiming.

    def _hold(
        self, ask: Ask[Got], terms: Wanted, on_lost: Callable[[AsyncClaim], object] | None
    ) -> Acquiring[AsyncClaim]:
        async def get() -> AsyncClaim:
            return AsyncClaim(self._link, await self._asked(ask, terms), on_lost)

        return Acquiring(get)

    def _hold_all(
        self, ask: Ask[list[Got]], terms: Wanted, on_lost: Callable[[AsyncClaims], object] | None
    ) -> Acquiring[AsyncClaims]:
        async def get() -> AsyncClaims:
            return AsyncClaims(self._link, await self._asked(ask, terms), on_lost)

        return Acquiring(get)

    async def _hand_over(self, ask: Ask[Got], terms: Wanted) -> JobClaim:
        return (await self._asked(ask, terms)).claim

    async def _hand_over_all(self, ask: Ask[list[Got]], terms: Wanted) -> list[JobClaim]:
        return [got.claim for got in await self._asked(ask, terms)]

    async def _asked(self, ask: Ask[T], terms: Wanted) -> T:
        return await self._run(ask(self._named(terms, asyncio.current_task()), self._policy))

    def _decorator(
        self, job_id: str, claim: Callable[[str], Acquiring[AsyncClaim]], *, remember: float | None, skip: bool
    ) -> Callable[[F], F]:
        return decorator.for_coroutine(job_id, claim, remember=remember, skip=skip)

    def session(
        self,
        name: str | None = None,
        *,
        ttl: float = TTL_SECONDS,
        metadata: Metadata = None,
        on_lost: Callable[[AsyncSession], object] | None = None,
    ) -> Acquiring[AsyncSession]:
        """Open a session and keep it alive: claims made through it all end with it.

        `name` is what others see of it, and `metadata` what they see with it. `ttl` is its life in seconds if this
        process dies. `on_lost` is called when the session is lost: by `Holdfast` in a thread of its own, by
        `AsyncHoldfast` on the event loop, which awaits what it returns.
        """

        async def get() -> AsyncSession:
            flow = session_flows.open_session(
                self._policy, name=name, ttl_seconds=whole_seconds(ttl), metadata=metadata
            )
            return AsyncSession(self._link, self, *(await self._run(flow)), on_lost)

        return Acquiring(get)

    # Claims by their lease id and sessions by their id: for those who renew themselves.

    async def heartbeat_job(
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
        return (await self._run(flow))[0].expires_in_ms / 1_000

    async def release_job(
        self,
        job_id: str,
        lease_id: str,
        *,
        outcome: str | None = None,
        result: str | None = None,
        remember: float | None = None,
    ) -> None:
        """Give a claim back; a second time is harmless. Raises `LeaseLost` if it had ended in another way."""
        owner = owners.owner_of(asyncio.current_task())
        flow = leases.release(
            job_id, lease_id, self._policy, owner=owner, outcome=outcome, result=result, remember=remember
        )
        await self._run(flow)

    async def transfer_job(
        self, job_id: str, lease_id: str, to_owner: str, *, ttl: float | None = None, reason: str | None = None
    ) -> JobClaim:
        """Hand a claim to another owner without a gap. Raises `LeaseLost`."""
        owner = owners.owner_of(asyncio.current_task())
        flow = leases.transfer(job_id, lease_id, to_owner, self._policy, owner=owner, ttl=ttl, reason=reason)
        return await self._run(flow)

    async def claim_secret(self, job_id: str, lease_id: str) -> str:
        """Return a token for a command that works on a claim: it can only look at, renew and release what that holds.

        It dies with the claim, and with the token of this client. Raises `LeaseLost`.
        """
        return await self._run(leases.claim_secret(job_id, lease_id, self._policy))

    async def open_session(
        self, name: str | None = None, *, ttl: float = TTL_SECONDS, metadata: Metadata = None
    ) -> OpenedSession:
        """Open a session and leave it to the caller to keep it alive: any call with its secret does.

        Claims that are made with `session=` its id end with it. `end_session` ends it.
        """
        flow = session_flows.open_session(self._policy, name=name, ttl_seconds=whole_seconds(ttl), metadata=metadata)
        reply, _ = await self._run(flow)
        return opened_session(reply, self.url)

    # Asking.

    async def get_job_owner(self, job_id: str) -> JobOwner | None:
        """Return who owns a job; None if nobody does."""
        return (await self._run(reading.status(job_id, self._policy))).owner

    async def job(self, job_id: str) -> JobStatus:
        """Return all that is known of a job."""
        return await self._run(reading.status(job_id, self._policy))

    async def list_claimed_jobs(
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
        return await self._run(flow)

    async def list_claimed_jobs_at(
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
        return await self._run(flow)

    async def history(
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
        return await self._run(flow)

    async def why(self, job_id: str) -> WhyReply:
        """Say why a job cannot be had: the chain from it to the owner everybody waits for."""
        return await self._run(reading.why(job_id, self._policy))

    async def check(self, job_id: str, token: int) -> bool:
        """Tell whether a fencing token is that of the live claim."""
        return await self._run(reading.check(job_id, token, self._policy))

    async def events(
        self,
        prefix: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        after: int | None = None,
        on_away: OnAway | None = None,
    ) -> AsyncIterator[Happened]:
        """Follow everything that happens but renewals, for ever, through broken connections.

        `after` is the `seq` of the last event one has seen; without it, it begins now. What the server no longer keeps
        comes as an event `resync`. `on_away` is called with the reason if the server is away, and with None when it is
        back.
        """
        follower = Follower(self._policy, prefix, after, plain_labels(labels), on_away)
        try:
            while True:
                for event in await self._run(follower.more()):
                    yield event
        finally:
            await self._run(follower.close())

    async def server_status(self) -> StatusReply:
        """Ask the server how it is."""
        return await self._run(reading.server_status(self._policy))

    # Operators.

    async def revoke(self, job_id: str, reason: str) -> None:
        """End somebody's claim; that one is told who did it and why. Needs the scope admin."""
        await self._run(operators.revoke(job_id, reason, self._policy))

    async def reopen(self, job_id: str, reason: str | None = None) -> None:
        """Let finished work be claimed again. Needs the scope admin."""
        await self._run(operators.reopen(job_id, reason, self._policy))

    async def sessions(self) -> list[SessionInfo]:
        """List one's sessions."""
        return await self._run(session_flows.sessions(self._policy))

    async def end_session(self, session_id: str) -> None:
        """End a session and all that is bound to it."""
        await self._run(session_flows.end_session(session_id, self._policy))

    async def create_token(
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
        return await self._run(flow)

    async def list_tokens(self) -> list[TokenReply]:
        """List the tokens, without the tokens. Needs the scope admin."""
        return await self._run(operators.list_tokens(self._policy))

    async def revoke_token(self, name: str, *, keep_sessions: bool = False) -> None:
        """Shut a token out, with its sessions unless they are kept for the next one. Needs the scope admin."""
        await self._run(operators.revoke_token(name, self._policy, keep_sessions=keep_sessions))

    async def rotate_token(
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
        return await self._run(flow)


def _way_to() -> Callable[..., AsyncTransport]:
    """Return what leads to a server. Only that needs aiohttp: `help(holdfast)` works for those who lack it."""
    from holdfast.client.coroutines.several import way_to  # noqa: PLC0415 - it needs aiohttp

    return way_to


def claim_alone(**options: Unpack[ClaimOptions]) -> Callable[[str], AbstractAsyncContextManager[AsyncClaim]]:
    """Return what claims a job with a client of its own, for one who has none."""
    _way_to()  # Who lacks aiohttp hears of it here, and not when the function is called.

    @asynccontextmanager
    async def managed(job_id: str) -> AsyncIterator[AsyncClaim]:
        async with (
            AsyncHoldfast() as client,
            client.claim(job_id, **options) as claim,
        ):
            yield claim

    return managed
