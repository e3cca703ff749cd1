"""A real server under load is killed again and again, at random moments and at every failpoint, and loses nothing.

An era is one data directory and its crashes: each failpoint once, and as many kills at random moments. After each crash
the server is started again, what broke off is asked again, and all that was acknowledged is looked for. At its end the
judges of `history.py` look at everything.

A failure prints the line that plays its era again. The seed fixes who asks what and where the server dies; how the
machine interleaves the clients it cannot.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.journal import failpoints
from holdfast.journal.inspect import dump, inspect
from tests.crash.history import judge
from tests.crash.load import Crowd
from tests.support import proof
from tests.support.server import ServerFailed, ServerProcess

ERAS = proof.count("crash: eras")
CYCLES = proof.count("crash: crashes of an era")
RANDOM = "random"
LOAD_SECONDS = (0.02, 0.35)
FAILPOINT_SECONDS_MAX = 60
SETTINGS: dict[str, object] = {"snapshot_records": 150, "disk_reserve_mib": 1}
PASSINGS_MAX = {
    "before_append": 120,
    "before_commit": 160,
    "after_commit": 120,
    "after_append_before_publish": 120,
    "after_publish_before_answer": 120,
    "before_snapshot": 3,
    "mid_snapshot": 12,
    "before_snapshot_counts": 3,
    "after_snapshot_counts": 3,
    "mid_prune": 3,
    "after_open": 1,
}
"""How often a busy server passes each failpoint in about a second."""


def plan_of(chance: random.Random) -> list[tuple[str, int]]:
    """Where the server dies in each cycle of an era: every failpoint at least once, the rest at random moments."""
    places = [*sorted(failpoints.NAMES) * (CYCLES // (2 * len(failpoints.NAMES)))]
    places += [RANDOM] * (CYCLES - len(places))
    chance.shuffle(places)
    return [(place, 0 if place == RANDOM else chance.randint(1, PASSINGS_MAX.get(place, 1))) for place in places]


class Era:
    """One data directory, its clients, and the crashes it goes through."""

    def __init__(self, data: Path, seed: int) -> None:
        self._data = data
        self._chance = random.Random(seed)
        self.crowd = Crowd(self._chance.getrandbits(64))
        self.plan = plan_of(self._chance)
        self.server: ServerProcess | None = None

    def cycle(self, place: str, passing: int) -> None:
        """Start, see that nothing is lost, work, die."""
        self.server = self._start(place, passing)
        if self.server is None or not self.crowd.look_after(self.server):
            self._dead()
            return
        seconds = self._chance.uniform(*LOAD_SECONDS) if place == RANDOM else FAILPOINT_SECONDS_MAX
        ends_at = time.monotonic() + seconds
        server = self.server
        threads = self.crowd.work(server, lambda: time.monotonic() > ends_at)
        if place == RANDOM:
            time.sleep(seconds)
            server.kill()
        self.crowd.finish(threads)
        assert place == RANDOM or server.process.wait(10) == -9, f"{place} was not passed {passing} times: {server.log}"
        self._dead()

    def last_look(self) -> None:
        """Start once more without a failpoint, and stop in good order."""
        self.server = self._start(RANDOM, 0)
        assert self.server is not None
        assert self.crowd.look_after(self.server), self.server.log
        assert self.server.terminate() == 0, self.server.log
        self._dead()

    def _start(self, place: str, passing: int) -> ServerProcess | None:
        env = {} if place == RANDOM else {"HOLDFAST_TESTING": "1", "HOLDFAST_FAILPOINTS": f"{place}=kill@{passing}"}
        try:
            return ServerProcess.start(self._data, settings=SETTINGS, tokens=self.crowd.tokens, env=env)
        except ServerFailed as failed:
            if place == RANDOM or failed.returncode != -9:
                raise
            return None

    def _dead(self) -> None:
        """What it left must be sound, whatever it was doing."""
        if self.server is not None:
            self.server.kill()
        self.crowd.history.nobody_is_left()
        found = inspect(self._data)
        assert found.problems == (), found


@pytest.mark.parametrize("era", range(ERAS))
def test_no_crash_loses_or_invents_anything(
    era: int, tmp_path: Path, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    """I1–I8: kill −9 at any moment loses no acknowledged lease, release, session or token, and reuses no token."""
    seed = int(os.environ.get("HOLDFAST_SEED") or random.SystemRandom().getrandbits(48))
    played = Era(tmp_path / "data", seed)
    place, passing, cycle = RANDOM, 0, 0
    try:
        for cycle, (place, passing) in enumerate(played.plan):  # noqa: B007 - told when it fails
            played.cycle(place, passing)
        place = RANDOM
        played.last_look()
        verdict = judge(played.crowd.history, dump(tmp_path / "data"))
        assert not verdict.complaints, "\n".join(verdict.complaints[:5])
        assert verdict.undecided <= max(1, verdict.names // 100)
    except BaseException as error:
        where = f"crash {cycle} ({place}{f' at passing {passing}' if passing else ''})"
        error.add_note(
            f"{where}; to play it again:\nHOLDFAST_SEED={seed} .venv/bin/python -m pytest '{request.node.nodeid}'"
        )
        raise
    finally:
        if played.server is not None:
            played.server.kill()
    record_property("count: crashes survived", len(played.plan))
    record_property("count: crashes at a failpoint", sum(1 for where, _ in played.plan if where != RANDOM))
    record_property("count: operations judged", verdict.operations)
