"""The crash loop for all that waits, comes several at once, is finished, handed on or ended by an operator.

A server under the load of `party.py` is killed once at every failpoint and at some random moments, and so is its
archivist. After each crash whoever was cut off comes back with its key or its ticket, a line that stood behind a gate
is let in, and at the end the journal is held against all that was said. A failure prints the line that plays it again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.journal.sqlite.inspect import dump
from tests.crash.mixed_load import MixedLoad
from tests.crash.test_crash_loop import COMPACTOR, FAILPOINTS, RANDOM, Era, passing_of
from tests.crash.waiting_checker import check_waiting
from tests.support import proof

ERAS = proof.count("crash: eras of those who wait")
RANDOM_CRASHES = proof.count("crash: random crashes of those who wait")
PASSINGS_MAX = dict.fromkeys(
    ["before_append", "before_commit", "after_commit", "after_append_before_publish", "after_publish_before_answer"], 90
)
"""How often each failpoint is passed at most before it kills, if not once: here less is written than in the other."""


class WaitingEra(Era):
    """One data directory, those who wait at it, and its crashes."""

    def __init__(self, data: Path, seed: int) -> None:
        super().__init__(data, seed)
        self.crowd = self.load = MixedLoad(self._chance.getrandbits(64))
        points = [*FAILPOINTS, COMPACTOR, *[RANDOM] * RANDOM_CRASHES]
        self._chance.shuffle(points)
        self.plan = [(failpoint, passing_of(failpoint, self._chance, PASSINGS_MAX)) for failpoint in points]


@pytest.mark.parametrize("era", range(ERAS))
def test_crash_loses_no_ticket_and_tears_no_claim(
    era: int, tmp_path: Path, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    """W1–W3, M1, M2, L5, L7, L8, C5, C6, I5, I12: kill −9 loses no place, grant, end or transfer, and repeats none."""
    seed = int(os.environ.get("HOLDFAST_SEED") or random.SystemRandom().getrandbits(48))
    played = WaitingEra(tmp_path / "data", seed)
    failpoint, passing, cycle = RANDOM, 0, 0
    try:
        for cycle, (failpoint, passing) in enumerate(played.plan):  # noqa: B007 - told when it fails
            played.cycle(failpoint, passing)
        failpoint = RANDOM
        played.last_look()
        complaints = check_waiting(played.load.ledger, dump(tmp_path / "data"))
        assert not complaints, "\n".join(complaints[:5])
    except BaseException as error:
        where = f"crash {cycle} ({failpoint}{f' at passing {passing}' if passing else ''})"
        error.add_note(
            f"{where}; to play it again:\nHOLDFAST_SEED={seed} .venv/bin/python -m pytest '{request.node.nodeid}'"
        )
        raise
    finally:
        if played.server is not None:
            played.server.kill()
    ledger = played.load.ledger
    record_property("count: crashes survived by those who wait", len(played.plan))
    record_property("count: claims judged, with places in line", len(ledger.claims))
    record_property("count: ends, transfers and reopenings judged", len(ledger.deeds))
    record_property("count: let in behind a gate after a crash, in order", played.load.queue.let_in)
