"""The backend of the tools over stdio: one process has one session for one owner.

    claim_job ──► a claim of the session, renewed in the background until it is released, lost, or this process ends
    wait_for_job ──► a position in a queue, held between two calls (`WaitTasks`)

The model knows jobs by name only; lease ids, tickets and the session's secret stay in this process.

**Losses.** The client reports each loss immediately (L9). It is saved for the next process too, and returned once, with
the next result of any tool.

**Waits.** Hosts cancel a call after a minute. So a call waits for a while and returns the position, and its task stays
in the queue. If no call follows within `POLL_SECONDS`, the task leaves the queue, or releases the job that it was
granted meanwhile: the model does not know that it has it, and others wait.

**Sharing.** If the guard's hooks know the agent, its session is the guard's (`guard_link`): each call first adopts the
claims that the guard made, and the process leaves the session to the guard at its end.

**Restarts.** `saved_state` names the previous process's session. If it lives, it is adopted with its claims (C4), and
every other job is reported as lost: at the start, or with the next call if the server was away then. No tool answers
before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias, TypeVar

from msgspec import UNSET

from holdfast import AsyncClaim, AsyncSession, JobDone, JobHeld, JobStatus, LeaseLost, QueuePosition, Refused
from holdfast.agents.guard.state import Session
from holdfast.agents.mcp import results, tools
from holdfast.agents.mcp.guard_link import GuardLink
from holdfast.agents.mcp.results import Result, ToolRefusedError
from holdfast.agents.mcp.saved_state import LOSSES_MAX, SavedState, SavedStateError, SavedStateFile
from holdfast.agents.mcp.tools import GONE_STATUSES, POLL_SECONDS, Acquired, AgentClient, ToolBackend, Waiting
from holdfast.client.options import OnWait
from holdfast.errors import HoldfastError, Unreachable

SHUTDOWN_SECONDS = 2.0  # The timeout for background tasks at the end.
RETRY_SECONDS = 1.0
CLAIMS_MAX = 1_000  # Each is renewed, and listed for the next process.
WAITS_MAX = 20  # Each is an open request.

T = TypeVar("T")
Claim: TypeAlias = Callable[[str, OnWait], Coroutine[Any, Any, AsyncClaim]]

log = logging.getLogger("holdfast.agents.mcp")


class BackgroundTasks:
    """Tasks that go on when the call that started them is cancelled or over."""

    def __init__(self) -> None:
        self.unfinished: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[object, object, T]) -> asyncio.Task[T]:
        """Start a task. A caller that waits for it has to shield it."""
        task = asyncio.get_running_loop().create_task(work)
        self.unfinished.add(task)
        task.add_done_callback(self._finish)
        return task

    def retry(self, release: Callable[[], Awaitable[object]], is_needed: Callable[[], bool]) -> None:
        """Release something until the server has answered, for as long as it is needed."""

        async def work() -> None:
            while is_needed():
                try:
                    await release()
                except Unreachable:
                    await asyncio.sleep(RETRY_SECONDS)
                else:
                    return

        self.start(work())

    def _finish(self, task: asyncio.Task[Any]) -> None:
        self.unfinished.discard(task)
        if not task.cancelled():
            task.exception()  # Its caller may have been cancelled; retrieving it keeps asyncio from reporting it.


class _WaitTask:
    """The wait for one job, and how many calls wait for it: a model may call several times."""

    def __init__(self) -> None:
        self.task: asyncio.Task[AsyncClaim]
        self.queue_position: QueuePosition | None = None
        self.calls = 0
        self.timer: asyncio.TimerHandle | None = None  # For giving up, while no call waits.

    def set_queue_position(self, position: QueuePosition) -> None:
        self.queue_position = position

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()

    @property
    def has_claim(self) -> bool:
        return self.task.done() and not self.task.cancelled() and self.task.exception() is None


class WaitTasks:
    """The waits of one session. `release` is called for a granted job if no call came back for it."""

    def __init__(self, claim: Claim, release: Callable[[str], None]) -> None:
        self._claim = claim
        self._release = release
        self._waits: dict[str, _WaitTask] = {}

    async def wait_for(self, job: str, seconds: float) -> AsyncClaim | QueuePosition | None:
        """Wait for a job; return the position if it is not granted in time, or the wait was ended; None if unknown."""
        wait = self._waits.get(job) or self._begin(job)
        wait.calls += 1
        wait.stop_timer()
        try:
            await asyncio.wait({wait.task}, timeout=seconds)
        finally:
            wait.calls -= 1
            if not wait.calls:
                wait.timer = asyncio.get_running_loop().call_later(POLL_SECONDS, self._give_up, job, wait)
        # The result of a cancelled task would cancel its reader, and with it the whole server.
        if not wait.task.done() or wait.task.cancelled():
            return wait.queue_position
        wait.stop_timer()
        if self._waits.get(job) is wait:
            del self._waits[job]
        return wait.task.result()

    def pop_granted(self) -> list[str]:
        """Return the jobs that were granted between two calls, once."""
        jobs = [job for job, wait in self._waits.items() if wait.has_claim]
        for job in jobs:
            self._waits.pop(job).stop_timer()
        return jobs

    def end(self, job: str) -> bool:
        """End the wait for a job; return whether it was granted between two calls, which the model does not know."""
        wait = self._waits.pop(job, None)
        if wait is None:
            return False
        wait.stop_timer()
        wait.task.cancel()
        return wait.has_claim

    def positions(self) -> dict[str, int | None]:
        return {
            job: None if wait.queue_position is None else wait.queue_position.position
            for job, wait in sorted(self._waits.items())
            if not wait.task.done()
        }

    def end_all(self) -> set[asyncio.Task[Any]]:
        """End all waits; return their tasks, which may be unfinished."""
        tasks = {wait.task for wait in self._waits.values()}
        for job in tuple(self._waits):
            self.end(job)
        return tasks

    def _begin(self, job: str) -> _WaitTask:
        if len(self._waits) >= WAITS_MAX:
            raise ToolRefusedError(f"you stand in {WAITS_MAX} lines already: wait for one of those jobs first")
        wait = self._waits[job] = _WaitTask()
        wait.task = asyncio.create_task(self._claim(job, wait.set_queue_position), name=f"waits for {job}")
        return wait

    def _give_up(self, job: str, wait: _WaitTask) -> None:
        if self._waits.get(job) is not wait:
            return
        del self._waits[job]
        if wait.has_claim:
            self._release(job)
        elif not wait.task.cancel() and not wait.task.cancelled():
            wait.task.exception()  # Retrieving it keeps asyncio from reporting it.


class StdioBackend(ToolBackend[AsyncClaim]):
    def __init__(
        self,
        client: AgentClient,
        owner: str,
        state_file: SavedStateFile | None,
        *,
        ttl: int,
        on_change: Callable[[], None],
        warning: str | None = None,
        host: GuardLink | None = None,
        folder: str = "",
    ) -> None:
        """`ttl` is how long jobs outlive this process if it is killed. `on_change` is called when a job is lost.

        `folder` is a subagent's, whose only session is the one that the guard keeps there.
        """
        self.client = client
        self._owner = self._own_name = owner
        self._host = host
        self._folder = folder
        self._is_joined = False  # Whether the session is the guard's.
        self._state_file = state_file
        self._ttl = ttl
        self._on_change = on_change
        self._session: AsyncSession | None = None
        self._opening = asyncio.Lock()
        # What the previous process left; None once it is known what became of it.
        self._saved: SavedState | None = None if state_file is None else state_file.read()
        self._claims: dict[str, AsyncClaim] = {}
        self._waits = WaitTasks(self._claim_when_free, self._give_up)
        self._lost: list[Result] = []
        self._notices: Result = {} if warning is None else {"warning": warning}  # For the next result.
        self._background = BackgroundTasks()

    async def begin(self) -> None:
        """Adopt what the previous process left. Raises `HoldfastError` if that is not possible now."""
        async with self._opening:
            if self._saved is not None:
                await self._adopt_saved(self._saved)
                self._saved = None
                self._save()
            await self._join_guard_session()

    @property
    def is_idle(self) -> bool:
        return self._session is None and not self._waits.positions()

    async def end(self) -> None:
        """Release everything, and save for the next process what was released."""
        had = sorted(self._claims)
        unfinished = self._waits.end_all() | self._background.unfinished
        if unfinished:
            await asyncio.wait(unfinished, timeout=SHUTDOWN_SECONDS)
        if self._session is not None and self._host and self._host.is_needed_by_others(self._session.session_id):
            _detach(self._session)
            had, self._claims = [], {}
            self._clear_session()
        try:
            if self._session is not None:
                await self._session.end()
        except HoldfastError as error:
            log.warning("what was claimed ends by itself, within %d s: %s", self._ttl, error)
        else:
            self._session, self._claims = None, {}
            for job in had:
                self._record_loss(job, LeaseLost("", reason="released", why="its process was told to end"))
            self._save()
        if self._state_file is not None:
            self._state_file.close()

    async def _adopt_saved(self, saved: SavedState) -> None:
        """Adopt what still lives. If the server goes away meanwhile, the next call continues."""
        if saved.session is not None and not (self._host and self._host.is_of_another_host(saved.session)):
            try:
                if self._session is None:
                    self._session = await self.client.adopt_session(saved.session, self._on_session_lost)
                    self._publish()
                await self._adopt_claims(self._session)
            except Refused as error:
                if error.status not in GONE_STATUSES:
                    raise
                self._session, self._claims = None, {}
        gone = [job for job in saved.jobs if job not in self._claims][-LOSSES_MAX:]
        ended = [(job, await self._loss_reason(job)) for job in gone]
        self._lost += saved.lost
        for job, how in ended:
            self._record_loss(job, how)
        if self._claims:
            self._notices["resumed"] = sorted(self._claims)

    async def _adopt_claims(self, session: AsyncSession) -> None:
        for each in await self.client.list_claimed_jobs(session=session.session_id):
            if each.owner != self._owner or each.job_id in self._claims:
                continue
            with contextlib.suppress(JobHeld, JobDone):
                claim = await session.claim(each.job_id, resume=True, **self._options)
                # In a shared session a hook may have let the agent work under this claim by now.
                if claim.reacquired or self._is_joined:
                    self._claims[each.job_id] = claim
                else:
                    await claim.release(outcome="failed")  # Ours had ended since the list, and this is another one.

    async def _loss_reason(self, job: str) -> LeaseLost:
        before = None
        with contextlib.suppress(Refused):  # The access token may be another by now, with other rights.
            before = (await self.client.job(job)).previous
        reason = before.ended if before is not None and before.owner == self._owner else "unknown"
        return LeaseLost("", reason=reason, why="it ended while no process of yours ran")

    async def _join_guard_session(self) -> None:
        """Share the session that the guard keeps for this agent, if there is one, and adopt what is claimed in it."""
        if self._host is None:
            return
        shared = self._host.shared_session(self._folder)
        if self._is_joined and self._session is not None and (shared is None or shared.id != self._session.session_id):
            self._leave_guard_session(self._session)
        if shared is None:
            return
        if self._session is not None and self._session.session_id != shared.id:
            if self._claims or self._waits.positions():
                return  # Both have a session; a refused edit says what to do.
            session, self._session = self._session, None
            with contextlib.suppress(HoldfastError):
                await session.end()
        if self._session is None:
            await self._adopt_guard_session(shared)
        if self._session is not None:
            if not self._is_joined:
                self._is_joined = True
                self._save()
            await self._adopt_claims(self._session)

    async def _adopt_guard_session(self, shared: Session) -> None:
        try:
            self._session = await self.client.adopt_session(shared.id, self._on_session_lost)
        except Refused as error:
            if error.status not in GONE_STATUSES:
                raise
            return  # It has just ended, and the guard opens another with the next claim.
        self._owner = shared.owner
        self._publish()

    def _leave_guard_session(self, session: AsyncSession) -> None:
        # The guard's session ended, or a second host session makes callers indistinguishable.
        self._lose_claims("released", "these tools no longer share the guard's session")
        self._waits.end_all()
        _detach(session)
        self._clear_session()

    def _publish(self) -> None:
        """Show the guard which session this process uses; that of a subagent is known there anyway."""
        if self._host is not None and not self._folder:
            self._host.publish(self._session, self._owner, self._ttl)

    async def call(self, arguments: tools.Arguments) -> Result:
        await self.begin()
        return await self.run_tool(arguments)

    def notices(self) -> Result:
        self._check_claims()
        notices, self._notices = self._notices, {}
        granted = [job for job in self._waits.pop_granted() if job in self._claims]
        if granted:
            notices["granted"] = sorted({*notices.get("granted", []), *granted})
        if self._lost:
            notices["lost"], self._lost = self._lost, []
            self._save()
        return notices

    async def my_jobs(self) -> Result:
        self._check_claims()
        jobs = [
            {
                "job": job,
                "still_held": True,
                "expires_in": results.seconds(claim.remaining),
                "fencing_token": claim.fencing_token,
            }
            for job, claim in sorted(self._claims.items())
            if not claim.released
        ]
        waiting = [{"job": job, "place": position} for job, position in self._waits.positions().items()]
        return {"status": "listed", "owner": self._owner, "jobs": jobs, "waiting_for": waiting or None}

    def owns(self, status: JobStatus) -> bool:
        return self._held(status.job_id) is not None

    async def claim(self, arguments: tools.ClaimJob) -> Acquired[AsyncClaim]:
        held_claim = None if arguments.job is UNSET else self._held(arguments.job)
        if held_claim is not None:
            return self._acquired(held_claim, already=True)

        async def claim(session: AsyncSession) -> AsyncClaim:
            if arguments.any_of is not UNSET:
                return await session.claim_any(arguments.any_of, **self._options)
            return await session.claim(arguments.job or "", **self._options)

        try:
            return self._acquired(await self._in_session(claim))
        except JobHeld as error:
            # Another call of this process may have claimed it meanwhile.
            held_claim = self._held(error.job_id) if arguments.any_of is UNSET else None
            if held_claim is None:
                raise
            return self._acquired(held_claim, already=True)

    async def wait(self, job: str, seconds: float) -> Acquired[AsyncClaim] | Waiting:
        held_claim = self._held(job)
        if held_claim is not None:
            return self._acquired(held_claim, already=True)
        got = await self._waits.wait_for(job, seconds)
        held_claim = self._held(job)  # Another call may have got it, and what came may be lost by now.
        if held_claim is not None:
            return self._acquired(held_claim)
        if got is None or isinstance(got, AsyncClaim):
            return Waiting()
        return Waiting(got.position, got.owner, got.away)

    def _acquired(self, claim: AsyncClaim, *, already: bool = False) -> Acquired[AsyncClaim]:
        was_granted_between_calls = self._waits.end(claim.job_id)
        return Acquired(claim, claim.record, already and not was_granted_between_calls)

    async def _claim_when_free(self, job: str, on_wait: OnWait) -> AsyncClaim:
        return await self._in_session(
            lambda session: session.claim(job, wait=math.inf, on_wait=on_wait, **self._options)
        )

    def _give_up(self, job: str, why: str = "your turn came, and you did not come back") -> None:
        """Release a job of which the model does not know that it has it.

        In a session that the guard keeps it stays the agent's: a hook may have let it work on the job already.
        """
        if self._is_joined and job in self._claims:
            self._notices["granted"] = sorted({*self._notices.get("granted", []), job})
            return
        claim = self._claims.pop(job, None)
        if claim is not None:
            self._record_loss(job, LeaseLost("", reason="released", why=why))
            self._save()
            self._background.start(self._release(claim, "failed"))

    def on_claim_cancelled(self, lease: AsyncClaim) -> None:
        self._give_up(lease.job_id, "the call that claimed it was cancelled")

    async def find_lease(self, job: str) -> AsyncClaim | Result:
        claim = self._held(job)
        if claim is not None:
            return claim
        loss = next((each for each in self._lost if each.get("job") == job), None)
        if loss is None:
            return results.not_yours(job, await self.client.job(job))
        self._lost.remove(loss)
        self._save()
        return {"status": "lost", "still_held": False, **loss}

    async def expires_in(self, lease: AsyncClaim) -> float:
        return lease.remaining

    async def renew(self, lease: AsyncClaim, note: str | None) -> float:
        await lease.renew(note=note)
        return lease.remaining

    async def release(self, lease: AsyncClaim, outcome: str | None, result: str | None, remember: float | None) -> None:
        """Release a claim, also if the call is cancelled meanwhile."""
        await asyncio.shield(self._background.start(self._release(lease, outcome, result, remember)))

    async def _release(
        self, claim: AsyncClaim, outcome: str | None, result: str | None = None, remember: float | None = None
    ) -> None:
        try:
            await claim.release(outcome=outcome, result=result, remember=remember)
        except Unreachable:  # Go on trying: the session renews everything that is bound to it.
            release = partial(self.client.release_job, claim.job_id, claim.lease_id)
            again = partial(release, outcome=outcome, result=result, remember=remember)
            session = self._session
            self._background.retry(again, lambda: session is not None and self._session is session)
            self._drop(claim)
            raise
        except LeaseLost:
            self.on_loss_reported(claim)
            raise
        self._drop(claim)

    def on_loss_reported(self, lease: AsyncClaim) -> None:
        self._lost = [each for each in self._lost if each.get("job") != lease.job_id]
        self._drop(lease)

    @property
    def _options(self) -> dict[str, Any]:
        return {"ttl": self._ttl, "owner": self._owner, "on_lost": self._on_claim_lost}

    async def _in_session(self, claim_in: Callable[[AsyncSession], Awaitable[AsyncClaim]]) -> AsyncClaim:
        """Claim in the session, or once in a new one if it is over."""
        if len(self._claims) >= CLAIMS_MAX:
            raise ToolRefusedError(f"you have {CLAIMS_MAX} jobs already: release some that you do not work on")
        session = await self._session_or_open()
        try:
            claim = await claim_in(session)
        except Refused as error:
            if error.code not in {"session_expired", "not_found"}:
                raise
            self._on_session_lost(session)
            session = await self._session_or_open()
            claim = await claim_in(session)
        if self._session is not session:
            _detach_claim(claim)
            raise ToolRefusedError(f"your session changed while {claim.job_id} was claimed: call again")
        self._claims[claim.job_id] = claim
        self._save()
        return claim

    async def _session_or_open(self) -> AsyncSession:
        async with self._opening:
            if self._session is None and self._folder:
                raise ToolRefusedError(
                    "the guard has no session for this subagent at the server of these tools, so nothing was done: call"
                    " again, and see that hooks and tools have the same HOLDFAST_URL"
                )
            if self._session is None:
                self._session = await self.client.session(
                    self._owner, ttl=self._ttl, metadata={"opened_by": "holdfast mcp"}, on_lost=self._on_session_lost
                )
                self._publish()
                self._save()
            return self._session

    def _held(self, job: str) -> AsyncClaim | None:
        """Return the claim of a job, unless it is lost or about to be released."""
        self._check_claims()
        claim = self._claims.get(job)
        return None if claim is None or claim.released else claim

    def _check_claims(self) -> None:
        """Record losses that no timer has reported yet, as after the machine slept."""
        for claim in tuple(self._claims.values()):
            self._on_claim_lost(claim)

    def _on_claim_lost(self, claim: AsyncClaim) -> None:
        error = _loss_of(claim)
        if error is not None and self._claims.get(claim.job_id) is claim:
            self._waits.end(claim.job_id)
            self._record_loss(claim.job_id, error)
            self._drop(claim)
            self._on_change()

    def _on_session_lost(self, session: AsyncSession) -> None:
        if self._session is not session:
            return
        had_claims = self._lose_claims("session_ended")
        if self._is_joined:
            self._waits.end_all()  # The guard released everything; a wait would claim for an agent that has moved on.
        self._clear_session()
        if had_claims:
            self._on_change()

    def _clear_session(self) -> None:
        self._session, self._is_joined, self._owner = None, False, self._own_name
        self._publish()
        self._save()

    def _lose_claims(self, reason: str, why: str | None = None) -> bool:
        """Report every claim as lost, for its own reason if it has one; return whether there were any."""
        claims, self._claims = self._claims, {}
        for job, claim in claims.items():
            self._waits.end(job)
            self._record_loss(job, _loss_of(claim) or LeaseLost("", reason=reason, why=why))
        return bool(claims)

    def _drop(self, claim: AsyncClaim) -> None:
        if self._claims.get(claim.job_id) is claim:  # There may be a newer one of the same job.
            del self._claims[claim.job_id]
        self._save()

    def _record_loss(self, job: str, error: LeaseLost) -> None:
        self._lost = [*self._lost[1 - LOSSES_MAX :], results.ended(job, error)]

    def _save(self) -> None:
        if self._state_file is None or self._saved is not None:
            return
        # The guard saves what it shares.
        session = None if self._session is None or self._is_joined else self._session.session_id
        jobs = [] if session is None else sorted(self._claims)
        try:
            self._state_file.write(SavedState(session=session, jobs=jobs, lost=self._lost))
        except SavedStateError as error:
            self._notices["warning"] = f"a restart may resume nothing: {error}"


def _loss_of(claim: AsyncClaim) -> LeaseLost | None:
    try:
        claim.raise_if_lost()
    except LeaseLost as error:
        return error
    except HoldfastError:
        pass  # This process has released it.
    return None


def _detach(session: AsyncSession) -> None:
    """Stop renewing a session and its claims; another process goes on."""
    session._deadline.end()  # noqa: SLF001 - one of ours
    session._renewal_handle.stop()  # noqa: SLF001 - the same
    for claim in tuple(session._members):  # noqa: SLF001 - the same
        _detach_claim(claim)


def _detach_claim(claim: AsyncClaim) -> None:
    """Stop renewing a claim without releasing it."""
    claim._deadline.end()  # noqa: SLF001 - one of ours
    claim._stop()  # noqa: SLF001 - the same
