"""A server as operators meet it: a busy afternoon with a past, told in seconds. For tests, and for pictures.

The wall clock of the server is moved (`wallclock`), so that what happened hours ago is done now, one after another. A
lease lives as long as its ttl says by the monotonic clock, which nobody moves.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import refused, wait_until
from tests.support.pending import Pending, waiting
from tests.support.server import ServerProcess, serving
from tests.support.wallclock import WallClock

DAY, HOUR, MINUTE = 86_400, 3_600, 60
SILENT_SECONDS = 1
"""The ttl of whoever will be silent."""
ISSUE = "github://acme/app/issues/42"
DEPLOY = "deploy-main"
NIGHTLY = "nightly-report"
SILENT = "cache-warmup"
DONE = "backfill/2026-11"
DEADLOCKED = ("migrate/users", "migrate/orders", "migrate/bills")


@dataclass
class Scene:
    """What stands on it."""

    server: ServerProcess
    alice: Api
    bob: Api
    clock: WallClock
    session: str = ""
    time_scale: int = 1
    """How much longer everything lives than in the pictures."""
    leases: dict[str, str] = field(default_factory=dict)
    waits: dict[tuple[str, str], tuple[Api, Pending]] = field(default_factory=dict)

    def back(self, seconds: float) -> None:
        """Let it be so long ago."""
        self.clock.set(-seconds)

    def claim(self, name: str, owner: str, ttl_seconds: int = 120, api: Api | None = None, **fields: Any) -> None:  # noqa: ANN401 - of the API
        """Claim a job."""
        got = (api or self.alice).acquired(name, owner=owner, ttl_seconds=self._ttl(ttl_seconds), **fields)
        self.leases[name] = got["lease_id"]

    def heartbeat(self, name: str, note: str | None = None, ttl_seconds: int = 120, api: Api | None = None) -> None:
        """Renew it, with a note."""
        said = {} if note is None else {"note": note}
        answer = (api or self.alice).renew(name, self.leases[name], ttl_seconds=self._ttl(ttl_seconds), **said)
        assert answer.status == 200, answer

    def release(self, name: str, **fields: Any) -> None:  # noqa: ANN401 - of the API
        """Give it back."""
        assert self.alice.release(name, self.leases.pop(name), **fields).status == 200

    def wait_for(self, name: str, owner: str, api: Api | None = None) -> None:
        """Stand in line."""
        asks = api or self.alice
        self.waits[name, owner] = asks, waiting(asks, name, owner=owner, wait_seconds=50)

    def keep_waiting(self) -> None:
        """Let those in line come back whose wait is over."""
        for (name, owner), (api, request) in list(self.waits.items()):
            if request.is_answered():
                request.close()
                self.wait_for(name, owner, api)

    def close(self) -> None:
        """Let them go."""
        for _, request in self.waits.values():
            request.close()

    def _ttl(self, seconds: int) -> int:
        return seconds if seconds == SILENT_SECONDS else min(DAY, seconds * self.time_scale)


@contextlib.contextmanager
def scene(folder: Path, time_scale: int = 1) -> Iterator[Scene]:
    """Set it up, on a server of its own."""
    clock = WallClock(folder / "shift")
    clock.set(-27 * HOUR)
    with serving(folder / "data", tokens=callers.TOKENS, wrapper=clock.wrapper) as server:
        made = Scene(server, Api.of(server, callers.ALICE), Api.of(server, callers.BOB), clock, time_scale=time_scale)
        with contextlib.closing(made):
            _yesterday(made)
            _deploys(made)
            _today(made)
            made.back(0)
            _now(made)
            yield made


def _yesterday(made: Scene) -> None:
    made.back(26 * HOUR)
    made.claim(NIGHTLY, "cron-1", 3_600, labels={"team": "data"})
    made.back(25 * HOUR)
    made.release(NIGHTLY, outcome="failed")
    made.claim(DONE, "agent-5", 3_600)
    made.back(20 * HOUR)
    made.release(
        DONE, outcome="done", remember_seconds=7 * 86_400, result="rows=18422\nurl=https://data.example/runs/77"
    )


def _deploys(made: Scene) -> None:
    """Four deploys: two go well, one is silent and another takes over, one is ended by an operator."""
    made.back(3 * HOUR)
    made.claim(DEPLOY, "ci-4", 600)
    made.back(2.6 * HOUR)
    made.heartbeat(DEPLOY, "smoke tests pass")
    made.release(DEPLOY)
    made.back(2.3 * HOUR)
    made.claim(DEPLOY, "ci-5", SILENT_SECONDS)
    made.back(2 * HOUR)
    made.claim(NIGHTLY, "cron-2", 3_600, labels={"team": "data"})
    made.back(1.9 * HOUR)
    wait_until(lambda: made.alice.status(DEPLOY).json()["status"] == "free")
    made.back(1.8 * HOUR)
    made.claim(DEPLOY, "ci-6", 600)
    made.heartbeat(DEPLOY, "picked up after ci-5")
    made.back(1.2 * HOUR)
    Api.of(made.server, callers.OPERATOR).revoke(DEPLOY, reason="wrong branch")
    made.back(1 * HOUR)
    made.claim(DEPLOY, "ci-6b", 600)
    made.back(55 * MINUTE)
    made.heartbeat(NIGHTLY, "3 of 7 regions", 3_600)
    made.back(36 * MINUTE)
    made.release(DEPLOY)


def _today(made: Scene) -> None:
    made.back(25 * MINUTE)
    opened = made.alice.new_session(
        name="review of pull 1842", ttl_seconds=3_600, metadata="agent=reviewer\nmodel=large"
    )
    made.session = opened["session_id"]
    terms: dict[str, Any] = {"session_id": made.session, "ephemeral": True}
    made.claim("github://acme/app/pulls/1842", "reviewer-1", 3_600, labels={"team": "web"}, **terms)
    for number in range(8, 26):
        made.back(24 * MINUTE - number * 50)
        owner = f"agent-{number % 9 + 1}"
        made.claim(
            f"github://acme/app/issues/{number * 7}", owner, 100 + 25 * (number % 7), metadata=f"runner=ci-{number % 4}"
        )
    made.back(4 * MINUTE)
    metadata = json.dumps({"runner": "ci-7", "branch": "fix-login", "pull": "https://git.example/acme/app/pull/1843"})
    made.claim(ISSUE, "agent-3", 180, metadata=metadata, labels={"team": "web", "kind": "bug"})
    made.back(31)
    made.claim(DEPLOY, "ci-7", 90, metadata="commit=6f1c2e9\nregion=eu-west")
    for number in range(8, 26):
        name = f"github://acme/app/issues/{number * 7}"
        made.back(30 - number)
        made.heartbeat(
            name, ("", "", "running the tests", "", "reading the code")[number % 5] or None, 100 + 25 * (number % 7)
        )


def _now(made: Scene) -> None:
    made.heartbeat(ISSUE, "tests pass, opening the PR", 180)
    made.heartbeat(DEPLOY, "migrating", 90)
    made.alice.acquired(SILENT, owner="cron-3", ttl_seconds=6)
    made.claim(f"import/{'very-long-part-' * 3}end/0007", "agent-1", 600)
    for name, owner, api in zip(DEADLOCKED, ("ana", "ben", "cleo"), (made.alice, made.bob, made.alice), strict=True):
        made.claim(name, owner, 300, api)
    for owner in ("ci-8", "ci-9"):
        made.wait_for(DEPLOY, owner)
    made.wait_for(ISSUE, "agent-6", made.bob)
    made.wait_for(DEADLOCKED[1], "ana")
    made.wait_for(DEADLOCKED[2], "ben", made.bob)
    refused(made.alice.acquire(DEADLOCKED[0], owner="cleo", wait_seconds=5), 409, "deadlock")
