"""GET /locks/{name}/watch: what happens to one name, live, as server-sent events in OctoStore's form.

The first frame is how things are; listening begins before it is taken, so that there may be a doubled frame and never
a gap. No frame holds a lease id, a holder, a session or metadata.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.core.events import Ended, Granted, Renewed, Transferred
from holdfast.server.api import encode
from holdfast.server.doors.request import read_query, read_segment
from holdfast.server.times import rfc3339
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.core.events import Event, Record
    from holdfast.core.state import State
    from holdfast.core.values import Moment
    from holdfast.engine.feed import Listener
    from holdfast.server.api import Api
    from holdfast.server.doors.request import Request

KEEPALIVE_SECONDS = 15
KEEPALIVE = b": keepalive\n\n"
RETRY_MS = 1_000


class Watches:
    """How many watch, and for whom: bounded for each principal and for all."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._by_principal: dict[str, int] = {}

    def admit(self, request: Request, segment: bytes) -> Watch:
        """Let a watcher in, or raise why not."""
        api = self._api
        text = read_segment(segment)
        read_query(request.query, frozenset())
        caller = api.identify(request, "read")
        name = api.name_for(text, caller)
        feed, settings = api.engine.feed, api.settings
        if feed.names >= settings.watched_names_max and not feed.is_listened_to(name):
            raise Problem("capacity_exceeded", "Too many names are watched: try again.", retry_after_ms=RETRY_MS)
        self.count_in(caller.principal)
        return Watch(self, request, name, caller.principal, feed.listen(name))

    def is_still_let_in(self, authorization: bytes | None) -> bool:
        """Tell whether a watcher's token is good yet."""
        return self._api.is_still_let_in(authorization)

    def count_in(self, principal: str) -> None:
        """Count a watcher in, or raise that there are too many of one principal's."""
        count, limit = self._by_principal.get(principal, 0), self._api.settings.watches_per_principal_max
        if count >= limit:
            raise Problem("quota_exceeded", f"This token has {limit} watches open, the most it may: close some.")
        self._by_principal[principal] = count + 1

    def leave(self, principal: str) -> None:
        """Count a watcher out."""
        left = self._by_principal[principal] - 1
        if left:
            self._by_principal[principal] = left
        else:
            del self._by_principal[principal]

    async def snapshot(self, name: str) -> tuple[int, bytes]:
        """Return the token of the live lease, if there is one, and the first frame: how things are."""

        def view(state: State, now: Moment) -> tuple[int, bytes]:
            lease = state.lease_of(name)
            token = 0
            body: dict[str, Any] = {"event": "released", "lock_name": name}
            if lease is not None:
                token = lease.token
                body = {
                    "event": "acquired",
                    "lock_name": name,
                    "fencing_token": token,
                    "expires_at": rfc3339(now.wall_ms + state.until_of(lease) - now.ms),
                }
            return token, _frame(body | {"observed_at": rfc3339(now.wall_ms)})

        return await self._api.engine.look(view)


class Watch:
    """One who watches one name."""

    def __init__(self, watches: Watches, request: Request, name: str, principal: str, listener: Listener) -> None:
        self._watches = watches
        self._authorization = request.authorization
        self._name = name
        self._principal = principal
        self._listener = listener
        self._token = 0

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield frames until the watcher falls behind or the server stops; a comment keeps the line open."""
        self._token, frame = await self._watches.snapshot(self._name)
        yield frame
        while True:
            try:
                happening = await asyncio.wait_for(self._listener.next(), KEEPALIVE_SECONDS)
            except TimeoutError:
                yield KEEPALIVE
                continue
            if happening is None or not self._watches.is_still_let_in(self._authorization):
                return
            yield self._describe(*happening)

    def close(self) -> None:
        """Stop watching."""
        self._listener.close()
        self._watches.leave(self._principal)

    def _describe(self, record: Record, event: Event) -> bytes:
        body: dict[str, Any] = {"event": "renewed", "lock_name": self._name}
        match event:
            case Granted() | Transferred():
                self._token = event.lease.token
                body |= {"event": "acquired"} | self._until(record, event.lease.until_ms)
            case Renewed():
                body |= self._until(record, event.until_ms)
            case Ended():
                over = "released" if event.how == "released" or event.by is not None else "expired"
                body |= {"event": over}
            case _:
                pass
        return _frame(body | {"observed_at": rfc3339(record.wall_ms)})

    def _until(self, record: Record, until_ms: int) -> dict[str, Any]:
        return {"fencing_token": self._token, "expires_at": rfc3339(record.wall_ms + until_ms - record.at_ms)}


def _frame(body: dict[str, Any]) -> bytes:
    return b"data: " + encode(body) + b"\n\n"
