"""Backups: all that an authority knows, as one file, made without stopping the server.

The archive and the records since are sent as they are, not from the state in memory. So a backup costs the event loop a
slice now and then, however much is held. It needs no room on the server's disk, and no archivist.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from holdfast.engine.engine import Engine
from holdfast.engine.snapshot import parts
from holdfast.journal.backup import About, BackupWriter
from holdfast.journal.interface import Snapshot
from holdfast.journal.sqlite import inspect

T = TypeVar("T")

__all__ = ["BackupWriter", "backup", "backup_of_directory"]


async def backup(engine: Engine, key: bytes, version: str, writer: BackupWriter) -> AsyncGenerator[bytes, None]:
    if engine.journal.is_shared:
        # Proves leadership: an old store still shows a deposed leader all that there was.
        await engine.query(lambda _state, _now: None)
    async with engine.journal.snapshot() as source:
        async for piece in _pieces(source, key, version, engine.clock.wall_ms(), writer):
            yield piece
            await asyncio.sleep(0)


async def _pieces(
    source: Snapshot, key: bytes, version: str, wall_ms: int, writer: BackupWriter
) -> AsyncGenerator[bytes, None]:
    yield writer.begin(About(version=version, seq=source.last_seq, wall_ms=wall_ms), key)
    async for part in parts(source):
        for piece in writer.put(part):
            yield piece
    for piece in writer.end():
        yield piece


def backup_of_directory(
    directory: Path, key: bytes, version: str, wall_ms: int, writer: BackupWriter
) -> Iterator[bytes]:
    with inspect.reading(directory) as files, asyncio.Runner() as runner:
        pieces = _pieces(_Directory(files), key, version, wall_ms, writer)

        async def next_piece() -> bytes | None:
            return await anext(pieces, None)

        while (piece := runner.run(next_piece())) is not None:
            yield piece


class _Directory:
    def __init__(self, files: inspect.Files) -> None:
        self.last_seq, self.upto, self.pruned = files.last_seq, files.upto, files.pruned
        self.tail = lambda: _each(files.tail())
        self.values = lambda: _each(files.values())
        self.history = lambda: _each(files.history())


async def _each(items: Iterable[T]) -> AsyncIterator[T]:
    for item in items:
        yield item
