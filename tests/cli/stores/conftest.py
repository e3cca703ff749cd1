"""A real PostgreSQL with a schema for each test, and a leader that a test can start and stop."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast import __version__
from holdfast.core.events import Record
from holdfast.journal.codec import FORMAT
from holdfast.journal.interface import Peer
from holdfast.journal.postgres.journal import PostgresJournal
from holdfast.journal.postgres.leadership import NewAuthority
from tests.support import callers, postgres
from tests.support.program import Program

Run = Callable[..., subprocess.CompletedProcess[str]]
Ask = Callable[..., subprocess.CompletedProcess[str]]
Serve = Callable[..., Program]


@pytest.fixture
def schema() -> str:
    """The name of a schema that is not there yet."""
    return postgres.new_schema()


@pytest.fixture
def ask(holdfast: Run, schema: str) -> Ask:
    """Runs `holdfast …` with the store in the environment, as nodes have it."""

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return holdfast(
            *arguments, **{"HOLDFAST_STORE": postgres.shared_url(), "HOLDFAST_STORE_SCHEMA": schema, **environment}
        )

    return run


class Leader:
    """A node that has the leadership: its journal, and nothing else of it."""

    def __init__(self, schema: str, name: str = "node1", *, tokens: str = "same", url: str | None = None) -> None:
        self.peer = Peer(
            node=name,
            process=name * 2,
            url=f"http://{name}:7420",
            version=__version__,
            format_max=FORMAT,
            tokens=tokens,
        )
        self._journal = PostgresJournal(
            url or postgres.shared_url(),
            self.peer,
            term_id=postgres.new_schema(),
            schema=schema,
            new_authority=NewAuthority("a" * 32, b"k" * 32, 0),
        )

    async def lead(self, until: asyncio.Event, has_begun: threading.Event) -> None:
        """Have the leadership, and beat."""
        await self._journal.open()
        await self._journal.report(self.peer)
        has_begun.set()
        try:
            while not until.is_set():
                await self._journal.confirm(0)
                await asyncio.sleep(0.02)
        finally:
            await self._journal.close()

    async def once(self, *batches: list[Record], gives_back: bool = True) -> None:
        """Have the leadership for a moment; `gives_back`: or leave it as one that was killed does."""
        await self._journal.open()
        await self._journal.report(self.peer)
        for batch in batches:
            await self._journal.append(batch)
        if not gives_back:
            self._journal._writer._drop()
            self._journal._may_lead = False
        await self._journal.close()


@contextmanager
def leading(leader: Leader) -> Iterator[Leader]:
    """Let it lead in a thread of its own."""
    loop = asyncio.new_event_loop()
    until, has_begun = asyncio.Event(), threading.Event()

    thread = threading.Thread(target=lambda: loop.run_until_complete(leader.lead(until, has_begun)))
    thread.start()
    try:
        assert has_begun.wait(10)
        yield leader
    finally:
        loop.call_soon_threadsafe(until.set)
        thread.join(10)
        loop.close()
        assert not thread.is_alive()


@pytest.fixture
def serve(schema: str, tmp_path: Path) -> Iterator[Serve]:
    """Starts nodes; each is stopped as a service manager does it."""
    with ExitStack() as stack:

        def start(name: str, *options: str, **environment: str) -> Program:
            ours = {key: value for key, value in os.environ.items() if not key.startswith(("HOLDFAST_", "XDG_"))}
            settings = {
                "HOLDFAST_STORE": postgres.shared_url(),
                "HOLDFAST_STORE_SCHEMA": schema,
                "HOLDFAST_TOKENS": callers.TOKENS,
                "HOLDFAST_NODE_NAME": name,
                "XDG_CONFIG_HOME": str(tmp_path / "config"),
                "XDG_DATA_HOME": str(tmp_path / "data"),
            }
            command = [sys.executable, "-m", "holdfast", "serve", "--listen", "127.0.0.1:0", *options]
            node = stack.enter_context(Program(command, env={**ours, **settings, **environment}, folder=tmp_path))
            node.said(r"This is node")
            return node

        yield start
