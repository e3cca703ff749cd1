"""Ten thousand who wait, on one name and on ten thousand names: what each costs, and that a release wakes just one.

Sizes are asserted, times are only printed: how fast a machine is says nothing about whether the server is right.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.load.crowd import WANTED, Crowd, raise_file_limit, rss_bytes
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import wait_until
from tests.support.pending import payload, waiters
from tests.support.server import ServerProcess

BYTES_EACH_MAX = 40_000
RELEASES = 200


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that takes all of them."""
    raise_file_limit()
    # One token has all but the last tenth.
    settings = {"connections_max": WANTED * 10 // 9 + 100}
    with ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as process:
        yield process


def _acquire(name: str, number: int) -> bytes:
    body = {"wait_seconds": 50, "owner": f"agent-{number}", "ttl_seconds": 600}
    return payload(f"/locks/{name}/acquire", callers.BOB, body)


def _report(what: str, waiters: int, size: int, times_ms: list[float]) -> None:
    ordered = sorted(times_ms)
    p50, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    print(
        f"\n{waiters} waiters on {what}: {size / waiters / 1000:.1f} KB each;"
        f" woken after {p50:.1f} ms (p50), {p99:.1f} ms (p99), {ordered[-1]:.1f} ms (most)"
    )


def test_many_wait_for_one_name(server: ServerProcess) -> None:
    """W5, W1: each costs at most 40 KB, a release wakes exactly one, in the order of joining, and SIGTERM answers all
    the others with their places.
    """
    count = raise_file_limit()
    alice, bob = Api.of(server, callers.ALICE), Api.of(server, callers.BOB)
    lease_id = alice.acquired("job", ttl_seconds=600)["lease_id"]
    before = rss_bytes(server.pid)
    with Crowd(server.host, server.port) as crowd:
        began = time.monotonic()
        crowd.send(_acquire("job", number) for number in range(count))
        wait_until(lambda: waiters(alice, "job") == count, seconds_max=45)
        print(f"\n{count} joined in {time.monotonic() - began:.1f} s")
        size = rss_bytes(server.pid) - before
        times_ms: list[float] = []
        tokens: list[int] = []
        holder = alice
        for _ in range(min(RELEASES, count // 10)):
            sent = time.monotonic()
            assert holder.release("job", lease_id).status == 200
            ((_, granted),) = crowd.answers(1, within_seconds=10).items()
            times_ms.append(1000 * (time.monotonic() - sent))
            assert granted["status"] == "acquired"
            tokens.append(granted["fencing_token"])
            lease_id, holder = granted["lease_id"], bob
        assert crowd.answers(1, within_seconds=0.3) == {}, "a release woke more than one"
        _report("one name", count, size, times_ms)
        assert tokens == list(range(tokens[0], tokens[0] + len(tokens)))
        assert waiters(alice, "job") == count - len(tokens)
        assert size / count <= BYTES_EACH_MAX
        began = time.monotonic()
        assert server.terminate() == 0
        print(f"all of them told, and stopped, in {time.monotonic() - began:.1f} s")
        answers = crowd.answers(count - len(tokens), within_seconds=20)
    assert len(answers) == count - len(tokens)
    assert {body["status"] for body in answers.values()} == {"waiting"}


def test_many_wait_for_many_names(server: ServerProcess) -> None:
    """W5: each costs at most 40 KB, and a release wakes the one who waits for that name and nobody else."""
    count = raise_file_limit()
    alice = Api.of(server, callers.ALICE)
    names = [f"job-{number:05}" for number in range(count)]
    leases: dict[str, str] = {}
    for begin in range(0, count, 1_000):
        claims = alice.claims(all=names[begin : begin + 1_000], ttl_seconds=600).json()["claims"]
        leases |= {claim["name"]: claim["lease_id"] for claim in claims}
    before = rss_bytes(server.pid)
    with Crowd(server.host, server.port) as crowd:
        crowd.send(_acquire(name, number) for number, name in enumerate(names))
        wait_until(lambda: all(waiters(alice, name) == 1 for name in names[:: count // 50]), seconds_max=45)
        size = rss_bytes(server.pid) - before
        times_ms: list[float] = []
        chosen = random.Random(7).sample(range(count), min(RELEASES, count // 10))
        for number in chosen:
            sent = time.monotonic()
            assert alice.release(names[number], leases[names[number]]).status == 200
            answers = crowd.answers(1, within_seconds=10)
            times_ms.append(1000 * (time.monotonic() - sent))
            assert [(each, body["owner"]) for each, body in answers.items()] == [(number, f"agent-{number}")]
        assert crowd.answers(1, within_seconds=0.3) == {}, "a release woke more than one"
        _report(f"{count} names", count, size, times_ms)
        assert size / count <= BYTES_EACH_MAX


def test_many_vanished_waiters_leave_no_entries(server: ServerProcess) -> None:
    """W2, W5: when all who wait are gone at once nobody is granted anything, and the next to come is served."""
    count = raise_file_limit() // 5
    alice = Api.of(server, callers.ALICE)
    lease_id = alice.acquired("job", ttl_seconds=600)["lease_id"]
    with Crowd(server.host, server.port) as crowd:
        crowd.send(_acquire("job", number) for number in range(count))
        wait_until(lambda: waiters(alice, "job") == count, seconds_max=45)
    wait_until(lambda: waiters(alice, "job") == 0, seconds_max=20)
    alice.release("job", lease_id)
    assert alice.status("job").json()["status"] == "free"
    alice.acquired("job", wait_seconds=5)
