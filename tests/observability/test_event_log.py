"""The log of events: one line for each grant and each end, once it is durable, and no more."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.events import Ended, Record, Renewed, SessionEnded
from holdfast.engine.feed import Feed
from holdfast.observability import event_log as events
from holdfast.observability.event_log import LINES_PER_TICK, EventLog
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import wait_until
from tests.support.server import ServerProcess

KEYS = ("event", "name", "owner", "principal", "fencing_token")


def _lines(server: ServerProcess) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    return [line for line in lines if line["logger"] == "holdfast.events"]


def test_each_grant_and_each_end_is_a_line(tmp_path: Path) -> None:
    """Grants, also of several at once, and every way to end: released, done, revoked, expired, with a session, handed
    on. Renewals, waits and refusals have none.
    """
    settings = {"log_events": True}
    with ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server:
        alice, bob, operator = (Api.of(server, token) for token in (callers.ALICE, callers.BOB, callers.OPERATOR))
        lease = alice.acquired("one", owner="agent-1", metadata="m")
        assert alice.renew("one", lease["lease_id"]).status == 200
        bob.held("one")
        assert alice.release("one", lease["lease_id"], result="r", outcome="done", remember_seconds=60).status == 200
        assert alice.claims(all=["two", "three"], ttl_seconds=600).status == 200
        assert operator.revoke("two", reason="why").status == 204
        session = alice.new_session(ttl_seconds=60)
        alice.acquired("four", session_id=session["session_id"], ephemeral=True)
        assert alice.end_session(session["session_id"]).status == 204
        lease = alice.acquired("five", owner="agent-1")
        assert alice.transfer("five", lease["lease_id"], to_owner="agent-2").status == 200
        bob.acquired("six", ttl_seconds=1)
        wait_until(lambda: bob.status("six").json()["status"] == "free")
        assert server.terminate() == 0
        said = [tuple(line[key] for key in KEYS) for line in _lines(server)]
        assert said == [
            ("granted", "one", "agent-1", "alice", 1),
            ("done", "one", "agent-1", "alice", 1),
            ("granted", "two", None, "alice", 2),
            ("granted", "three", None, "alice", 3),
            ("revoked", "two", None, "alice", 2),
            ("granted", "four", None, "alice", 4),
            ("session_ended", "four", None, "alice", 4),
            ("granted", "five", "agent-1", "alice", 5),
            ("transferred", "five", "agent-2", "alice", 6),
            ("granted", "six", None, "bob", 7),
            ("expired", "six", None, "bob", 7),
        ]
        assert _lines(server)[0]["message"] == "granted 'one' to 'agent-1', fencing token 1"
        assert _lines(server)[-1]["message"] == "expired 'six' of access token bob, fencing token 7"
        numbers = [line["seq"] for line in _lines(server)]
        assert numbers == sorted(numbers)


class Source:
    """An engine, as far as the log of events sees it."""

    def __init__(self) -> None:
        self.feed = Feed()


def _ended(number: int) -> Ended:
    return Ended(f"job-{number}", f"lease-{number}", number, "expired", False, owner="ana", principal="ana")


def test_event_log_writes_large_record_in_slices(caplog: pytest.LogCaptureFixture) -> None:
    """The end of a session with ten thousand leases holds the loop for a few lines at a time; all are written."""

    async def run() -> list[int]:
        source: Any = Source()
        log = EventLog(source)
        leases = tuple(_ended(number) for number in range(1_000))
        source.feed.publish([Record(1, 0, 0, SessionEnded("s", "expired", leases)), Record(2, 0, 0, _ended(1_000))])
        counts = []
        while len(caplog.records) < 1_001:
            await asyncio.sleep(0)
            counts.append(len(caplog.records))
        log.end()
        source.feed.publish([Record(3, 0, 0, _ended(7))])
        return counts

    with caplog.at_level(logging.INFO, "holdfast.events"):
        counts = asyncio.run(run())
    assert all(later - before <= LINES_PER_TICK for before, later in zip([0, *counts], counts, strict=False))
    assert len(caplog.records) == 1_001, "nothing after the end"


def test_event_log_reports_dropped_lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than may wait is left out, and one line says how many; at the end the rest is written at once."""
    monkeypatch.setattr(events, "LINES_MAX", 10)

    async def run() -> None:
        source: Any = Source()
        log = EventLog(source)
        source.feed.publish([Record(number, 0, 0, _ended(number)) for number in range(25)])
        source.feed.publish([Record(99, 0, 0, Renewed("job", "lease", 1, 1))])
        log.end()

    with caplog.at_level(logging.INFO, "holdfast.events"):
        asyncio.run(run())
    assert len(caplog.messages) == 11
    assert caplog.messages[-1] == "event log overflow: dropped 15 lines"
