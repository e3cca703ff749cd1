"""Lock delay by OctoStore's rules: after any end the name stays closed for a while, to everyone."""

from __future__ import annotations

import time
import uuid

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import has_request_id, moment, refused, seconds_from_now, wait_until
from tests.support.http import Answer


@pytest.fixture(scope="module")
def server_settings() -> dict[str, object]:
    """OctoStore's rules."""
    return callers.OCTOSTORE_SETTINGS


def _delayed(answer: Answer, delay_seconds: int) -> None:
    """This is the *delayed* answer, which is not an error envelope."""
    assert answer.status == 409, answer
    body = answer.json()
    assert body["status"] == "delayed"
    assert body["lock_delay_seconds"] == delay_seconds
    assert type(body["retry_after_ms"]) is int and 0 < body["retry_after_ms"] <= delay_seconds * 1000
    moment(body["available_at"])
    assert -1 < seconds_from_now(body["available_at"]) <= delay_seconds + 1
    assert not {"error", "code", "details"} & set(body)
    assert answer.headers.get("Retry-After") is None
    has_request_id(answer)


def test_release_closes_the_name_for_everyone(alice: Api, bob: Api, name: str) -> None:
    """L6: after the release of a lease with a delay nobody, the old holder included, gets the name until it is over."""
    lease = alice.acquired(name, lock_delay_seconds=2)
    released_at = time.monotonic()
    alice.release(name, lease["lease_id"])
    _delayed(bob.acquire(name), 2)
    _delayed(alice.acquire(name), 2)
    body = wait_until(lambda: (got := bob.acquire(name)).status == 200 and got.json())
    assert body["status"] == "acquired"
    assert body["fencing_token"] > lease["fencing_token"]
    assert time.monotonic() - released_at >= 1.99


def test_cooling_name_reads_free(alice: Api, bob: Api, name: str) -> None:
    """A cooling name reads `free` and is not listed."""
    lease = alice.acquired(name, lock_delay_seconds=30)
    alice.release(name, lease["lease_id"])
    body = bob.status(name).json()
    assert (body["status"], body["holder_id"], body["expires_at"]) == ("free", None, None)
    assert bob.locks(prefix=name).json()["total"] == 0
    refused(alice.renew(name, lease["lease_id"]), 404, "lease_not_current")
    refused(alice.release(name, lease["lease_id"]), 404, "lease_not_current")


def test_delay_is_judged_before_the_session(alice: Api, name: str) -> None:
    """A cooling name answers *delayed* even with a bogus session, but a bad TTL still comes first."""
    lease = alice.acquired(name, lock_delay_seconds=30)
    alice.release(name, lease["lease_id"])
    _delayed(alice.acquire(name, session_id=str(uuid.uuid4()), ephemeral=True), 30)
    refused(alice.acquire(name, ttl_seconds=0), 400, "invalid_ttl")
    refused(alice.acquire(name, ephemeral=True), 400, "invalid_input")


def test_expiry_closes_the_name(alice: Api, bob: Api, name: str) -> None:
    """L6: the delay also follows an expiry, and the holder itself waits too."""
    lease = alice.acquired(name, ttl_seconds=60, lock_delay_seconds=4)
    bob.held(name)
    assert alice.renew(name, lease["lease_id"], ttl_seconds=1).status == 200
    closed = wait_until(lambda: (got := bob.acquire(name)).status == 409 and got)
    _delayed(closed, 4)
    _delayed(alice.acquire(name), 4)
    wait_until(lambda: bob.acquire(name).status == 200)


def test_end_of_a_session_closes_the_name(alice: Api, bob: Api, name: str) -> None:
    """L6: the delay also follows the end of a session."""
    session_id = alice.new_session()["session_id"]
    alice.acquired(name, ephemeral=True, session_id=session_id, lock_delay_seconds=30)
    assert alice.end_session(session_id).status == 204
    _delayed(bob.acquire(name), 30)


def test_no_delay_unless_asked(alice: Api, bob: Api, name: str) -> None:
    """Without a delay the name is open the moment it is released; a delay of 0 is no delay."""
    lease = alice.acquired(name, lock_delay_seconds=0)
    alice.release(name, lease["lease_id"])
    bob.acquired(name)


def test_the_next_lease_brings_its_own_delay(alice: Api, bob: Api, name: str) -> None:
    """A delay belongs to one lease: the successor without one leaves no delay behind."""
    lease = alice.acquired(name, lock_delay_seconds=1)
    alice.release(name, lease["lease_id"])
    successor = wait_until(lambda: (got := bob.acquire(name)).status == 200 and got.json())
    bob.release(name, successor["lease_id"])
    alice.acquired(name)
