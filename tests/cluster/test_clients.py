"""Our own clients at a real cluster whose leader goes away: with several addresses, and with that of a follower alone.

A claim is held all the while, somebody waits in line, somebody follows events, and a run holds a lock. What each had
before it has afterwards: nothing is lost, nobody moves back in the line, no event is missed or told twice.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.both import Both
from tests.cluster.cluster import Cluster, Member
from tests.support import callers
from tests.support.checks import unique, wait_until
from tests.support.postgres import running

SECONDS_MAX = 30.0
TTL = 8
SCRIPTS = Path(sysconfig.get_path("scripts"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes on a PostgreSQL of this file."""
    folder = tmp_path_factory.mktemp("cluster")
    with running("clients") as postgres, Cluster(folder, postgres.url, tokens=callers.TOKENS) as three:
        three.all_ready()
        yield three


def url_of(*members: Member) -> str:
    return ",".join(member.server.url for member in members)


class ClaimScenario:
    """A claim that is held, one that waits for it, and one that follows events."""

    def __init__(self, client: Any, *, follows: bool = True) -> None:  # noqa: ANN401 - a client of either kind
        self.prefix = unique("clients")
        self.job = f"{self.prefix}/job"
        self.positions: list[Any] = []
        self.got: list[str] = []
        self.seen: list[str] = []
        self._client = client
        self.claim = client.claim(self.job, ttl=TTL, owner="holder").__enter__()
        lives = (self._wait_in_queue, self._follow) if follows else (self._wait_in_queue,)
        self._follows = follows
        self._threads = [threading.Thread(target=each, daemon=True) for each in lives]
        for each in self._threads:
            each.start()
        wait_until(lambda: any(position.position == 1 for position in self.positions), seconds_max=SECONDS_MAX)
        wait_until(lambda: len(self.seen) > 0 or not follows, seconds_max=SECONDS_MAX)

    def _wait_in_queue(self) -> None:
        with self._client.claim(self.job, ttl=TTL, owner="waiter", wait=120, on_wait=self.positions.append) as claim:
            self.got.append(claim.owner)

    def _follow(self) -> None:
        for event in self._client.events(self.prefix, after=0):
            self.seen.append(f"{event.job_id} {event.event}")
            if event.job_id.endswith("/last"):
                return

    def outlives(self) -> None:
        """Everything is as it was, and goes on."""
        assert self.claim.remaining > 0 and not self.claim.lost.is_set()
        self.claim.renew()
        assert self._client.check(self.job, self.claim.fencing_token)
        seen_before = len(self.positions)
        wait_until(
            lambda: any(position.away is None for position in self.positions[seen_before:]) or bool(self.got),
            seconds_max=SECONDS_MAX,
        )
        assert self.got == []
        assert (self.positions[-1].position, self.positions[-1].rejoined) == (1, 0)
        self.claim.release()
        self._client.claim_job(f"{self.prefix}/last", ttl=TTL)
        for each in self._threads:
            each.join(SECONDS_MAX)
        assert self.got == ["waiter"]
        granted = [event for event in self.seen if event.endswith(" granted")]
        expected = [f"{self.job} granted", f"{self.job} granted", f"{self.prefix}/last granted"]
        assert granted == (expected if self._follows else [])


@pytest.mark.parametrize(
    ("kind", "number"),
    [("threads", signal.SIGKILL), ("coroutines", signal.SIGSTOP), ("threads", signal.SIGTERM)],
    ids=["threads-SIGKILL", "coroutines-SIGSTOP", "threads-SIGTERM"],
)
def test_claims_waits_and_events_outlive_the_leader(
    cluster: Cluster, kind: str, number: signal.Signals, tmp_path: Path
) -> None:
    """N-35, W2, I16: with the leader's address first, a claim, a place and a stream go on at the next leader.

    A stream at a node that was stopped is silent for twenty seconds before it is left: another test knows of that.
    """
    leader = cluster.leader()
    cluster.all_ready()
    both = Both(kind)
    client = both.client(
        url=url_of(leader, *cluster.followers(leader)), token=callers.ALICE, environment={"HOME": str(tmp_path)}
    )
    try:
        scenario = ClaimScenario(client, follows=number is not signal.SIGSTOP)
        leader.signal(number)
        assert cluster.leader(but=leader) is not leader
        scenario.outlives()
    finally:
        both.close()
        leader.server.process.poll()
        if number is signal.SIGTERM:
            leader.server.process.wait(SECONDS_MAX)
        leader.restore()


def test_one_address_of_a_follower_is_enough(cluster: Cluster, tmp_path: Path) -> None:
    """N-31: a client that knows one follower notices nothing but the delay when the leader is killed."""
    leader = cluster.leader()
    cluster.all_ready()
    both = Both("coroutines")
    client = both.client(
        url=url_of(cluster.followers(leader)[0]), token=callers.ALICE, environment={"HOME": str(tmp_path)}
    )
    try:
        scenario = ClaimScenario(client)
        leader.signal(signal.SIGKILL)
        scenario.outlives()
    finally:
        both.close()
        leader.server.process.wait(SECONDS_MAX)
        leader.restore()


def test_lock_of_a_run_outlives_the_leader(cluster: Cluster, tmp_path: Path) -> None:
    """N-35: `rlock` and its kin go to the next address, and the lock is there, at whichever node it is asked for."""
    leader = cluster.leader()
    cluster.all_ready()
    urls = url_of(leader, *cluster.followers(leader))
    both = Both("threads")
    session = both.client(url=urls, token=callers.ALICE, environment={"HOME": str(tmp_path)}).open_session("run")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HOLDFAST_URL": urls, **session.environment}
    key = f"test://{unique()}/1"

    def call(name: str) -> tuple[int, Any]:
        done = subprocess.run([SCRIPTS / name, key], env=environment, capture_output=True, timeout=60, check=False)
        return done.returncode, json.loads(done.stdout)

    try:
        assert call("rlock") == (0, {"ok": True, "resourceKey": key})
        leader.signal(signal.SIGKILL)
        assert call("rlock-heartbeat")[0] == 0
        assert call("runlock") == (0, {"ok": True})
    finally:
        both.close()
        leader.server.process.wait(SECONDS_MAX)
        leader.restore()
