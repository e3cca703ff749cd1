"""The base of all streams: limits per caller, the caller's rights, and keepalive comments."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.core.usage import exceeded
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from holdfast.api.context import RequestContext
    from holdfast.core.events import Event, Record
    from holdfast.engine.feed import Listener

T = TypeVar("T")

WRITE_BYTES = 65_536
KEEPALIVE_SECONDS = 15
KEEPALIVE = b": keepalive\n\n"  # Sent by every stream that has nothing else to send.


class OpenStreams:
    """Counts the open streams of each principal, and of each session or claim, which may have half as many."""

    def __init__(self, per_principal_max: int, kind: str = "watches") -> None:
        self._per_principal_max = per_principal_max
        self._kind = kind  # In messages and in the name of the setting.
        self._open: dict[tuple[str, str | None], int] = {}
        self.count = 0

    def add(self, principal: str, share: str | None) -> None:
        """Count a stream, or raise if its principal, or its session or claim, has too many."""
        in_share = None if share is None else self._open.get((principal, share), 0)
        limit = exceeded(self._per_principal_max, 1, self._open.get((principal, None), 0), in_share)
        if limit is not None:
            of_all = limit == self._per_principal_max
            whose, why = ("access token", "") if of_all else ("claim or session", ", half of what its token may")
            open_now = f"{limit} {self._kind.replace('_', ' ')} open{why}"
            text = f"This {whose} may have {open_now} ({self._kind}_per_principal_max): close some."
            raise Problem("quota_exceeded", text)
        self.count += 1
        for who in {(principal, None), (principal, share)}:
            self._open[who] = self._open.get(who, 0) + 1

    def remove(self, principal: str, share: str | None) -> None:
        self.count -= 1
        for who in {(principal, None), (principal, share)}:
            self._open[who] -= 1
            if not self._open[who]:
                del self._open[who]


class Stream(ABC):
    """One open stream of one caller. The constructor raises if the caller has too many."""

    def __init__(self, api: Any, context: RequestContext, open_streams: OpenStreams) -> None:  # noqa: ANN401 - the `ApiService`, which imports this
        self._api = api
        self._caller = context.caller
        self._authorization = context.request.authorization
        self._open_streams = open_streams
        open_streams.add(context.caller.principal, context.caller.share)

    @abstractmethod
    def frames(self) -> AsyncIterator[bytes]:
        """Yield frames until the stream is over."""

    def close(self) -> None:
        """Stop. Called once, however the stream ends."""
        self._open_streams.remove(self._caller.principal, self._caller.share)

    def _is_authorized(self) -> bool:
        """Return whether the caller's token is still valid. It detects expiry; the feed reports revocations."""
        return self._api.current_caller(self._authorization) is not None

    async def _next_event(self, next_event: Callable[[], Awaitable[T | None]]) -> T | bytes | None:
        """Return a listener's next event, `KEEPALIVE` if that is due first, or None once the stream is over."""
        try:
            return await asyncio.wait_for(next_event(), KEEPALIVE_SECONDS)
        except TimeoutError:
            return KEEPALIVE if self._is_authorized() else None


def queued_events(first: tuple[Record, Event], listener: Listener) -> Iterator[tuple[Record, Event]]:
    """Yield the first event and those that the listener has queued."""
    item: tuple[Record, Event] | None = first
    while item is not None:
        yield item
        item = listener.next_nowait()
