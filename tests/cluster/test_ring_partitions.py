"""Three nodes in networks of their own: the leader loses its way to the store, to the other nodes, or to all of them.

Cuts by a proxy close connections or hold bytes; here packets are lost, as between machines. It needs root, and is only
in proofs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.cluster import NODES, Cluster, Member, rest
from tests.cluster.faults import CUT_SECONDS, Scene, at_work
from tests.cluster.network_namespaces import Spaces
from tests.cluster.roaming_clients import Roamers
from tests.support import proof
from tests.support.postgres import running

ROUNDS = proof.count("nodes: cuts of each kind in network namespaces")
PORT = 7420
SETTINGS = {"link_insecure": True}


@contextmanager
def scene(folder: Path, seed: int) -> Iterator[tuple[Scene, Spaces]]:
    """Start all of it; the clients are at work."""
    roamers = Roamers(seed)
    with running("spaces") as postgres, Spaces(NODES) as spaces:
        with (postgres.data / "pg_hba.conf").open("a") as rights:
            rights.write(f"host all all {spaces.subnet} trust\n")
        postgres.configure(listen_addresses="'*'")
        postgres.restart()
        each = [
            {
                "wrapper": spaces.wrapper(number),
                "listen": f"{spaces.address(number)}:{PORT}",
                "settings": {"advertise": f"http://{spaces.address(number)}:{PORT}"},
            }
            for number in range(1, NODES + 1)
        ]
        store = f"postgresql://postgres@{spaces.here}:{postgres.port}/postgres"
        nodes = Cluster(folder, store, tokens=roamers.tokens, settings=SETTINGS, each=each, is_direct=True)
        with at_work(roamers, nodes) as cluster:
            yield Scene(cluster, roamers, postgres, random.Random(seed)), spaces


class Cuts:
    """What can be cut of a leader."""

    def __init__(self, spaces: Spaces) -> None:
        self._spaces = spaces

    def from_the_store(self, on: Scene, leader: Member) -> None:
        """Clients are on the side of the store, so this leader is not answered by either."""
        number, _ = self._numbers(on, leader)
        at = time.monotonic()
        self._spaces.cut(number, self._spaces.here)
        on.goes_on("from the store", at)
        on.cluster.leader(but=leader)
        self._spaces.restore(number, self._spaces.here)

    def from_the_followers(self, on: Scene, leader: Member) -> None:
        number, others = self._numbers(on, leader)
        at = time.monotonic()
        for other in others:
            self._spaces.cut(number, self._spaces.address(other))
        rest(2 * CUT_SECONDS)
        for other in others:
            self._spaces.restore(number, self._spaces.address(other))
        on.goes_on("from the followers", at)

    @staticmethod
    def _numbers(on: Scene, leader: Member) -> tuple[int, list[int]]:
        number = on.cluster.members.index(leader) + 1
        return number, [other for other in range(1, NODES + 1) if other != number]


@pytest.mark.skipif(not ROUNDS, reason="only in proofs, as root: make prove")
def test_cuts_between_machines_lose_nothing(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """I1–I9: whatever the leader cannot reach, nothing acknowledged is lost, early, stale or out of order."""
    seed = random.SystemRandom().getrandbits(32)
    with scene(tmp_path, seed) as (on, spaces):
        cuts = Cuts(spaces)
        for _ in range(ROUNDS):
            on.strike(cuts.from_the_store)
            on.strike(cuts.from_the_followers)
        complaints = on.judge()
        assert not complaints, f"seed {seed}: " + "\n".join(complaints[:5])
    record_property("count: cuts in network namespaces", 2 * ROUNDS)
