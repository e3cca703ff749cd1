"""The jobs that one agent has claimed, for hooks of a framework: `take` before a tool runs, `note` after it has run.

The model never claims, renews or releases. A hook calls `take` before every tool that has an effect. If it returns a
text, the tool must not run, and the model reads the text instead: who has the job, or what the owner before us has
left. At the end of the run the `with` block releases everything, as failed if the run has failed.

`HookClaims` is for threads, `AsyncHookClaims` for coroutines. Copy the one you need, and give it your own texts and
names.
"""

import asyncio
import threading
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from types import TracebackType
from typing import Self

import holdfast
from examples.frameworks.stage import Part, job_of, who_had_it, who_has_it


class HookClaims:
    """For frameworks that call tools in threads."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self._claims: dict[str, holdfast.Claim] = {}
        self._stack = ExitStack()
        self._lock = threading.Lock()  # A model may call two tools at once for one issue.
        self._client = self._stack.enter_context(holdfast.Holdfast(owner=part.name))

    def take(self, issue: str) -> str | None:
        """None if the issue is ours and the tool may run, else what the model has to know first."""
        with self._lock:
            if issue in self._claims:
                self._claims[issue].raise_if_lost()
                return None
            try:
                claim = self._client.claim(job_of(issue), ttl=self.part.ttl, wait=self.part.wait)
            except holdfast.JobHeld as held:
                return who_has_it(issue, held)
            self._claims[issue] = self._stack.enter_context(claim)
        self.part.say(f"issue {issue} is mine, with fencing token {claim.fencing_token}")
        return who_had_it(issue, claim.previous) if claim.previous else None

    def token(self, issue: str) -> int:
        """What the tool gives to the thing that it changes, so that this can refuse an owner of the past."""
        return self._claims[issue].fencing_token

    def note(self, issue: str, text: str) -> None:
        """Tell everybody how far we are, and whoever takes over after us."""
        self._claims[issue].note(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
        for issue in self._claims:
            self.part.say(f"released issue {issue}")


class AsyncHookClaims:
    """For frameworks that call tools in coroutines. They must not block the event loop, which renews the claims."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self._claims: dict[str, holdfast.AsyncClaim] = {}
        self._lock = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._client = holdfast.AsyncHoldfast(owner=part.name)

    async def take(self, issue: str) -> str | None:
        """None if the issue is ours and the tool may run, else what the model has to know first."""
        async with self._lock:
            if issue in self._claims:
                self._claims[issue].raise_if_lost()
                return None
            try:
                # Not `async with`: a loss would cancel the task of this one tool, and that ends before the run does.
                claim = await self._client.claim(job_of(issue), ttl=self.part.ttl, wait=self.part.wait)
            except holdfast.JobHeld as held:
                return who_has_it(issue, held)
            self._claims[issue] = claim
            self._stack.push_async_exit(partial(self._give_back, issue))
        self.part.say(f"issue {issue} is mine, with fencing token {claim.fencing_token}")
        return who_had_it(issue, claim.previous) if claim.previous else None

    def token(self, issue: str) -> int:
        return self._claims[issue].fencing_token

    async def note(self, issue: str, text: str) -> None:
        await self._claims[issue].note(text)

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._client)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def _give_back(
        self,
        issue: str,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._claims[issue].release(outcome="failed" if error else None)
        self.part.say(f"released issue {issue}")
