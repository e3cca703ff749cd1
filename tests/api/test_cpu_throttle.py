"""Who asks much stands behind: what one user asks at once on many connections delays another by one request of it."""

import asyncio
import contextlib
import signal
import socket
from collections import deque
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from holdfast.engine.clock import Ticks
from holdfast.http.connection import LATER_BYTES, ResponseStream
from holdfast.http.limits import SchedDelay
from holdfast.http.manager import ConnectionManager, RoundRobinQueue
from holdfast.http.messages import request_from
from holdfast.testing.clock import ManualClock
from tests.support import callers
from tests.support.api import Api
from tests.support.http import parse_answers
from tests.support.pending import payload
from tests.support.server import ServerProcess

SESSIONS = 20
NAMES = 1_000


def test_a_small_request_does_not_wait_for_twenty_large_ones(tmp_path: Path) -> None:
    """One user ends twenty sessions of a thousand claims each, and then another claims, while the server is stopped.

    The numbers of their records tell the order of decisions: the other's comes behind few of the twenty.
    """
    settings = {"leases_per_principal_max": 100_000}
    with (
        ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server,
        contextlib.ExitStack() as stack,
    ):
        bob = Api.of(server, callers.BOB)
        sessions = [bob.post("/sessions", {"ttl_seconds": 600}).json()["session_id"] for _ in range(SESSIONS)]
        for number, session in enumerate(sessions):
            names = [f"bob/{number}/{name}" for name in range(NAMES)]
            body = {"all": names, "ephemeral": True, "session_id": session, "ttl_seconds": 600}
            assert bob.post("/claims", body).status == 200
        lines = [(socket.create_connection((server.host, server.port), 60), callers.BOB) for _ in sessions]
        lines.append((socket.create_connection((server.host, server.port), 60), callers.ALICE))
        for sock, token in lines:
            stack.enter_context(sock)
            sock.sendall(payload("/locks/nobodys", token, None, method="GET"))
            assert sock.recv(65_536)
        server.process.send_signal(signal.SIGSTOP)
        for (sock, token), session in zip(lines, sessions, strict=False):
            sock.sendall(payload(f"/sessions/{session}", token, None, method="DELETE"))
        lines[-1][0].sendall(payload("/locks/alice/acquire", callers.ALICE, {}))
        server.process.send_signal(signal.SIGCONT)
        assert [parse_answers(sock.recv(65_536), closed=False)[0].status for sock, _ in lines] == [204] * SESSIONS + [
            200
        ]
        ended = [bob.history(f"bob/{number}/0").json()["history"][0]["seq"] for number in range(SESSIONS)]
        claimed = bob.history("alice").json()["history"][0]["seq"]
        assert sum(seq < claimed for seq in ended) <= SESSIONS // 4


class _Backlog(ConnectionManager):
    """The backlog of a server, and nothing else of it."""

    def __init__(self) -> None:
        self._queue = deque()
        self._throttled_queue = RoundRobinQueue()
        self._others_asked = False
        self._run_is_due = False
        self.throttled: dict[object, int] = {}
        self.clock_ms = 0
        self.now_ms = lambda: self.clock_ms


def test_large_bodies_of_streams_are_read_one_in_a_turn() -> None:
    """Twenty streams are asked for at once, each with a large body. Of all of them one is handed over between two looks
    at the sockets; a small one is handed over at once.
    """

    async def scene() -> list[int]:
        backlog, loop = _Backlog(), asyncio.get_running_loop()
        connection: Any = SimpleNamespace(loop=loop, principal=None, resume_parsing=lambda: None)
        tasks = []
        for size in [LATER_BYTES + 1] * SESSIONS + [LATER_BYTES]:
            stream = ResponseStream(connection, backlog, request_from(b"", b"", b"", {}, b""))
            stream.feed_body(b"x" * size)
            stream.end_body()
            tasks.append(asyncio.create_task(stream.read()))
        done: list[int] = []
        while not done or done[-1] < len(tasks):
            await asyncio.sleep(0)
            done.append(sum(task.done() for task in tasks))
            assert len(done) < 10 * SESSIONS
        assert all(len(task.result()) >= LATER_BYTES for task in tasks)
        return done

    done = asyncio.run(scene())
    assert done[0] == 1, "the small one"
    assert all(after - before <= 1 for before, after in pairwise(done))


class _Accounts(ConnectionManager):
    """Who is in debt at a server, and nothing else of it. Its clock stands still."""

    def __init__(self, counts: Path) -> None:
        self.throttled = {}
        self.now_ms = lambda: 0
        self._delay = SchedDelay(str(counts))
        self.ticks = Ticks(ManualClock(), lambda: None)
        self.handler = SimpleNamespace(expiry_ms=lambda: self.ticks.expiry_ms)  # type: ignore[assignment]
        self._expiry_ms = 0


def test_machine_pause_throttles_no_principal(tmp_path: Path) -> None:
    """A request that took 30 ms, of which others had the processor for 29, brings no debt; each pause excuses once."""
    counts = tmp_path / "schedstat"
    counts.write_text("5000000 1000000 7\n")
    accounts = _Accounts(counts)
    counts.write_text("6000000 30000000 8\n")
    accounts.charge("ana", 0.030)
    assert accounts.throttled == {}
    accounts.charge("bob", 0.030)
    assert set(accounts.throttled) == {"bob"}
    counts.write_text("7000000 40000000 9\n")
    accounts.charge("ana", 0.030)
    assert set(accounts.throttled) == {"bob", "ana"}
    assert accounts.throttled["ana"] < accounts.throttled["bob"]


def test_expiry_work_throttles_no_principal(tmp_path: Path) -> None:
    """What ends by time, or is forgotten, before a request is decided is not charged to whoever asked just then."""
    accounts = _Accounts(tmp_path / "nothing")
    accounts.ticks.expiry_ms += 29
    accounts.charge("ana", 0.030)
    assert accounts.throttled == {}
    accounts.charge("bob", 0.030)
    assert set(accounts.throttled) == {"bob"}


def test_delay_are_those_that_the_system_counts(tmp_path: Path) -> None:
    """Where the system counts no pauses there are none; where it does, they never shrink."""
    assert SchedDelay(str(tmp_path / "nothing")).since_last() == 0
    assert SchedDelay().since_last() >= 0


def test_throttled_principals_take_turns() -> None:
    """One who fell into debt, say because the machine paused, waits for one request of each debtor and not for all."""

    backlog = _Backlog()
    worked = asyncio.run(_rounds(backlog, [*["bob"] * SESSIONS, "", "", "alice"], [(0, True)] * 10))
    assert [who for each in worked for who in each][:5] == ["bob", "", "alice", "bob", ""]


async def _rounds(backlog: _Backlog, throttled: list[str], scenes: list[tuple[int, bool]]) -> list[list[str]]:
    """Let these stand behind, in debt for a second, and return who had a turn in each round.

    A scene is what the clock shows in a round, and whether somebody else asks in it.
    """
    rounds: list[list[str]] = []
    backlog.throttled = dict.fromkeys(throttled, 1_000)
    for who in throttled:
        each: Any = SimpleNamespace(loop=asyncio.get_running_loop(), resume=lambda who=who: rounds[-1].append(who))
        backlog.defer(each, throttled=who, key=who)
    for backlog.clock_ms, somebody_asks in scenes:
        rounds.append([])
        if somebody_asks:
            assert not backlog.must_yield("carol")
        await asyncio.sleep(0)
    return rounds


def test_throttled_principal_has_one_turn_between_checks() -> None:
    """While somebody else asks, one request of those in debt is begun in a round; if nobody does, more are."""
    worked = asyncio.run(_rounds(_Backlog(), ["bob"] * SESSIONS, [(0, True), (0, True), (0, False)]))
    assert [len(each) for each in worked] == [1, 1, SESSIONS - 2]


def test_unthrottled_connection_resumes_without_check() -> None:
    """When a debt is over, all who still stand behind for it go on at once. Else those who ask anew would pass them,
    and of a thousand connections the last would wait for a thousand rounds.
    """
    worked = asyncio.run(_rounds(_Backlog(), ["bob"] * SESSIONS, [(0, True), (2_000, True), (2_000, True)]))
    assert [len(each) for each in worked] == [1, SESSIONS - 1, 0]
