"""The way to an authority that has several addresses, for coroutines. `values/addresses.py` says why it is so."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from holdfast.client.common.http import Bearer, may_repeat
from holdfast.client.coroutines.http import AsyncHttpStream, AsyncHttpTransport
from holdfast.client.coroutines.transport import AsyncTransport
from holdfast.client.flows.effects import Open, Send
from holdfast.client.values.addresses import BEGIN_SECONDS, Addresses
from holdfast.client.values.answer import NOT_NOW, Answer
from holdfast.client.values.config import Target
from holdfast.errors import Unreachable


def way_to(target: Target, *, environment: Mapping[str, str]) -> AsyncTransport:
    """Return the way to an authority: with one address, what it always was."""
    if len(target.addresses) == 1:
        return AsyncHttpTransport(target, environment=environment)
    return AsyncSeveralTransport(target, environment=environment)


class AsyncSeveralTransport:
    """A way to one authority over whichever of its addresses answers, for one event loop."""

    def __init__(self, target: Target, *, environment: Mapping[str, str]) -> None:
        self.target = target
        self.finishing: set[asyncio.Task[Any]] = set()
        """What goes on although its caller was cancelled: giving back."""
        self._addresses = Addresses(target.addresses)
        bearer = Bearer(target)
        self._ways = [
            AsyncHttpTransport(
                target.at(each),
                environment=environment,
                bearer=bearer,
                connect_share=self._addresses.connect_share,
                begin_seconds=BEGIN_SECONDS,
            )
            for each in target.addresses
        ]

    def __repr__(self) -> str:
        """Show where it leads, never the token."""
        return f"AsyncSeveralTransport({self.target!r})"

    async def close(self) -> None:
        """Close the connections, once nobody gives anything back any more."""
        if self.finishing:
            await asyncio.wait(self.finishing)
        for way in self._ways:
            await way.close()

    async def send(self, request: Send) -> Answer:
        """Send one request to the first that answers. Raises `Unreachable`."""
        tries = self._addresses.tries(may_repeat=may_repeat(request))
        for at in tries:
            try:
                answer = tries.named(at, await self._ways[at].send(request))
            except Unreachable as error:
                if not tries.go_on_after(at, error):
                    raise
            else:
                if tries.settles(at, answer):
                    return answer
        return tries.result()

    async def stream(self, opening: Open) -> AsyncHttpStream:
        """Open a response that goes on and on, at the first that answers. Raises `Unreachable`."""
        tries = self._addresses.tries(may_repeat=True)
        for at in tries:
            try:
                stream = await self._ways[at].stream(opening)
            except Unreachable as error:
                tries.go_on_after(at, error)
                continue
            if stream.status not in NOT_NOW:
                stream.on_broken = partial(self._addresses.failed, at)
                return stream
            self._addresses.failed(at)
            if not tries.left:
                return stream
            stream.close()
        raise tries.error()
