"""The client for coroutines: every operation is a flow, driven here over aiohttp."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from holdfast.client.common import decorator
from holdfast.client.common.background import look
from holdfast.client.common.client import HISTORY_LIMIT, JOB_TTL_SECONDS, TTL_SECONDS, Client
from holdfast.client.common.decorator import Skipping
from holdfast.client.coroutines.background import LoopKeeper
from holdfast.client.coroutines.claim import Acquiring, AsyncClaim, AsyncClaims
from holdfast.client.coroutines.session import AsyncSession
from holdfast.client.coroutines.transport import AsyncTransport
from holdfast.client.flows import claiming, reading, renewing
from holdfast.client.flows.effects import Close, Effect, Flow, Open, Read, Rest, Send
from holdfast.client.flows.following import Follower
from holdfast.client.values.arguments import names, whole_seconds
from holdfast.client.values.options import ClaimAllOptions, ClaimAnyOptions, ClaimJobOptions, ClaimOptions, check_known
from holdfast.client.values.records import (
    Happened,
    JobClaim,
    JobOwner,
    JobStatus,
    Metadata,
    OpenedSession,
    SessionInfo,
    opened_session,
)
from holdfast.wire.messages import StatusReply, TokenMadeReply, TokenReply, WhyReply

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
WAITS = (Send, Rest, Open, Read, Close)


async def drive(flow: Flow[T], transport: AsyncTransport, step: Callable[[Any], Effect], value: object) -> T:
    """Perform what a flow yields until it returns. What goes wrong is the flow's to clean up.

    A cancelled flow is finished by a task of its own: what it cleans up is cleaned up however often it is cancelled.
    """
    try:
        while True:
            effect = step(value)
            try:
                value = await _perform(effect, transport) if isinstance(effect, WAITS) else look(effect)
                step = flow.send
            except asyncio.CancelledError as error:
                return await shielded(drive(flow, transport, flow.throw, error), transport)
            except BaseException as error:  # noqa: BLE001 - it is thrown on, into the flow
                step, value = flow.throw, error
    except StopIteration as returned:
        result: T = returned.value
        return result


async def shielded(work: Coroutine[Any, Any, T], transport: AsyncTransport) -> T:
    """Do something to its end, even if we are cancelled meanwhile; the way to the server stays open for so long."""
    task = asyncio.get_running_loop().create_task(work)
    transport.finishing.add(task)
    task.add_done_callback(transport.finishing.discard)
    task.add_done_callback(_seen)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _seen(task: asyncio.Task[Any]) -> None:
    """Look at how it ended: where the caller was cancelled, nobody else does."""
    if not task.cancelled():
        task.exception()


async def _perform(effect: Effect, transport: AsyncTransport) -> Any:  # noqa: ANN401 - each has a result of its own
    match effect:
        case Send():
            return await transport.send(effect)
        case Rest(seconds=seconds):
            return await asyncio.sleep(seconds)
        case Open():
            return await transport.stream(effect)
        case Read(stream=stream):
            return await stream.read()
        case Close(stream=stream):
            return stream.close()
        case _:
            raise TypeError(f"{type(effect).__name__} needs no waiting")


class AsyncHoldfast(Client):
    """A client of one server, for the coroutines of one event loop. Close it, or use it as an async context manager.

    >>> async with AsyncHoldfast() as holdfast, holdfast.claim("github-issue-1842", ttl=120) as claim:
    ...     await push(branch, fencing_token=claim.token)
    """

    def _prepare(self) -> None:
        self._transport = AsyncTransport(self._target, environment=self._environment)
        self._keeper = LoopKeeper()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Claims that are still held are not renewed any more."""
        self._keeper.close()
        await self._transport.close()

    async def _run(self, flow: Flow[T]) -> T:
        return await drive(flow, self._transport, flow.send, None)

    # Claiming.

    def claim(
        self,
        job_id: str,
        *,
        session: str | None = None,
        on_lost: Callable[[AsyncClaim], object] | None = None,
        **options: Unpack[ClaimOptions],
    ) -> Acquiring[AsyncClaim]:
        """Claim a job and keep it renewed. Raises `JobHeld`, `NotInTime`, `JobDone`, `Deadlock`.

        Options: `ttl` is the life of the lease in seconds (60), `wait` how long to stand in line for it. `owner` is the
        name that others see, `metadata` what they see with it. `resume` asks for one's own live claim back, `redo`
        claims a job although it is done. `lock_delay` keeps the job closed for so many seconds after any end. `on_wait`
        is called with the place in the line every few seconds. `on_lost` is called, or awaited, when the claim is lost.
        """

        async def get() -> AsyncClaim:
            wanted = self._wanted(asyncio.current_task(), ClaimOptions, options, session=session)
            return AsyncClaim(self, await self._run(claiming.claim(job_id, wanted, self._policy)), on_lost)

        return Acquiring(get)

    def claim_any(
        self,
        job_ids: Sequence[str],
        *,
        session: str | None = None,
        on_lost: Callable[[AsyncClaim], object] | None = None,
        **options: Unpack[ClaimAnyOptions],
    ) -> Acquiring[AsyncClaim]:
        """Claim the first free job of a list and keep it renewed: how a worker takes work from a backlog.

        Finished jobs are passed over. Raises `JobHeld` with `others`, or `JobDone` when only finished ones are left.
        With `wait` it asks again and again; there is no line for this.
        """

        async def get() -> AsyncClaim:
            wanted = self._wanted(asyncio.current_task(), ClaimAnyOptions, options, session=session)
            return AsyncClaim(self, await self._run(claiming.claim_any(names(job_ids), wanted, self._policy)), on_lost)

        return Acquiring(get)

    def claim_all(
        self,
        job_ids: Sequence[str],
        *,
        session: str | None = None,
        on_lost: Callable[[AsyncClaims], object] | None = None,
        **options: Unpack[ClaimAllOptions],
    ) -> Acquiring[AsyncClaims]:
        """Claim every job of a list or none, and keep all of them renewed. Raises as `claim`."""

        async def get() -> AsyncClaims:
            wanted = self._wanted(asyncio.current_task(), ClaimAllOptions, options, session=session)
            return AsyncClaims(self, await self._run(claiming.claim_all(names(job_ids), wanted, self._policy)), on_lost)

        return Acquiring(get)

    def session(
        self,
        name: str | None = None,
        *,
        ttl: float = TTL_SECONDS,
        metadata: Metadata = None,
        on_lost: Callable[[AsyncSession], object] | None = None,
    ) -> Acquiring[AsyncSession]:
        """Open a session and keep it alive: claims made through it all end with it."""

        async def get() -> AsyncSession:
            flow = renewing.open_session(self._policy, name=name, ttl_seconds=whole_seconds(ttl), metadata=metadata)
            return AsyncSession(self, *(await self._run(flow)), on_lost)

        return Acquiring(get)

    @overload
    def exclusive(
        self,
        job_id: str,
        *,
        remember: float | None = None,
        skip: Literal[False] = False,
        **options: Unpack[ClaimOptions],
    ) -> Callable[[F], F]: ...
    @overload
    def exclusive(
        self, job_id: str, *, remember: float | None = None, skip: Literal[True], **options: Unpack[ClaimOptions]
    ) -> Skipping: ...
    def exclusive(
        self, job_id: str, *, remember: float | None = None, skip: bool = False, **options: Unpack[ClaimOptions]
    ) -> Callable[[F], F] | Skipping:
        """Let a coroutine function run only while this job is ours.

        `{date}` in `job_id` is today's date (UTC), `{name}` any argument of the call. With `remember` the job counts as
        done for so many seconds once the function has returned. Raises `JobHeld` or `JobDone` instead of calling it;
        with `skip` it returns None and logs the reason.
        """
        check_known(options, ClaimOptions)

        def claim(job: str) -> Acquiring[AsyncClaim]:
            return self.claim(job, **options)

        return decorator.for_coroutine(job_id, claim, remember=remember, skip=skip)

    # Claims by their lease id and sessions by their id: for those who renew themselves.

    async def claim_job(
        self,
        job_id: str,
        owner: str | None = None,
        metadata: Metadata = None,
        ttl: float = JOB_TTL_SECONDS,
        *,
        session: str | None = None,
        **options: Unpack[ClaimJobOptions],
    ) -> JobClaim:
        """Claim a job and leave it to the caller to renew. Raises `JobHeld`, `NotInTime`, `JobDone`, `Deadlock`.

        `on_wait` is called with the place in the line every few seconds.
        """
        given = {**options, "owner": owner, "metadata": metadata, "ttl": ttl}
        wanted = self._wanted(asyncio.current_task(), ClaimOptions, given, session=session)
        return (await self._run(claiming.claim(job_id, wanted, self._policy))).claim

    async def claim_any_job(
        self, job_ids: Sequence[str], *, session: str | None = None, **options: Unpack[ClaimAnyOptions]
    ) -> JobClaim:
        """Claim the first free job of a list and leave it to the caller to renew. Raises as `claim_any`.

        Its `ttl` is 120 seconds, unless given.
        """
        given = {"ttl": JOB_TTL_SECONDS, **options}
        wanted = self._wanted(asyncio.current_task(), ClaimAnyOptions, given, session=session)
        return (await self._run(claiming.claim_any(names(job_ids), wanted, self._policy))).claim

    async def claim_all_jobs(
        self, job_ids: Sequence[str], *, session: str | None = None, **options: Unpack[ClaimAllOptions]
    ) -> list[JobClaim]:
        """Claim every job of a list or none, and leave it to the caller to renew each. Raises as `claim_all`.

        Their `ttl` is 120 seconds, unless given.
        """
        given = {"ttl": JOB_TTL_SECONDS, **options}
        wanted = self._wanted(asyncio.current_task(), ClaimAllOptions, given, session=session)
        gots = await self._run(claiming.claim_all(names(job_ids), wanted, self._policy))
        return [got.claim for got in gots]

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
        flow = claiming.renew(job_id, lease_id, self._policy, ttl=ttl, note=note, metadata=metadata)
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
        await self._run(
            claiming.release(job_id, lease_id, self._policy, outcome=outcome, result=result, remember=remember)
        )

    async def transfer_job(self, job_id: str, lease_id: str, to_owner: str, *, ttl: float | None = None) -> JobClaim:
        """Hand a claim to another owner without a gap. Raises `LeaseLost`."""
        return await self._run(claiming.transfer(job_id, lease_id, to_owner, self._policy, ttl=ttl))

    async def open_session(
        self, name: str | None = None, *, ttl: float = TTL_SECONDS, metadata: Metadata = None
    ) -> OpenedSession:
        """Open a session and leave it to the caller to keep it alive: any call with its secret does.

        Claims that are made with `session=` its id end with it. `end_session` ends it.
        """
        flow = renewing.open_session(self._policy, name=name, ttl_seconds=whole_seconds(ttl), metadata=metadata)
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
        limit: int | None = None,
    ) -> list[JobOwner]:
        """List the claimed jobs, ordered by name: all of them, or the first `limit`."""
        flow = reading.jobs(self._policy, prefix=prefix, owner=owner, session=session, limit=limit)
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

    async def events(self, prefix: str | None = None, *, after: int | None = None) -> AsyncIterator[Happened]:
        """Follow everything that happens but renewals, for ever, through broken connections.

        `after` is the `seq` of the last event one has seen; without it, it begins now. What the server no longer keeps
        comes as an event `resync`.
        """
        follower = Follower(self._policy, prefix, after)
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
        await self._run(reading.revoke(job_id, reason, self._policy))

    async def reopen(self, job_id: str, reason: str | None = None) -> None:
        """Let finished work be claimed again. Needs the scope admin."""
        await self._run(reading.reopen(job_id, reason, self._policy))

    async def sessions(self) -> list[SessionInfo]:
        """List one's sessions."""
        return await self._run(reading.sessions(self._policy))

    async def end_session(self, session_id: str) -> None:
        """End a session and all that is bound to it."""
        await self._run(reading.end_session(session_id, self._policy))

    async def create_token(
        self,
        name: str,
        *,
        scopes: Sequence[str] | None = None,
        prefix: str | None = None,
        expires_in_seconds: int | None = None,
    ) -> TokenMadeReply:
        """Make a token; this is the only time it is shown. Needs the scope admin."""
        flow = reading.create_token(
            name, self._policy, scopes=scopes, prefix=prefix, expires_in_seconds=expires_in_seconds
        )
        return await self._run(flow)

    async def list_tokens(self) -> list[TokenReply]:
        """List the tokens, without the tokens. Needs the scope admin."""
        return await self._run(reading.list_tokens(self._policy))

    async def revoke_token(self, name: str) -> None:
        """Shut a token out. Needs the scope admin."""
        await self._run(reading.revoke_token(name, self._policy))


def claim_alone(**options: Unpack[ClaimOptions]) -> Callable[[str], AbstractAsyncContextManager[AsyncClaim]]:
    """Return what claims a job with a client of its own, for one who has none."""

    @asynccontextmanager
    async def managed(job_id: str) -> AsyncIterator[AsyncClaim]:
        async with (
            AsyncHoldfast() as client,
            client.claim(job_id, **options) as claim,
        ):
            yield claim

    return managed
