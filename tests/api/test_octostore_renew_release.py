"""Renew and release by OctoStore's rules, with the whole table of what becomes of a lease id."""

from __future__ import annotations

import uuid

import pytest

from tests.support import callers
from tests.support.api import Api, lock_path
from tests.support.checks import moment, refused, seconds_from_now, wait_until


@pytest.fixture(scope="module")
def server_settings() -> dict[str, object]:
    """OctoStore's rules."""
    return callers.OCTOSTORE_SETTINGS


def test_renew_sets_a_new_expiry(alice: Api, name: str) -> None:
    """L3: renew echoes the lease id, moves the expiry to now + ttl, says when to renew next, and keeps the token."""
    lease = alice.acquired(name, ttl_seconds=30)
    answer = alice.renew(name, lease["lease_id"], ttl_seconds=600)
    assert answer.status == 200
    renewed = answer.json()
    assert renewed["lease_id"] == lease["lease_id"]
    assert 595 < seconds_from_now(renewed["expires_at"]) <= 601
    assert 290_000 < renewed["renew_after_ms"] <= 300_000
    status = alice.status(name).json()
    assert status["fencing_token"] == lease["fencing_token"]
    assert abs((moment(status["expires_at"]) - moment(renewed["expires_at"])).total_seconds()) < 2


def test_renew_means_sixty_seconds_unless_said(alice: Api, name: str) -> None:
    """L3: renew without a TTL means 60 s, whatever the lease had before."""
    lease = alice.acquired(name, ttl_seconds=600)
    renewed = alice.renew(name, lease["lease_id"]).json()
    assert 55 < seconds_from_now(renewed["expires_at"]) <= 61
    assert 28_000 < renewed["renew_after_ms"] <= 30_000


def test_renew_can_shorten(alice: Api, bob: Api, name: str) -> None:
    """A renewal with a shorter TTL takes time away, and the lease ends by it."""
    lease = alice.acquired(name, ttl_seconds=600)
    assert alice.renew(name, lease["lease_id"], ttl_seconds=1).status == 200
    wait_until(lambda: bob.acquire(name).json()["status"] == "acquired")


@pytest.mark.parametrize("ttl_seconds", [0, 3601])
def test_renew_judges_the_ttl_before_the_lease(alice: Api, name: str, ttl_seconds: int) -> None:
    """A TTL out of range is 400 `invalid_ttl`, also for a lease that is not current, and changes nothing."""
    refused(alice.renew(name, str(uuid.uuid4()), ttl_seconds=ttl_seconds), 400, "invalid_ttl")
    lease = alice.acquired(name, ttl_seconds=300)
    refused(alice.renew(name, lease["lease_id"], ttl_seconds=ttl_seconds), 400, "invalid_ttl")
    assert seconds_from_now(alice.status(name).json()["expires_at"]) > 290


def test_renew_judges_the_name_before_the_ttl(alice: Api) -> None:
    """A bad or reserved name is said before a bad TTL."""
    refused(alice.renew("a b", str(uuid.uuid4()), ttl_seconds=0), 400, "invalid_lock_name")
    refused(alice.renew("__election/a", str(uuid.uuid4()), ttl_seconds=0), 403, "forbidden")


def test_release_answers_null(alice: Api, bob: Api, name: str) -> None:
    """Release answers 200 with JSON whose whole body is `null`, and the name is free at once."""
    lease = alice.acquired(name)
    answer = alice.release(name, lease["lease_id"])
    assert (answer.status, answer.content_type, answer.body) == (200, "application/json", b"null")
    assert bob.status(name).json()["status"] == "free"
    bob.acquired(name)


@pytest.mark.parametrize("verb", ["renew", "release"])
def test_lease_id_must_be_there_and_a_uuid(alice: Api, name: str, verb: str) -> None:
    """A `lease_id` that is missing, null or no UUID is 422."""
    alice.acquired(name)
    for body in ({}, {"lease_id": None}, {"lease_id": "x"}, {"lease_id": 5}, {"lease_id": ""}):
        refused(alice.post(f"{lock_path(name)}/{verb}", body), 422, "invalid_input")
    assert alice.status(name).json()["status"] == "held"


@pytest.mark.parametrize("verb", ["renew", "release"])
def test_wrong_lease_id_is_400_while_the_name_is_held(alice: Api, bob: Api, name: str, verb: str) -> None:
    """L3: another lease id, or the right one from another user, is 400 `lease_not_current` and changes nothing."""
    lease = alice.acquired(name, ttl_seconds=300)
    refused(getattr(alice, verb)(name, str(uuid.uuid4())), 400, "lease_not_current")
    refused(getattr(bob, verb)(name, lease["lease_id"]), 400, "lease_not_current")
    status = bob.status(name).json()
    assert (status["status"], status["fencing_token"]) == ("held", lease["fencing_token"])
    assert seconds_from_now(status["expires_at"]) > 290


@pytest.mark.parametrize("verb", ["renew", "release"])
def test_older_generation_never_touches_a_newer_one(alice: Api, bob: Api, name: str, verb: str) -> None:
    """L3: the lease id of an older generation is 400 while a newer one lives, also when both are the same user's."""
    old = alice.acquired(name)
    alice.release(name, old["lease_id"])
    new = alice.acquired(name)
    refused(getattr(alice, verb)(name, old["lease_id"]), 400, "lease_not_current")
    alice.release(name, new["lease_id"])
    newest = bob.acquired(name)
    refused(getattr(alice, verb)(name, old["lease_id"]), 400, "lease_not_current")
    refused(getattr(alice, verb)(name, new["lease_id"]), 400, "lease_not_current")
    assert bob.status(name).json()["fencing_token"] == newest["fencing_token"]


@pytest.mark.parametrize("verb", ["renew", "release"])
def test_nothing_held_is_404(alice: Api, name: str, verb: str) -> None:
    """A name never held, or released, is 404 `lease_not_current`."""
    refused(getattr(alice, verb)(name, str(uuid.uuid4())), 404, "lease_not_current")
    lease = alice.acquired(name)
    alice.release(name, lease["lease_id"])
    refused(getattr(alice, verb)(name, lease["lease_id"]), 404, "lease_not_current")
    refused(getattr(alice, verb)(name, str(uuid.uuid4())), 404, "lease_not_current")


def test_expired_lease_is_404_on_every_path(alice: Api, name: str) -> None:
    """L2: once a lease has expired, renew and release are 404 `lease_not_current` and the name reads free and
    unlisted.
    """
    lease = alice.acquired(name, ttl_seconds=1)
    wait_until(lambda: alice.status(name).json()["status"] == "free")
    refused(alice.renew(name, lease["lease_id"]), 404, "lease_not_current")
    refused(alice.release(name, lease["lease_id"]), 404, "lease_not_current")
    assert alice.locks(prefix=name).json()["locks"] == []


def test_renewed_lease_outlives_its_first_ttl(alice: Api, bob: Api, name: str) -> None:
    """L1: a lease renewed in time is not ended by its first deadline."""
    lease = alice.acquired(name, ttl_seconds=4)
    assert alice.renew(name, lease["lease_id"], ttl_seconds=60).status == 200
    short = alice.acquired(f"{name}/clock", ttl_seconds=4)
    wait_until(lambda: alice.status(f"{name}/clock").json()["status"] == "free")
    assert short["lease_id"] != lease["lease_id"]
    assert bob.held(name)["status"] == "held"


def test_ephemeral_lease_is_renewed_and_released_without_naming_the_session(alice: Api, name: str) -> None:
    """The owner of a live session renews and releases its ephemeral leases by lease id alone."""
    session_id = alice.new_session()["session_id"]
    lease = alice.acquired(name, ephemeral=True, session_id=session_id)
    assert alice.renew(name, lease["lease_id"]).json()["lease_id"] == lease["lease_id"]
    assert alice.release(name, lease["lease_id"]).body == b"null"


@pytest.mark.parametrize("verb", ["renew", "release"])
def test_ephemeral_lease_of_another_user_is_404(alice: Api, bob: Api, name: str, verb: str) -> None:
    """Another user's attempt on an ephemeral lease is 404 `not_found`, as if the session did not exist."""
    session_id = alice.new_session()["session_id"]
    lease = alice.acquired(name, ephemeral=True, session_id=session_id)
    refused(getattr(bob, verb)(name, lease["lease_id"]), 404, "not_found")
    assert bob.status(name).json()["status"] == "held"


def test_wrong_lease_id_on_an_ephemeral_lease_is_400(alice: Api, name: str) -> None:
    """The session's owner with a wrong lease id is 400 `lease_not_current`."""
    session_id = alice.new_session()["session_id"]
    alice.acquired(name, ephemeral=True, session_id=session_id)
    refused(alice.renew(name, str(uuid.uuid4())), 400, "lease_not_current")
    refused(alice.release(name, str(uuid.uuid4())), 400, "lease_not_current")


@pytest.mark.parametrize("verb", ["renew", "release"])
def test_lease_of_a_deleted_session_is_gone(alice: Api, name: str, verb: str) -> None:
    """After the session was deleted its ephemeral leases are 404."""
    session_id = alice.new_session()["session_id"]
    lease = alice.acquired(name, ephemeral=True, session_id=session_id)
    alice.end_session(session_id)
    refused(getattr(alice, verb)(name, lease["lease_id"]), 404, ("lease_not_current", "not_found"))


@pytest.mark.parametrize("verb", ["renew", "release"])
def test_revoked_lease_has_a_code_that_octostore_knows(
    alice: Api, bob: Api, operator: Api, name: str, verb: str
) -> None:
    """L7: OctoStore's own client takes only its codes for a loss: it is `lease_not_current`, and `ended` says how."""
    lease = alice.acquired(name)["lease_id"]
    operator.revoke(name, reason="maintenance window")
    ended = ("revoked", "operator", "maintenance window")
    gone = refused(getattr(alice, verb)(name, lease), 404, "lease_not_current")
    assert (gone["ended"], gone["by"], gone["reason"]) == ended
    bob.acquired(name)
    taken = refused(getattr(alice, verb)(name, lease), 400, "lease_not_current")
    assert (taken["ended"], taken["by"], taken["reason"]) == ended
    assert "maintenance window" in taken["details"]
