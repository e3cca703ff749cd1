"""The seven tools, implemented once over the operations of an agent's session.

`tools` decodes a call, `ToolBackend.call` runs it, and `results` encodes the outcome. Two backends implement the
operations. They differ in where they keep state:

    StdioBackend    stdio: in this process, which renews what it holds until it is released or the process ends
    HttpBackend     HTTP: nowhere; each call names a session, and everything is looked up at the server
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from msgspec import UNSET, UnsetType

from holdfast import AsyncHoldfast, Deadlock, JobClaim, JobDone, JobHeld, JobOwner, JobStatus, LeaseLost, SessionInfo
from holdfast.agents.mcp import results, tools
from holdfast.agents.mcp.results import Result
from holdfast.client import claim_flows
from holdfast.client import lease_flows as session_flows
from holdfast.client.aio import AsyncSession
from holdfast.client.options import ClaimRequest
from holdfast.errors import HoldfastError

REMEMBER_SECONDS = 86_400
GONE_STATUSES = frozenset({400, 404, 410})  # The statuses for a session that is over; 400 if the id is malformed.

L = TypeVar("L")
T = TypeVar("T")


class AgentClient(AsyncHoldfast):
    """The client with the operations that only these tools need. They raise `Refused`."""

    async def adopt_session(self, session_id: str, on_lost: Callable[[AsyncSession], object]) -> AsyncSession:
        """Take over a live session of this access token and keep it alive."""
        opened = await self._run(session_flows.adopt_session(session_id, self._policy))
        return AsyncSession(self._link, self, opened, on_lost)

    async def renew_session(self, session_id: str) -> float:
        """Renew a session and all its claims once; return how many seconds it lives."""
        reply, _ = await self._run(session_flows.renew_session(session_id, self._policy))
        return reply.expires_in_ms / 1_000

    async def live_session(self, session_id: str) -> SessionInfo:
        return await self._run(session_flows.live_session(session_id, self._policy))

    async def session_secret(self, session_id: str) -> str:
        return await self._run(session_flows.session_secret(session_id, self._policy))

    async def wait_in_queue(
        self, job: str, *, owner: str, session: str, ttl: int, seconds: float
    ) -> JobClaim | claim_flows.Waiting:
        """Wait in the queue of a job; return the position, kept for a minute, if the job is not free in time."""
        request = ClaimRequest(ttl=ttl, owner=owner, session=session, wait=seconds, resume=True)
        granted = await self._run(claim_flows.claim_once(job, request, self._policy))
        return granted if isinstance(granted, claim_flows.Waiting) else granted.claim


class Acquired(NamedTuple, Generic[L]):
    """A job that the session holds, `already` before this call."""

    lease: L
    claim: JobClaim
    already: bool = False


class Waiting(NamedTuple):
    """The session's position in the queue of a job; None if it is not known yet."""

    position: int | None = None
    owner: JobOwner | None = None
    away: str | None = None


class ToolBackend(Protocol[L]):
    """What an agent holds. `L` is how an implementation refers to a lease.

    `claim` raises `JobHeld` and `JobDone`, `wait` raises `JobDone` and `Deadlock`, `renew` and `release` raise
    `LeaseLost`. A wait that ends with its call keeps its position.
    """

    client: AgentClient

    async def call(self, arguments: tools.Arguments) -> Result:
        """Run a tool. Raises `HoldfastError` and `ToolRefusedError`."""

    def notices(self) -> Result:
        """Return what else the agent has to know, as losses, once."""

    async def claim(self, arguments: tools.ClaimJob) -> Acquired[L]: ...

    async def wait(self, job: str, seconds: float) -> Acquired[L] | Waiting: ...

    async def find_lease(self, job: str) -> L | Result:
        """Return the session's lease of a job, or a result that says that it has none."""

    async def expires_in(self, lease: L) -> float: ...

    async def renew(self, lease: L, note: str | None) -> float:
        """Renew a lease; return how many seconds it has left then."""

    async def release(self, lease: L, outcome: str | None, result: str | None, remember: float | None) -> None: ...

    def owns(self, status: JobStatus) -> bool: ...

    async def my_jobs(self) -> Result: ...

    def on_loss_reported(self, lease: L) -> None:
        """Called when the result of this call reports the loss of a lease."""

    def on_claim_cancelled(self, lease: L) -> None:
        """Called when the agent does not learn of a lease that this call acquired."""

    async def run_tool(self, arguments: tools.Arguments) -> Result:
        match arguments:
            case tools.ClaimJob():
                return await self._claim_job(arguments)
            case tools.WaitForJob():
                return await self._wait_for_job(arguments)
            case tools.HeartbeatJob():
                return await self._heartbeat_job(arguments)
            case tools.ReleaseJob():
                return await self._release_job(arguments)
            case tools.GetJobOwner():
                status = await self.client.job(arguments.job)
                return results.found(status) | {"yours": self.owns(status)}
            case tools.ListClaimedJobs():
                found = await self.client.list_claimed_jobs(_given(arguments.prefix), limit=arguments.limit + 1)
                return results.listed(found, arguments.limit)
            case tools.MyJobs():
                return await self.my_jobs()

    async def _claim_job(self, arguments: tools.ClaimJob) -> Result:
        try:
            granted = await self.claim(arguments)
        except JobHeld as error:
            return results.held(error)
        except JobDone as error:
            return results.done(error)
        more: Result = {}
        if arguments.note is not UNSET:
            try:
                await self.renew(granted.lease, arguments.note)
            except asyncio.CancelledError:
                if not granted.already:
                    self.on_claim_cancelled(granted.lease)
                raise
            except LeaseLost:  # The news of this result say how.
                return {"status": "held", "job": granted.claim.job_id, "still_held": False}
            except HoldfastError as error:
                more["note_not_kept"] = str(error)
        return await self._acquired_result(granted) | more

    async def _wait_for_job(self, arguments: tools.WaitForJob) -> Result:
        try:
            granted = await self.wait(arguments.job, arguments.seconds)
        except JobDone as error:
            return results.done(error)
        except Deadlock as error:
            return results.deadlock(arguments.job, error)
        if isinstance(granted, Waiting):
            return results.waiting(arguments.job, granted.position, granted.owner) | {"away": granted.away}
        return await self._acquired_result(granted)

    async def _acquired_result(self, granted: Acquired[L]) -> Result:
        return results.acquired(granted.claim, await self.expires_in(granted.lease), already=granted.already)

    async def _heartbeat_job(self, arguments: tools.HeartbeatJob) -> Result:
        lease = await self.find_lease(arguments.job)
        if isinstance(lease, dict):
            return lease
        try:
            left = await self.renew(lease, _given(arguments.note))
        except LeaseLost as error:
            self.on_loss_reported(lease)
            return results.lost(arguments.job, error)
        return {"status": "renewed", "job": arguments.job, "still_held": True, "expires_in": results.seconds(left)}

    async def _release_job(self, arguments: tools.ReleaseJob) -> Result:
        lease = await self.find_lease(arguments.job)
        if isinstance(lease, dict):
            return lease
        outcome = _given(arguments.outcome)
        remember = REMEMBER_SECONDS if outcome == "done" else None
        try:
            await self.release(lease, outcome, _given(arguments.result), remember)
        except LeaseLost as error:
            return results.lost(arguments.job, error)
        return {"status": "released", "job": arguments.job, "still_held": False}


def _given(value: T | UnsetType) -> T | None:
    return None if isinstance(value, UnsetType) else value
