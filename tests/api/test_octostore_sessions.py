"""Sessions by OctoStore's rules: create, keepalive, read, delete, expire; and what becomes of the leases bound to
them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import is_uuid, moment, refused, seconds_from_now, unique, wait_until
from tests.support.http import EventStream


@pytest.fixture(scope="module")
def server_settings() -> dict[str, object]:
    """OctoStore's rules."""
    return callers.OCTOSTORE_SETTINGS


@dataclass
class Lapsed:
    """What was made before the session expired. Nothing in here lives any more but `plain`."""

    session_id: str
    other_session_id: str
    ephemeral: str
    ephemeral_lease: dict[str, Any]
    delayed: str
    plain: str
    lived_seconds: float
    stream: EventStream


@pytest.fixture(scope="module", autouse=True)
def lapsed(alice: Api) -> Iterator[Lapsed]:
    """Two sessions of 10 s, the shortest there is, left to expire while the other tests would wait anyway. Waited for
    once.
    """
    began = time.monotonic()
    session_id = alice.new_session(ttl_seconds=10)["session_id"]
    other = alice.new_session(ttl_seconds=10)["session_id"]
    ephemeral, delayed, plain = unique("lapsed"), unique("lapsed"), unique("lapsed")
    lease = alice.acquired(ephemeral, ephemeral=True, session_id=session_id, ttl_seconds=600)
    alice.acquired(delayed, ephemeral=True, session_id=session_id, ttl_seconds=600, lock_delay_seconds=30)
    alice.acquired(plain, session_id=session_id, ttl_seconds=600)
    with alice.watch_lock(ephemeral) as stream:
        stream.next()
        wait_until(lambda: alice.status(ephemeral).json()["status"] == "free", seconds_max=20)
        lived = time.monotonic() - began
        wait_until(lambda: alice.session(other).json().get("active") is not True, seconds_max=5)
        yield Lapsed(session_id, other, ephemeral, lease, delayed, plain, lived, stream)


def test_session_is_created(alice: Api) -> None:
    """S1: a session answers 201 with its id, its expiry and how often to keep it alive."""
    answer = alice.create_session()
    assert answer.status == 201
    body = answer.json()
    assert is_uuid(body["session_id"])
    assert 55 < seconds_from_now(body["expires_at"]) <= 61
    assert body["keepalive_interval_secs"] == 30


@pytest.mark.parametrize(
    ("asked", "given"), [(0, 10), (1, 10), (9, 10), (10, 10), (11, 11), (300, 300), (301, 300), (9999, 300)]
)
def test_session_ttl_is_clamped(alice: Api, asked: int, given: int) -> None:
    """S1: the TTL is silently kept within 10–300 s; the keepalive interval is half of it, rounded down."""
    body = alice.new_session(ttl_seconds=asked)
    assert given - 5 < seconds_from_now(body["expires_at"]) <= given + 1
    assert body["keepalive_interval_secs"] == given // 2


def test_keepalive_restarts_the_ttl(alice: Api) -> None:
    """S1: a keepalive moves the expiry to now + the session's own TTL and echoes the id."""
    session = alice.new_session(ttl_seconds=100)
    before = moment(session["expires_at"])
    answer = wait_until(
        lambda: moment((renewed := alice.keepalive(session["session_id"])).json()["expires_at"]) > before and renewed
    )
    assert answer.status == 200
    body = answer.json()
    assert body["session_id"] == session["session_id"]
    assert 95 < seconds_from_now(body["expires_at"]) <= 101


def test_session_can_be_read(alice: Api, name: str) -> None:
    """A session shows its id, its user's id, its expiry, that it is active, and how many leases name it, plain ones
    too.
    """
    session_id = alice.new_session()["session_id"]
    body = alice.session(session_id).json()
    assert (body["session_id"], body["lock_count"], body["active"]) == (session_id, 0, True)
    assert isinstance(body["user_id"], str) and body["user_id"]
    assert 55 < seconds_from_now(body["expires_at"]) <= 61
    other = alice.session(alice.new_session()["session_id"]).json()
    assert other["user_id"] == body["user_id"]
    lease = alice.acquired(f"{name}/plain", session_id=session_id)
    alice.acquired(f"{name}/ephemeral", session_id=session_id, ephemeral=True)
    assert alice.session(session_id).json()["lock_count"] == 2
    alice.release(f"{name}/plain", lease["lease_id"])
    assert alice.session(session_id).json()["lock_count"] == 1


def test_deleted_session_is_gone(alice: Api) -> None:
    """A deleted session answers 204 without a body, and is 404 `not_found` on every route from then on."""
    session_id = alice.new_session()["session_id"]
    answer = alice.end_session(session_id)
    assert (answer.status, answer.body) == (204, b"")
    refused(alice.session(session_id), 404, "not_found")
    refused(alice.keepalive(session_id), 404, "not_found")
    refused(alice.end_session(session_id), 404, "not_found")
    refused(alice.acquire(unique(), session_id=session_id, ephemeral=True), 404, "not_found")


def test_foreign_and_unknown_sessions_look_the_same(alice: Api, bob: Api) -> None:
    """Somebody else's session cannot be told from one that never was: the same status, code and words."""
    foreign, unknown = bob.new_session()["session_id"], str(uuid.uuid4())
    for call in (alice.session, alice.keepalive, alice.end_session):
        bodies = []
        for session_id in (foreign, unknown):
            body = refused(call(session_id), 404, "not_found")
            bodies.append({"error": body["error"], "details": body["details"].replace(session_id, "ID")})
        assert bodies[0] == bodies[1]
    assert bob.session(foreign).json()["active"] is True


def test_end_of_a_session_frees_only_ephemeral_leases(alice: Api, bob: Api, name: str) -> None:
    """S2: deleting a session ends what is bound to it; a plain lease that only names it stays with the user."""
    session_id = alice.new_session()["session_id"]
    for index in range(3):
        alice.acquired(f"{name}/ephemeral-{index}", session_id=session_id, ephemeral=True)
    plain = alice.acquired(f"{name}/plain", session_id=session_id)
    assert alice.end_session(session_id).status == 204
    for index in range(3):
        bob.acquired(f"{name}/ephemeral-{index}")
    bob.held(f"{name}/plain")
    assert alice.renew(f"{name}/plain", plain["lease_id"]).status == 200


def test_ephemeral_lease_dies_at_its_own_ttl(alice: Api, bob: Api, name: str) -> None:
    """S2: an ephemeral lease ends at its own TTL even though the session lives."""
    session_id = alice.new_session()["session_id"]
    alice.acquired(name, session_id=session_id, ephemeral=True, ttl_seconds=1)
    wait_until(lambda: bob.acquire(name).json()["status"] == "acquired")
    body = alice.session(session_id).json()
    assert (body["active"], body["lock_count"]) == (True, 0)


def test_ephemeral_holder_is_the_session(alice: Api, name: str) -> None:
    """Two sessions of one user exclude each other; the same session again gets its own lease back."""
    one, two = (alice.new_session()["session_id"] for _ in range(2))
    first = alice.acquired(name, session_id=one, ephemeral=True, metadata="one")
    held = alice.held(name, session_id=two, ephemeral=True)
    assert held["metadata"] == "one"
    again = alice.acquired(name, session_id=one, ephemeral=True, metadata="other")
    assert (again["lease_id"], again["metadata"]) == (first["lease_id"], "one")
    alice.held(name)


def test_plain_and_ephemeral_holders_differ(alice: Api, name: str) -> None:
    """A user's plain lease refuses the same user's ephemeral claim: one holder is the user, the other the session."""
    alice.acquired(name)
    session_id = alice.new_session()["session_id"]
    alice.held(name, session_id=session_id, ephemeral=True)
    plain = alice.acquired(f"{name}/2", session_id=session_id)
    assert alice.acquired(f"{name}/2")["lease_id"] == plain["lease_id"]


def test_holder_id_of_an_ephemeral_lease_is_no_session_id(alice: Api, bob: Api, name: str) -> None:
    """The holder shown for an ephemeral lease is a pseudonym, stable for the session and not its id."""
    session_id = alice.new_session()["session_id"]
    for index in (1, 2):
        alice.acquired(f"{name}/{index}", session_id=session_id, ephemeral=True)
    answers = [bob.acquire(f"{name}/{index}") for index in (1, 2)]
    holders = {answer.json()["holder_id"] for answer in answers}
    assert len(holders) == 1
    assert all(is_uuid(holder) for holder in holders)
    assert session_id not in holders


# What an expired session answers, all from one wait.


def test_session_lives_its_entire_ttl(lapsed: Lapsed) -> None:
    """L1: the session and what is bound to it did not end before the 10 s were over."""
    assert 9.99 <= lapsed.lived_seconds < 13


def test_expired_session_is_410(alice: Api, lapsed: Lapsed) -> None:
    """Keepalive of, and acquire with, an expired session is 410 `session_expired`."""
    refused(alice.keepalive(lapsed.session_id), 410, "session_expired")
    refused(alice.acquire(unique(), session_id=lapsed.session_id, ephemeral=True), 410, "session_expired")
    refused(alice.acquire(unique(), session_id=lapsed.session_id), 410, "session_expired")


def test_leases_of_an_expired_session_are_410(alice: Api, lapsed: Lapsed) -> None:
    """Renew and release of a lease that ended with its session are 410 `session_expired`."""
    lease_id = lapsed.ephemeral_lease["lease_id"]
    refused(alice.renew(lapsed.ephemeral, lease_id), 410, "session_expired")
    refused(alice.release(lapsed.ephemeral, lease_id), 410, "session_expired")


def test_expired_session_reads_inactive(alice: Api, bob: Api, lapsed: Lapsed) -> None:
    """An expired session can still be read, as `active: false`, by its user alone."""
    answer = alice.session(lapsed.session_id)
    assert answer.status == 200
    body = answer.json()
    assert (body["session_id"], body["active"]) == (lapsed.session_id, False)
    assert seconds_from_now(body["expires_at"]) < 1
    refused(bob.session(lapsed.session_id), 404, "not_found")
    refused(bob.keepalive(lapsed.session_id), 404, "not_found")


def test_expiry_of_a_session_frees_only_ephemeral_leases(alice: Api, bob: Api, lapsed: Lapsed) -> None:
    """S2: what was bound to the session is free, what had a delay is cooling, the plain lease lives on."""
    assert bob.acquire(lapsed.delayed).status == 409
    bob.held(lapsed.plain)
    assert alice.locks(prefix=lapsed.ephemeral).json()["total"] == 0


def test_watch_reports_end_of_session(lapsed: Lapsed) -> None:
    """A watcher of a lease that ended with its session is told. (OctoStore leaves open by which of the two words.)"""
    body = lapsed.stream.next().json()
    assert body["event"] in ("expired", "released")
    assert set(body) == {"event", "lock_name", "observed_at"}


def test_expired_session_can_be_deleted(alice: Api, lapsed: Lapsed) -> None:
    """Delete works on an expired session: 204. (Afterwards it may be unknown or still be called expired.)"""
    assert alice.end_session(lapsed.other_session_id).status == 204
    refused(alice.keepalive(lapsed.other_session_id), (404, 410), ("not_found", "session_expired"))
