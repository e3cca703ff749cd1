"""Opens a SQLite journal, lets something happen, closes it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import apsw

from holdfast.journal.interface import Journal
from holdfast.journal.sqlite.compactor import LocalCompactor
from holdfast.journal.sqlite.journal import SqliteJournal
from tests.contract.tools import Tables, tables_of


def run(scene: Callable[[SqliteJournal], object], directory: Path, **options: object) -> None:
    """Open a journal, let the scene play, close it."""

    async def play() -> None:
        journal = SqliteJournal(directory, **{"disk_reserve_bytes": 0, **options})  # type: ignore[arg-type]
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
    directory: Path, connect: Callable[[str], apsw.Connection] = apsw.Connection, *, alone: bool = False
) -> tuple[Tables, list[int]]:
    """Return the archived state and the numbers of the records after it. `alone`: on a disk in memory."""

    async def scene() -> tuple[Tables, list[int]]:
        compactor = LocalCompactor(connect=connect, alone=alone)
        journal = SqliteJournal(directory, disk_reserve_bytes=0, connect=connect, compactor=compactor)
        try:
            recovered = await journal.open()
            return tables_of(recovered.values), [record.seq for record in recovered.records]
        finally:
            await journal.close()

    return asyncio.run(scene())
