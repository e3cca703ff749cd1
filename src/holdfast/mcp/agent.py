"""Our own client, with what only the tools need: a session taken over, and a visit to a line that keeps the place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from holdfast import AsyncClaim, AsyncHoldfast, JobClaim, SessionInfo
from holdfast.client.coroutines.session import AsyncSession
from holdfast.client.flows import claiming, sessions
from holdfast.client.values.options import Wanted

Waiting: TypeAlias = claiming.Waiting
"""A place in the line, which is kept for a minute."""


class AgentClient(AsyncHoldfast):
    """A client of one server for the tools."""

    async def adopt_session(self, session_id: str, on_lost: Callable[[AsyncSession], object]) -> AsyncSession:
        """Take over a session of ours that still lives, and keep it alive. Raises `Refused` if it does not."""
        reply, term = await self._run(sessions.adopt_session(session_id, self._policy))
        return AsyncSession(self._link, self, reply, term, on_lost)

    async def keep_session(self, session_id: str) -> float:
        """Renew a session with all that is bound to it; return how many seconds it lives. Raises `Refused`."""
        reply, _ = await self._run(sessions.keep_session(session_id, self._policy))
        return reply.expires_in_ms / 1_000

    async def live_session(self, session_id: str) -> SessionInfo:
        """Return what is known of a session of ours that lives. Raises `Refused`."""
        return await self._run(sessions.live_session(session_id, self._policy))

    async def visit_line(self, job: str, *, owner: str, session: str, ttl: int, seconds: float) -> JobClaim | Waiting:
        """Stand in line for a job for so long, and keep the place if the turn did not come. Raises as `claim`."""
        terms = Wanted(ttl=ttl, owner=owner, session=session, wait=seconds, resume=True)
        got = await self._run(claiming.visit(job, terms, self._policy))
        return got if isinstance(got, claiming.Waiting) else got.claim


def detach(session: AsyncSession) -> None:
    """Stop keeping a session and its claims, which another process goes on keeping."""
    session._term.end()  # noqa: SLF001 - one of ours
    session._kept.stop()  # noqa: SLF001 - the same
    for claim in tuple(session._members):  # noqa: SLF001 - the same
        detach_claim(claim)


def detach_claim(claim: AsyncClaim) -> None:
    """Stop keeping a claim without releasing it."""
    claim._term.end()  # noqa: SLF001 - one of ours
    claim._stop()  # noqa: SLF001 - the same
