"""What can happen to a cluster, each fault as its strike and its mending, and rounds of it under load."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from tests.cluster.cluster import Cluster, Member, rest
from tests.cluster.roaming_clients import Roamers, complaints_about
from tests.support.checks import wait_until
from tests.support.postgres import Postgres, running

AGAIN_SECONDS_MAX = 20.0
"""After so long somebody must be answered again, whatever happened."""
ANSWERS = 20
"""How many answers show that it goes on."""
CUT_SECONDS = 1.5
"""How long the followers are cut off from the leader."""


Fault: TypeAlias = "Callable[[Scene, Member], None]"
"""Lets itself be noted, waits until clients are answered again, and leaves the mending to the scene."""


@dataclass
class Scene:
    """A cluster under load on a PostgreSQL of its own, and what happened to it."""

    cluster: Cluster
    roamers: Roamers
    postgres: Postgres
    chance: random.Random
    marks: list[tuple[str, float]] = field(default_factory=list)
    """Each fault, and when it struck."""

    def strike(self, fault: str | Fault) -> None:
        """Let a fault happen at a random moment, see that it goes on, and mend what is broken."""
        leader = self.cluster.leader()
        self.cluster.all_ready()
        self.roamers.deal_out()
        rest(self.chance.uniform(0.1, 0.5))
        strike = FAULTS[fault] if isinstance(fault, str) else fault
        strike(self, leader)
        for member in self.cluster.members:
            member.restore()
        self.roamers.look()

    def goes_on(self, fault: str, at: float) -> None:
        """Wait until clients are answered that asked after the fault."""
        self.marks.append((fault, at))
        after = time.monotonic()

        def is_so() -> bool:
            self.roamers.look()
            return self.roamers.answered_since(after) >= ANSWERS

        wait_until(is_so, seconds_max=AGAIN_SECONDS_MAX, every_seconds=0.02)

    def gaps(self, fault: str) -> list[float]:
        """How long nobody at all was answered, for each time that this fault struck."""
        ends = [at for _, at in self.marks[1:]] + [float("inf")]
        return [
            self.roamers.gap_around(at, min(AGAIN_SECONDS_MAX, until - at))
            for (kind, at), until in zip(self.marks, ends, strict=True)
            if kind == fault
        ]

    def judge(self) -> list[str]:
        """Let everybody end, and hear all judges."""
        self.roamers.finish()
        self.cluster.stop()
        return complaints_about(self.roamers, self.cluster.journal())


@contextlib.contextmanager
def scene(folder: Path, seed: int, **settings: object) -> Iterator[Scene]:
    """Start all of it; the clients are at work."""
    roamers = Roamers(seed)
    with running("nodes") as postgres:
        nodes = Cluster(folder, postgres.url, tokens=roamers.tokens, settings=settings)
        with at_work(roamers, nodes) as cluster:
            yield Scene(cluster, roamers, postgres, random.Random(seed))


@contextlib.contextmanager
def at_work(roamers: Roamers, nodes: Cluster) -> Iterator[Cluster]:
    """Start the nodes, and let the clients work until the end of the block."""
    with nodes as cluster:
        cluster.all_ready()
        roamers.begin(cluster.addresses)
        try:
            yield cluster
        finally:
            with contextlib.suppress(BaseException):
                roamers.finish()


def _kill(on: Scene, leader: Member) -> None:
    at = time.monotonic()
    leader.server.kill()
    on.goes_on("kill", at)


def _stop(on: Scene, leader: Member) -> None:
    at = time.monotonic()
    leader.server.pause()
    on.goes_on("stop", at)
    on.cluster.leader(but=leader)
    rest(on.chance.uniform(0, 0.3))
    leader.server.resume()
    rest(0.3)


def _terminate(on: Scene, leader: Member) -> None:
    at = time.monotonic()
    leader.signal(signal.SIGTERM)
    on.goes_on("term", at)
    assert leader.server.process.wait(AGAIN_SECONDS_MAX) == 0, leader.server.log


def _cut_from_store(on: Scene, leader: Member) -> None:
    at = time.monotonic()
    # As if a cable was pulled, or as if somebody in between hung up.
    on.chance.choice([leader.store_way.hold, leader.store_way.cut])()
    on.goes_on("cut from the store", at)
    on.cluster.leader(but=leader)


def _cut_from_followers(on: Scene, leader: Member) -> None:
    at = time.monotonic()
    on.chance.choice([leader.link_way.hold, leader.link_way.cut])()
    # Whoever asks a follower now waits there, so it is looked at afterwards.
    rest(CUT_SECONDS)
    leader.restore()
    on.goes_on("cut from the followers", at)


def _crash_store(on: Scene, leader: Member) -> None:
    at = time.monotonic()
    on.postgres.crash()
    on.postgres.start()
    on.goes_on("store restart", at)


def _kill_twice(on: Scene, leader: Member) -> None:
    at = time.monotonic()
    leader.server.kill()
    second = on.cluster.leader(but=leader)
    leader.restore()
    second.server.kill()
    on.goes_on("two within a lease", at)


FAULTS: dict[str, Fault] = {
    "kill": _kill,
    "stop": _stop,
    "term": _terminate,
    "cut from the store": _cut_from_store,
    "cut from the followers": _cut_from_followers,
    "store restart": _crash_store,
    "two within a lease": _kill_twice,
}
"""What every ring can do, without being root."""
