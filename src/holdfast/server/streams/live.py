"""GET /ui/live: the page's own stream. Which rows of the list look different now, heartbeats too. Server-sent events.

    event: hello    {"seq", "now"}     from here on nothing is missed: load the rows (`GET /ui/rows`), put this on top
    event: rows     {"seq", "now", "rows", "beats", "gone", "kept", "totals"}      see `pages/rows` and `board`
    event: resync   {}                 something was missed: load the rows again

It does not tell what happened, as `/events` does, only how things are: of a job that changed ten times in 200 ms the
last is told. `board` has how that is made once for all readers of equal rights, and what it costs.

The stream follows the rights of its caller. It ends with its token or session, at once; one that has expired is found
out at the next frame or comment.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from holdfast.engine.build import JournalError
from holdfast.server.streams.events import KEEPALIVE, KEEPALIVE_SECONDS, WRITE_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.core.state import State
    from holdfast.core.values import Moment
    from holdfast.server.api import Api
    from holdfast.server.operations.call import Call


def live(api: Api, call: Call) -> Live:
    """GET /ui/live: let a reader in, or raise why not."""
    api.pages.count_in(call.caller.principal, call.caller.share)
    return Live(api, call)


class Live:
    """One reader."""

    def __init__(self, api: Api, call: Call) -> None:
        caller = call.caller
        self._api = api
        self._authorization = call.request.authorization
        self._principal, self._share = caller.principal, caller.share
        self._place = api.live.enter(caller.prefix)
        self._end = api.engine.feed.follow(caller.principal, caller.session)
        """Follows nothing, and is over when the token or the session is."""
        self._end.on_over = self._place.news.set

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield what looks different, until the token or session ends or the server stops."""
        with contextlib.suppress(JournalError):
            yield b"event: hello\ndata: %b\n\n" % await self._api.engine.look(_as_of)
            while self._is_let_in():
                if self._place.is_behind:
                    yield self._gathered()
                    continue
                self._place.news.clear()
                try:
                    await asyncio.wait_for(self._place.news.wait(), KEEPALIVE_SECONDS)
                except TimeoutError:
                    if self._is_let_in():
                        yield KEEPALIVE

    def _gathered(self) -> bytes:
        """Return the next frames. One alone is given on as it is: all readers have the same bytes."""
        frames: list[bytes] = []
        size = 0
        while self._place.is_behind and size < WRITE_BYTES:
            frame = self._place.next()
            if frame is None:
                # What was gathered before it is older than what the reader will load now.
                return b"event: resync\ndata: {}\n\n"
            frames.append(frame)
            size += len(frame)
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def _is_let_in(self) -> bool:
        return not self._end.is_over and self._api.is_still_let_in(self._authorization)

    def close(self) -> None:
        """Stop reading."""
        self._place.leave()
        self._end.close()
        self._api.pages.count_out(self._principal, self._share)


def _as_of(state: State, now: Moment) -> bytes:
    return b'{"seq":%d,"now":%d}' % (state.seq, now.wall_ms)
