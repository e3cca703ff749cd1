"""The frames of a record in `/events`: bounded in bytes, encoded once for all readers of equal rights.

A record with changes beyond `FRAME_BYTES` is several frames: each has its `part` and the number of `parts`, and only
the last has the `id`. So a reader disconnected between two parts resumes after the record before, and gets all again.

    record ──► changes ──► Seen: what a prefix and labels let through, and where each part ends ──► parts, when asked

The number of parts is known only once all changes were encoded. The first parts are kept then, and the others encoded
again on demand. Large records are processed in slices: one slice per iteration of the event loop, for all readers.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import msgspec

from holdfast.core.events import Told, concerned, labels_of
from holdfast.core.values import has_labels
from holdfast.server.happenings import said
from holdfast.server.render import encode
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from holdfast.core.events import Record

    Labels = frozenset[tuple[str, str]]
    Changes = list[tuple[str, Told]]
    Place = tuple[int, str, Labels]
    Parts: TypeAlias = "Newest[tuple[Place, int], bytes]"

log = logging.getLogger("holdfast.server")

FRAME_BYTES = 65_536  # The changes in one frame; a single change may be larger.
KEPT_BYTES_MAX = 4 * 1024 * 1024
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


class Ids(msgspec.Struct, frozen=True):
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


class Newest(Generic[K, V]):
    """A cache bounded in bytes: it drops the oldest entries first, and always keeps the last."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: dict[K, tuple[V, int]] = {}
        self.size_bytes = 0

    def get(self, key: K) -> V | None:
        return self._kept.get(key, (None, 0))[0]

    def keep(self, key: K, value: V, size_bytes: int) -> None:
        _, before = self._kept.pop(key, (None, 0))
        self._kept[key] = value, size_bytes
        self.size_bytes += size_bytes - before
        while self.size_bytes > self._bytes_max and len(self._kept) > 1:
            _, gone = self._kept.pop(next(iter(self._kept)))
            self.size_bytes -= gone

    def clear(self) -> None:
        self._kept.clear()
        self.size_bytes = 0


class Seen(msgspec.Struct):
    """What readers of a prefix and labels see of a record, and where each part of it ends."""

    place: Place
    wall_ms: int
    whole: Changes  # All changes of the record; empty once all parts are known.
    looked_at: int = 0
    changes: Changes = []  # The visible ones.
    ends: list[int] = []
    is_known: bool = False  # Whether all parts were found.

    @property
    def seq(self) -> int:
        return self.place[0]

    def look(self, parts: Parts) -> None:
        """Process the next slice: filter the changes first, then measure one part per call. Keep the first parts."""
        if self.looked_at < len(self.whole):
            self._filter()
        else:
            end, part = self.made(len(self.ends))
            if len(self.ends) < FIRST_PARTS:
                parts.keep((self.place, len(self.ends)), part, ENTRY_BYTES + len(part))
            self.ends.append(end)
        if self.looked_at == len(self.whole) and (self.ends[-1] if self.ends else 0) == len(self.changes):
            self.is_known, self.whole, self.looked_at = True, [], 0

    def _filter(self) -> None:
        _, prefix, labels = self.place
        piece = self.whole[self.looked_at : self.looked_at + SLICE_CHANGES]
        seen = piece if not prefix else [change for change in piece if change[0].startswith(prefix)]
        if labels:
            seen = [change for change in seen if has_labels(labels_of(change[1]), labels)]
        self.changes += seen
        self.looked_at += len(piece)
        if len(self.changes) == len(self.whole):
            self.changes = self.whole

    def made(self, number: int) -> tuple[int, bytes]:
        """Return where a part ends, and its changes as JSON."""
        end = self.ends[number - 1] if number else 0
        part: list[bytes] = []
        size = 0
        while end < len(self.changes):
            text = self._told(*self.changes[end])
            if part and size + len(text) > FRAME_BYTES:
                break
            if text:
                part.append(text)
                size += len(text) + 1
            end += 1
        return end, b",".join(part)

    def _told(self, name: str, told: Told) -> bytes:
        """Encode one change; skip it if that fails, because resuming readers would get the same error again."""
        try:
            return encode(said(self.seq, self.wall_ms, name, told))
        except Exception:
            log.exception("a bug: record %d cannot be told, and /events passes it over", self.seq)
            return b""


class Frames:
    def __init__(self) -> None:
        self._seen: Newest[Place, Seen] = Newest(SEEN_BYTES_MAX)
        self._parts: Parts = Newest(KEPT_BYTES_MAX)
        self._newest: tuple[int, Changes] = 0, []  # The last record: the next reader most likely needs it too.
        self._turn = asyncio.Lock()
        self.ids = Ids()

    def of(self, record: Record, prefix: str, labels: Labels) -> Seen:
        """Return what readers of a prefix and labels see of a record. For large ones, call `find_out` next."""
        place = record.seq, prefix, labels
        seen = self._seen.get(place)
        if seen is None:
            if self._newest[0] != record.seq:
                self._newest = record.seq, list(concerned(record.event))
            whole = self._newest[1]
            seen = Seen(place, record.wall_ms, whole, is_known=not whole)
            self._seen.keep(place, seen, ENTRY_BYTES)
            while len(whole) <= SMALL_CHANGES and not seen.is_known:
                self._look(seen)
        return seen

    async def find_out(self, seen: Seen) -> None:
        """Process the rest of a record. The reader with the lock processes the next slice for all that wait for it."""
        while not seen.is_known:
            async with self._turn:
                if not seen.is_known:
                    self._look(seen)
                    await asyncio.sleep(0)

    async def part(self, seen: Seen, number: int) -> bytes:
        """Return the frame of one part (the first is 0), encoded again if it is not kept."""
        part = self._parts.get((seen.place, number))
        if part is None:
            async with self._turn:
                part = self._parts.get((seen.place, number))  # Another reader may have encoded it meanwhile.
                if part is None:
                    _, part = seen.made(number)
                    self._parts.keep((seen.place, number), part, ENTRY_BYTES + len(part))
                await asyncio.sleep(0)
        parts = len(seen.ends)
        begin = b"id: %b\n" % self.ids.of(seen.seq) if number == parts - 1 else b""
        which = b"" if parts == 1 else b'"part":%d,"parts":%d,' % (number + 1, parts)
        return b'%bevent: change\ndata: {"seq":%d,%b"changes":[%b]}\n\n' % (begin, seen.seq, which, part)

    def clear(self) -> None:
        self._seen.clear()
        self._parts.clear()
        self._newest = 0, []

    def _look(self, seen: Seen) -> None:
        seen.look(self._parts)
        if seen.is_known:
            self._seen.keep(seen.place, seen, ENTRY_BYTES + CHANGE_BYTES * len(seen.changes))
