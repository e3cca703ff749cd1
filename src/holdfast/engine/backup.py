"""Backups: all that an authority knows, as one file, made without stopping the server.

The state is frozen as it is for a snapshot, and told once all that it shows is durable. Then it is encoded in slices on
the event loop, and the history is read as `/events` reads it: the loop serves between two slices. So a backup shows one
instant, and needs no room on the server's disk. Nothing here knows how a journal stores its history.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING

from holdfast.core.events import is_history
from holdfast.core.state import Frozen, State
from holdfast.engine import snapshot
from holdfast.engine.recovery import replay
from holdfast.journal import inspect
from holdfast.journal.backup import About, BackupWriter
from holdfast.journal.codec import encode_batch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from holdfast.engine.engine import Engine

__all__ = ["BackupWriter", "backup", "backup_of_directory"]

PAGE = 500
"""How many records are read from the journal at once, at most; the journal bounds their bytes."""


async def backup(engine: Engine, key: bytes, version: str, writer: BackupWriter) -> AsyncIterator[bytes]:
    """Yield a backup of a running server, piece by piece. Raises `JournalError` if the journal cannot be read."""
    frozen = await engine.look(lambda state, _now: state.freeze())
    yield writer.begin(_about(frozen, engine.clock.wall_ms(), version), key)
    for part in snapshot.encode(frozen):
        yield writer.part(part)
        await asyncio.sleep(0)
    seq, upto = 0, frozen.head.seq
    while records := [each for each in await engine.journal.follow(seq, PAGE) if each.seq <= upto]:
        seq = records[-1].seq
        yield writer.records(encode_batch(records), len(records))
        await asyncio.sleep(0)
    yield writer.end()


def backup_of_directory(
    directory: Path, key: bytes, version: str, wall_ms: int, writer: BackupWriter
) -> Iterator[bytes]:
    """Yield a backup of a directory that no server has open. Raises `JournalError`."""
    with inspect.reading(directory) as (parts, tail, records):
        state = State.thaw(snapshot.decode(parts))
        replay(state, tail)
        frozen = state.freeze()
        yield writer.begin(_about(frozen, wall_ms, version), key)
        yield from map(writer.part, snapshot.encode(frozen))
        kept = (each for each in records if is_history(each.event))
        while some := list(islice(kept, PAGE)):
            yield writer.records(encode_batch(some), len(some))
    yield writer.end()


def _about(frozen: Frozen, wall_ms: int, version: str) -> About:
    return About(version=version, seq=frozen.head.seq, wall_ms=wall_ms, last_token=frozen.head.last_token)
