"""Status and list by OctoStore's rules: free and held names, the next token, live leases of all users."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import is_uuid, seconds_from_now, wait_until
from tests.support.server import ServerProcess

STATUS_FIELDS = {"name", "status", "holder_id", "fencing_token", "expires_at", "metadata"}


@pytest.fixture(scope="module")
def server_settings() -> dict[str, object]:
    """OctoStore's rules."""
    return callers.OCTOSTORE_SETTINGS


def test_first_token_is_one(tmp_path: Path) -> None:
    """The counter starts at 1: a fresh server says so before its first grant, and grants it."""
    with ServerProcess.start(tmp_path / "data", settings=callers.OCTOSTORE_SETTINGS, tokens=callers.TOKENS) as server:
        alice = Api.of(server, callers.ALICE)
        assert alice.status("job").json()["fencing_token"] == 1
        assert alice.acquired("job")["fencing_token"] == 1


def test_free_name(alice: Api, name: str) -> None:
    """A name nobody holds is a 200 that reads `free`, never a 404."""
    answer = alice.status(name)
    assert answer.status == 200
    body = answer.json()
    assert set(body) >= STATUS_FIELDS
    assert (body["name"], body["status"]) == (name, "free")
    assert (body["holder_id"], body["expires_at"], body["metadata"]) == (None, None, None)


def test_free_name_shows_the_next_token(alice: Api, bob: Api, name: str) -> None:
    """The token of a free name is the next value of the counter, and the next grant of any name gets it."""
    token = alice.acquired(f"{name}/1")["fencing_token"]
    assert alice.status(f"{name}/2").json()["fencing_token"] == token + 1
    assert bob.status(f"{name}/3").json()["fencing_token"] == token + 1
    assert bob.acquired(f"{name}/4")["fencing_token"] == token + 1


def test_refusals_spend_no_token(alice: Api, bob: Api, name: str) -> None:
    """A refused acquire, a renewal and a release leave the counter where it is."""
    lease = alice.acquired(name)
    bob.held(name)
    bob.acquire(name, ttl_seconds=0)
    alice.renew(name, lease["lease_id"])
    alice.acquired(name)
    alice.release(name, lease["lease_id"])
    assert alice.status(name).json()["fencing_token"] == lease["fencing_token"] + 1


def test_held_name(alice: Api, bob: Api, name: str) -> None:
    """A held name shows holder, token, expiry and metadata to everyone, and the lease id to no one."""
    lease = alice.acquired(f"{name}/x", ttl_seconds=120, metadata="m")
    for api in (alice, bob):
        answer = api.status(f"{name}/x")
        body = answer.json()
        assert set(body) >= STATUS_FIELDS
        assert (body["name"], body["status"], body["metadata"]) == (f"{name}/x", "held", "m")
        assert body["fencing_token"] == lease["fencing_token"]
        assert is_uuid(body["holder_id"])
        assert 115 < seconds_from_now(body["expires_at"]) <= 121
        assert "acl" not in body
        assert lease["lease_id"] not in answer.text


def test_list_shows_live_leases_of_all_users(alice: Api, bob: Api, name: str) -> None:
    """The list has the live leases of everyone, with the fields of a status, and no lease id."""
    first = alice.acquired(f"{name}/1", metadata="one")
    second = bob.acquired(f"{name}/2")
    answer = alice.locks()
    assert answer.status == 200
    body = answer.json()
    assert body["prefix"] is None
    assert body["total"] == len(body["locks"])
    mine = {lock["name"]: lock for lock in body["locks"] if lock["name"].startswith(name)}
    assert set(mine) == {f"{name}/1", f"{name}/2"}
    for lock in mine.values():
        assert set(lock) >= STATUS_FIELDS
        assert lock["status"] == "held"
        assert "acl" not in lock
        assert is_uuid(lock["holder_id"])
    assert mine[f"{name}/1"]["metadata"] == "one"
    assert mine[f"{name}/2"]["fencing_token"] == second["fencing_token"]
    assert first["lease_id"] not in answer.text and second["lease_id"] not in answer.text


def test_list_by_prefix(alice: Api, name: str) -> None:
    """`prefix` is a plain text prefix, is echoed, and need not end at a slash."""
    for tail in ("a", "ab", "b/c"):
        alice.acquired(f"{name}-{tail}")
    body = alice.locks(prefix=f"{name}-a").json()
    assert body["prefix"] == f"{name}-a"
    assert {lock["name"] for lock in body["locks"]} == {f"{name}-a", f"{name}-ab"}
    assert body["total"] == 2
    body = alice.locks(prefix=f"{name}-b/").json()
    assert [lock["name"] for lock in body["locks"]] == [f"{name}-b/c"]
    nothing = alice.locks(prefix=f"{name}-zzz").json()
    assert (nothing["locks"], nothing["total"], nothing["prefix"]) == ([], 0, f"{name}-zzz")


def test_prefix_may_be_any_text(alice: Api, name: str) -> None:
    """A prefix is percent-decoded and need not be a valid name itself."""
    alice.acquired(f"{name}/ä")
    body = alice.locks(prefix=f"{name}/ä").json()
    assert (body["prefix"], body["total"]) == (f"{name}/ä", 1)
    assert alice.locks(prefix=f"{name} %!").json()["total"] == 0


def test_ended_leases_leave_the_list(alice: Api, name: str) -> None:
    """L2: released, expired and session-ended leases are listed no more."""
    released = alice.acquired(f"{name}/released")
    alice.acquired(f"{name}/expired", ttl_seconds=1)
    session_id = alice.new_session()["session_id"]
    alice.acquired(f"{name}/ephemeral", ephemeral=True, session_id=session_id)
    alice.acquired(f"{name}/live")
    assert alice.locks(prefix=name).json()["total"] == 4
    alice.release(f"{name}/released", released["lease_id"])
    alice.end_session(session_id)
    wait_until(lambda: alice.status(f"{name}/expired").json()["status"] == "free")
    body = alice.locks(prefix=name).json()
    assert [lock["name"] for lock in body["locks"]] == [f"{name}/live"]
    assert body["total"] == 1
