"""A real server under load is killed again and again, at random moments and at every failpoint, and loses nothing.

An era is one data directory and its crashes: each failpoint once, and as many kills at random moments. Its archivist is
killed too: at its own failpoints, and again and again at random moments before the server is. The archive is due after
a few records, so that it is written all the time. A server is killed with its archivist, or alone: then that one may
still write while the next server starts. After each crash the server is started again, what broke off is asked again,
and all that was acknowledged is looked for. At its end the judges of `history.py` look at everything.

A failure prints the line that plays its era again. The seed fixes who asks what and where the server dies; how the
machine interleaves the clients it cannot.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.journal import failpoints
from holdfast.journal.sqlite.inspect import dump, inspect
from tests.crash.history import judge
from tests.crash.load import Crowd
from tests.support import proof
from tests.support.checks import wait_until
from tests.support.compactor import Hunter
from tests.support.server import ServerFailed, ServerProcess

ERAS = proof.count("crash: eras")
CYCLES = proof.count("crash: crashes of an era")
RANDOM, COMPACTOR = "random", "compactor"
"""The server is killed at a random moment; its archivist is, again and again, and the server at the end."""
LOAD_SECONDS = {RANDOM: (0.02, 0.35), COMPACTOR: (0.5, 1.5)}
FAILPOINT_SECONDS_MAX = 60
SETTINGS: dict[str, object] = {"snapshot_records": 150, "disk_reserve_mib": 1}
NOT_PASSED = {name for name in failpoints.NAMES if name.startswith("move_")}
"""Failpoints of a move: `cli/stores/test_move.py` has those."""
FAILPOINTS = sorted(failpoints.NAMES - NOT_PASSED)
COMPACTOR_FAILPOINTS = frozenset(name for name in FAILPOINTS if name.startswith("archive_"))
"""Where the archivist dies, each time that there is another one, and the server lives on."""
PASSINGS_MAX = {
    "before_append": 120,
    "before_commit": 160,
    "after_commit": 120,
    "after_append_before_publish": 120,
    "after_publish_before_answer": 120,
    "archive_begin": 2,
    "archive_mid": 4,
    "archive_before_commit": 2,
    "archive_after_commit": 2,
    "before_drop": 2,
    "mid_drop": 2,
}
"""How often a busy server passes each failpoint in about a second."""


def plan_of(chance: random.Random) -> list[tuple[str, int]]:
    """Where the server dies in each cycle of an era: every failpoint at least once, the rest at random moments."""
    points = FAILPOINTS * (CYCLES // (2 * len(FAILPOINTS)))
    points += [(RANDOM, COMPACTOR)[number % 2] for number in range(CYCLES - len(points))]
    chance.shuffle(points)
    return [(failpoint, passing_of(failpoint, chance, PASSINGS_MAX)) for failpoint in points]


def passing_of(failpoint: str, chance: random.Random, passings_max: dict[str, int]) -> int:
    """At which passing of a failpoint somebody dies; 0 for what is no failpoint."""
    return 0 if failpoint in LOAD_SECONDS else chance.randint(1, passings_max.get(failpoint, 1))


class Era:
    """One data directory, its clients, and the crashes it goes through."""

    def __init__(self, data: Path, seed: int) -> None:
        self._data = data
        self._chance = random.Random(seed)
        self.crowd = Crowd(self._chance.getrandbits(64))
        self.plan = plan_of(self._chance)
        self.server: ServerProcess | None = None

    def cycle(self, failpoint: str, passing: int) -> None:
        """Start, see that nothing is lost, work, die."""
        self.server = self._start(failpoint, passing)
        if self.server is None or not self.crowd.look_after(self.server):
            self._dead()
            return
        server = self.server
        seconds = self._chance.uniform(*LOAD_SECONDS.get(failpoint, (FAILPOINT_SECONDS_MAX, FAILPOINT_SECONDS_MAX)))
        ends_at = time.monotonic() + seconds
        with Hunter(server.pid, random.Random(self._chance.random()), kills=failpoint == COMPACTOR) as hunter:
            threads = self.crowd.work(server, lambda: time.monotonic() > ends_at)
            if failpoint in LOAD_SECONDS:
                time.sleep(seconds)
                self._kill(server)
            elif failpoint in COMPACTOR_FAILPOINTS:
                wait_until(lambda: hunter.gone > 0, seconds_max=FAILPOINT_SECONDS_MAX)
                time.sleep(self._chance.uniform(*LOAD_SECONDS[RANDOM]))
                assert server.is_running(), server.log
                self._kill(server)
            self.crowd.finish(threads)
        assert server.process.wait(10) == -9, f"{failpoint} was not passed {passing} times: {server.log}"
        self._dead()

    def _kill(self, server: ServerProcess) -> None:
        """Kill a server with its archivist, or alone."""
        if self._chance.random() < 0.5:
            server.kill()
        else:
            os.kill(server.pid, signal.SIGKILL)

    def last_look(self) -> None:
        """Start once more without a failpoint, and stop in good order."""
        self.server = self._start(RANDOM, 0)
        assert self.server is not None
        assert self.crowd.look_after(self.server), self.server.log
        assert self.server.terminate() == 0, self.server.log
        self._dead()

    def _start(self, failpoint: str, passing: int) -> ServerProcess | None:
        env = {"HOLDFAST_TESTING": "1", "HOLDFAST_FAILPOINTS": f"{failpoint}=kill@{passing}"} if passing else {}
        try:
            return ServerProcess.start(self._data, settings=SETTINGS, tokens=self.crowd.tokens, env=env)
        except ServerFailed as failed:
            if not passing or failed.returncode != -9:
                raise
            return None

    def _dead(self) -> None:
        """What it left must be sound, whatever it was doing."""
        if self.server is not None:
            self.server.kill()
        self.crowd.history.nobody_is_left()
        found = inspect(self._data)
        assert found.problems == [], found


@pytest.mark.parametrize("era", range(ERAS))
def test_crash_loop_loses_and_invents_nothing(
    era: int, tmp_path: Path, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    """I1–I8: kill −9 at any moment loses no acknowledged lease, release, session or token, and reuses no token."""
    seed = int(os.environ.get("HOLDFAST_SEED") or random.SystemRandom().getrandbits(48))
    played = Era(tmp_path / "data", seed)
    failpoint, passing, cycle = RANDOM, 0, 0
    try:
        for cycle, (failpoint, passing) in enumerate(played.plan):  # noqa: B007 - told when it fails
            played.cycle(failpoint, passing)
        failpoint = RANDOM
        played.last_look()
        verdict = judge(played.crowd.history, dump(tmp_path / "data"))
        assert not verdict.complaints, "\n".join(verdict.complaints[:5])
        assert verdict.undecided <= max(1, verdict.names // 100)
    except BaseException as error:
        where = f"crash {cycle} ({failpoint}{f' at passing {passing}' if passing else ''})"
        error.add_note(
            f"{where}; to play it again:\nHOLDFAST_SEED={seed} .venv/bin/python -m pytest '{request.node.nodeid}'"
        )
        raise
    finally:
        if played.server is not None:
            played.server.kill()
    record_property("count: crashes survived", len(played.plan))
    record_property("count: crashes at a failpoint", sum(1 for _, passing in played.plan if passing))
    record_property(
        "count: crashes with the archivist killed first",
        sum(1 for where, _ in played.plan if where == COMPACTOR or where in COMPACTOR_FAILPOINTS),
    )
    record_property("count: operations judged", verdict.operations)
