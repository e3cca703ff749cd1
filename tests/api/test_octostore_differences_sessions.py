"""Sessions beyond OctoStore's: a secret of their own, the earlier deadline, renewing everything at once."""

from __future__ import annotations

import time
from typing import Any

from tests.support.api import Api
from tests.support.checks import moment, refused, seconds_from_now, unique, wait_until
from tests.support.server import ServerProcess


def _statuses(bodies: list[dict[str, Any]]) -> list[str]:
    return sorted(body["status"] for body in bodies)


def _run(api: Api, **fields: object) -> tuple[dict[str, Any], Api]:
    """A new session and a caller that uses its secret as the bearer."""
    session = api.new_session(**fields)
    return session, Api(api.host, api.port, session["session_secret"])


def test_claim_with_the_secret_is_bound(alice: Api, bob: Api, name: str) -> None:
    """S2: what is claimed with a session's secret ends with the session."""
    session, run = _run(alice, ttl_seconds=60, name="run-1")
    run.acquired(name, ttl_seconds=600)
    assert alice.session(session["session_id"]).json()["lock_count"] == 1
    bob.held(name)
    assert alice.end_session(session["session_id"]).status == 204
    bob.acquired(name)


def test_only_the_session_or_its_principal_ends_a_claim(alice: Api, bob: Api, name: str) -> None:
    """S3: another session, of the same principal or not, cannot renew or release it; the principal's own token can."""
    _, run = _run(alice)
    _, sibling = _run(alice)
    _, other_users = _run(bob)
    lease = run.acquired(name)
    for other in (sibling, other_users, bob):
        for answer in (other.renew(name, lease["lease_id"]), other.release(name, lease["lease_id"])):
            refused(answer, (400, 403, 404), ("lease_not_current", "forbidden", "not_found"))
    assert alice.status(name).json()["status"] == "held"
    assert run.renew(name, lease["lease_id"]).status == 200
    assert alice.renew(name, lease["lease_id"]).status == 200
    assert alice.release(name, lease["lease_id"]).body == b"null"


def test_secret_does_not_reach_plain_leases_of_its_principal(alice: Api, name: str) -> None:
    """S3: a session's secret is for that session alone: the principal's plain leases are out of its reach."""
    _, run = _run(alice)
    lease = alice.acquired(name)
    refused(run.release(name, lease["lease_id"]), (400, 403, 404), ("lease_not_current", "forbidden", "not_found"))
    assert alice.status(name).json()["status"] == "held"


def test_secret_is_for_its_session_alone(alice: Api, name: str) -> None:
    """S1: a secret can neither keep alive, read nor end another session, nor claim for it, nor make tokens."""
    other = alice.new_session()["session_id"]
    _, run = _run(alice)
    codes = ("forbidden", "not_found", "invalid_input")
    refused(run.keepalive(other), (400, 403, 404), codes)
    refused(run.end_session(other), (400, 403, 404), codes)
    refused(run.acquire(name, session_id=other, ephemeral=True), (400, 403, 404), codes)
    refused(run.post("/tokens", {"name": unique("no")}), 403, "forbidden")
    assert alice.session(other).json()["active"] is True
    assert alice.status(name).json()["status"] == "free"


def test_any_call_with_the_secret_is_a_keepalive(alice: Api, name: str) -> None:
    """S1: a read made with the session's secret moves its expiry, as a keepalive would."""
    session, run = _run(alice, ttl_seconds=60)
    before = moment(session["expires_at"])

    def moved_by_reading() -> bool:
        assert run.status(name).status == 200
        return (moment(alice.session(session["session_id"]).json()["expires_at"]) - before).total_seconds() > 0.5

    wait_until(moved_by_reading, seconds_max=5, every_seconds=0.2)


def test_reading_a_session_with_the_principals_token_is_no_keepalive(alice: Api) -> None:
    """S1: only calls with the session's own secret, and keepalives, keep it alive."""
    session = alice.new_session(ttl_seconds=60)
    left = [alice.session(session["session_id"]).json()["expires_at"]]
    time.sleep(0.5)
    left.append(alice.session(session["session_id"]).json()["expires_at"])
    # Shown in wall time, which is computed anew for every answer, so a few milliseconds may differ.
    assert abs((moment(left[1]) - moment(left[0])).total_seconds()) < 0.4


def test_secret_of_an_ended_session_is_worthless(alice: Api, name: str) -> None:
    """S1: after the session was deleted its secret claims nothing."""
    session, run = _run(alice)
    alice.end_session(session["session_id"])
    # The documents leave open whether the caller is unknown or its session is; it is refused either way.
    refused(run.acquire(name), (401, 404, 410), ("authentication_failed", "not_found", "session_expired"))
    assert alice.status(name).json()["status"] == "free"


def test_secret_is_stored_nowhere(server: ServerProcess, alice: Api, bob: Api, name: str) -> None:
    """S5: the secret is derived: it is not in the data directory, in no answer but the one that made it, and not in
    the log.
    """
    session, run = _run(alice)
    run.acquired(name)
    secret = session["session_secret"]
    assert len(secret) >= 16
    for path in server.data.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path
    for answer in (alice.session(session["session_id"]), bob.acquire(name), bob.locks()):
        assert secret not in answer.text
    assert secret not in server.log


def test_deadline_is_the_earlier_one(alice: Api, name: str) -> None:
    """S2: the deadline shown is the earlier of the lease's own and its session's, in every reply."""
    session_id = alice.new_session(ttl_seconds=30)["session_id"]
    bound = alice.acquired(f"{name}/long", ttl_seconds=600, ephemeral=True, session_id=session_id)
    short = alice.acquired(f"{name}/short", ttl_seconds=10, ephemeral=True, session_id=session_id)
    plain = alice.acquired(f"{name}/plain", ttl_seconds=600, session_id=session_id)
    assert 0 < bound["expires_in_ms"] <= 30_000
    assert bound["renew_after_ms"] <= 15_000
    assert seconds_from_now(bound["expires_at"]) <= 31
    assert short["expires_in_ms"] <= 10_000
    assert plain["expires_in_ms"] > 590_000
    assert alice.status(f"{name}/long").json()["expires_in_ms"] <= 30_000
    assert alice.held(f"{name}/long")["retry_after_ms"] <= 30_000
    assert alice.renew(f"{name}/long", bound["lease_id"], ttl_seconds=600).json()["expires_in_ms"] <= 30_000
    listed = {lock["name"]: lock for lock in alice.locks(prefix=name).json()["locks"]}
    assert seconds_from_now(listed[f"{name}/long"]["expires_at"]) <= 31


def test_session_ttl_may_be_a_day(alice: Api) -> None:
    """S1: a session's TTL is clamped to 10 s … 86 400 s."""
    for asked, given in ((1, 10), (86_400, 86_400), (100_000, 86_400)):
        body = alice.new_session(ttl_seconds=asked)
        assert given - 5 < seconds_from_now(body["expires_at"]) <= given + 1


def test_session_has_a_name_and_metadata(alice: Api) -> None:
    """S1: a session takes a name and metadata."""
    assert alice.create_session(name="nightly", metadata="host 7", ttl_seconds=60).status == 201


def test_renew_all(alice: Api, name: str) -> None:
    """S4: one call keeps the session and every lease bound to it alive."""
    session_id = alice.new_session(ttl_seconds=600)["session_id"]
    for index in range(3):
        alice.acquired(f"{name}/{index}", ttl_seconds=60, session_id=session_id, ephemeral=True)
    before = [moment(lock["expires_at"]) for lock in alice.locks(prefix=name).json()["locks"]]
    assert len(before) == 3

    def all_moved() -> bool:
        assert alice.post(f"/sessions/{session_id}/renew-all", {}).status == 200
        after = [moment(lock["expires_at"]) for lock in alice.locks(prefix=name).json()["locks"]]
        return all((late - early).total_seconds() > 0.5 for early, late in zip(before, after, strict=True))

    wait_until(all_moved, seconds_max=5, every_seconds=0.2)
