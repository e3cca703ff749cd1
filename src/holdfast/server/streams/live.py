"""GET /ui/live: the page's own stream. Which rows of the list look different now, heartbeats too. Server-sent events.

    event: hello    {"seq", "now"}     from here on nothing is missed: load the rows (`GET /ui/rows`), put this on top
    event: rows     {"seq", "now", "rows", "beats", "gone", "kept", "totals"}      see `pages/rows`
    event: resync   {}                 something was missed: load the rows again

It tells current state, unlike `/events`: of a job that changed ten times in 200 ms it tells the last. `live_feed`
makes that once for all readers of equal rights. The stream ends with its token or session; one that has expired is
found out at the next frame or comment.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from holdfast.engine.build import JournalError
from holdfast.server.streams.stream import WRITE_BYTES, Stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.core.state import State
    from holdfast.core.values import Moment
    from holdfast.server.api import Api
    from holdfast.server.operations.call import Call


def live(api: Api, call: Call) -> Live:
    """GET /ui/live: let a reader in, or raise why not."""
    return Live(api, call)


class Live(Stream):
    """One reader."""

    def __init__(self, api: Api, call: Call) -> None:
        super().__init__(api, call, api.pages)
        caller = call.caller
        self._subscription = api.live.subscribe(caller.prefix)
        self._end = api.engine.feed.follow(caller.principal, caller.session)
        """Follows nothing, and is over when the token or the session is."""
        self._end.on_over = self._subscription.news.set

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield what looks different, until the token or session ends or the server stops."""
        news = self._subscription.news
        with contextlib.suppress(JournalError):
            yield b"event: hello\ndata: %b\n\n" % await self._api.engine.look(_as_of)
            while self._is_let_in():
                if self._subscription.is_behind:
                    yield self._gathered()
                    continue
                news.clear()
                heard = await self._heard(news.wait)
                if isinstance(heard, bytes) and self._is_let_in():
                    yield heard

    def _gathered(self) -> bytes:
        """Return the next frames. One alone is passed on as it is: all readers share the same bytes."""
        frames: list[bytes] = []
        size = 0
        while self._subscription.is_behind and size < WRITE_BYTES:
            frame = self._subscription.next()
            if frame is None:
                # What was gathered before it is older than what the reader will load now.
                return b"event: resync\ndata: {}\n\n"
            frames.append(frame)
            size += len(frame)
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def _is_let_in(self) -> bool:
        return not self._end.is_over and super()._is_let_in()

    def close(self) -> None:
        self._subscription.leave()
        self._end.close()
        super().close()


def _as_of(state: State, now: Moment) -> bytes:
    return b'{"seq":%d,"now":%d}' % (state.seq, now.wall_ms)
