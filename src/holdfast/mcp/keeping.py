"""The desk behind stdio: one process, one owner, one session. What the model claims is kept here, whatever it forgets.

    claim_job ──► a claim of our session, renewed in the background until it is released, lost, or this process ends
    wait_for_job ──► a place in a line (`standing`), kept between two calls

Lease ids, tickets and the session's secret stay in here. The model knows jobs by their names alone.

**Losses.** The client tells of each at once (L9). It is put down, also for the next process, and told with the next
result, whichever tool that is of. It is told once: whoever was told must have read it.

**Sharing.** If the guard's hooks know the agent, its session is the guard's (`hostlink`): before each call, what the
guard claimed is taken over, and at the end the session is left to the guard.

**Restarts.** `memory` says which session the process before had. If that lives, it is taken over, and so is every claim
of it (C4); every job of it that does not live is told as lost. This happens at the start, and again with the next call
if the server was away. Until it is known, no tool answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec import UNSET

from holdfast import AsyncClaim, AsyncSession, Deadlock, JobDone, JobHeld, LeaseLost, Refused
from holdfast.client.values.options import OnWait
from holdfast.errors import HoldfastError, Unreachable
from holdfast.mcp import results, tools
from holdfast.mcp.agent import AgentClient, detach, detach_claim
from holdfast.mcp.beside import Beside
from holdfast.mcp.memory import TOLD_MAX, BadMemoryError, Left, Memory
from holdfast.mcp.results import RefusedError, Result
from holdfast.mcp.standing import Lines

if TYPE_CHECKING:
    from holdfast.guard.state import Session
    from holdfast.mcp.hostlink import HostLink

REMEMBER_SECONDS = 86_400
LEAVE_SECONDS = 2.0
"""How long those who wait may take to leave their lines, at the end."""
CLAIMS_MAX = 1_000
"""Each is renewed, and the next process is told of it."""
_GONE = frozenset({400, 404, 410})
"""400: what was left is no id of a session."""

log = logging.getLogger("holdfast.mcp")


class Keeper:
    """What one process keeps for its owner."""

    def __init__(
        self,
        client: AgentClient,
        owner: str,
        memory: Memory | None,
        *,
        ttl: int,
        tell: Callable[[], None],
        warning: str | None = None,
        host: HostLink | None = None,
        folder: str = "",
    ) -> None:
        """`ttl` is how long jobs outlive this process if it is killed. `tell` is called when a job is lost.

        Without a memory nothing is left for another process. `warning` is told with the first result. `host` links this
        keeper with the guard; `folder` is that of a subagent, which has no session but the one there.
        """
        self._client = client
        self._owner = self._own_name = owner
        self._host = host
        self._folder = folder
        self._is_joined = False
        """Whether our session is the one that the guard keeps for this agent."""
        self._memory = memory
        self._ttl = ttl
        self._tell = tell
        self._session: AsyncSession | None = None
        self._opening = asyncio.Lock()
        self._left: Left | None = None if memory is None else memory.read()
        """What the process before has left; None once it is known what became of that."""
        self._claims: dict[str, AsyncClaim] = {}
        self._lines = Lines(self._stand, self._give_up)
        self._lost: list[Result] = []
        self._news: Result = {} if warning is None else {"warning": warning}
        """What else the next result tells."""
        self._beside = Beside()

    # The life of the process.

    async def begin(self) -> None:
        """Take over what the process before has left. Raises `HoldfastError` if that cannot be found out now."""
        async with self._opening:
            if self._left is not None:
                await self._take_over(self._left)
                self._left = None
                self._save()
            await self._follow_guard()

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to keep."""
        return self._session is None and not self._lines.places()

    async def _follow_guard(self) -> None:
        """Share the session that the guard keeps for this agent, if there is one, and what is claimed in it."""
        if self._host is None:
            return
        shared = self._host.shared_session(self._folder)
        mine = None if self._session is None else self._session.session_id
        if self._is_joined and self._session is not None and (shared is None or shared.id != mine):
            self._part(self._session)
            mine = None
        if shared is None:
            return
        if mine is not None and mine != shared.id:
            if self._claims or self._lines.places():
                return  # Both have a session; a refused edit says what to do.
            await self._leave_own_session()
        if self._session is None:
            await self._join(shared)
        if self._session is not None:
            if not self._is_joined:
                self._is_joined = True
                self._save()
            await self._adopt_claims(self._session)

    async def _join(self, shared: Session) -> None:
        try:
            self._session = await self._client.adopt_session(shared.id, self._on_session_lost)
        except Refused as error:
            if error.status not in _GONE:
                raise
            return  # It has just ended, and the guard opens another with the next claim.
        self._owner = shared.owner
        self._show()

    async def _leave_own_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(HoldfastError):
                await session.end()

    def _part(self, session: AsyncSession) -> None:
        """Stop sharing the guard's session: it ended, or a second host session makes callers indistinguishable."""
        self._lose_claims("released", "these tools no longer share the guard's session")
        self._lines.leave()
        detach(session)
        self._end_of_session()

    def _lose_claims(self, reason: str, why: str | None = None) -> bool:
        """Report every claim as lost, for the reason that it knows itself if it does; return whether there were any."""
        claims, self._claims = self._claims, {}
        for job, claim in claims.items():
            self._lines.told(job)
            error = LeaseLost("", reason=reason, why=why)
            with contextlib.suppress(HoldfastError):
                try:
                    claim.raise_if_lost()
                except LeaseLost as known:
                    error = known
            self._put_down(job, error)
        return bool(claims)

    def _end_of_session(self) -> None:
        self._session, self._is_joined, self._owner = None, False, self._own_name
        self._show()
        self._save()

    def _show(self) -> None:
        """Let the guard know which session this process uses; a subagent's is known there anyway."""
        if self._host is None or self._folder:
            return
        if self._session is None:
            self._host.withdraw()
        else:
            self._host.publish(self._session.session_id, self._session.secret, self._owner, self._ttl)

    async def end(self) -> None:
        """Give everything back, and leave word of it for the next process."""
        had = sorted(self._claims)
        unfinished = self._lines.leave() | self._beside.unfinished
        if unfinished:
            await asyncio.wait(unfinished, timeout=LEAVE_SECONDS)
        if self._session is not None and self._host and self._host.is_kept_by_others(self._session.session_id):
            detach(self._session)
            had, self._claims = [], {}
            self._end_of_session()
        try:
            if self._session is not None:
                await self._session.end()
        except HoldfastError as error:
            # The next process finds it as it is, and resumes it or tells what became of it.
            log.warning("what was claimed ends by itself, within %d s: %s", self._ttl, error)
        else:
            self._session, self._claims = None, {}
            for job in had:
                self._put_down(job, LeaseLost("", reason="released", why="its process was told to end"))
            self._save()
        if self._memory is not None:
            self._memory.close()

    async def _take_over(self, left: Left) -> None:
        """Take over what lives of what was left. If the server goes away in the middle, the next call goes on here."""
        if left.session is not None and not (self._host and self._host.is_of_another_host(left.session)):
            try:
                await self._resume(left.session)
            except Refused as error:
                if error.status not in _GONE:
                    raise
                self._session, self._claims = None, {}
        gone = [job for job in left.jobs if job not in self._claims][-TOLD_MAX:]
        ended = [(job, await self._how_it_ended(job)) for job in gone]
        self._lost += left.lost
        for job, how in ended:
            self._put_down(job, how)
        if self._claims:
            self._news["resumed"] = sorted(self._claims)

    async def _resume(self, session_id: str) -> None:
        if self._session is None:
            self._session = await self._client.adopt_session(session_id, self._on_session_lost)
            self._show()
        await self._adopt_claims(self._session)

    async def _adopt_claims(self, session: AsyncSession) -> None:
        """Take over the claims of a session that this process did not make."""
        for each in await self._client.list_claimed_jobs(session=session.session_id):
            if each.owner != self._owner or each.job_id in self._claims:
                continue
            with contextlib.suppress(JobHeld, JobDone):
                claim = await session.claim(
                    each.job_id, ttl=self._ttl, owner=self._owner, resume=True, on_lost=self._on_claim_lost
                )
                # In a shared session a hook may have let the agent work under this claim by now.
                if claim.reacquired or self._is_joined:
                    self._claims[each.job_id] = claim
                else:
                    await claim.release(outcome="failed")  # Ours had ended since the list, and this is another one.

    async def _how_it_ended(self, job: str) -> LeaseLost:
        """Find out how a claim of the process before ended."""
        before = None
        with contextlib.suppress(Refused):  # The access token may be another by now, with other rights.
            before = (await self._client.job(job)).previous
        reason = before.ended if before is not None and before.owner == self._owner else "unknown"
        return LeaseLost("", reason=reason, why="it ended while no process of yours ran")

    # The tools.

    async def call(self, asked: tools.Arguments) -> Result:
        """Do what a tool was called for, and tell what is new. Raises `HoldfastError` and `RefusedError`."""
        await self.begin()
        match asked:
            case tools.ClaimJob():
                return await self._claim(asked)
            case tools.WaitForJob():
                return await self._wait(asked.job, asked.seconds)
            case tools.HeartbeatJob():
                return await self._heartbeat(asked)
            case tools.ReleaseJob():
                return await self._release(asked)
            case tools.GetJobOwner():
                yours = self._held(asked.job) is not None
                return results.found(await self._client.job(asked.job)) | {"yours": yours}
            case tools.ListClaimedJobs():
                prefix = None if asked.prefix is UNSET else asked.prefix
                found = await self._client.list_claimed_jobs(prefix, limit=asked.limit + 1)
                return results.listed(found, asked.limit)
            case tools.MyJobs():
                return self.mine()

    def news(self) -> Result:
        """Return what is new, and do not tell it again: jobs that were lost, resumed, or granted meanwhile."""
        self._look_at_claims()
        news, self._news = self._news, {}
        granted = [job for job in self._lines.granted() if job in self._claims]
        if granted:
            news["granted"] = sorted({*news.get("granted", []), *granted})
        if self._lost:
            news["lost"], self._lost = self._lost, []
            self._save()
        return news

    def mine(self) -> Result:
        """List what is ours."""
        self._look_at_claims()
        jobs = [
            {
                "job": job,
                "still_held": True,
                "expires_in": results.seconds(claim.remaining),
                "fencing_token": claim.token,
            }
            for job, claim in sorted(self._claims.items())
            if not claim.released
        ]
        line = [{"job": job, "place": place} for job, place in self._lines.places().items()]
        return {"status": "listed", "owner": self._owner, "jobs": jobs, "waiting_for": line or None}

    async def _claim(self, asked: tools.ClaimJob) -> Result:
        mine = None if asked.job is UNSET else self._held(asked.job)
        had = mine
        if mine is None:
            try:
                mine = await self._in_session(lambda session: self._ask(session, asked))
            except JobHeld as error:
                # Another call of ours may have claimed it meanwhile.
                had = mine = self._held(error.job_id) if asked.any_of is UNSET else None
                if mine is None:
                    return results.held(error)
            except JobDone as error:
                return results.done(error)
        result = self._acquired(mine, already=had is not None)
        if asked.note is not UNSET:
            try:
                await mine.renew(note=asked.note)
            except asyncio.CancelledError:
                if had is None:
                    self._give_up(mine.job_id, "the call that claimed it was cancelled")
                raise
            except LeaseLost:
                self._look_at_claims()
                return {"status": "held", "job": mine.job_id, "still_held": False}
            except HoldfastError as error:
                result["note_not_kept"] = str(error)
        return result

    async def _ask(self, session: AsyncSession, asked: tools.ClaimJob) -> AsyncClaim:
        if asked.any_of is not UNSET:
            return await session.claim_any(asked.any_of, ttl=self._ttl, owner=self._owner, on_lost=self._on_claim_lost)
        job = "" if asked.job is UNSET else asked.job
        return await session.claim(job, ttl=self._ttl, owner=self._owner, on_lost=self._on_claim_lost)

    async def _wait(self, job: str, seconds: float) -> Result:
        mine = self._held(job)
        if mine is not None:
            return self._acquired(mine, already=True)
        try:
            got = await self._lines.visit(job, seconds)
        except JobDone as error:
            return results.done(error)
        except Deadlock as error:
            return results.deadlock(job, error)
        mine = self._held(job)  # It may be another call's that got it, and what came may be lost by now.
        if mine is not None:
            return self._acquired(mine)
        if got is None or isinstance(got, AsyncClaim):
            return results.waiting(job, None, None)
        return results.waiting(job, got.position, got.owner) | {"away": got.away}

    def _acquired(self, claim: AsyncClaim, *, already: bool = False) -> Result:
        is_news = self._lines.has_turn(claim.job_id)
        self._lines.told(claim.job_id)
        return results.acquired(claim.record, claim.remaining, already=already and not is_news)

    async def _stand(self, job: str, on_wait: OnWait) -> AsyncClaim:
        async def ask(session: AsyncSession) -> AsyncClaim:
            return await session.claim(
                job, ttl=self._ttl, owner=self._owner, wait=math.inf, on_wait=on_wait, on_lost=self._on_claim_lost
            )

        return await self._in_session(ask)

    def _give_up(self, job: str, why: str = "your turn came, and you did not come back") -> None:
        """Let others have a job of which the model does not know that it has it.

        In a session that the guard keeps it stays the agent's: a hook may have let it work on the job already.
        """
        if self._is_joined and job in self._claims:
            self._news["granted"] = sorted({*self._news.get("granted", []), job})
            return
        claim = self._claims.pop(job, None)
        if claim is not None:
            self._put_down(job, LeaseLost("", reason="released", why=why))
            self._save()
            self._beside.give_back(self._return(claim, "failed"))

    async def _heartbeat(self, asked: tools.HeartbeatJob) -> Result:
        claim = self._held(asked.job)
        if claim is None:
            return await self._not_mine(asked.job)
        try:
            await claim.renew(note=None if asked.note is UNSET else asked.note)
        except LeaseLost as error:
            return self._lose(claim, error)
        return {
            "status": "renewed",
            "job": asked.job,
            "still_held": True,
            "expires_in": results.seconds(claim.remaining),
        }

    async def _release(self, asked: tools.ReleaseJob) -> Result:
        claim = self._held(asked.job)
        if claim is None:
            return await self._not_mine(asked.job)
        # It goes on if the call is cancelled, and what comes of it has to be known then too.
        return await asyncio.shield(self._beside.do(self._give_back(claim, asked)))

    async def _give_back(self, claim: AsyncClaim, asked: tools.ReleaseJob) -> Result:
        outcome = None if asked.outcome is UNSET else asked.outcome
        result = None if asked.result is UNSET else asked.result
        try:
            await self._return(claim, outcome, result, REMEMBER_SECONDS if outcome == "done" else None)
        except LeaseLost as error:
            return self._lose(claim, error)
        return {"status": "released", "job": asked.job, "still_held": False}

    async def _return(
        self, claim: AsyncClaim, outcome: str | None = None, result: str | None = None, remember: float | None = None
    ) -> None:
        """Release a claim. If nobody answers, go on with that: our session renews all that is bound to it."""
        try:
            await claim.release(outcome=outcome, result=result, remember=remember)
        except Unreachable:
            release = partial(self._client.release_job, claim.job_id, claim.lease_id)
            again = partial(release, outcome=outcome, result=result, remember=remember)
            session = self._session
            self._beside.insist(again, lambda: session is not None and self._session is session)
            self._drop(claim)
            raise
        self._drop(claim)

    async def _not_mine(self, job: str) -> Result:
        told = next((each for each in self._lost if each.get("job") == job), None)
        if told is not None:
            self._lost.remove(told)
            self._save()
            return {"status": "lost", "still_held": False, **told}
        return results.not_yours(job, await self._client.job(job))

    # Sessions and claims.

    async def _in_session(self, ask: Callable[[AsyncSession], Awaitable[AsyncClaim]]) -> AsyncClaim:
        """Claim something in our session; if that is over, in a new one, once."""
        if len(self._claims) >= CLAIMS_MAX:
            raise RefusedError(f"you have {CLAIMS_MAX} jobs already: release some that you do not work on")
        session = await self._opened()
        try:
            claim = await ask(session)
        except Refused as error:
            if error.code not in {"session_expired", "not_found"}:
                raise
            self._forget(session)
            session = await self._opened()
            claim = await ask(session)
        if self._session is not session:
            detach_claim(claim)
            raise RefusedError(f"your session changed while {claim.job_id} was claimed: call again")
        self._claims[claim.job_id] = claim
        self._save()
        return claim

    async def _opened(self) -> AsyncSession:
        """Return our session; open one if there is none."""
        async with self._opening:
            if self._session is None and self._folder:
                raise RefusedError(
                    "the guard has no session for this subagent at the server of these tools, so nothing was done: call"
                    " again, and see that hooks and tools have the same HOLDFAST_URL"
                )
            if self._session is None:
                self._session = await self._client.session(
                    self._owner, ttl=self._ttl, metadata={"opened_by": "holdfast mcp"}, on_lost=self._on_session_lost
                )
                self._show()
                self._save()
            return self._session

    def _held(self, job: str) -> AsyncClaim | None:
        """Return our claim of a job, unless it is lost or about to be given back."""
        self._look_at_claims()
        claim = self._claims.get(job)
        return None if claim is None or claim.released else claim

    def _look_at_claims(self) -> None:
        """Put down what is lost by now: time may have passed unseen, as when a machine slept."""
        for claim in tuple(self._claims.values()):
            self._on_claim_lost(claim)

    def _on_claim_lost(self, claim: AsyncClaim) -> None:
        try:
            claim.raise_if_lost()
        except LeaseLost as error:
            if self._claims.get(claim.job_id) is claim:
                del self._claims[claim.job_id]
                self._lines.told(claim.job_id)
                self._put_down(claim.job_id, error)
                self._save()
                self._tell()
        except HoldfastError:
            pass  # It was given back, by us.

    def _on_session_lost(self, session: AsyncSession) -> None:
        self._forget(session)

    def _forget(self, session: AsyncSession) -> None:
        """Know that a session is over, and with it all that was claimed in it."""
        if self._session is not session:
            return
        claims = self._lose_claims("session_ended")
        if self._is_joined:
            self._lines.leave()  # The guard released everything; a wait would claim for an agent that has moved on.
        self._end_of_session()
        if claims:
            self._tell()

    def _lose(self, claim: AsyncClaim, error: LeaseLost) -> Result:
        """Answer with a loss that came out by the very call: it need not be told once more."""
        self._lost = [each for each in self._lost if each.get("job") != claim.job_id]
        self._drop(claim)
        return results.lost(claim.job_id, error)

    def _drop(self, claim: AsyncClaim) -> None:
        """Know that a claim is not ours any more. There may be a newer one of the same job."""
        if self._claims.get(claim.job_id) is claim:
            del self._claims[claim.job_id]
        self._save()

    def _put_down(self, job: str, error: LeaseLost) -> None:
        self._lost = [*self._lost[1 - TOLD_MAX :], results.ended(job, error)]

    def _save(self) -> None:
        if self._memory is not None and self._left is None:
            is_ours = self._session is not None and not self._is_joined  # The guard remembers what it shares.
            session = self._session.session_id if self._session is not None and is_ours else None
            try:
                jobs = sorted(self._claims) if is_ours else []
                self._memory.write(Left(session=session, jobs=jobs, lost=self._lost))
            except BadMemoryError as error:
                self._news["warning"] = f"a restart may resume nothing: {error}"
