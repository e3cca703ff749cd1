"""Three real nodes under load on a real PostgreSQL, and everything that can happen to their leader, again and again.

Clients ask any node, and insist. Their history is judged as that of a crash is: tokens rise, one holder at a time, no
lease ends early, no look is stale, and the journal bears every answer out.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.faults import FAULTS, scene
from tests.support import proof

ARCHIVING = {"snapshot_records": 25}
"""In one half of it the archive is written all the time, also while the seat changes hands."""
RECORDS_MIN = 400
"""Of so many some are archived, however short each tenure was."""
ROUNDS = proof.count("nodes: failovers of each kind")


@pytest.mark.parametrize("half", [0, 1])
def test_no_failover_loses_or_invents_anything(
    half: int, tmp_path: Path, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    """I1–I9: whatever happens to the leader or its store, nothing acknowledged is lost, early, stale or out of order.

    Nobody waits for ever either: somebody is answered again in the time that `faults.py` allows.
    """
    seed = int(os.environ.get("HOLDFAST_SEED") or random.SystemRandom().getrandbits(48))
    plan = list(FAULTS)[half::2] * ROUNDS
    random.Random(seed).shuffle(plan)
    fault = "the start"
    try:
        with scene(tmp_path, seed, **(ARCHIVING if half else {})) as on:
            for fault in plan:
                on.strike(fault)
            fault = "the judges"
            complaints = on.judge()
            journal = on.cluster.journal()
            assert not half or journal.upto > 0 or len(journal.records()) < RECORDS_MIN, "nothing was archived"
            assert not complaints, "\n".join(complaints[:5])
    except BaseException as error:
        again = f"HOLDFAST_SEED={seed} .venv/bin/python -m pytest '{request.node.nodeid}'"
        error.add_note(f"at {fault}, of {plan}; to play it again:\n{again}")
        raise
    record_property("count: failovers", len(plan))
    record_property("count: operations judged", len(on.roamers.history.operations))
    for kind in dict.fromkeys(plan):
        gaps = sorted(on.gaps(kind))
        print(f"{kind}: {len(gaps)} rounds, no answer for {gaps[len(gaps) // 2]:.2f} s, at most {gaps[-1]:.2f}")
