"""The backend of the tools over HTTP: each call names its session, and calls share no state, so any node can answer.

A call names its session in an argument or in the header `Holdfast-Session`. The first claim opens one and returns its
handle. All claims are bound to it, and their owner is the session's name. A handle is the session's id with a digest of
its secret:

    0d8f…-…-…8a41.5f0c2e…        id, which everybody who may read jobs sees . proof, which only the opener knows

It works only together with the access token, so a leaked transcript of a model holds no credential. The secret itself,
as `holdfast session start` prints it, is accepted in place of a handle.

Lease ids are looked up: `resume` gives a session its own lease back (C4). The session asks only for a lease that the
server has just reported as its own. If that lease ended in between, and the claim succeeds with a new one, the session
releases the new one and reports the job as lost.

`claim_job`, `wait_for_job` and `heartbeat_job` renew the session and all its claims in one record; other tools renew
nothing. Every result lists what the session still has, and for how long.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from uuid import UUID

from msgspec import UNSET, UnsetType

from holdfast import JobClaim, JobDone, JobHeld, JobOwner, JobStatus, LeaseLost, Refused
from holdfast.agents.mcp import results, tools
from holdfast.agents.mcp.results import Result, ToolRefusedError
from holdfast.agents.mcp.tools import GONE_STATUSES, Acquired, AgentClient, ToolBackend, Waiting
from holdfast.errors import HoldfastError

SECRET_PREFIX = "holds_"  # noqa: S105 - a shape, not a secret
SESSION_OVER = (
    "this session is over, or is not what claim_job returned as `session` to your access token: all jobs that it had"
    " are lost"
)
SHOWN_MAX = 50  # How many jobs of a session a result lists.
_PROOF_BYTES = 12


def handle_of(session_id: str, secret: str) -> str:
    proof = hashlib.blake2b(secret.encode(), digest_size=_PROOF_BYTES, person=b"mcp session").hexdigest()
    return f"{session_id}.{proof}"


def _id_in(named: str) -> str:
    """Return the id in a handle or in a secret, as the server writes it. Raises `ValueError`."""
    if named.startswith(SECRET_PREFIX):
        return str(UUID(hex=named.removeprefix(SECRET_PREFIX).partition("_")[0]))
    return str(UUID(named.partition(".")[0]))


class HttpBackend(ToolBackend[JobClaim]):
    """The session of one call, under one access token. `named` is the one in the header of its request."""

    def __init__(self, client: AgentClient, named: str | None) -> None:
        self.client = client
        self._named = named
        self._id: str | None = None
        self._handle: str | None = None
        self._is_new = False
        self._owner = ""
        self._ttl = tools.TTL_SECONDS
        self._seconds_left = 0.0
        self._notices: Result = {}

    async def call(self, arguments: tools.Arguments) -> Result:
        """Enter, open or renew the session as the tool needs it, and add to the result what it still has."""
        named = self._named if arguments.session is UNSET else arguments.session
        if named is not None and not await self._enter(named):
            if isinstance(arguments, tools.HeartbeatJob | tools.ReleaseJob):
                return results.lost(arguments.job, LeaseLost("", reason="session_ended", why=SESSION_OVER)) | {
                    "session": named
                }
            if isinstance(arguments, tools.ClaimJob | tools.WaitForJob):
                raise ToolRefusedError(f"{SESSION_OVER}; call claim_job without a session to begin anew")
            # The tools that only read work without a session.
            self._notices["lost"] = [{"session": named, "reason": "session_ended", "why": SESSION_OVER}]
        try:
            await self._prepare(arguments)
            result = await self.run_tool(arguments)
            if result["status"] in {"held", "done"}:
                await self._end_if_new()
            return result | await self._held_jobs("jobs" if isinstance(arguments, tools.MyJobs) else "your_jobs")
        except BaseException:
            # The caller does not learn of a new session, so it could neither use nor end it.
            with contextlib.suppress(HoldfastError):
                await self._end_if_new()
            raise

    def notices(self) -> Result:
        return self._notices

    async def _enter(self, named: str) -> bool:
        """Enter a session that the caller names and proves; return False if it is over or not one of this token."""
        try:
            session_id = _id_in(named)
        except ValueError:
            return False
        try:
            known = await self.client.live_session(session_id)
            secret = await self.client.session_secret(session_id)
        except Refused as error:
            if error.status not in GONE_STATUSES:
                raise
            return False
        handle = handle_of(session_id, secret)
        given, proof = (named, secret) if named.startswith(SECRET_PREFIX) else (named.lower(), handle)
        if not hmac.compare_digest(given.encode(), proof.encode()):
            return False
        self._handle = handle
        self._id, self._owner = known.session_id, known.name or known.session_id
        ttl = known.metadata.get("ttl_seconds") if isinstance(known.metadata, dict) else None
        if isinstance(ttl, int):
            self._ttl = ttl
        return True

    async def _prepare(self, arguments: tools.Arguments) -> None:
        match arguments:
            case tools.ClaimJob() if self._id is None:
                await self._open(arguments.owner, arguments.ttl_seconds)
            case tools.WaitForJob() if self._id is None:
                await self._open(arguments.owner, UNSET)
            case tools.ClaimJob() | tools.WaitForJob() | tools.HeartbeatJob():
                self._seconds_left = await self.client.renew_session(self._require_session())
            case tools.ReleaseJob():
                self._require_session()
            case tools.MyJobs() if not self._notices:
                self._require_session()

    async def _open(self, owner: str | UnsetType, ttl: int | UnsetType) -> None:
        if owner is UNSET:
            raise ToolRefusedError("give your name as owner: others see it while you have a job. Or name your session")
        self._ttl = tools.TTL_SECONDS if ttl is UNSET else ttl
        metadata = {"opened_by": "mcp", "ttl_seconds": self._ttl}
        opened = await self.client.open_session(owner, ttl=self._ttl, metadata=metadata)
        self._id, self._owner, self._is_new = opened.session_id, owner, True
        self._handle = handle_of(opened.session_id, opened.secret)
        self._seconds_left = opened.expires_in

    async def _end_if_new(self) -> None:
        if self._is_new and self._id is not None:
            await self.client.end_session(self._id)
            self._id = None

    def _require_session(self) -> str:
        if self._id is None:
            raise ToolRefusedError("name your session: claim_job has returned it. One that is forgotten ends by itself")
        return self._id

    async def _held_jobs(self, field: str) -> Result:
        if self._id is None:
            return {}
        held = await self.client.list_claimed_jobs(session=self._id, limit=SHOWN_MAX + 1)
        jobs = [
            {"job": each.job_id, "still_held": True, "expires_in": results.seconds(each.expires_in)}
            for each in held[:SHOWN_MAX]
            if self._is_mine(each)
        ]
        return {"session": self._handle, field: jobs, "more_of_yours": len(held) > SHOWN_MAX or None}

    def _is_mine(self, holder: JobOwner | None) -> bool:
        return holder is not None and (holder.session, holder.owner) == (self._require_session(), self._owner)

    def owns(self, status: JobStatus) -> bool:
        return self._id is not None and self._is_mine(status.owner)

    async def my_jobs(self) -> Result:
        return {"status": "listed", "owner": self._owner or None, "jobs": []}  # `call` adds what it has.

    async def claim(self, arguments: tools.ClaimJob) -> Acquired[JobClaim]:
        if arguments.any_of is not UNSET:
            claim = await self.client.claim_any_job(
                arguments.any_of, owner=self._owner, session=self._require_session(), ttl=self._ttl
            )
        else:
            claim = await self._claim("" if arguments.job is UNSET else arguments.job)
        return Acquired(claim, claim)

    async def _claim(self, job: str) -> JobClaim:
        return await self.client.claim_job(
            job, self._owner, session=self._require_session(), ttl=self._ttl, resume=True
        )

    async def wait(self, job: str, seconds: float) -> Acquired[JobClaim] | Waiting:
        session = self._require_session()
        # A session is not renewed while its call waits, and the position would end with it.
        seconds = max(1.0, min(seconds, self._seconds_left / 2))
        granted = await self.client.wait_in_queue(
            job, owner=self._owner, session=session, ttl=self._ttl, seconds=seconds
        )
        if isinstance(granted, JobClaim):
            return Acquired(granted, granted)
        await self.client.renew_session(session)
        return Waiting(granted.position, (await self.client.job(job)).owner)

    async def find_lease(self, job: str) -> JobClaim | Result:
        status = await self.client.job(job)
        if not self.owns(status):
            before = status.previous
            if before is None or before.owner != self._owner or before.ended == "released":
                return results.not_yours(job, status)
            return results.lost(job, LeaseLost("", reason=before.ended))
        try:
            claim = await self._claim(job)
        except (JobHeld, JobDone):
            return results.lost(job, LeaseLost("", reason="unknown"))
        if claim.reacquired:
            return claim
        await self.client.release_job(job, claim.lease_id, outcome="failed")
        return results.lost(job, LeaseLost("", reason="unknown"))

    async def expires_in(self, lease: JobClaim) -> float:
        # Not from an earlier answer: a wait may have taken a while since.
        owner = (await self.client.job(lease.job_id)).owner
        return 0.0 if owner is None else owner.expires_in

    async def renew(self, lease: JobClaim, note: str | None) -> float:
        return await self.client.heartbeat_job(lease.job_id, lease.lease_id, note=note)

    async def release(self, lease: JobClaim, outcome: str | None, result: str | None, remember: float | None) -> None:
        await self.client.release_job(lease.job_id, lease.lease_id, outcome=outcome, result=result, remember=remember)

    def on_loss_reported(self, lease: JobClaim) -> None:
        """Nothing is kept; `your_jobs` shows what is left."""

    def on_claim_cancelled(self, lease: JobClaim) -> None:
        """A session of this call ends with it; any other lists the job in `your_jobs`."""
