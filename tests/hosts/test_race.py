"""Two agents in two different hosts edit the same file at the same moment, again and again."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from tests.hosts.hosts import HOSTS, Host
from tests.hosts.scripted_model import Step
from tests.hosts.world import CONTENT, OLD, ONE, REFUSAL, TWO, World, meet
from tests.support import proof
from tests.support.checks import wait_until

ROUNDS = proof.count("hosts: rounds of two agents in two hosts")


@pytest.fixture
def hosts() -> list[Host]:
    """One installed host of each kind."""
    by_kind = {host.kind: host for host in reversed(HOSTS) if host.program is not None}
    if len(by_kind) < 2:
        pytest.skip("fewer than two agent hosts are installed")
    return list(by_kind.values())


def test_race_of_two_hosts_has_one_winner(
    world: World, hosts: list[Host], record_property: Callable[[str, object], None]
) -> None:
    """In each round exactly one agent edits the file, by its bytes and the server's journal; the other is refused."""
    for host in hosts:
        world.prepare(host)
    pairs = itertools.cycle(itertools.combinations(hosts, 2))
    for _ in range(ROUNDS):
        world.new_job()
        _race(world, dict(zip((ONE, TWO), next(pairs), strict=True)))
    record_property("count: rounds of two agents in two hosts", ROUNDS)


def _race(world: World, agents: dict[str, Host]) -> None:
    world.file.write_text(CONTENT)
    start, end = threading.Barrier(2), threading.Barrier(2)
    scripts: dict[str, list[Step]] = {}
    for marker, host in agents.items():
        *reading, edit = host.edit(world.file, OLD, f"{OLD}\n    # {marker}")
        scripts[marker] = [*reading, lambda: meet(start), edit, lambda: meet(end)]
    world.model.follow(scripts)
    world.finish(*[world.start(host, marker) for marker, host in agents.items()])
    results = {host.name: world.model.results(marker)[-1] for marker, host in agents.items()}
    (winner,) = [marker for marker in agents if f"# {marker}" in world.file.read_text()]
    (grant,) = world.grants()
    assert grant.startswith(f"{agents.pop(winner).kind}:"), (grant, results)
    (loser,) = agents.values()
    assert REFUSAL in results[loser.name], results
    wait_until(world.is_free)
