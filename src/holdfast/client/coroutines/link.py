"""What a claim or a session needs of its client to act: run a flow, and renew in the background."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from holdfast.client.common.background import BackgroundFlow
from holdfast.client.coroutines.background import BackgroundLoop
from holdfast.client.coroutines.driver import drive
from holdfast.client.flows.effects import Flow, Policy
from holdfast.client.flows.ends import Ends
from holdfast.client.flows.renewing import Renewal, keep_renewed, watch_deadline
from holdfast.client.values.term import Term

if TYPE_CHECKING:
    from holdfast.client.coroutines.http import AsyncHttpTransport

T = TypeVar("T")


class AsyncLink:
    """The way to one server for whoever holds something there, on one event loop."""

    def __init__(self, transport: AsyncHttpTransport, policy: Policy, background: BackgroundLoop) -> None:
        self.policy = policy
        self._transport = transport
        self._background = background
        self._ends = Ends(policy, self._keep, self._listen)
        self._listening: set[asyncio.Task[None]] = set()

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end, in this task."""
        return await drive(flow, self._transport, flow.send, [None])

    def renew_in_background(self, owner: object, term: Term, renewal: Renewal) -> tuple[BackgroundFlow, ...]:
        """Renew a term until it ends, and watch its deadline beside that. Give what this returns to `stop`.

        Both end by themselves when nobody has the owner of the term any more.
        """
        attend = partial(self._ends.attend, term, renewal)
        flows = (watch_deadline(term, attend), keep_renewed(term, renewal.request, self.policy))
        return tuple(self._keep(flow, owner) for flow in flows)

    def stop(self, renewals: tuple[BackgroundFlow, ...]) -> None:
        """Stop renewing."""
        for each in renewals:
            self._background.drop(each)

    async def close(self) -> None:
        """Listen no more."""
        while self._listening:
            task = self._listening.pop()
            task.cancel()
            await asyncio.wait([task])

    def _keep(self, flow: Flow[None], owner: object = None) -> BackgroundFlow:
        return self._background.add(flow, self._transport.send, owner)

    def _listen(self, flow: Flow[None]) -> None:
        """Let a flow that waits for long go on in a task of its own."""
        task = asyncio.get_running_loop().create_task(self.run(flow), name="holdfast-ends")
        self._listening.add(task)
        task.add_done_callback(self._listening.discard)


def abandon(renewals: tuple[BackgroundFlow, ...]) -> None:
    """Stop renewing, from whichever thread the garbage collector runs in: the schedule is the event loop's alone."""
    for each in renewals:
        each.stopped = True
