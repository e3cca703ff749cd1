"""Opens a SQLite journal, lets something happen, closes it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import apsw

from holdfast.journal.base import Journal
from holdfast.journal.sqlite import SqliteJournal


def run(scene: Callable[[SqliteJournal], object], directory: Path, **options: object) -> None:
    """Open a journal, let the scene play, close it."""

    async def play() -> None:
        journal = SqliteJournal(directory, **{"ballast_bytes": 0, **options})  # type: ignore[arg-type]
        await journal.open()
        try:
            await scene(journal)  # type: ignore[misc]
        finally:
            await journal.close()

    asyncio.run(play())


async def nothing(_journal: SqliteJournal) -> None:
    """Let nothing happen: for a journal that is opened and closed."""


def takes_claims(journal: Journal) -> bool:
    """Does it take new claims now? Asked by a call, because a type checker takes what a field said for lasting."""
    return journal.takes_claims


def found_in(
    directory: Path, connect: Callable[[str], apsw.Connection] = apsw.Connection
) -> tuple[list[bytes], list[int]]:
    async def scene() -> tuple[list[bytes], list[int]]:
        journal = SqliteJournal(directory, ballast_bytes=0, connect=connect)
        try:
            recovered = await journal.open()
            return list(recovered.snapshot), [record.seq for record in recovered.records]
        finally:
            await journal.close()

    return asyncio.run(scene())
