"""Links that break at random, before, after and around what goes over them: nothing is told that is not so."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.cluster.linked_nodes import Caller, LinkedNode, nodes, run, until
from tests.cluster.proxy import Fate, at_random

CLIENTS, CLAIMS_EACH = 8, 100
BREAKS_MIN = 10


@pytest.mark.parametrize("seed", range(3))
def test_responses_are_true_however_links_break(tmp_path: Path, seed: int) -> None:
    """N-31: over links that break `acquired` is held, `not_leader` was never done, and no key is done twice."""

    async def test() -> None:
        async with nodes(tmp_path, 2) as (leader, follower):
            await leader.start_leading_through_proxy()
            proxy = leader.proxy
            assert proxy is not None and leader.term is not None
            follower.follow(leader.shelf.leadership, f"http://127.0.0.1:{proxy.port}")
            await until(lambda: follower.node.is_linked)
            proxy.draw = at_random(random.Random(seed), 0.3, bytes_min=100)
            said = await asyncio.gather(*(_claim(follower, number) for number in range(CLIENTS)))
            proxy.draw = lambda _piece: Fate.PASS
            breaks = sum(proxy.fates[fate] for fate in (Fate.BEFORE, Fate.LATE, Fate.AFTER))
            assert breaks >= BREAKS_MIN, f"only {breaks} breaks: this proves little"
            # A copy that was delivered late may still be on its way.
            await asyncio.sleep(0.5)
            _judge(leader, {name: answer for each in said for name, answer in each.items()})

    run(test)


async def _claim(node: LinkedNode, client: int) -> dict[str, tuple[str, str | None]]:
    """Claim name after name, every second with a key. Return what was said of each: a code, and the lease."""
    said: dict[str, tuple[str, str | None]] = {}
    caller: Caller = await node.call()
    for number in range(CLAIMS_EACH):
        name = f"{client}-{number}{'-key' if number % 2 else ''}"
        key = {"Idempotency_Key": name} if number % 2 else {}
        answer = await caller.ask("POST", f"/locks/{name}/acquire", {"ttl_seconds": 600}, **key)
        body = answer.json()
        said[name] = (body["status"], body.get("lease_id")) if answer.status == 200 else (body["code"], None)
    return said


def _judge(leader: LinkedNode, said: dict[str, tuple[str, str | None]]) -> None:
    assert leader.term is not None
    state = leader.term.engine.state
    for name, (what, lease_id) in said.items():
        lease = state.lease_of(name)
        if what == "acquired":
            assert lease is not None and lease.lease_id == lease_id, name
        elif what == "not_leader":
            assert lease is None, f"{name} was told as not done, and is held"
        else:
            assert what == "outcome_unknown" and not name.endswith("-key"), (name, what)
    tokens = Counter(lease.token for name in said if (lease := state.lease_of(name)) is not None)
    assert max(tokens.values()) == 1
    assert sum(what == "acquired" for what, _ in said.values()) > len(said) / 2
