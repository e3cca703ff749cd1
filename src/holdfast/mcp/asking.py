"""The desk behind `/mcp`: keeps nothing between two calls, so that any node can answer each of them.

Whose a job is follows from two things that come with every call: the access token, and the session that the call names
in an argument or in the header `Holdfast-Session`. A connection means nothing. The first claim opens a session and
returns its handle. All that it claims is bound to it, and its owner's name is the session's name.

A handle is the session's id with a digest of its secret:

    0d8f…-…-…8a41.5f0c2e…        id, which every reader of jobs sees . proof, which only the opener knows

An id without the proof is not accepted. A handle works only together with the access token, so a leaked transcript of a
model holds no credential. The secret itself, as `holdfast session start` prints it, is accepted in place of a handle.

Lease ids are looked up and forgotten: `resume` gives a session its own lease back (C4). It is asked only for what the
server has just shown to be this session's. If that ends between the two steps, what was got instead is given back, and
the job is told as lost.

Nothing is renewed by itself. `claim_job`, `wait_for_job` and `heartbeat_job` renew the session and all that it holds,
in one record; whatever only looks does not. Every result says what the session still has, and for how long.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from uuid import UUID

from msgspec import UNSET, UnsetType

from holdfast import Deadlock, JobClaim, JobDone, JobHeld, JobOwner, JobStatus, LeaseLost, Refused
from holdfast.errors import HoldfastError
from holdfast.mcp import results, tools
from holdfast.mcp.agent import Waiting
from holdfast.mcp.inside import SECRET_PREFIX, InsideClient
from holdfast.mcp.keeping import REMEMBER_SECONDS
from holdfast.mcp.results import RefusedError, Result

OVER = (
    "this session is over, or is not what claim_job returned as `session` to your access token: all jobs that it had"
    " are lost"
)
SHOWN_MAX = 50
"""How many jobs of a session a result lists."""
_GONE = frozenset({400, 404, 410})
"""400: what was named is no id of a session at all."""
_PROOF_BYTES = 12


def handle_of(session_id: str, secret: str) -> str:
    """Return what names a session at `/mcp`. It cannot be computed from the id alone."""
    proof = hashlib.blake2b(secret.encode(), digest_size=_PROOF_BYTES, person=b"mcp session").hexdigest()
    return f"{session_id}.{proof}"


def _id_in(named: str) -> str:
    """Return the id in a handle or in a secret, as the server writes it. Raises `ValueError`."""
    if named.startswith(SECRET_PREFIX):
        return str(UUID(hex=named.removeprefix(SECRET_PREFIX).partition("_")[0]))
    return str(UUID(named.partition(".")[0]))


def _is_proof(named: str, session_id: str, secret: str) -> bool:
    """Tell whether a caller knows the secret of the session that it names."""
    if named.startswith(SECRET_PREFIX):
        return hmac.compare_digest(named.encode(), secret.encode())
    return hmac.compare_digest(named.lower().encode(), handle_of(session_id, secret).encode())


class Asker:
    """One call, in the name of one access token and one session."""

    def __init__(self, client: InsideClient, named: str | None) -> None:
        """`named` is the session in the header of the request, for calls that name none themselves."""
        self._client = client
        self._named = named
        self._session: str | None = None
        self._handle: str | None = None
        self._is_new = False
        self._owner = ""
        self._ttl = tools.TTL_SECONDS
        self._lives_seconds = 0.0
        self._news: Result = {}

    async def call(self, asked: tools.Arguments) -> Result:
        """Do what a tool was called for. Raises `HoldfastError` and `RefusedError`."""
        named = self._named if asked.session is UNSET else asked.session
        if named is not None and not await self._enter(named):
            if isinstance(asked, tools.HeartbeatJob | tools.ReleaseJob):
                return results.lost(asked.job, LeaseLost("", reason="session_ended", why=OVER)) | {"session": named}
            if isinstance(asked, tools.ClaimJob | tools.WaitForJob):
                raise RefusedError(f"{OVER}; call claim_job without a session to begin anew")
            # Whoever only looks may look, and is told.
            self._news["lost"] = [{"session": named, "reason": "session_ended", "why": OVER}]
        try:
            result = await self._do(asked)
            await self._tell_what_is_held(result, is_asked=isinstance(asked, tools.MyJobs))
        except BaseException:
            # The caller was never told of a session that is new: nobody could use it, or end it.
            with contextlib.suppress(HoldfastError):
                await self._end_if_new()
            raise
        return result

    async def _do(self, asked: tools.Arguments) -> Result:
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
                status = await self._client.job(asked.job)
                return results.found(status) | {"yours": self._is_mine(status)}
            case tools.ListClaimedJobs():
                prefix = None if asked.prefix is UNSET else asked.prefix
                found = await self._client.list_claimed_jobs(prefix, limit=asked.limit + 1)
                return results.listed(found, asked.limit)
            case tools.MyJobs():
                if not self._news:
                    self._must_have_session()
                return {"status": "listed", "owner": self._owner or None, "jobs": []}

    def news(self) -> Result:
        """Return what else has to be told."""
        return self._news

    # The session.

    async def _enter(self, named: str) -> bool:
        """Enter a session that the caller names and proves; False if it is over, or is not one of this token's."""
        try:
            session_id = _id_in(named)
            known = await self._client.live_session(session_id)
            secret = await self._client.session_secret(session_id)
        except ValueError:
            return False
        except Refused as error:
            if error.status not in _GONE:
                raise
            return False
        if not _is_proof(named, session_id, secret):
            return False
        self._handle = handle_of(session_id, secret)
        self._session, self._owner = known.session_id, known.name or known.session_id
        told = known.metadata.get("ttl_seconds") if isinstance(known.metadata, dict) else None
        if isinstance(told, int):
            self._ttl = told
        return True

    async def _open(self, owner: str | UnsetType, ttl: int | UnsetType = UNSET) -> str:
        """Return the session of this call, renewed; open one if it has none."""
        if self._session is not None:
            self._lives_seconds = await self._client.keep_session(self._session)
            return self._session
        if owner is UNSET:
            raise RefusedError("give your name as owner: others see it while you have a job. Or name your session")
        self._ttl = tools.TTL_SECONDS if ttl is UNSET else ttl
        opened = await self._client.open_session(
            owner, ttl=self._ttl, metadata={"opened_by": "mcp", "ttl_seconds": self._ttl}
        )
        self._session, self._owner, self._is_new = opened.session_id, owner, True
        self._handle = handle_of(opened.session_id, opened.secret)
        self._lives_seconds = opened.expires_in
        return self._session

    async def _end_if_new(self) -> None:
        """End a session that was opened for this call alone, and for nothing."""
        if self._is_new and self._session is not None:
            await self._client.end_session(self._session)
            self._session = None

    def _must_have_session(self) -> str:
        if self._session is None:
            raise RefusedError("name your session: claim_job has returned it. One that is forgotten ends by itself")
        return self._session

    def _is_mine(self, status: JobStatus) -> bool:
        holder = status.owner
        return holder is not None and self._session is not None and self._owns(holder)

    def _owns(self, holder: JobOwner) -> bool:
        return holder.session == self._session and holder.owner == self._owner

    async def _tell_what_is_held(self, result: Result, *, is_asked: bool) -> None:
        """Say with every result what the session still has: whatever is not there any more is lost."""
        if self._session is None:
            return
        held = await self._client.list_claimed_jobs(session=self._session, limit=SHOWN_MAX + 1)
        result["session"] = self._handle
        result["jobs" if is_asked else "your_jobs"] = [
            {"job": each.job_id, "still_held": True, "expires_in": results.seconds(each.expires_in)}
            for each in held[:SHOWN_MAX]
            if self._owns(each)
        ]
        if len(held) > SHOWN_MAX:
            result["more_of_yours"] = True

    # The tools.

    async def _claim(self, asked: tools.ClaimJob) -> Result:
        session = await self._open(asked.owner, asked.ttl_seconds)
        try:
            if asked.any_of is not UNSET:
                claim = await self._client.claim_any_job(
                    asked.any_of, owner=self._owner, session=session, ttl=self._ttl
                )
            else:
                job = "" if asked.job is UNSET else asked.job
                claim = await self._client.claim_job(job, self._owner, session=session, ttl=self._ttl, resume=True)
        except (JobHeld, JobDone) as error:
            await self._end_if_new()
            return results.held(error) if isinstance(error, JobHeld) else results.done(error)
        if asked.note is not UNSET:
            await self._client.heartbeat_job(claim.job_id, claim.lease_id, note=asked.note)
        return await self._acquired(claim)

    async def _wait(self, asked: tools.WaitForJob) -> Result:
        session = await self._open(asked.owner)
        # A session is not renewed while its call waits, and the place would end with it.
        seconds = max(1.0, min(asked.seconds, self._lives_seconds / 2))
        try:
            got = await self._client.visit_line(
                asked.job, owner=self._owner, session=session, ttl=self._ttl, seconds=seconds
            )
        except JobDone as error:
            await self._end_if_new()
            return results.done(error)
        except Deadlock as error:
            return results.deadlock(asked.job, error)
        if isinstance(got, Waiting):
            await self._client.keep_session(session)
            status = await self._client.job(asked.job)
            return results.waiting(asked.job, got.position, status.owner)
        return await self._acquired(got)

    async def _acquired(self, claim: JobClaim) -> Result:
        """Say that a job is this session's; how long it lives is asked anew, for a wait may have taken a while."""
        status = await self._client.job(claim.job_id)
        return results.acquired(claim, 0.0 if status.owner is None else status.owner.expires_in)

    async def _heartbeat(self, asked: tools.HeartbeatJob) -> Result:
        session = self._must_have_session()
        await self._client.keep_session(session)
        lease = await self._lease_of(asked.job)
        if not isinstance(lease, str):
            return lease
        note = None if asked.note is UNSET else asked.note
        try:
            left = await self._client.heartbeat_job(asked.job, lease, note=note)
        except LeaseLost as error:
            return results.lost(asked.job, error)
        return {"status": "renewed", "job": asked.job, "still_held": True, "expires_in": results.seconds(left)}

    async def _release(self, asked: tools.ReleaseJob) -> Result:
        self._must_have_session()
        lease = await self._lease_of(asked.job)
        if not isinstance(lease, str):
            return lease
        outcome = None if asked.outcome is UNSET else asked.outcome
        try:
            await self._client.release_job(
                asked.job,
                lease,
                outcome=outcome,
                result=None if asked.result is UNSET else asked.result,
                remember=REMEMBER_SECONDS if outcome == "done" else None,
            )
        except LeaseLost as error:
            return results.lost(asked.job, error)
        return {"status": "released", "job": asked.job, "still_held": False}

    async def _lease_of(self, job: str) -> str | Result:
        """Return the lease id that this session has of a job, or the result that says that it has none."""
        status = await self._client.job(job)
        if not self._is_mine(status):
            before = status.previous
            if before is None or before.owner != self._owner or before.ended == "released":
                return results.not_yours(job, status)
            return results.lost(job, LeaseLost("", reason=before.ended))
        try:
            claim = await self._client.claim_job(job, self._owner, session=self._session, ttl=self._ttl, resume=True)
        except (JobHeld, JobDone):
            return results.lost(job, LeaseLost("", reason="unknown"))
        if claim.reacquired:
            return claim.lease_id
        await self._client.release_job(job, claim.lease_id, outcome="failed")
        return results.lost(job, LeaseLost("", reason="unknown"))
