"""The frames of a record in `/events`: bounded in bytes, encoded once for all readers of equal rights.

A record with changes beyond `FRAME_BYTES` is several frames: each has its `part` and the number of `parts`, and only
the last has the `id`. So a reader disconnected between two parts resumes after the record before, and gets all again.

    record ──► changes ──► VisibleRecord: the visible changes, and where each part ends ──► parts, when asked

The number of parts is known only once all changes were encoded. The first parts are kept then, and the others encoded
again on demand. Large records are processed in slices: one slice per iteration of the event loop, for all readers.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import msgspec

from holdfast.api.rendering import encode, history_entry
from holdfast.core.events import HistoryEvent, events_by_name, labels_of
from holdfast.core.usage import exceeded
from holdfast.core.values import has_labels
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from holdfast.core.events import Record

    Labels = frozenset[tuple[str, str]]
    Changes = list[tuple[str, HistoryEvent]]
    RecordKey = tuple[int, str, Labels]
    Parts: TypeAlias = "BoundedCache[tuple[RecordKey, int], bytes]"
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from holdfast.api.context import RequestContext
    from holdfast.core.events import Event
    from holdfast.engine.feed import Listener

log = logging.getLogger("holdfast.server")

FRAME_BYTES = 65_536  # The changes in one frame; a single change may be larger.
PARTS_BYTES_MAX = 4 * 1024 * 1024
FIRST_PARTS = 32  # Kept while a record is measured: all its readers ask for them next.
SEEN_BYTES_MAX = 2 * 1024 * 1024
ENTRY_BYTES = 400  # The estimated overhead of an entry.
CHANGE_BYTES = 100  # The estimated cost of a change that is not encoded.
SLICE_CHANGES = 500
SMALL_CHANGES = 16

K = TypeVar("K")
V = TypeVar("V")


# Event ids. An id is the number of a record. A shared store can lose its newest records and then reuses their numbers,
# so from the first loss on an id also counts losses:
#
#     records    1 … 50 │ 51 … 60 lost          after a loss: Restored is 51, then 52 …
#     ids        1 … 50 │ 51 … 60                             1.51, 1.52 …
#
# A reader that resumes with `60` was at a lost record, and has to resync; one with `50` misses nothing. Only the record
# of the last loss is known: after two losses, readers with older ids resync too.

DIGITS_MAX = 16


class EventCursor(msgspec.Struct, frozen=True):
    """A reader's position, as in `parse_id`."""

    count: int  # Of losses.
    seq: int


class EventIds(msgspec.Struct, frozen=True):
    """The event ids of one leader term."""

    count: int = 0  # Of losses.
    restored_seq: int = 0  # The first record after the last of them.

    def of(self, seq: int) -> bytes:
        count = self.count if seq >= self.restored_seq else self.count - 1
        return b"%d.%d" % (count, seq) if count > 0 else b"%d" % seq

    def is_known(self, cursor: EventCursor) -> bool:
        """Return whether a reader at this cursor misses nothing if it continues there."""
        if cursor.count == self.count:
            return True
        return cursor.count == self.count - 1 and cursor.seq < self.restored_seq


def parse_id(text: str) -> EventCursor:
    count, dot, seq = text.rpartition(".")
    parts = (count, seq) if dot else ("0", seq)
    if not all(part.isascii() and part.isdigit() and len(part) <= DIGITS_MAX for part in parts):
        raise Problem("invalid_input", "after and Last-Event-ID are the number of a record, or the id of an event.")
    return EventCursor(int(parts[0]), int(parts[1]))


class BoundedCache(Generic[K, V]):
    """A cache bounded in bytes: it drops the oldest entries first, and always keeps the last."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._entries: dict[K, tuple[V, int]] = {}
        self.size_bytes = 0

    def get(self, key: K) -> V | None:
        return self._entries.get(key, (None, 0))[0]

    def put(self, key: K, value: V, size_bytes: int) -> None:
        _, before = self._entries.pop(key, (None, 0))
        self._entries[key] = value, size_bytes
        self.size_bytes += size_bytes - before
        while self.size_bytes > self._bytes_max and len(self._entries) > 1:
            _, gone = self._entries.pop(next(iter(self._entries)))
            self.size_bytes -= gone

    def clear(self) -> None:
        self._entries.clear()
        self.size_bytes = 0


class VisibleRecord(msgspec.Struct):
    """What readers of a prefix and labels see of a record, and where each part of it ends."""

    key: RecordKey
    wall_ms: int
    all_changes: Changes  # All changes of the record; empty once all parts are known.
    filtered: int = 0
    changes: Changes = []  # The visible ones.
    ends: list[int] = []
    is_known: bool = False  # Whether all parts were found.

    @property
    def seq(self) -> int:
        return self.key[0]

    def process_slice(self, parts: Parts) -> None:
        """Process the next slice: filter the changes first, then measure one part per call. Keep the first parts."""
        if self.filtered < len(self.all_changes):
            self._filter()
        else:
            end, part = self.encode_part(len(self.ends))
            if len(self.ends) < FIRST_PARTS:
                parts.put((self.key, len(self.ends)), part, ENTRY_BYTES + len(part))
            self.ends.append(end)
        if self.filtered == len(self.all_changes) and (self.ends[-1] if self.ends else 0) == len(self.changes):
            self.is_known, self.all_changes, self.filtered = True, [], 0

    def _filter(self) -> None:
        _, prefix, labels = self.key
        piece = self.all_changes[self.filtered : self.filtered + SLICE_CHANGES]
        seen = piece if not prefix else [change for change in piece if change[0].startswith(prefix)]
        if labels:
            seen = [change for change in seen if has_labels(labels_of(change[1]), labels)]
        self.changes += seen
        self.filtered += len(piece)
        if len(self.changes) == len(self.all_changes):
            self.changes = self.all_changes

    def encode_part(self, number: int) -> tuple[int, bytes]:
        """Return where a part ends, and its changes as JSON."""
        end = self.ends[number - 1] if number else 0
        part: list[bytes] = []
        size = 0
        while end < len(self.changes):
            text = self._encode_change(*self.changes[end])
            if part and size + len(text) > FRAME_BYTES:
                break
            if text:
                part.append(text)
                size += len(text) + 1
            end += 1
        return end, b",".join(part)

    def _encode_change(self, name: str, event: HistoryEvent) -> bytes:
        """Encode one change; skip it if that fails, because resuming readers would get the same error again."""
        try:
            return encode(history_entry(self.seq, self.wall_ms, name, event))
        except Exception:
            log.exception("a bug: record %d cannot be rendered; /events skips a change", self.seq)
            return b""


class FrameCache:
    def __init__(self) -> None:
        self._seen: BoundedCache[RecordKey, VisibleRecord] = BoundedCache(SEEN_BYTES_MAX)
        self._parts: Parts = BoundedCache(PARTS_BYTES_MAX)
        self._newest: tuple[int, Changes] = 0, []  # The last record: the next reader most likely needs it too.
        self._lock = asyncio.Lock()
        self.ids = EventIds()

    def of(self, record: Record, prefix: str, labels: Labels) -> VisibleRecord:
        """Return what readers of a prefix and labels see of a record. For large ones, call `measure` next."""
        key = record.seq, prefix, labels
        seen = self._seen.get(key)
        if seen is None:
            if self._newest[0] != record.seq:
                self._newest = record.seq, list(events_by_name(record.event))
            all_changes = self._newest[1]
            seen = VisibleRecord(key, record.wall_ms, all_changes, is_known=not all_changes)
            self._seen.put(key, seen, ENTRY_BYTES)
            while len(all_changes) <= SMALL_CHANGES and not seen.is_known:
                self._process_slice(seen)
        return seen

    async def measure(self, seen: VisibleRecord) -> None:
        """Process the rest of a record. The reader with the lock processes the next slice for all that wait for it."""
        while not seen.is_known:
            async with self._lock:
                if not seen.is_known:
                    self._process_slice(seen)
                    await asyncio.sleep(0)

    async def part(self, seen: VisibleRecord, number: int) -> bytes:
        """Return the frame of one part (the first is 0), encoded again if it is not kept."""
        part = self._parts.get((seen.key, number))
        if part is None:
            async with self._lock:
                part = self._parts.get((seen.key, number))  # Another reader may have encoded it meanwhile.
                if part is None:
                    _, part = seen.encode_part(number)
                    self._parts.put((seen.key, number), part, ENTRY_BYTES + len(part))
                await asyncio.sleep(0)
        parts = len(seen.ends)
        begin = b"id: %b\n" % self.ids.of(seen.seq) if number == parts - 1 else b""
        which = b"" if parts == 1 else b'"part":%d,"parts":%d,' % (number + 1, parts)
        return b'%bevent: change\ndata: {"seq":%d,%b"changes":[%b]}\n\n' % (begin, seen.seq, which, part)

    def clear(self) -> None:
        self._seen.clear()
        self._parts.clear()
        self._newest = 0, []

    def _process_slice(self, seen: VisibleRecord) -> None:
        seen.process_slice(self._parts)
        if seen.is_known:
            self._seen.put(seen.key, seen, ENTRY_BYTES + CHANGE_BYTES * len(seen.changes))


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
