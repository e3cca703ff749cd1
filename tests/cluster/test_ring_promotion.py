"""PostgreSQL itself fails over to a standby. A synchronous one has everything; without, the newest records may be gone.

A loss is noticed and said aloud. By default nothing is served then until an operator says so; with `after_data_loss =
"continue"` the tokens jump, and no token ever comes twice (N-21 to N-23, C6).
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster.cluster import Cluster, insist
from tests.cluster.roaming_clients import Roamers, complaints_about
from tests.support import callers, proof
from tests.support.api import Api
from tests.support.checks import unique, wait_until
from tests.support.postgres import Postgres, running, standby_of

ROUNDS = proof.count("nodes: promotions of each kind")
GRANTS = 10
ANSWERS = 50
TOKEN_GAP = 2**32
AGAIN_SECONDS_MAX = 30.0


class Pair(NamedTuple):
    """A server, its standby, and two nodes that know both."""

    primary: Postgres
    standby: Postgres
    cluster: Cluster

    def cut_off(self) -> None:
        """The standby hears nothing more from the server."""
        self.standby.sql("ALTER SYSTEM SET primary_conninfo = ''")
        self.standby.reload()
        wait_until(lambda: self.primary.sql("SELECT count(*) FROM pg_stat_replication") == "0")

    def fail_over(self) -> None:
        """The server dies, and its standby takes its place."""
        self.primary.crash()
        self.standby.promote()
        self.cluster.store = self.standby.url

    def say_restored(self) -> None:
        """An operator says that what is there is what there is."""
        command = [sys.executable, "-m", "holdfast", "store", "restored", "--yes", "--store", self.standby.url]
        env = {**os.environ, "HOLDFAST_STORE_SCHEMA": self.cluster.schema}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@contextlib.contextmanager
def pair(folder: Path, tokens: str, *, is_synchronous: bool, **settings: object) -> Iterator[Pair]:
    """Start all of it."""
    with running("primary") as primary, standby_of(primary, "replica") as standby:
        if is_synchronous:
            primary.configure(synchronous_standby_names="'replica'")
            primary.reload()
            wait_until(lambda: primary.sql("SELECT sync_state FROM pg_stat_replication") == "sync")
        url = f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
        with Cluster(folder, url, nodes=2, tokens=tokens, settings=settings, is_direct=True) as cluster:
            cluster.all_ready()
            yield Pair(primary, standby, cluster)


def tokens_granted(api: Api) -> list[int]:
    return [granted(api) for _ in range(GRANTS)]


def granted(api: Api) -> int:
    """Ask until a claim is granted; its token."""
    name, key = unique("kept"), unique("key")
    return int(insist(lambda: api.acquire(name, key=key, ttl_seconds=600)).json()["fencing_token"])


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_loss_is_noticed_and_no_token_comes_twice(
    round_: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """C6, N-21, N-22: after a promotion that lost grants it is said aloud, and tokens jump beyond all of them."""
    with pair(tmp_path, callers.TOKENS, is_synchronous=False, after_data_loss="continue") as both:
        alice = Api.of(both.cluster.members[round_ % 2].server, callers.ALICE)
        first = tokens_granted(alice)
        both.cut_off()
        lost = tokens_granted(alice)
        both.fail_over()
        after = granted(alice)
        assert after > max(first + lost) + TOKEN_GAP // 2, (first, lost, after)
        logs = [member.server.log for member in both.cluster.members]
        assert any("went back" in log or "lost" in log for log in logs), logs
        both.cluster.journal()
    record_property("count: promotions", 1)


def test_loss_of_an_entire_term_does_not_end_the_service(tmp_path: Path) -> None:
    """N-13, N-23: a promotion that lost a tenure shows a lower epoch; who may go on after a loss does so."""
    with pair(tmp_path, callers.TOKENS, is_synchronous=False, after_data_loss="continue") as both:
        first = both.cluster.leader()
        tokens_granted(Api.of(first.server, callers.ALICE))
        both.cut_off()
        first.server.kill()
        second = both.cluster.leader(but=first)
        first.start()
        wait_until(first.is_ready)
        alice = Api.of(first.server, callers.ALICE)
        lost = tokens_granted(alice)
        # The one that is left has seen the tenure that is lost.
        second.server.kill()
        both.fail_over()
        assert granted(alice) > max(lost) + TOKEN_GAP // 2


def test_loss_stops_the_service_until_an_operator_confirms(tmp_path: Path) -> None:
    """N-23: by default nothing is served after a loss, and each node says why, until it is told that it may."""
    with pair(tmp_path, callers.TOKENS, is_synchronous=False) as both:
        members = both.cluster.members
        alice = Api.of(members[0].server, callers.ALICE)
        tokens_granted(alice)
        both.cut_off()
        lost = tokens_granted(alice)
        both.fail_over()
        wait_until(lambda: all("went back" in one.server.log for one in members), seconds_max=AGAIN_SECONDS_MAX)
        answer = alice.acquire(unique("after"), ttl_seconds=600)
        assert answer.status == 503, answer
        assert not any(one.is_leader() for one in members)
        for _ in range(20):
            details = [Api.of(one.server, callers.ALICE).get("/readyz").json()["details"] for one in members]
            assert all("holdfast store restored" in each for each in details), details
        both.say_restored()
        assert granted(alice) > max(lost) + TOKEN_GAP // 2


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_synchronous_standby_loses_nothing(
    round_: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """I1–I9, N-23: with a synchronous standby a promotion under load loses nothing, as all judges say."""
    seed = random.SystemRandom().getrandbits(32) + round_
    roamers = Roamers(seed, count=4)
    with pair(tmp_path, roamers.tokens, is_synchronous=True) as both:
        roamers.begin(both.cluster.addresses)
        wait_until(lambda: roamers.answered_since(0) > ANSWERS, seconds_max=AGAIN_SECONDS_MAX)
        both.fail_over()
        since = time.monotonic()
        wait_until(lambda: roamers.answered_since(since) > ANSWERS, seconds_max=AGAIN_SECONDS_MAX)
        roamers.finish()
        complaints = complaints_about(roamers, both.cluster.journal())
        assert not complaints, f"seed {seed}: " + "\n".join(complaints[:5])
        logs = "".join(one.server.log for one in both.cluster.members)
        assert "the store was promoted (timeline 1 to 2)" in logs and "may have lost" not in logs
    record_property("count: promotions", 1)
