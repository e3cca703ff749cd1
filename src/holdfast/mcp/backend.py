"""The seven tools, each implemented once over a session of the agent.

A call is decoded in `tools`, carried out here with the operations of an `AgentSession`, and returned as one of the
`results`. The two sessions differ in where they keep state:

    KeptSession    stdio: in this process, which renews what it holds until it is released or the process ends
    NamedSession   HTTP: nowhere; each call names a session, and everything is looked up at the server
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from msgspec import UNSET, UnsetType

from holdfast import Deadlock, JobClaim, JobDone, JobHeld, JobOwner, JobStatus, LeaseLost
from holdfast.errors import HoldfastError
from holdfast.mcp import results, tools
from holdfast.mcp.agent import AgentClient
from holdfast.mcp.results import Result

REMEMBER_SECONDS = 86_400
GONE_STATUSES = frozenset({400, 404, 410})
"""What the server answers about a session that is over; 400 if the id is not one at all."""

Tool: TypeAlias = Callable[[tools.Arguments], Awaitable[Result]]
L = TypeVar("L")
T = TypeVar("T")


class Acquired(NamedTuple, Generic[L]):
    """A job that the session holds."""

    lease: L
    claim: JobClaim
    already: bool = False
    """Whether the session held it before this call."""


class Waiting(NamedTuple):
    """The session's place in the queue of a job; None if that is not known yet."""

    position: int | None = None
    owner: JobOwner | None = None
    away: str | None = None


class AgentSession(Protocol[L]):
    """What an agent holds. `L` is how an implementation refers to a lease.

    `claim` raises `JobHeld` and `JobDone`, `wait` raises `JobDone` and `Deadlock`, `renew` and `release` raise
    `LeaseLost`. A wait that ends with its call keeps its place.
    """

    client: AgentClient

    async def run(self, tool: Tool, asked: tools.Arguments) -> Result: ...

    def news(self) -> Result:
        """Return what else the agent has to be told, once."""

    async def claim(self, asked: tools.ClaimJob) -> Acquired[L]: ...

    async def wait(self, job: str, seconds: float) -> Acquired[L] | Waiting: ...

    async def find_lease(self, job: str) -> L | Result:
        """Return the session's lease of a job, or the result that says that it has none."""

    async def expires_in(self, lease: L) -> float: ...

    async def renew(self, lease: L, note: str | None) -> float:
        """Renew a lease; return how many seconds it has left then."""

    async def release(self, lease: L, outcome: str | None, result: str | None, remember: float | None) -> None: ...

    def owns(self, status: JobStatus) -> bool: ...

    async def my_jobs(self) -> Result: ...

    def on_loss_reported(self, lease: L) -> None:
        """Take note that the result of this call reports the loss of a lease."""

    def on_claim_cancelled(self, lease: L) -> None:
        """Take note that the agent does not learn of a lease that this call acquired."""


class Backend(Generic[L]):
    """The tools, for one session."""

    def __init__(self, session: AgentSession[L]) -> None:
        self._session = session

    async def call(self, asked: tools.Arguments) -> Result:
        """Run the tool that a call asks for. Raises `HoldfastError` and `RefusedError`."""
        return await self._session.run(self._tool, asked)

    async def _tool(self, asked: tools.Arguments) -> Result:
        client = self._session.client
        match asked:
            case tools.ClaimJob():
                return await self._claim(asked)
            case tools.WaitForJob():
                return await self._wait(asked)
            case tools.HeartbeatJob():
                return await self._heartbeat(asked)
            case tools.ReleaseJob():
                return await self._release(asked)
            case tools.GetJobOwner():
                status = await client.job(asked.job)
                return results.found(status) | {"yours": self._session.owns(status)}
            case tools.ListClaimedJobs():
                found = await client.list_claimed_jobs(_given(asked.prefix), limit=asked.limit + 1)
                return results.listed(found, asked.limit)
            case tools.MyJobs():
                return await self._session.my_jobs()

    async def _claim(self, asked: tools.ClaimJob) -> Result:
        try:
            got = await self._session.claim(asked)
        except JobHeld as error:
            return results.held(error)
        except JobDone as error:
            return results.done(error)
        more: Result = {}
        if asked.note is not UNSET:
            try:
                await self._session.renew(got.lease, asked.note)
            except asyncio.CancelledError:
                if not got.already:
                    self._session.on_claim_cancelled(got.lease)
                raise
            except LeaseLost:  # The news of this result say how.
                return {"status": "held", "job": got.claim.job_id, "still_held": False}
            except HoldfastError as error:
                more["note_not_kept"] = str(error)
        return await self._acquired(got) | more

    async def _wait(self, asked: tools.WaitForJob) -> Result:
        try:
            got = await self._session.wait(asked.job, asked.seconds)
        except JobDone as error:
            return results.done(error)
        except Deadlock as error:
            return results.deadlock(asked.job, error)
        if isinstance(got, Waiting):
            return results.waiting(asked.job, got.position, got.owner) | {"away": got.away}
        return await self._acquired(got)

    async def _acquired(self, got: Acquired[L]) -> Result:
        return results.acquired(got.claim, await self._session.expires_in(got.lease), already=got.already)

    async def _heartbeat(self, asked: tools.HeartbeatJob) -> Result:
        lease = await self._session.find_lease(asked.job)
        if isinstance(lease, dict):
            return lease
        try:
            left = await self._session.renew(lease, _given(asked.note))
        except LeaseLost as error:
            self._session.on_loss_reported(lease)
            return results.lost(asked.job, error)
        return {"status": "renewed", "job": asked.job, "still_held": True, "expires_in": results.seconds(left)}

    async def _release(self, asked: tools.ReleaseJob) -> Result:
        lease = await self._session.find_lease(asked.job)
        if isinstance(lease, dict):
            return lease
        outcome = _given(asked.outcome)
        remember = REMEMBER_SECONDS if outcome == "done" else None
        try:
            await self._session.release(lease, outcome, _given(asked.result), remember)
        except LeaseLost as error:
            return results.lost(asked.job, error)
        return {"status": "released", "job": asked.job, "still_held": False}


def _given(value: T | UnsetType) -> T | None:
    return None if isinstance(value, UnsetType) else value


AnySession: TypeAlias = AgentSession[Any]
