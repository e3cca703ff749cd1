"""The seam between flows and the network, for coroutines: the promises of `threads/transport.py`, for tasks."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from holdfast.client.flows.effects import Open, Send
from holdfast.client.values.answer import Answer


class AsyncStream(Protocol):
    """A response that is read bit by bit."""

    status: int

    async def read(self) -> bytes:
        """Wait for the next bytes; empty at the end. Raises `Unreachable`."""

    def close(self) -> None:
        """Hang up."""


class AsyncTransport(Protocol):
    """A way to one authority, for one event loop."""

    finishing: set[asyncio.Task[Any]]
    """What goes on although its caller was cancelled: giving back."""

    async def send(self, request: Send) -> Answer:
        """Send one request and return its answer, whatever its status. Raises `Unreachable`."""

    async def stream(self, opening: Open) -> AsyncStream:
        """Open a response that goes on and on. Raises `Unreachable`."""

    async def close(self) -> None:
        """Close the connections, once nobody gives anything back any more."""
