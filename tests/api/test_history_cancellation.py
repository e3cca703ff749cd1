"""A look that takes its time ends with the one who asked for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast import __version__
from holdfast.api.auth.auth import Auth, StaticTokens
from holdfast.api.auth.secrets import AuthorityKey
from holdfast.api.router import Routes
from holdfast.api.service import ApiService
from holdfast.config import Settings
from holdfast.core.values import Limits
from holdfast.engine.clock import SystemClock
from holdfast.engine.engine import Engine
from holdfast.http.messages import Request, request_from
from holdfast.journal.interface import HistoryPage, HistoryQuery
from holdfast.server.components import OPERATIONS
from tests.support import callers
from tests.support.memory_journal import MemoryJournal


class Endless(MemoryJournal):
    """A journal in which every search takes for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.ended = asyncio.Event(), asyncio.Event()

    async def history(self, query: HistoryQuery) -> HistoryPage:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        return await super().history(query)


def test_history_search_is_cancelled_with_its_client(tmp_path: Path) -> None:
    """Whoever hangs up while the journal is searched ends the search; nobody is answered."""

    async def scene() -> None:
        journal = Endless()
        engine = Engine(journal, Limits(), clock=SystemClock(), version=__version__)
        await engine.start()
        auth = Auth(StaticTokens([f"ana:{callers.ALICE}"]), AuthorityKey(b"k" * 32))
        routes = Routes(ApiService(engine, auth, Settings(data=tmp_path)), OPERATIONS)
        headers = {b"authorization": b"Bearer " + callers.ALICE.encode(), b"host": b"127.0.0.1"}
        request = request_from(b"GET", b"/locks/job/history", b"", headers, b"")
        answers: list[int] = []
        routes.handle(request, lambda _request, status, _body, _headers: answers.append(status))
        await asyncio.wait_for(journal.began.wait(), 10)
        assert request.on_lost is not None
        request.on_lost()
        await asyncio.wait_for(journal.ended.wait(), 10)
        assert answers == []
        await engine.stop()

    asyncio.run(scene())


QUERIES = (b"/locks", b"/sessions", b"/tokens", b"/ui/rows", b"/ui/waits", b"/ui/sessions")


@pytest.mark.parametrize("path", QUERIES)
def test_slow_read_is_cancelled_with_its_client(tmp_path: Path, path: bytes) -> None:
    """Whoever hangs up leaves nothing behind that the lists and pages of others would have to wait for."""

    async def scene() -> None:
        engine = Engine(MemoryJournal(), Limits(), clock=SystemClock(), version=__version__)
        await engine.start()
        auth = Auth(StaticTokens([f"ops:{callers.OPERATOR}:read+claim+admin"]), AuthorityKey(b"k" * 32))
        routes = Routes(ApiService(engine, auth, Settings(data=tmp_path)), OPERATIONS)
        headers = {b"authorization": b"Bearer " + callers.OPERATOR.encode(), b"host": b"127.0.0.1"}
        answered: asyncio.Queue[Request] = asyncio.Queue()

        def ask() -> Request:
            request = request_from(b"GET", path, b"", headers, b"")
            routes.handle(request, lambda request, _status, _body, _headers: answered.put_nowait(request))
            return request

        first = ask()
        assert await asyncio.wait_for(answered.get(), 10) is first
        leaves = ask()
        assert leaves.on_lost is not None
        leaves.on_lost()
        last = ask()
        assert await asyncio.wait_for(answered.get(), 10) is last, "and the one who left was not waited for"
        await engine.stop()

    asyncio.run(scene())
