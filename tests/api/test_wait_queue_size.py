"""A crowd in line for one name, some of them killed, the server killed under them: I1, I2, I12, W2, W5."""

from __future__ import annotations

import http.client
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.journal.sqlite.inspect import dump
from tests.support import callers
from tests.support.api import Api, lock_path
from tests.support.checks import wait_until
from tests.support.http import Answer, Connection
from tests.support.pending import Pending, waiters, waiting
from tests.support.server import ServerProcess

CLIENTS = 200
SECONDS_MAX = 90.0
NAME = "the-one"
HALTS = (40, 90)
"""After how many were served the server is killed."""


class Crowd:
    """Clients that come back with their key until they were served, each in a thread of its own."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.deadline = time.monotonic() + SECONDS_MAX
        self.served: list[tuple[str, int]] = []
        self.errors: list[str] = []
        self.halt_after: int | None = None
        self.halted = threading.Event()
        self.go_on = threading.Event()
        self._threads: list[threading.Thread] = []
        self._ledger = threading.Lock()

    def join(self, owner: str) -> None:
        """Let one more stand in line."""
        thread = threading.Thread(target=self._live, args=(owner,), daemon=True)
        thread.start()
        self._threads.append(thread)

    def wait_for_all(self) -> None:
        """Wait until everybody was served. Fails when time is up."""
        for thread in self._threads:
            thread.join(max(0.0, self.deadline - time.monotonic()))
        assert not any(thread.is_alive() for thread in self._threads), f"hangs; served {len(self.served)}"

    def _live(self, owner: str) -> None:
        while time.monotonic() < self.deadline:
            body = self._ask(owner, "acquire", {"wait_seconds": 40, "owner": owner, "ttl_seconds": 600}, f"in-{owner}")
            if body is None or body.get("status") == "waiting":
                continue
            if body.get("status") != "acquired":
                self.errors.append(f"{owner}: {body}")
                return
            self._work(owner, body)
            return

    def _work(self, owner: str, claim: dict[str, Any]) -> None:
        with self._ledger:
            self.served.append((owner, claim["fencing_token"]))
            halts = len(self.served) == self.halt_after
        if halts:
            self.halted.set()
            self.go_on.wait(SECONDS_MAX)
        while time.monotonic() < self.deadline:
            if self._ask(owner, "release", {"lease_id": claim["lease_id"]}, f"out-{owner}") is not None:
                return

    def _ask(self, owner: str, verb: str, body: object, key: str) -> dict[str, Any] | None:
        """Ask once; None if there was no answer that decides anything."""
        try:
            with Connection(self.server.host, self.server.port, timeout_seconds=60) as connection:
                answer: Answer = connection.request(
                    "POST", f"{lock_path(NAME)}/{verb}", body, token=callers.BOB, headers={"Idempotency-Key": key}
                )
        except (OSError, http.client.HTTPException):
            time.sleep(0.02)
            return None
        if answer.status == 503:
            time.sleep(0.02)
            return None
        return answer.json() or {}


@pytest.mark.parametrize("seed", [1])
def test_queue_of_two_hundred(tmp_path: Path, seed: int) -> None:
    """I12, I1, W2: 200 in line, a third of them killed, the server killed −9 and restarted twice in the middle: grants
    follow the order of joining among those who are there, nobody is granted twice, nothing hangs.
    """
    chance = random.Random(seed)
    doomed = set(chance.sample(range(CLIENTS), CLIENTS // 3))
    # Those near the front are killed before the first grant, the others together with the server.
    early = {number for number in doomed if sum(ahead not in doomed for ahead in range(number)) <= HALTS[0]}
    server = ServerProcess.start(tmp_path / "data", settings={"snapshot_records": 150}, tokens=callers.TOKENS)
    try:
        alice = Api.of(server, callers.ALICE)
        holder = alice.acquired(NAME, ttl_seconds=600)
        crowd = Crowd(server)
        victims: dict[int, Pending] = {}
        for number in range(CLIENTS):
            if number in doomed:
                victims[number] = waiting(alice, NAME, owner=f"c-{number:03}", wait_seconds=50, before=number)
            else:
                crowd.join(f"c-{number:03}")
                wait_until(lambda: waiters(alice, NAME) == number + 1, every_seconds=0.001)  # noqa: B023 - used at once
        for number in early:
            victims[number].close(reset=number % 2 == 0)
        wait_until(lambda: waiters(alice, NAME) == CLIENTS - len(early))
        there = CLIENTS - len(doomed)
        crowd.halt_after = HALTS[0]
        assert alice.release(NAME, holder["lease_id"]).status == 200
        for halt, following in ((HALTS[0], HALTS[1]), (HALTS[1], None)):
            assert crowd.halted.wait(SECONDS_MAX), crowd.errors
            server.kill()
            for number in doomed - early:
                victims[number].close()
            crowd.halted.clear()
            server = server.restart()
            alice = Api.of(server, callers.ALICE)
            # All who are left come back, in any order; only then does the one that holds the name go on.
            wait_until(lambda: waiters(alice, NAME) == there - halt, seconds_max=30)  # noqa: B023 - used at once
            crowd.halt_after = following
            crowd.go_on.set()
            crowd.go_on = threading.Event()
        crowd.wait_for_all()
        assert crowd.errors == []
        survivors = [f"c-{number:03}" for number in range(CLIENTS) if number not in doomed]
        assert [owner for owner, _ in crowd.served] == survivors
        tokens = [token for _, token in crowd.served]
        assert tokens == sorted(set(tokens))
        wait_until(lambda: alice.status(NAME).json()["status"] == "free")
        server.terminate()
        _check_journal(tmp_path / "data", survivors)
    finally:
        server.kill()


def _check_journal(data: Path, survivors: list[str]) -> None:
    """What the journal says is what the clients saw: one grant each, in the order of joining, one at a time (I1)."""
    joined: list[str] = []
    granted: list[str] = []
    holds: str | None = None
    for record in dump(data):
        if record["event"] == "joined":
            joined.append(record["ticket"]["owner"])
        elif record["event"] == "granted":
            assert holds is None, f"{record['lease']['owner']} was granted what {holds} holds"
            holds = record["lease"]["lease_id"]
            granted.append(record["lease"]["owner"])
        elif record["event"] == "ended":
            assert record["lease_id"] == holds
            holds = None
    assert joined == [f"c-{number:03}" for number in range(CLIENTS)]
    assert granted == [None, *survivors]
