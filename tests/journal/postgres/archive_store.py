"""What the tests of the archive in PostgreSQL share: a store for two journals, a lock that stops a step, looks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import asyncpg

from holdfast.journal.interface import Retention
from holdfast.journal.postgres.journal import PostgresJournal
from tests.cluster.journals import connected, journal_at
from tests.contract.tools import Tables, held_pages, pages, read
from tests.support.checks import wait_until
from tests.support.postgres import new_schema, shared_url

TABLES = ("archive", "value", "history", "share", "stretch", "entry", "segment", "living", "grant_kept", "batch")
"""All that an archive or a tail is made of."""


class SchemaStore:
    """A store of this test's own."""

    def __init__(self) -> None:
        self.schema = new_schema()
        self.url = shared_url()
        self._journals: list[PostgresJournal] = []

    def journal(
        self, node: str = "a", *, url: str | None = None, retention: Retention | None = None
    ) -> PostgresJournal:
        """Return a journal for one term of a node."""
        journal = journal_at(url or self.url, self.schema, node, retention=retention or Retention())
        self._journals.append(journal)
        return journal

    async def close(self) -> None:
        """Close what a scene that broke off left open: else the next test would be blamed for it."""
        for journal in self._journals:
            await journal.close()

    async def successor(self, retention: Retention | None = None) -> PostgresJournal:
        """Take the leadership from whoever has it."""
        journal = self.journal("successor", retention=retention)
        journal.depose(await journal.read_leadership())
        await journal.open()
        return journal

    async def rows(self, *tables: str) -> dict[str, list[Any]]:
        """Return all rows of some tables, or of all that make an archive and a tail."""
        async with connected(self.url) as db:
            return {table: await self._rows_of(db, table) for table in tables or TABLES}

    async def _rows_of(self, db: asyncpg.Connection, table: str) -> list[Any]:
        found = await db.fetch(f"SELECT * FROM {self.schema}.{table}")
        return sorted(tuple(row) for row in found)

    @contextlib.asynccontextmanager
    async def step_stopped(self) -> AsyncIterator[asyncpg.Connection]:
        """Let every step stop on the server, after it has changed values and history, until the block ends."""
        async with connected(self.url) as db, db.transaction():
            await db.execute(f"LOCK TABLE {self.schema}.living IN EXCLUSIVE MODE")
            yield db

    async def wait_for_stopped_step(self, db: asyncpg.Connection) -> int:
        """Wait until a step has come so far, and return the number of its process on the server."""

        async def pid() -> int:
            await db.execute("SELECT pg_stat_clear_snapshot()")
            found = await db.fetchval(
                "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1",
                f"%{self.schema}.apply_step%",
            )
            return int(found or 0)

        return await until(pid)


async def until(question: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Ask until the answer is true, and return it."""
    loop = asyncio.get_running_loop()

    def ask() -> int:
        return asyncio.run_coroutine_threadsafe(question(), loop).result()

    return await asyncio.to_thread(wait_until, ask, every_seconds=0.01)


async def all_of(journal: PostgresJournal, last_seq: int) -> tuple[Tables, list[int], list[int], list[Any]]:
    """Return all that a journal tells: the state, the tail, the history, and who holds what."""
    state, tail = await read(journal)
    held = [(each.name, each.granted_seq) for each in await held_pages(journal, last_seq)]
    return state, [record.seq for record in tail], [record.seq for record in await pages(journal, 50)], held


def play(scene: Callable[[SchemaStore], Awaitable[None]]) -> None:
    """Let a scene happen on a store of its own."""

    async def run() -> None:
        store = SchemaStore()
        try:
            await scene(store)
        except BaseException:
            await store.close()
            raise

    asyncio.run(run())
