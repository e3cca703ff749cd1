"""A backup: one file with all of a journal, independent of the journal's kind.

    MAGIC
    frame H   header: version, time, and the number of the last record
    frame K   the authority's key
    frame T   records that were not archived yet, in order, some in each frame
    frame S   rows of one table of the archived state: the table's name, keys and values
    frame R   archived records with history value, oldest first, some in each frame
    frame E   the end: totals, and a SHA-256 over every byte before this frame

The state is S with T replayed on top; the history is R, then T. Records are framed as in the journal (`codec`).

A frame is its kind, the length of its body, a checksum over both, and the body. A file without E at its very end is
incomplete (an interrupted copy, a full disk), and never restored. The file is written and read frame by frame.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from zlib import crc32

import msgspec

from holdfast.core.events import Event, Record, Restored, grants_of, is_history
from holdfast.core.state import StateScalars
from holdfast.journal.codec import encode_batch
from holdfast.journal.interface import HEAD as HEAD_TABLE
from holdfast.journal.interface import (
    HistoryPart,
    JournalDamagedError,
    JournalTooNewError,
    SnapshotPart,
    TailPart,
    Values,
)

MAGIC = b"holdfast backup\n"
FORMAT = 1  # Of the file. Its records have the formats of the journal.
ANOTHER = "Take another backup"
BODY_BYTES_MAX = 1024 * 1024 * 1024
FRAME_BYTES = 64 * 1024  # Of records or rows: less than a millisecond of the loop.
KEY_BYTES = 32

HEAD, KEY, TAIL, ROWS, RECORDS, END = b"H", b"K", b"T", b"S", b"R", b"E"
KINDS = frozenset({HEAD, KEY, TAIL, ROWS, RECORDS, END})

_FRAME = struct.Struct("<cQI")
_head_of = msgspec.msgpack.Decoder(StateScalars).decode
_rows_of = msgspec.msgpack.Decoder(tuple[str, list[tuple[bytes, bytes]]]).decode


class About(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    version: str  # Of the Holdfast that made it.
    seq: int
    wall_ms: int


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    parts: int
    records: int  # With history value, archived or not.
    size_bytes: int  # Before the end.
    sha256: str
    last_token: int  # The last issued fencing token.


class BackupWriter:
    """Makes the bytes of a backup: call `begin`, `put` for each part of a snapshot, `end`."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._size_bytes = self._parts = self._records = self._last_token = 0
        self._kind = TAIL
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0

    def begin(self, about: About, key: bytes) -> bytes:
        return self._said(MAGIC + _framed(HEAD, msgspec.json.encode(about)) + _framed(KEY, key))

    def put(self, part: SnapshotPart) -> Iterator[bytes]:
        """Add a part of a snapshot, and yield the complete frames."""
        match part:
            case TailPart(records):
                self._last_token = max([self._last_token, *(_last_token_of(record.event) for record in records)])
                yield from self._put_records(TAIL, records)
            case HistoryPart(records):
                yield from self._put_records(RECORDS, records)
            case Values(table, rows):
                yield from self._flush()
                if table == HEAD_TABLE:
                    self._last_token = max(self._last_token, _head_of(rows[0][1]).last_token)
                for some in _slices(rows):
                    self._parts += 1
                    yield self._said(_framed(ROWS, msgspec.msgpack.encode((table, some))))

    def end(self) -> Iterator[bytes]:
        yield from self._flush()
        yield _framed(END, msgspec.json.encode(self.totals()))

    def totals(self) -> Totals:
        return Totals(
            parts=self._parts,
            records=self._records,
            size_bytes=self._size_bytes,
            sha256=self._digest.hexdigest(),
            last_token=self._last_token,
        )

    def _put_records(self, kind: bytes, records: Iterable[Record]) -> Iterator[bytes]:
        if kind != self._kind:
            yield from self._flush()
            self._kind = kind
        for record in records:
            self._gathered.append(encode_batch((record,)))
            self._gathered_bytes += len(self._gathered[-1])
            self._records += is_history(record.event)
            if self._gathered_bytes >= FRAME_BYTES:
                yield from self._flush()

    def _flush(self) -> Iterator[bytes]:
        if self._gathered:
            body = b"".join(self._gathered)
            self._gathered, self._gathered_bytes = [], 0
            yield self._said(_framed(self._kind, body))

    def _said(self, data: bytes) -> bytes:
        self._digest.update(data)
        self._size_bytes += len(data)
        return data


def _slices(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    some: list[tuple[bytes, bytes]] = []
    size_bytes = 0
    for row in rows:
        some.append(row)
        size_bytes += len(row[0]) + len(row[1])
        if size_bytes >= FRAME_BYTES:
            yield some
            some, size_bytes = [], 0
    if some:
        yield some


def _last_token_of(event: Event) -> int:
    """Return the last fencing token that an event issued, or counts as issued; 0 if none."""
    if isinstance(event, Restored):
        return event.last_token
    return max((lease.token for _, lease in grants_of(event)), default=0)


def _framed(kind: bytes, body: bytes) -> bytes:
    return _FRAME.pack(kind, len(body), crc32(body, crc32(kind))) + body


class BackupReader:
    """Parses and checks a backup as its bytes come. `where` is its name in errors."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._pending = bytearray()
        self._digest = hashlib.sha256()
        self._parts = 0
        self._has_key = False
        self._has_begun = False
        self.size_bytes = 0
        self.about: About | None = None
        self.totals: Totals | None = None  # Set once everything was read and checked.

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the kind and the body of each frame that is complete with these bytes. Raises for damage."""
        self._pending += data
        self.size_bytes += len(data)
        if not self._has_begun:
            if not MAGIC.startswith(self._pending[: len(MAGIC)]):
                raise JournalDamagedError(f"{self._where} is not a backup of Holdfast")
            if len(self._pending) < len(MAGIC):
                return
            self._has_begun = True
            self._taken(len(MAGIC))
        while (frame := self._next()) is not None:
            yield frame

    def close(self) -> None:
        """Raise unless the backup is complete."""
        if not self.size_bytes or not self._has_begun:
            raise JournalDamagedError(f"{self._where} is not a backup of Holdfast: it has {self.size_bytes} bytes")
        if self.totals is None:
            raise self._broken(f"it breaks off after {self.size_bytes} bytes and has no end")

    def _next(self) -> tuple[bytes, bytes] | None:
        if self.totals is not None and self._pending:
            raise self._broken("there is more behind its end")
        if len(self._pending) < _FRAME.size:
            return None
        kind, length, checksum = _FRAME.unpack_from(self._pending)
        if kind not in KINDS or length > BODY_BYTES_MAX:
            raise self._broken("expected the header of a frame")
        size_bytes = _FRAME.size + length
        if len(self._pending) < size_bytes:
            return None
        body = bytes(self._pending[_FRAME.size : size_bytes])
        if crc32(body, crc32(kind)) != checksum:
            raise self._broken("a checksum does not match")
        if kind == END:
            self._finish(body)
        elif kind == HEAD:
            self._begin(body)
        elif kind == KEY:
            if self._has_key or len(body) != KEY_BYTES:
                raise self._broken(f"it has two keys, or one that has not {KEY_BYTES} bytes")
            self._has_key = True
        self._parts += kind == ROWS
        self._taken(size_bytes)
        return kind, body

    def _begin(self, body: bytes) -> None:
        try:
            self.about = msgspec.json.decode(body, type=About)
        except msgspec.MsgspecError as error:
            raise self._broken(f"what it says of itself cannot be read: {error}") from error
        if self.about.format > FORMAT:
            text = f"{self._where} has format {self.about.format} of backups; this version reads up to {FORMAT}"
            raise JournalTooNewError(text, f"Restore it with Holdfast {self.about.version} or later")

    def _finish(self, body: bytes) -> None:
        try:
            totals = msgspec.json.decode(body, type=Totals)
        except msgspec.MsgspecError as error:
            raise self._broken(f"its end cannot be read: {error}") from error
        if self.about is None or totals.sha256 != self._digest.hexdigest() or totals.parts != self._parts:
            raise self._broken("its end does not fit what comes before it")
        if not self._has_key:
            raise self._broken("it has no key")
        self.totals = totals

    def _taken(self, size_bytes: int) -> None:
        self._digest.update(self._pending[:size_bytes])
        del self._pending[:size_bytes]

    def _broken(self, text: str) -> JournalDamagedError:
        return JournalDamagedError(f"{self._where} is not a whole backup: {text}", ANOTHER)


def values_in(body: bytes) -> Values:
    """Decode a frame `S`."""
    try:
        return Values(*_rows_of(body))
    except msgspec.MsgspecError as error:
        raise JournalDamagedError(f"rows of the state cannot be read: {error}", ANOTHER) from error


def frames(chunks: Iterable[bytes], where: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield every frame of a backup, and raise at the end unless it was complete."""
    reader = BackupReader(where)
    for chunk in chunks:
        yield from reader.feed(chunk)
    reader.close()
