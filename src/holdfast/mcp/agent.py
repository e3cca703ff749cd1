"""The Holdfast client with the operations that only the tools for agents need."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from holdfast import AsyncClaim, AsyncHoldfast, JobClaim, SessionInfo
from holdfast.client.aio import AsyncSession
from holdfast.client.operations import claims, sessions
from holdfast.client.options import Wanted

QueuePosition: TypeAlias = claims.Waiting
"""A place in a queue, which the server keeps for a minute."""


class AgentClient(AsyncHoldfast):
    """A client of one server for the tools."""

    async def adopt_session(self, session_id: str, on_lost: Callable[[AsyncSession], object]) -> AsyncSession:
        """Take over a live session of this access token and keep it alive. Raises `Refused`."""
        opened = await self._run(sessions.adopt_session(session_id, self._policy))
        return AsyncSession(self._link, self, opened, on_lost)

    async def keep_session(self, session_id: str) -> float:
        """Renew a session and all its claims once; return how many seconds it lives. Raises `Refused`."""
        reply, _ = await self._run(sessions.keep_session(session_id, self._policy))
        return reply.expires_in_ms / 1_000

    async def live_session(self, session_id: str) -> SessionInfo:
        """Return a live session of this access token. Raises `Refused`."""
        return await self._run(sessions.live_session(session_id, self._policy))

    async def session_secret(self, session_id: str) -> str:
        """Return the secret of a session of this access token. Raises `Refused`."""
        return await self._run(sessions.session_secret(session_id, self._policy))

    async def visit_queue(
        self, job: str, *, owner: str, session: str, ttl: int, seconds: float
    ) -> JobClaim | QueuePosition:
        """Wait in the queue of a job, and keep the place if the turn does not come. Raises as `claim`."""
        terms = Wanted(ttl=ttl, owner=owner, session=session, wait=seconds, resume=True)
        got = await self._run(claims.visit(job, terms, self._policy))
        return got if isinstance(got, claims.Waiting) else got.claim


def detach(session: AsyncSession) -> None:
    """Stop renewing a session and its claims; another process goes on."""
    session._term.end()  # noqa: SLF001 - one of ours
    session._kept.stop()  # noqa: SLF001 - the same
    for claim in tuple(session._members):  # noqa: SLF001 - the same
        detach_claim(claim)


def detach_claim(claim: AsyncClaim) -> None:
    """Stop renewing a claim without releasing it."""
    claim._term.end()  # noqa: SLF001 - one of ours
    claim._stop()  # noqa: SLF001 - the same
