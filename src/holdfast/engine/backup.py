"""Backups: all that an authority knows, as one file, made without stopping the server.

A journal gives a look at all that it holds at one instant (`Journal.whole`): what is archived, and the records since.
Both are durable, and so is every answer that anybody has heard by then. They are sent as they are. Nobody looks at the
state in memory for it, and nothing is copied: a backup costs the loop a slice now and then, however much is held. It
needs no room on the server's disk, and no archivist: what is not archived yet is in the tail.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.core.events import Event, Record, Restored, grants_of, is_history
from holdfast.engine import snapshot
from holdfast.journal import inspect
from holdfast.journal.backup import About, BackupWriter
from holdfast.journal.base import HEAD, Values
from holdfast.journal.codec import encode_batch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from holdfast.engine.engine import Engine

__all__ = ["BackupWriter", "backup", "backup_of_directory"]

FRAME_BYTES = 64 * 1024
"""How many bytes of records or rows make a frame: less than a millisecond of the loop."""


async def backup(engine: Engine, key: bytes, version: str, writer: BackupWriter) -> AsyncGenerator[bytes, None]:
    """Yield a backup of a running server, piece by piece. Raises `JournalError` if the journal cannot be read."""
    making = _Making(writer)
    if engine.journal.is_shared:
        # A store that was left behind still shows a leader that was deposed all that there was.
        await engine.look(lambda _state, _now: None)
    async with engine.journal.whole() as whole:
        about = About(version=version, seq=whole.last_seq, wall_ms=engine.clock.wall_ms())
        yield writer.begin(about, key)
        await asyncio.sleep(0)
        async for records in whole.tail():
            for piece in making.tail(records):
                yield piece
                await asyncio.sleep(0)
        async for values in whole.values():
            for piece in making.rows(values):
                yield piece
                await asyncio.sleep(0)
        async for records in whole.history():
            for piece in making.history(records):
                yield piece
                await asyncio.sleep(0)
    for piece in making.end():
        yield piece
        await asyncio.sleep(0)


def backup_of_directory(
    directory: Path, key: bytes, version: str, wall_ms: int, writer: BackupWriter
) -> Iterator[bytes]:
    """Yield a backup of a directory that no server has open. Raises `JournalError`."""
    making = _Making(writer)
    with inspect.reading(directory) as whole:
        yield writer.begin(About(version=version, seq=whole.last_seq, wall_ms=wall_ms), key)
        for records in whole.tail():
            yield from making.tail(records)
        for values in whole.values():
            yield from making.rows(values)
        for records in whole.history():
            yield from making.history(records)
    yield from making.end()


class _Making:
    """Turns what a journal holds into the pieces of a backup. What comes next writes what was gathered before it."""

    def __init__(self, writer: BackupWriter) -> None:
        self._writer = writer
        self._gathered: list[bytes] = []
        self._size_bytes = self._history = 0
        self._framed: Callable[[bytes, int], bytes] = writer.tail

    def tail(self, records: Iterable[Record]) -> Iterator[bytes]:
        """Take records that are not archived."""
        for record in records:
            self._writer.last_token = max(self._writer.last_token, _last_token_of(record.event))
            yield from self._add(record)

    def rows(self, values: Values) -> Iterator[bytes]:
        """Take rows of the archived state."""
        yield from self._rest()
        if values.table == HEAD:
            head = snapshot.head_of(values)
            self._writer.last_token = max(self._writer.last_token, head.last_token)
        for rows in _slices(values.rows):
            yield self._writer.rows(Values(values.table, rows))

    def history(self, records: Iterable[Record]) -> Iterator[bytes]:
        """Take archived records."""
        yield from self._end_of_rows()
        for record in records:
            yield from self._add(record)

    def end(self) -> Iterator[bytes]:
        """Let that be all."""
        yield from self._end_of_rows()
        yield from self._rest()
        yield self._writer.end()

    def _end_of_rows(self) -> Iterator[bytes]:
        if self._framed != self._writer.records:
            yield from self._rest()
            self._framed = self._writer.records

    def _add(self, record: Record) -> Iterator[bytes]:
        self._gathered.append(encode_batch((record,)))
        self._size_bytes += len(self._gathered[-1])
        self._history += is_history(record.event)
        if self._size_bytes >= FRAME_BYTES:
            yield from self._rest()

    def _rest(self) -> Iterator[bytes]:
        if self._gathered:
            piece = self._framed(b"".join(self._gathered), self._history)
            self._gathered, self._size_bytes, self._history = [], 0, 0
            yield piece


def _slices(rows: Sequence[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield rows in order, some at a time: as many as make a frame."""
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
    """Return the last fencing token that an event gave out, or that it lets count as given out; 0 if none."""
    if isinstance(event, Restored):
        return event.last_token
    return max((lease.token for _, lease in grants_of(event)), default=0)
