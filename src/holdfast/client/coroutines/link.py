"""What a claim or a session needs of its client to act: run a flow, and renew in the background."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from holdfast.client.common.keeping import Kept
from holdfast.client.coroutines.background import BackgroundLoop
from holdfast.client.coroutines.driver import drive
from holdfast.client.coroutines.transport import AsyncTransport
from holdfast.client.flows.effects import Flow, Policy
from holdfast.client.flows.ends import Ends
from holdfast.client.flows.renewing import Renewal
from holdfast.client.values.term import Term

T = TypeVar("T")


class AsyncLink:
    """The way to one server for whoever holds something there, on one event loop."""

    def __init__(self, transport: AsyncTransport, policy: Policy, background: BackgroundLoop) -> None:
        self.policy = policy
        self._transport = transport
        self._background = background
        self._ends = Ends(policy, self._keep, self._listen)
        self._listening: set[asyncio.Task[None]] = set()

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end, in this task."""
        return await drive(flow, self._transport, flow.send, [None])

    def keep(self, term: Term, renewal: Renewal) -> Kept:
        """Renew a term in the background until it ends, or nobody has what this returns any more."""
        background, send = self._background, self._transport.send
        return Kept(background, term, renewal, send=send, ends=self._ends, policy=self.policy)

    async def close(self) -> None:
        """Listen no more."""
        while self._listening:
            task = self._listening.pop()
            task.cancel()
            await asyncio.wait([task])

    def _keep(self, flow: Flow[None]) -> None:
        self._background.add(flow, self._transport.send)

    def _listen(self, flow: Flow[None]) -> None:
        """Let a flow that waits for long go on in a task of its own."""
        task = asyncio.get_running_loop().create_task(self.run(flow), name="holdfast-ends")
        self._listening.add(task)
        task.add_done_callback(self._listening.discard)
