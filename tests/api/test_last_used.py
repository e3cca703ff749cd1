"""When a token was last used: right to the minute, kept through restarts, and no write for each request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from holdfast.api.auth.auth import MINUTE_MS, PERIOD_MS, Auth, StaticTokens
from holdfast.api.auth.secrets import AuthorityKey, digest
from holdfast.api.service import ApiService
from holdfast.config import Settings
from holdfast.core.commands import CreateToken, RevokeToken
from holdfast.core.events import Record, TokensUsed
from holdfast.core.outcomes import TokenMade
from holdfast.core.values import Limits
from holdfast.engine.engine import Engine
from holdfast.http.messages import request_from
from holdfast.testing.clock import ManualClock
from tests.engine.harness import picture, run, turns
from tests.scenarios.player import durable, replay
from tests.support import callers
from tests.support.api import Api as Calls
from tests.support.checks import moment
from tests.support.memory_journal import MemoryJournal
from tests.support.server import ServerProcess

STATIC, OTHER, MADE = "static-0123456789abcdef", "other-0123456789abcdef", "made-0123456789abcdef"


class Written(MemoryJournal):
    """A journal that remembers every record."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Record] = []

    async def append(self, batch: Any) -> None:  # noqa: ANN401 - as every journal takes it
        await super().append(batch)
        self.records.extend(batch)

    @property
    def uses(self) -> list[tuple[tuple[str, int], ...]]:
        return [record.event.uses for record in self.records if isinstance(record.event, TokensUsed)]


@asynccontextmanager
async def _api(journal: MemoryJournal, clock: ManualClock, static: str = STATIC) -> AsyncIterator[ApiService]:
    engine = Engine(journal, Limits(), clock=clock, version="test")
    await engine.start()
    api = ApiService(
        engine, Auth(StaticTokens([f"static:{static}"]), AuthorityKey(b"k" * 32)), Settings(data=Path("unused"))
    )
    try:
        yield api
        api.end()
    finally:
        await engine.stop()


def _ask(api: ApiService, token: str = STATIC, times: int = 1) -> None:
    for _ in range(times):
        api.admit(request_from(b"GET", b"/locks/a", b"", {b"authorization": f"Bearer {token}".encode()}, b""), "read")


async def _make(api: ApiService, token: str = MADE) -> None:
    outcome, _ = await api.engine.ask(
        CreateToken(principal="static", name="made", digest=digest(token), scopes=("read",))
    )
    assert isinstance(outcome, TokenMade)


async def _pass(api: ApiService, clock: ManualClock, ms: int) -> None:
    """Let time pass, with the tick of every second."""
    for _ in range(ms // 1_000):
        clock.advance(1_000)
        api.tick()
        await turns()


def _minute(clock: ManualClock) -> int:
    return clock.wall_ms() - clock.wall_ms() % MINUTE_MS


def test_requests_write_nothing() -> None:
    """A thousand requests in ten minutes are ten records at most, each with what changed; an idle hour is none."""

    async def scene(clock: ManualClock) -> None:
        journal = Written()
        async with _api(journal, clock) as api:
            for _ in range(10):
                for _ in range(10):
                    _ask(api, times=10)
                    await _pass(api, clock, 6_000)
            busy = len(journal.uses)
            assert 9 <= busy <= 10
            assert all(len(each) == 1 for each in journal.uses)
            await _pass(api, clock, 60 * PERIOD_MS)
            assert len(journal.uses) <= busy + 1
        others = [type(record.event).__name__ for record in journal.records]
        assert set(others) <= {"Opened", "TokensUsed", "TimePassed"}

    run(scene)


def test_last_use_is_exact_to_the_minute() -> None:
    """At once after a use, and as long as nobody uses it again, the minute of the last use is told."""

    async def scene(clock: ManualClock) -> None:
        async with _api(Written(), clock) as api:
            assert api.token_uses.last_of("static", api.engine.state) is None
            _ask(api)
            used = _minute(clock)
            for _ in range(5):
                assert api.token_uses.last_of("static", api.engine.state) == used
                await _pass(api, clock, PERIOD_MS)
            _ask(api)
            assert api.token_uses.last_of("static", api.engine.state) == _minute(clock) > used

    run(scene)


def test_a_restart_keeps_it() -> None:
    """An orderly stop writes what was used in its last minute, and the next start knows it; a replay gives the same."""

    async def scene(clock: ManualClock) -> None:
        journal = Written()
        async with _api(journal, clock) as api:
            await _make(api)
            _ask(api, MADE)
            used = _minute(clock)
            await _pass(api, clock, 5_000)
        clock.advance(7 * MINUTE_MS)
        async with _api(journal, clock) as api:
            assert api.token_uses.last_of("made", api.engine.state) == used
            assert durable(replay(journal.records)) == durable(api.engine.state), "I15"
            await api.engine.archive()
        async with _api(journal, clock) as api:
            assert api.token_uses.last_of("made", api.engine.state) == used, "it is in the snapshot"

    run(scene)


def test_it_goes_with_the_token() -> None:
    """A new token of the same name was never used, whatever the old one did; nothing of the old one is kept."""

    async def scene(clock: ManualClock) -> None:
        async with _api(Written(), clock) as api:
            await _make(api)
            _ask(api, MADE)
            await _pass(api, clock, PERIOD_MS)
            assert "made" in api.engine.state.last_used
            _ask(api, MADE)
            await api.engine.ask(RevokeToken(principal="static", name="made"))
            assert api.engine.state.last_used == {}
            clock.advance(1)
            await _make(api, OTHER)
            assert api.token_uses.last_of("made", api.engine.state) is None
            await _pass(api, clock, PERIOD_MS)
            assert api.token_uses.last_of("made", api.engine.state) is None
            assert "made" not in api.token_uses.seen and "made" not in api.engine.state.last_used

    run(scene)


def test_a_static_token_that_is_gone_is_forgotten() -> None:
    """What is known of a static token that no setting names any more is dropped by a record after the next start."""

    async def scene(clock: ManualClock) -> None:
        journal = Written()
        async with _api(journal, clock) as api:
            _ask(api)
        engine = Engine(journal, Limits(), clock=clock, version="test")
        await engine.start()
        assert list(engine.state.last_used) == ["static"]
        api = ApiService(engine, Auth(StaticTokens([]), AuthorityKey(b"k" * 32)), Settings(data=Path("unused")))
        await _pass(api, clock, PERIOD_MS)
        assert engine.state.last_used == {}
        assert journal.uses[-1] == (("static", 0),)
        assert picture(engine.state) == picture(replay(journal.records))
        await engine.stop()

    run(scene)


# Over HTTP.


def _last_used(server: ServerProcess, name: str) -> str | None:
    (found,) = [
        each for each in Calls.of(server, callers.OPERATOR).get("/tokens").json()["tokens"] if each["name"] == name
    ]
    shown: str | None = found["last_used"]
    return shown


def test_last_use_is_shown_and_survives_a_restart(tmp_path: Path) -> None:
    """`GET /tokens` tells the minute, for static and made tokens and for a session's secret; a restart keeps it."""
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        made = Calls.of(server, callers.OPERATOR).post("/tokens", {"name": "made"}).json()["token"]
        assert _last_used(server, "made") is None and _last_used(server, "alice") is None
        Calls.of(server, made).locks()
        secret = Calls.of(server, callers.ALICE).new_session()["session_secret"]
        Calls.of(server, secret).locks()
        shown = {name: _last_used(server, name) for name in ("made", "alice", "operator")}
        for text in shown.values():
            at = moment(text)
            assert (at.second, at.microsecond) == (0, 0)
            assert timedelta(0) <= datetime.now(UTC) - at < timedelta(minutes=2)
        assert _last_used(server, "bob") is None
        assert server.terminate() == 0
        with server.restart() as again:
            assert {name: _last_used(again, name) for name in ("made", "alice")} == {
                name: shown[name] for name in ("made", "alice")
            }
            assert _last_used(again, "bob") is None
