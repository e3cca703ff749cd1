"""Very many operations at a server that nobody disturbs, judged one by one against what its journal says.

The crash loop has the same judges and a server that dies again and again; here it is the number that counts. Each
history is played on a data directory of its own, and fits into memory.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.journal.sqlite.inspect import dump
from tests.crash.history import judge
from tests.crash.load import Crowd
from tests.support import proof
from tests.support.checks import wait_until
from tests.support.server import serving

OPERATIONS = proof.count("history: operations")
OPERATIONS_EACH = min(OPERATIONS, 25_000)
SECONDS_MAX = 600


@pytest.mark.parametrize("part", range(OPERATIONS // OPERATIONS_EACH))
def test_every_answer_of_a_long_history_is_true(
    part: int, tmp_path: Path, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    """I1, I2, I3: tokens rise, the journal bears every answer out, and for every name an order explains them all."""
    seed = int(os.environ.get("HOLDFAST_SEED") or random.SystemRandom().getrandbits(48))
    crowd = Crowd(seed)

    def is_over() -> bool:
        return len(crowd.history.operations) >= OPERATIONS_EACH

    with serving(tmp_path / "data", tokens=crowd.tokens) as server:
        threads = crowd.work(server, is_over)
        wait_until(lambda: is_over() or not any(thread.is_alive() for thread in threads), seconds_max=SECONDS_MAX)
        crowd.finish(threads)
        assert server.terminate() == 0, server.log
    verdict = judge(crowd.history, dump(tmp_path / "data"))
    again = f"to play it again:\nHOLDFAST_SEED={seed} .venv/bin/python -m pytest '{request.node.nodeid}'"
    assert not verdict.complaints, "\n".join([*verdict.complaints[:5], again])
    assert verdict.operations >= OPERATIONS_EACH
    assert verdict.undecided <= max(1, verdict.names // 100)
    record_property("count: operations judged", verdict.operations)
