"""GET /events: all changes but renewals, in order, from any record on, as server-sent events.

One frame is one record, or a part of a large one (`frames`). The last part has the record's number as its `id`, so a
reader that resumes with `Last-Event-ID` misses nothing and sees nothing twice. If the records after it are not kept, or
never existed, the reader gets `resync`.

    catch up ──► listen ──► catch up to there ──► live
       ▲                                            │
       └──────────── it did not keep up ◄───────────┘

A reader far behind reads the journal at its own pace without a listener, so nothing is kept for it. A live reader with
a full backlog goes back to the journal: a burst slows a reader down, but cannot disconnect it or fill the memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

from holdfast.api.decoding import LABEL
from holdfast.api.event_frames import EventCursor, EventIds, parse_id
from holdfast.api.rendering import encode
from holdfast.api.stream import WRITE_BYTES, Stream, queued_events
from holdfast.engine.build import JournalError
from holdfast.engine.feed import EVERYTHING, Listener

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from holdfast.api.context import RequestContext
    from holdfast.api.service import ApiService
    from holdfast.core.events import Record

PAGE = 500  # Records per read of the journal, which bounds their bytes.
LIVE_WITHIN = 100
SLICE_RECORDS = 500


class Events(Stream):
    def __init__(self, api: ApiService, context: RequestContext) -> None:
        prefix: str | None = context.query.get("prefix")
        own = context.caller.prefix
        if own is not None and prefix is not None:
            context.caller.require_within_prefix(prefix)
        # The header has precedence: a browser that reconnects repeats the original address.
        header = context.request.headers.get(b"last-event-id", b"").decode("latin-1").strip()
        after = header or context.query.get("after")
        self._after = None if after is None else parse_id(after)  # None: from now on.
        self._prefix = prefix or own or ""
        self._labels: frozenset[tuple[str, str]] = context.query.get(LABEL, frozenset())
        self._sent = 0  # The last record that was sent or skipped.
        self._listener: Listener | None = None
        super().__init__(api, context, api.streams)

    async def frames(self) -> AsyncIterator[bytes]:
        engine = self._api.engine
        with contextlib.suppress(JournalError):
            newest = await self._newest()
            ids = self._api.frames.ids = EventIds(engine.state.restores, engine.state.restored_seq)
            after = EventCursor(ids.count, newest) if self._after is None else self._after
            self._sent = after.seq
            if self._sent > newest or not ids.is_known(after):
                # The id is from another journal, or from before a loss of records or a restore.
                self._sent = newest
                yield self._resync()
            # A reader that is disconnected before the first event resumes here.
            yield b": from %d\nid: %b\n\n" % (self._sent, ids.of(self._sent))
            while self._listener is None or self._listener.overflowed:
                while (newest := await self._newest()) - self._sent > LIVE_WITHIN and self._is_authorized():
                    async for frames in self._missed(newest):
                        yield frames
                # From here on nothing is missed: earlier records are in the journal, later ones in the backlog.
                self._listener = engine.feed.listen(EVERYTHING, self._caller.principal, self._caller.session)
                async for frames in self._missed(await self._newest()):
                    yield frames
                async for frames in self._live(self._listener):
                    yield frames

    async def _newest(self) -> int:
        seq: int = await self._api.engine.query(lambda state, _now: state.seq)
        return seq

    async def _missed(self, upto: int) -> AsyncIterator[bytes]:
        engine = self._api.engine
        while self._sent < upto and self._is_authorized():
            records = deque(await engine.journal.follow(self._sent, PAGE))
            if self._sent < engine.journal.history_begins_after:
                # Records were dropped before the reader came, or while it read.
                self._sent = engine.journal.history_begins_after
                yield self._resync()
                continue
            if not records:
                self._sent = upto
            async for frames in self._gathered(_drain(records)):
                yield frames

    async def _live(self, listener: Listener) -> AsyncIterator[bytes]:
        while self._is_authorized() and (item := await self._next_event(listener.next)) is not None:
            if isinstance(item, bytes):
                yield item
                continue
            if not self._is_authorized():
                return
            async for frames in self._gathered(record for record, _ in queued_events(item, listener)):
                yield frames

    async def _gathered(self, records: Iterator[Record]) -> AsyncIterator[bytes]:
        """Yield the frames of records that were not sent yet, many small ones in one write.

        Each part of a large record is one write, so the next is encoded only when the reader has taken it.
        """
        gathered: list[bytes] = []
        size = 0
        frames = self._api.frames
        seen_count = 0  # `enumerate` would keep the record alive.
        for record in records:
            seen_count += 1
            if record.seq <= self._sent:
                continue
            seen = frames.of(record, self._prefix, self._labels)
            del record  # It may be large; a slow reader keeps only the shared `seen`.
            await frames.measure(seen)
            for part in range(len(seen.ends)):
                gathered.append(await frames.part(seen, part))
                size += len(gathered[-1])
                if size >= WRITE_BYTES or len(seen.ends) > 1:
                    chunk, gathered, size = b"".join(gathered), [], 0
                    yield chunk
                    if not self._is_authorized():
                        return
            self._sent = seen.seq
            if seen_count % SLICE_RECORDS == 0:
                await asyncio.sleep(0)
        if gathered:
            yield b"".join(gathered)

    def _resync(self) -> bytes:
        """Return the frame that says that events up to this id are missing."""
        id_, seq = self._api.frames.ids.of(self._sent), self._sent
        return b"id: %b\nevent: resync\ndata: %b\n\n" % (id_, encode({"seq": seq}))

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        super().close()
        if not self._api.engine.feed.is_listened_to(EVERYTHING):
            self._api.frames.clear()


def _drain(records: deque[Record]) -> Iterator[Record]:
    """Yield records without keeping them alive."""
    while records:
        yield records.popleft()
