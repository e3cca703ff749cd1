"""A reply that is lost after the server sent it costs nothing: the retry with the same key gets the same thing."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from http.client import HTTPException
from itertools import islice
from pathlib import Path

import pytest

from tests.support import callers, proof
from tests.support.api import lock_path
from tests.support.checks import at_once, wait_until
from tests.support.http import Answer, Connection
from tests.support.proxy import LosingProxy
from tests.support.server import ServerProcess, serving

LOST = proof.count("lost replies")
CLIENTS = 4
RESTARTS = proof.count("lost replies: restarts")
LOST_PER_RESTART = 40

Same = Callable[[Answer, Answer], None]


class Lossy:
    """A caller whose first try of everything is never answered. Whatever it asks must have happened all the same."""

    def __init__(self, proxy: LosingProxy) -> None:
        self._proxy = proxy
        self.asked: list[tuple[str, str, object, str, str, Same]] = []

    def ask(self, method: str, path: str, body: object, same: Same, token: str = callers.ALICE) -> Answer:
        """Try once on the way that loses answers; return the answer that was lost."""
        key = str(uuid.uuid4())
        with Connection(self._proxy.host, self._proxy.port) as connection, pytest.raises((OSError, HTTPException)):
            connection.request(method, path, body, token=token, headers={"Idempotency-Key": key})
        lost: Answer = wait_until(lambda: self._proxy.lost.get(key) or False)
        assert lost.status in {200, 201, 204}, f"{method} {path}: {lost}"
        self.asked.append((method, path, body, key, token, same))
        return lost

    def retry_all(self, server: ServerProcess) -> int:
        """Ask each again on the straight way, and compare. In order, so that nothing has ended since."""
        with Connection(server.host, server.port) as connection:
            for method, path, body, key, token, same in self.asked:
                again = connection.request(method, path, body, token=token, headers={"Idempotency-Key": key})
                same(self._proxy.lost[key], again)
        count = len(self.asked)
        self.asked.clear()
        return count


def same_lease(lost: Answer, again: Answer) -> None:
    first, second = lost.json(), again.json()
    assert (first["status"], second["status"]) == ("acquired", "acquired"), f"{lost} then {again}"
    assert second["lease_id"] == first["lease_id"] and second["fencing_token"] == first["fencing_token"]
    assert second["expires_in_ms"] <= first["expires_in_ms"]


def same_renewal(lost: Answer, again: Answer) -> None:
    assert again.status == 200 and again.json()["lease_id"] == lost.json()["lease_id"], f"{lost} then {again}"
    assert again.json()["expires_in_ms"] <= lost.json()["expires_in_ms"], "a retry is not a second renewal"


def same_release(lost: Answer, again: Answer) -> None:
    assert (again.status, again.body) == (lost.status, lost.body) == (200, b"null"), f"{lost} then {again}"


def same_session(lost: Answer, again: Answer) -> None:
    first, second = lost.json(), again.json()
    assert again.status == 201, again
    assert (second["session_id"], second["session_secret"]) == (first["session_id"], first["session_secret"])


def same_token(lost: Answer, again: Answer) -> None:
    assert again.status == 201 and again.json() == lost.json(), f"{lost} then {again}"


def same_end(lost: Answer, again: Answer) -> None:
    assert (again.status, again.body) == (lost.status, lost.body) == (204, b""), f"{lost} then {again}"


def losing(lossy: Lossy) -> Iterator[None]:
    """Lose the reply to one thing after another, each resting on the one before."""
    while True:
        name = f"lost-{uuid.uuid4().hex[:12]}"
        lease = lossy.ask("POST", f"{lock_path(name)}/acquire", {"ttl_seconds": 600}, same_lease).json()
        yield
        body = {"lease_id": lease["lease_id"]}
        lossy.ask("POST", f"{lock_path(name)}/renew", {**body, "ttl_seconds": 900}, same_renewal)
        yield
        lossy.ask("POST", f"{lock_path(name)}/release", body, same_release)
        yield
        session = lossy.ask("POST", "/sessions", {"ttl_seconds": 600}, same_session).json()
        yield
        bound = {"session_id": session["session_id"], "ephemeral": True}
        lossy.ask("POST", f"{lock_path(name)}/acquire", bound, same_lease)
        yield
        lossy.ask("DELETE", f"/sessions/{session['session_id']}", None, same_end)
        yield
        lossy.ask("POST", "/tokens", {"name": name}, same_token, callers.OPERATOR)
        yield
        lossy.ask("DELETE", f"/tokens/{name}", None, same_end, callers.OPERATOR)
        yield


def test_lost_reply_costs_nothing(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """C5, I8: when the answer is lost after the commit, the retry with the same key gets the same thing, every time."""

    def lose(proxy: LosingProxy, server: ServerProcess) -> int:
        lossy = Lossy(proxy)
        return sum(lossy.retry_all(server) for _ in islice(losing(lossy), LOST // CLIENTS))

    with serving(tmp_path / "data", tokens=callers.TOKENS) as server, LosingProxy(server) as proxy:
        counts = at_once([lambda: lose(proxy, server)] * CLIENTS, seconds_max=1800)
        granted = Connection(server.host, server.port).request("GET", "/locks", token=callers.ALICE).json()
    assert sum(counts) == LOST
    assert granted["total"] <= CLIENTS, "a retry made a second lease that nobody ended"
    record_property("count: lost replies retried", LOST)


def test_lost_reply_costs_nothing_across_a_restart(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """C5, I5: the same when the server stopped or was killed between the try and its retry."""
    retried = 0
    server = ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS, settings={"snapshot_records": 100})
    try:
        for round_ in range(RESTARTS):
            with LosingProxy(server) as proxy:
                lossy = Lossy(proxy)
                for _ in islice(_leases_and_sessions(lossy), LOST_PER_RESTART):
                    pass
                server.kill() if round_ % 2 else server.terminate()
                server = ServerProcess.start(
                    tmp_path / "data", tokens=callers.TOKENS, settings={"snapshot_records": 100}
                )
                retried += lossy.retry_all(server)
    finally:
        server.kill()
    assert retried == RESTARTS * LOST_PER_RESTART
    record_property("count: lost replies retried after a restart", retried)


def _leases_and_sessions(lossy: Lossy) -> Iterator[None]:
    """Things that still are when they are asked for again, and ends that stay ends."""
    while True:
        name = f"lost-{uuid.uuid4().hex[:12]}"
        lossy.ask("POST", f"{lock_path(name)}/acquire", {"ttl_seconds": 600}, same_lease)
        yield
        lossy.ask("POST", "/sessions", {"ttl_seconds": 600}, same_session)
        yield
        lossy.ask("POST", "/tokens", {"name": name}, same_token, callers.OPERATOR)
        yield
        other = f"{name}/released"
        lease = lossy.ask("POST", f"{lock_path(other)}/acquire", {"ttl_seconds": 600}, ended_or_same_lease).json()
        yield
        lossy.ask("POST", f"{lock_path(other)}/release", {"lease_id": lease["lease_id"]}, same_release)
        yield


def ended_or_same_lease(lost: Answer, again: Answer) -> None:
    """The lease was released since, so the retry hears that, and gets no other."""
    body = again.json()
    if again.status == 200:
        same_lease(lost, again)
        return
    assert (again.status, body["code"], body["ended"]) == (404, "lease_not_current", "released"), f"{lost} then {again}"
