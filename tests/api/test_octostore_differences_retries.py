"""Idempotency keys: a lost reply never costs a lease, and a retry never makes two."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import at_once, refused, seconds_from_now
from tests.support.server import ServerProcess


def _statuses(bodies: list[dict[str, Any]]) -> list[str]:
    return sorted(body["status"] for body in bodies)


def test_key_makes_a_retry_safe(alice: Api, bob: Api, name: str) -> None:
    """C5: the same acquire with the same key gets the same lease again, not a refusal; to others it is held."""
    key = str(uuid.uuid4())
    first = alice.acquired(name, owner="a", ttl_seconds=60, key=key)
    again = alice.acquired(name, owner="a", ttl_seconds=60, key=key)
    assert (again["lease_id"], again["fencing_token"]) == (first["lease_id"], first["fencing_token"])
    assert again["expires_in_ms"] <= first["expires_in_ms"]
    alice.held(name, owner="a", ttl_seconds=60, key=str(uuid.uuid4()))
    bob.held(name, key=key)


def test_parallel_retries_have_one_effect(alice: Api, name: str) -> None:
    """C5: five parallel acquires with one key are one grant, and all five hear of it."""
    key = str(uuid.uuid4())
    bodies = at_once([lambda: alice.acquire(name, key=key).json()] * 5)
    assert _statuses(bodies) == ["acquired"] * 5
    assert len({(body["lease_id"], body["fencing_token"]) for body in bodies}) == 1


def test_key_with_another_request_is_a_conflict(alice: Api, bob: Api, name: str) -> None:
    """C5: the same key with another request is 422 `idempotency_conflict`; another principal's key is its own."""
    key = str(uuid.uuid4())
    lease = alice.acquired(name, ttl_seconds=60, key=key)
    refused(alice.acquire(name, ttl_seconds=61, key=key), 422, "idempotency_conflict")
    refused(alice.acquire(f"{name}/2", ttl_seconds=60, key=key), 422, "idempotency_conflict")
    refused(alice.create_session(key=key), 422, "idempotency_conflict")
    refused(alice.release(name, lease["lease_id"], key=key), 422, "idempotency_conflict")
    bob.acquired(f"{name}/2", ttl_seconds=60, key=key)
    assert alice.status(name).json()["status"] == "held"


def test_key_never_grants_twice(alice: Api, name: str) -> None:
    """C5: once its lease has ended a key is 404 `lease_not_current` with how and when, never a new grant."""
    key = str(uuid.uuid4())
    lease = alice.acquired(name, key=key)
    alice.release(name, lease["lease_id"])
    body = refused(alice.acquire(name, key=key), 404, "lease_not_current")
    assert body["ended"] == "released"
    assert abs(seconds_from_now(body["at"])) < 10
    assert alice.status(name).json()["status"] == "free"


def test_refusals_leave_no_trace_of_a_key(alice: Api, bob: Api, name: str) -> None:
    """C5: a key that was refused may be used again, and then claims."""
    key = str(uuid.uuid4())
    lease = bob.acquired(name)
    alice.held(name, key=key)
    bob.release(name, lease["lease_id"])
    alice.acquired(name, key=key)


def test_release_with_a_key(alice: Api, bob: Api, name: str) -> None:
    """C5: a release repeated with its key is `null` again and does not touch the successor."""
    key = str(uuid.uuid4())
    lease = alice.acquired(name)
    assert alice.release(name, lease["lease_id"], key=key).body == b"null"
    successor = bob.acquired(name)
    again = alice.release(name, lease["lease_id"], key=key)
    assert (again.status, again.body) == (200, b"null")
    assert bob.status(name).json()["fencing_token"] == successor["fencing_token"]
    refused(alice.release(name, str(uuid.uuid4()), key=key), 422, "idempotency_conflict")


def test_renewal_with_a_key_never_shortens(alice: Api, name: str) -> None:
    """C5: a renewal that carries a key may come late, and takes no time away."""
    lease = alice.acquired(name, ttl_seconds=60)
    assert alice.renew(name, lease["lease_id"], ttl_seconds=600, key=str(uuid.uuid4())).status == 200
    assert alice.renew(name, lease["lease_id"], ttl_seconds=5, key=str(uuid.uuid4())).json()["expires_in_ms"] > 590_000


def test_session_with_a_key(alice: Api) -> None:
    """C5, S5: creating a session twice with one key makes one, and its secret is repeated to the retry."""
    key = str(uuid.uuid4())
    first = alice.new_session(ttl_seconds=60, key=key)
    again = alice.new_session(ttl_seconds=60, key=key)
    assert (again["session_id"], again["session_secret"]) == (first["session_id"], first["session_secret"])
    refused(alice.create_session(ttl_seconds=90, key=key), 422, "idempotency_conflict")


def test_keys_survive_a_restart(tmp_path: Path) -> None:
    """C5: the memory of keys survives a stop and a kill, for live and for ended leases, releases and sessions."""
    server = ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS)
    try:
        alice = Api.of(server, callers.ALICE)
        live, ended = alice.acquired("live", ttl_seconds=600, key="k-live"), alice.acquired("ended", key="k-ended")
        alice.release("ended", ended["lease_id"], key="k-release")
        session = alice.new_session(ttl_seconds=300, key="k-session")
        for stop in (ServerProcess.terminate, ServerProcess.kill):
            stop(server)
            server = server.restart()
            assert alice.acquired("live", ttl_seconds=600, key="k-live")["lease_id"] == live["lease_id"]
            body = refused(alice.acquire("ended", key="k-ended"), 404, "lease_not_current")
            assert body["ended"] == "released"
            assert alice.release("ended", ended["lease_id"], key="k-release").body == b"null"
            again = alice.new_session(ttl_seconds=300, key="k-session")
            assert (again["session_id"], again["session_secret"]) == (session["session_id"], session["session_secret"])
            refused(alice.acquire("live", ttl_seconds=601, key="k-live"), 422, "idempotency_conflict")
    finally:
        server.kill()
