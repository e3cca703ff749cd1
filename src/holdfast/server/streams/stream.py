"""What every stream has: a count for its caller, the caller's rights, and comments that keep the connection alive."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from holdfast.server.api import Api
    from holdfast.server.operations.call import Call
    from holdfast.server.streams.limit import OpenStreams

T = TypeVar("T")

WRITE_BYTES = 65_536
"""How much is gathered for one write, about."""
KEEPALIVE_SECONDS = 15
KEEPALIVE = b": keepalive\n\n"
"""Sent by every stream that has nothing else to send."""


class Stream(ABC):
    """One open stream of one caller. To make it raises if the caller has too many."""

    def __init__(self, api: Api, call: Call, among: OpenStreams) -> None:
        self._api = api
        self._caller = call.caller
        self._authorization = call.request.authorization
        self._among = among
        among.count_in(call.caller.principal, call.caller.share)

    @abstractmethod
    def frames(self) -> AsyncIterator[bytes]:
        """Yield what the stream says, until it is over."""

    def close(self) -> None:
        """Stop. Called once, however the stream ends."""
        self._among.count_out(self._caller.principal, self._caller.share)

    def _is_let_in(self) -> bool:
        """Tell whether the caller's token is still good: an expired one is found out here, a revoked one at once."""
        return self._api.is_still_let_in(self._authorization)

    async def _heard(self, following: Callable[[], Awaitable[T | None]]) -> T | bytes | None:
        """Return what a listener hears next, `KEEPALIVE` if that is due first, or None once the stream is over."""
        try:
            return await asyncio.wait_for(following(), KEEPALIVE_SECONDS)
        except TimeoutError:
            return KEEPALIVE if self._is_let_in() else None
