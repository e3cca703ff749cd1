"""GET /ui/live: the page's stream of current state, as server-sent events, and the feed that fills it.

    event: hello    {"seq", "now"}     from here on nothing is missed: load the rows (`GET /ui/rows`), add what follows
    event: rows     {"seq", "now", "rows", "beats", "gone", "kept", "totals"}      see `pages/rows`
    event: resync   {}                 frames were lost: load the rows again

Of a job that changed ten times in 200 ms only the last state is sent, unlike in `/events`:

    feed ──► DirtyNames ──► every 200 ms: one read of each touched name ──► Channel of each prefix ──► subscriptions
             names       rows as bytes, once for all readers              the newest frames

**Equal rights.** What a reader sees depends only on its token's prefix; scopes beyond `read` change what it may do. So
there is one `Channel` for each prefix, and all its readers get the same bytes.

**Memory.** A channel keeps its newest frames, up to `CHANNEL_BYTES_MAX`, and a reader only its position. A slow reader
whose position was dropped is sent `resync`.

**Cost for others.** Without a reader nothing is noted and nothing runs. Names are processed in slices, at most five
times a second, and readers are woken in groups, so that claims are decided in between. Under too many changes the page
lags; beyond the bound of `DirtyNames`, all readers load again.

A keepalive of a session moves the end of all leases bound to it, and is sent once, for the session (`kept`). So is a
new session; an ended one is sent with 0.

Every read goes through the engine: a row is shown once everything it depends on is durable, like every answer (I16).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from holdfast.api.rendering import encode
from holdfast.api.streams import WRITE_BYTES, Stream
from holdfast.dashboard.rows import free_job_of, heartbeat_of, row_of, totals_of
from holdfast.engine.build import JournalError
from holdfast.engine.feed import DirtyNames

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.api.context import RequestContext
    from holdfast.api.service import ApiService
    from holdfast.core.state import State
    from holdfast.core.values import Instant
    from holdfast.engine.engine import Engine

    Shown: TypeAlias = dict[str, list[bytes]]  # Of one read and one channel: `rows`, `beats`, `gone`, `kept`.

log = logging.getLogger("holdfast.server")

FIRST_SECONDS = 0.02  # After the first change: on a quiet server a claim is shown immediately.
GATHER_SECONDS = 0.18
NAMES_MAX = 1_000
SLICE_NAMES = 50
SLICE_BYTES = 64 * 1024
SLICE_SESSIONS = 20  # A slice takes well under a millisecond, then other requests are served.
SESSION_NAMES_MAX = 10_000  # Names of a kept session checked for who may see it: about a millisecond.
CHANNEL_BYTES_MAX = 1024 * 1024
WAKE_SECONDS = 0.002
WAKES_MAX = 40  # Groups of readers, woken one after another, so that they do not all write at the same time.
WALL_OFFSET_CHANGE_MS_MAX = (
    1_000  # Beyond it the wall clock was set, or the server was suspended: all readers load again.
)
RETRY_SECONDS = 1.0


def _frame(state: State, now: Instant, shown: Shown, *, with_totals: bool) -> bytes:
    """Encode a frame. Browsers correct their clock by `now`."""
    totals = b',"totals":%b' % encode(totals_of(state)) if with_totals else b""
    parts = b"".join(b',"%b":[%b]' % (kind.encode(), b",".join(items)) for kind, items in shown.items())
    return b'event: rows\ndata: {"seq":%d,"now":%d%b%b}\n\n' % (state.seq, now.wall_ms, totals, parts)


class Channel:
    def __init__(self, prefix: str | None) -> None:
        self.prefix = prefix
        self.readers: dict[Subscription, None] = {}
        self.frames: deque[bytes] = deque()
        self.size_bytes = 0
        self.end = 0

    def put(self, frame: bytes) -> None:
        self.frames.append(frame)
        self.size_bytes += len(frame)
        self.end += 1
        while self.size_bytes > CHANNEL_BYTES_MAX and len(self.frames) > 1:
            self.size_bytes -= len(self.frames.popleft())

    def drop_frames(self) -> None:
        """Drop all frames: every reader is sent `resync`."""
        self.frames.clear()
        self.size_bytes = 0
        self.end += 1


class Subscription:
    """One reader's position in its channel. Nothing else is kept for it."""

    def __init__(self, feed: LiveFeed, channel: Channel) -> None:
        self._feed = feed
        self._channel = channel
        self._position = channel.end
        self.news = asyncio.Event()

    @property
    def is_lagging(self) -> bool:
        return self._position < self._channel.end

    def next(self) -> bytes | None:
        """Return the next frame; None if some were lost, and go to the newest."""
        frames, lagging = self._channel.frames, self._channel.end - self._position
        if lagging > len(frames):
            self._position = self._channel.end
            return None
        self._position += 1
        return frames[len(frames) - lagging]

    def close(self) -> None:
        self._feed.unsubscribe(self._channel, self)


class LiveFeed:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._channels: dict[str | None, Channel] = {}
        self._lengths: tuple[int, ...] = ()  # Of all prefixes, to find the channels of a name.
        self._touched: DirtyNames | None = None
        self._task: asyncio.Task[None] | None = None
        self._wall_offset_ms = 0  # Wall clock minus authority time. If it changes, the ends sent so far are wrong.

    def subscribe(self, prefix: str | None) -> Subscription:
        channel = self._channels.get(prefix)
        if channel is None:
            channel = self._channels[prefix] = Channel(prefix)
            self._update_lengths()
        subscription = Subscription(self, channel)
        channel.readers[subscription] = None
        if self._touched is None:
            now = self._engine.tick()
            self._wall_offset_ms = 0 if now is None else now.wall_ms - now.ms
            self._touched = DirtyNames()
            self._engine.feed.observe(self._touched.note)
            self._task = asyncio.get_running_loop().create_task(self._run(self._touched))
        return subscription

    def unsubscribe(self, channel: Channel, subscription: Subscription) -> None:
        """Remove a reader, its channel with its last reader, and stop with the last channel. Idempotent."""
        if channel.readers.pop(subscription, subscription) is subscription or channel.readers:
            return
        if self._channels.get(channel.prefix) is channel:
            del self._channels[channel.prefix]
            self._update_lengths()
        if not self._channels and self._touched is not None and self._task is not None:
            self._engine.feed.ignore(self._touched.note)
            self._task.cancel()
            self._touched = self._task = None

    def _update_lengths(self) -> None:
        self._lengths = tuple(sorted({len(prefix) for prefix in self._channels if prefix is not None}))

    async def _run(self, touched: DirtyNames) -> None:
        while True:
            await touched.wait()
            await asyncio.sleep(FIRST_SECONDS)
            try:
                await self._publish(touched)
            except Exception as error:
                if not isinstance(error, JournalError):
                    log.exception("a bug while looking at jobs for the page")
                # The names taken were not sent: every reader has to load again.
                self._drop_frames()
                await asyncio.sleep(RETRY_SECONDS)
            await asyncio.gather(self._wake(), asyncio.sleep(GATHER_SECONDS))

    async def _publish(self, touched: DirtyNames) -> None:
        if touched.take_overflow():
            self._drop_frames()
            return
        names = deque(touched.take(NAMES_MAX).items())
        sessions = deque(touched.take_sessions())
        while names or sessions:
            wall_offset_ms, frames = await self._engine.query(partial(self._encode_slice, names, sessions))
            if abs(wall_offset_ms - self._wall_offset_ms) > WALL_OFFSET_CHANGE_MS_MAX:
                self._wall_offset_ms = wall_offset_ms
                self._drop_frames()
                return
            for prefix, frame in frames.items():
                # Its last reader may have left meanwhile.
                if (channel := self._channels.get(prefix)) is not None:
                    channel.put(frame)

    def _encode_slice(
        self, names: deque[tuple[str, bool]], sessions: deque[str], state: State, now: Instant
    ) -> tuple[int, dict[str | None, bytes]]:
        """Take a slice, encode each name once, and return the frames of the channels that may see it."""
        found: dict[str | None, Shown] = {}
        size, ends_at = 0, len(names) - SLICE_NAMES
        while names and len(names) > ends_at and size < SLICE_BYTES:
            name, is_full_row = names.popleft()
            seen_by = self._seen_by(name)
            if seen_by:
                kind, shown = _encode_name(name, state, now, is_full_row=is_full_row)
                size += len(shown)
                for prefix in seen_by:
                    found.setdefault(prefix, {}).setdefault(kind, []).append(shown)
        ends_at, checked = len(sessions) - SLICE_SESSIONS, 0
        while sessions and len(sessions) > ends_at and checked < SESSION_NAMES_MAX:
            checked += self._show_session(sessions.popleft(), found, state, now)
        frames = {prefix: _frame(state, now, shown, with_totals=prefix is None) for prefix, shown in found.items()}
        return now.wall_ms - now.ms, frames

    def _seen_by(self, name: str) -> list[str | None]:
        found: list[str | None] = [prefix for length in self._lengths if (prefix := name[:length]) in self._channels]
        if None in self._channels:
            found.append(None)
        return found

    def _show_session(self, session_id: str, found: dict[str | None, Shown], state: State, now: Instant) -> int:
        """Add the deadline of a session to the channels that may see a job bound to it. Return the cost in names."""
        session, names = state.sessions.get(session_id), state.index.names_by_session.get(session_id, {})
        shown = encode((session_id, 0 if session is None else now.wall_ms + session.until_ms - now.ms))
        seen_by: set[str | None] = {None} if None in self._channels else set()
        wanted = tuple(prefix for prefix in self._channels if prefix is not None)
        if not wanted or session is None:
            # Names bound to an ended session are sent themselves.
            names = {}
        for name, is_bound in islice(names.items(), SESSION_NAMES_MAX):
            if is_bound and name.startswith(wanted):
                seen_by.update(self._seen_by(name))
                wanted = tuple(prefix for prefix in wanted if prefix not in seen_by)
                if not wanted:
                    break
        for prefix in seen_by:
            found.setdefault(prefix, {}).setdefault("kept", []).append(shown)
        return len(names)

    async def _wake(self) -> None:
        lagging = [reader for channel in self._channels.values() for reader in channel.readers if reader.is_lagging]
        together = -(-len(lagging) // WAKES_MAX)
        for number, reader in enumerate(lagging, 1):
            reader.news.set()
            if number % together == 0:
                await asyncio.sleep(WAKE_SECONDS)

    def _drop_frames(self) -> None:
        for channel in self._channels.values():
            channel.drop_frames()


def _encode_name(name: str, state: State, now: Instant, *, is_full_row: bool) -> tuple[str, bytes]:
    """Encode a name as one of the kinds `gone`, `rows` and `beats`."""
    lease = state.lease_of(name)
    if lease is None:
        return "gone", encode(free_job_of(name, state, now))
    if is_full_row:
        return "rows", encode(row_of(name, lease, state, now))
    return "beats", encode(heartbeat_of(name, lease, state, now))


class Live(Stream):
    """One reader. An expired token is detected at the next frame or comment."""

    def __init__(self, api: ApiService, context: RequestContext) -> None:
        super().__init__(api, context, api.pages)
        self._subscription = api.part(LiveFeed).subscribe(context.caller.prefix)
        self._end = api.engine.feed.watch(
            context.caller.principal, context.caller.session
        )  # Over with token or session.
        self._end.on_over = self._subscription.news.set

    async def frames(self) -> AsyncIterator[bytes]:
        news = self._subscription.news
        with contextlib.suppress(JournalError):
            yield await self._api.engine.query(_hello)
            while self._is_authorized():
                if self._subscription.is_lagging:
                    yield self._take_frames()
                    continue
                news.clear()
                event = await self._next_event(news.wait)
                if isinstance(event, bytes) and self._is_authorized():
                    yield event

    def _take_frames(self) -> bytes:
        """Return the next frames in one write, or `resync` if some were lost."""
        frames: list[bytes] = []
        size = 0
        while self._subscription.is_lagging and size < WRITE_BYTES:
            frame = self._subscription.next()
            if frame is None:
                return b"event: resync\ndata: {}\n\n"
            frames.append(frame)
            size += len(frame)
        return b"".join(frames)  # A single frame is not copied.

    def _is_authorized(self) -> bool:
        return not self._end.is_over and super()._is_authorized()

    def close(self) -> None:
        self._subscription.close()
        self._end.close()
        super().close()


def _hello(state: State, now: Instant) -> bytes:
    return b'event: hello\ndata: {"seq":%d,"now":%d}\n\n' % (state.seq, now.wall_ms)
