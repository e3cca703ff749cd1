"""Time passes for leases only while there is a server that lets it pass, and wall clocks do not matter.

What ends is judged by the journal, in authority time; nothing here depends on how fast the machine is.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast.journal.sqlite.inspect import dump
from tests.support import callers, proof
from tests.support.api import Api, lock_path
from tests.support.checks import moment, wait_until
from tests.support.http import Answer, parse_answers
from tests.support.server import ServerProcess, serving
from tests.support.wallclock import WallClock

LATE_MS_MAX = 250
UNRECORDED_MS_MAX = 5_000
HOUR, MONTH = 3_600, 30 * 86_400
STEPS_PER_CRASH = 25


def ends(data: Path) -> dict[str, tuple[int, int, str]]:
    """For each lease that ended in the journal: when it was due, when it ended, how. By name."""
    due_ms: dict[str, int] = {}
    found: dict[str, tuple[int, int, str]] = {}
    for record in dump(data):
        if record["event"] == "granted":
            due_ms[record["name"]] = record["lease"]["until_ms"]
        elif record["event"] == "renewed":
            due_ms[record["name"]] = record["until_ms"]
        elif record["event"] == "ended":
            found[record["name"]] = (due_ms[record["name"]], record["at_ms"], record["how"])
    return found


def all_expired_on_time(data: Path, names: Iterable[str]) -> None:
    found = ends(data)
    for name in names:
        due_ms, at_ms, how = found[name]
        assert how == "expired" and 0 <= at_ms - due_ms <= LATE_MS_MAX, f"{name}: {how}, due {due_ms}, at {at_ms}"


def is_free(api: Api, name: str) -> bool:
    return bool(api.status(name).json()["status"] == "free")


def lived_on(left_ms: int, promised_ms: int, since: float) -> bool:
    """Is so much left as was promised at `since`, less what really passed?"""
    passed_ms = (time.monotonic() - since) * 1000
    return promised_ms - passed_ms - 2 <= left_ms <= promised_ms


def test_pause_of_three_ttls_ends_nothing(tmp_path: Path) -> None:
    """T1, L1: after SIGSTOP for three TTLs and SIGCONT a lease that had time left is live and takes a renewal."""
    with serving(tmp_path / "data", tokens=callers.TOKENS) as server:
        alice = Api.of(server, callers.ALICE)
        leases = {f"paused-{index}": alice.acquired(f"paused-{index}", ttl_seconds=2) for index in range(5)}
        alice.acquired("left-alone", ttl_seconds=2)
        server.pause()
        waiting = {name: _send_renewal(server, name, lease["lease_id"]) for name, lease in leases.items()}
        time.sleep(6)
        server.resume()
        for name, sock in waiting.items():
            answer = _read(sock)
            assert answer.status == 200 and answer.json()["lease_id"] == leases[name]["lease_id"], f"{name}: {answer}"
            assert answer.json()["expires_in_ms"] == 60_000
        wait_until(lambda: is_free(alice, "left-alone"))
        for name, lease in leases.items():
            assert alice.status(name).json()["fencing_token"] == lease["fencing_token"]
        assert server.terminate() == 0
    all_expired_on_time(tmp_path / "data", ["left-alone"])


def _send_renewal(server: ServerProcess, name: str, lease_id: str) -> socket.socket:
    """Leave a renewal in the socket of a server that does not run: it is the first thing it finds afterwards."""
    body = f'{{"lease_id": "{lease_id}", "ttl_seconds": 60}}'
    head = (
        f"POST {lock_path(name)}/renew HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {callers.ALICE}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    sock = socket.create_connection((server.host, server.port), timeout=20)
    sock.sendall((head + body).encode())
    return sock


def _read(sock: socket.socket) -> Answer:
    with sock:
        data = b""
        while not (found := parse_answers(data, closed=False)):
            more = sock.recv(1 << 16)
            assert more, "closed without an answer"
            data += more
        return found[0]


@pytest.mark.parametrize("stop", [ServerProcess.terminate, ServerProcess.kill])
def test_downtime_ends_nothing(stop: Callable[[ServerProcess], object], tmp_path: Path) -> None:
    """T2, L1: after an hour of downtime by the wall clock, and really more than a ttl, a lease has the time it had."""
    clock = WallClock(tmp_path / "wall")
    server = ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS, wrapper=clock.wrapper)
    try:
        alice, bob = Api.of(server, callers.ALICE), Api.of(server, callers.BOB)
        since = time.monotonic()
        lease = alice.acquired("job", ttl_seconds=3)
        session = alice.new_session(ttl_seconds=10)
        stop(server)
        up_seconds = time.monotonic() - since
        time.sleep(3.2)
        clock.step(HOUR)
        started = time.monotonic()
        server = ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS, wrapper=clock.wrapper)
        alice, bob = Api.of(server, callers.ALICE), Api.of(server, callers.BOB)
        held = bob.held("job")
        up_ms = (up_seconds + time.monotonic() - started) * 1000
        assert 3_000 - up_ms - 2 <= held["retry_after_ms"] <= 3_000, held
        renewed = alice.renew("job", lease["lease_id"], ttl_seconds=60)
        assert renewed.status == 200 and renewed.json()["expires_in_ms"] == 60_000, renewed
        assert alice.status("job").json()["fencing_token"] == lease["fencing_token"]
        assert alice.keepalive(session["session_id"]).status == 200
    finally:
        server.kill()


@pytest.mark.parametrize("step_seconds", [HOUR, -HOUR, MONTH, -MONTH])
def test_wall_clock_steps_do_not_matter(step_seconds: int, tmp_path: Path) -> None:
    """T1, T4, L1: a step of the wall clock ends nothing early or late; only what people read follows it."""
    clock = WallClock(tmp_path / "wall")
    with serving(tmp_path / "data", tokens=callers.TOKENS, wrapper=clock.wrapper) as server:
        alice = Api.of(server, callers.ALICE)
        since = time.monotonic()
        alice.acquired("short", ttl_seconds=1)
        long = alice.acquired("long", ttl_seconds=600)
        session = alice.new_session(ttl_seconds=300)
        clock.step(step_seconds)
        before = clock.now()
        seen = alice.status("long").json()
        after = clock.now()
        assert seen["status"] == "held" and lived_on(seen["expires_in_ms"], 600_000, since), seen
        shown = moment(seen["expires_at"]) - timedelta(milliseconds=seen["expires_in_ms"])
        assert before - timedelta(milliseconds=2) <= shown <= after + timedelta(milliseconds=2), (before, shown, after)
        since = time.monotonic()
        renewed = alice.renew("long", long["lease_id"], ttl_seconds=300).json()
        assert renewed["expires_in_ms"] == 300_000
        assert alice.session(session["session_id"]).json()["active"]
        wait_until(lambda: is_free(alice, "short"))
        # And back again, with a lease that was granted in the other time.
        alice.acquired("between", ttl_seconds=1)
        clock.step(-step_seconds)
        seen = alice.status("long").json()
        assert seen["fencing_token"] == long["fencing_token"] and lived_on(seen["expires_in_ms"], 300_000, since)
        wait_until(lambda: is_free(alice, "between"))
        assert server.terminate() == 0
    all_expired_on_time(tmp_path / "data", ["short", "between"])


def test_repeated_wall_clock_steps_do_not_matter(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """T1, T2, T4: however often the wall clock is set, also while the server is dead, a lease lives on as promised."""
    steps = proof.count("clocks: steps of the wall")
    clock, chance = WallClock(tmp_path / "wall"), random.Random(steps)
    server = ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS, wrapper=clock.wrapper)
    try:
        alice = Api.of(server, callers.ALICE)
        since, lease = time.monotonic(), alice.acquired("job", ttl_seconds=600)
        for step in range(1, steps + 1):
            clock.step(chance.choice([HOUR, -HOUR, MONTH, -MONTH]))
            if step % STEPS_PER_CRASH == 0:
                server.kill()
                server = server.restart()
                alice = Api.of(server, callers.ALICE)
            seen = alice.status("job").json()
            assert seen["fencing_token"] == lease["fencing_token"], (step, seen)
            assert lived_on(seen["expires_in_ms"], 600_000, since), (step, seen)
            if step % 10 == 0:
                since = time.monotonic()
                assert alice.renew("job", lease["lease_id"], ttl_seconds=600).json()["expires_in_ms"] == 600_000
    finally:
        server.kill()
    record_property("count: steps of the wall clock", steps)


def test_leases_end_when_they_are_due(tmp_path: Path) -> None:
    """L2, T3: a lease is ended by a record within 250 ms of its time, unasked, and its watchers hear of it."""
    names = [f"due-{index}" for index in range(10)]
    with serving(tmp_path / "data", tokens=callers.TOKENS) as server:
        alice = Api.of(server, callers.ALICE)
        with alice.watch_lock(names[0]) as watch:
            for name in reversed(names):
                alice.acquired(name, ttl_seconds=1)
            # The last one granted is the last to end, and nobody asks for anything meanwhile.
            watch.next_event("expired", 15)
        assert server.terminate() == 0
    all_expired_on_time(tmp_path / "data", names)


def test_crash_gives_back_five_seconds_at_most(tmp_path: Path) -> None:
    """T2: while a lease is held a record is written at least every 5 s, so a crash gives back no more than that."""
    with serving(tmp_path / "data", tokens=callers.TOKENS) as server:
        alice = Api.of(server, callers.ALICE)
        alice.acquired("held", ttl_seconds=600)
        wait_until(
            lambda: alice.status("held").json()["expires_in_ms"] < 600_000 - 1.1 * UNRECORDED_MS_MAX, seconds_max=60
        )
        since = time.monotonic()
        left_ms = alice.status("held").json()["expires_in_ms"]
        server.kill()
        records = [record for record in dump(tmp_path / "data") if record["seq"] > 1]
        times_ms = [record["at_ms"] for record in records]
        silences = [later - sooner for sooner, later in pairwise(times_ms)]
        assert silences and max(silences) <= UNRECORDED_MS_MAX, records
        assert {record["event"] for record in records} == {"granted", "time_passed"}
        with serving(tmp_path / "data", tokens=callers.TOKENS) as again:
            left_after_ms = Api.of(again, callers.ALICE).status("held").json()["expires_in_ms"]
            passed_ms = (time.monotonic() - since) * 1000
            assert left_ms - passed_ms <= left_after_ms <= left_ms + UNRECORDED_MS_MAX, (left_ms, left_after_ms)


def test_ended_delay_stays_ended_after_a_kill(tmp_path: Path) -> None:
    """T3a: once a name was said to be free after its lock delay, no kill -9 closes it again."""
    with serving(tmp_path / "data", tokens=callers.TOKENS) as server:
        alice = Api.of(server, callers.ALICE)
        lease = alice.acquired("job", lock_delay_seconds=1)["lease_id"]
        alice.release("job", lease)
        assert alice.status("job").json()["retry_after_ms"] > 0
        wait_until(lambda: alice.status("job").json().get("retry_after_ms") is None)
        server.kill()
        with serving(tmp_path / "data", tokens=callers.TOKENS) as again:
            bob = Api.of(again, callers.BOB)
            assert bob.status("job").json().get("retry_after_ms") is None
            assert bob.acquire("job").json()["status"] == "acquired"
