"""GET /locks/{name}/watch: the changes of one name, live, as server-sent events in OctoStore's form.

The first frame is the state. The stream listens before it reads the state, so a frame may be sent twice, and none is
missing. No frame has a lease id, a holder, a session or metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.api.auth.secrets import claim_holds
from holdfast.api.rendering import encode, rfc3339
from holdfast.api.stream import Stream
from holdfast.core.events import Ended, Event, Granted, Record, Renewed, Transferred
from holdfast.engine.build import JournalError
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.api.context import RequestContext
    from holdfast.api.service import ApiService
    from holdfast.core.state import State
    from holdfast.core.values import Instant

RETRY_MS = 1_000


class Watch(Stream):
    def __init__(self, api: ApiService, context: RequestContext) -> None:
        feed, most = api.engine.feed, api.settings.watched_names_max
        if feed.names >= most and not feed.is_listened_to(context.item):
            text = f"{most} names are watched, the most there may be (watched_names_max): try again."
            raise Problem("capacity_exceeded", text, retry_after_ms=RETRY_MS)
        super().__init__(api, context, api.streams)
        self._name = context.item
        self._listener = feed.listen(self._name, context.caller.principal, context.caller.session)
        self._token = 0

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield frames until the watcher falls behind, its token ends or the server stops."""
        try:
            self._token, frame = await self._api.engine.query(self._first)
        except JournalError:
            return  # The watcher reconnects, and is refused with the reason, or served.
        yield frame
        claim = self._caller.claim
        while (item := await self._next_event(self._listener.next)) is not None:
            if isinstance(item, bytes):
                yield item
                continue
            if not self._is_authorized():
                return
            yield self._describe(*item)
            if claim is not None and not claim_holds(claim, self._name, self._api.engine.state):
                return  # A claim's secret may watch a name only while it holds it.

    def close(self) -> None:
        self._listener.close()
        super().close()

    def _first(self, state: State, now: Instant) -> tuple[int, bytes]:
        lease = state.lease_of(self._name)
        token = 0
        body: dict[str, Any] = {"event": "released", "lock_name": self._name}
        if lease is not None:
            token = lease.token
            expires_at = rfc3339(now.wall_ms + state.until_of(lease) - now.ms)
            body |= {"event": "acquired", "fencing_token": token, "expires_at": expires_at}
        return token, _frame(body, now.wall_ms)

    def _describe(self, record: Record, event: Event) -> bytes:
        what, until_ms = "renewed", None
        match event:
            case Granted() | Transferred():
                self._token, what, until_ms = event.lease.token, "acquired", event.lease.until_ms
            case Renewed():
                until_ms = event.until_ms
            case Ended():
                what = "released" if event.how == "released" or event.by is not None else "expired"
            case _:
                pass
        body: dict[str, Any] = {"event": what, "lock_name": self._name}
        if until_ms is not None:
            expires_at = rfc3339(record.wall_ms + until_ms - record.at_ms)
            body |= {"fencing_token": self._token, "expires_at": expires_at}
        return _frame(body, record.wall_ms)


def _frame(body: dict[str, Any], observed_ms: int) -> bytes:
    return b"data: " + encode(body | {"observed_at": rfc3339(observed_ms)}) + b"\n\n"
