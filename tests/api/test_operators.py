"""What operators and owners can do with a claim: revoke, transfer, check, why; and with sessions: L7, L8, S4."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import is_uuid, moment, refused, seconds_from_now, unique, wait_until
from tests.support.pending import waiters, waiting
from tests.support.server import ServerProcess

# Revoke.


def test_revoke_informs_the_holder(alice: Api, bob: Api, operator: Api, name: str) -> None:
    """L7: a revoked holder's next call says `revoked`, by whom and why, also when somebody else owns the name."""
    lease = alice.acquired(name, owner="ana")
    answer = operator.revoke(name, reason="maintenance window")
    assert (answer.status, answer.body) == (204, b"")
    assert alice.status(name).json()["status"] == "free"
    _assert_revoked(alice, name, lease["lease_id"], 404)
    granted = bob.acquired(name, owner="ben")
    assert (granted["previous"]["ended"], granted["previous"]["owner"]) == ("revoked", "ana")
    _assert_revoked(alice, name, lease["lease_id"], 404)
    # To anybody else the old lease id says nothing of it.
    assert bob.renew(name, lease["lease_id"]).json()["code"] == "lease_not_current"
    assert bob.renew(name, granted["lease_id"]).status == 200


def _assert_revoked(api: Api, name: str, lease_id: str, status: int) -> None:
    for answer in (api.renew(name, lease_id), api.release(name, lease_id), api.transfer(name, lease_id, to_owner="x")):
        body = refused(answer, status, "revoked")
        assert (body["ended"], body["by"], body["reason"]) == ("revoked", "operator", "maintenance window")
        assert moment(body["at"]) is not None


def test_revoke_informs_holder_bound_to_session(alice: Api, bob: Api, operator: Api, name: str) -> None:
    """L7: the same for a claim of a session, whose successor may be another session's."""
    session = alice.new_session()
    run = Api(alice.host, alice.port, session["session_secret"])
    lease = run.acquired(name)
    operator.revoke(name, reason="maintenance window")
    _assert_revoked(run, name, lease["lease_id"], 404)
    other = bob.new_session()["session_id"]
    bob.acquired(name, session_id=other, ephemeral=True)
    _assert_revoked(run, name, lease["lease_id"], 404)
    _assert_revoked(alice, name, lease["lease_id"], 404)


def test_revoke_is_for_operators(alice: Api, nobody: Api, server: ServerProcess, name: str) -> None:
    """L7, I11: only a token with `admin` ends somebody's lease; a session's secret never."""
    lease = alice.acquired(name)
    refused(alice.revoke(name, reason="x"), 403, "forbidden")
    refused(nobody.revoke(name, reason="x"), 401, "authentication_required")
    refused(Api.of(server, callers.READER).revoke(name, reason="x"), 403, "forbidden")
    session = Api.of(server, callers.OPERATOR).new_session()
    refused(Api.of(server, session["session_secret"]).revoke(name, reason="x"), 403, "forbidden")
    assert alice.renew(name, lease["lease_id"]).status == 200


def test_revoke_needs_a_reason_and_a_holder(alice: Api, operator: Api, name: str) -> None:
    """L7: a revocation without a reason, or of what nobody holds, is refused."""
    refused(operator.revoke(name, reason="x"), 404, "not_found")
    lease = alice.acquired(name)
    for fields, status in (({}, 422), ({"reason": ""}, 400), ({"reason": "x" * 1_025}, 400), ({"reason": None}, 422)):
        refused(operator.revoke(name, **fields), status, "invalid_input")
    assert alice.renew(name, lease["lease_id"]).status == 200
    assert operator.revoke(name, reason="ä" * 1_024).status == 204


def test_revoke_grants_to_queue_after_lock_delay(alice: Api, bob: Api, operator: Api, name: str) -> None:
    """L6, L7, W1: after a revocation the next in line is served, once a lock delay is over."""
    alice.acquired(name, lock_delay_seconds=1)
    request = waiting(bob, name)
    operator.revoke(name, reason="stuck")
    assert not request.is_answered(0.5)
    granted = request.json()
    assert (granted["previous"]["ended"], granted["attempts"]) == ("revoked", 2)
    request.close()


def test_revoke_can_be_retried(alice: Api, operator: Api, name: str) -> None:
    """C5: a revocation repeated with its key does not end the successor's lease."""
    alice.acquired(name)
    key = unique("key")
    assert operator.revoke(name, key=key, reason="stuck").status == 204
    lease = alice.acquired(name)
    assert operator.revoke(name, key=key, reason="stuck").status == 204
    assert alice.renew(name, lease["lease_id"]).status == 200
    refused(operator.revoke(name, key=key, reason="other"), 422, "idempotency_conflict")


def test_revoke_is_remembered_across_kill(tmp_path_factory: pytest.TempPathFactory) -> None:
    """L7, I5: who was revoked is told so after kill −9 too."""
    data = tmp_path_factory.mktemp("revoked") / "data"
    with ServerProcess.start(data, tokens=callers.TOKENS) as server:
        lease = Api.of(server, callers.ALICE).acquired("job")
        Api.of(server, callers.OPERATOR).revoke("job", reason="maintenance window")
        server.kill()
        with server.restart() as again:
            Api.of(again, callers.BOB).acquired("job")
            _assert_revoked(Api.of(again, callers.ALICE), "job", lease["lease_id"], 404)


# Transfer.


def test_transfer_hands_a_claim_on(alice: Api, bob: Api, name: str) -> None:
    """L8: a new lease id and a new token for another owner, the old id dead, the line untouched."""
    lease = alice.acquired(name, owner="ana", ttl_seconds=300, metadata="m")
    alice.renew(name, lease["lease_id"], keep_ttl=True, note="half")
    request = waiting(bob, name)
    answer = alice.transfer(name, lease["lease_id"], to_owner="ben")
    moved = answer.json()
    assert (answer.status, moved["status"], moved["owner"]) == (200, "acquired", "ben")
    assert is_uuid(moved["lease_id"]) and moved["lease_id"] != lease["lease_id"]
    assert moved["fencing_token"] > lease["fencing_token"]
    assert 290_000 < moved["expires_in_ms"] <= 300_000
    before = moved["previous"]
    assert (before["owner"], before["ended"], before["note"]) == ("ana", "transferred", "half")
    assert before["fencing_token"] == lease["fencing_token"]
    assert moved["attempts"] == lease["attempts"] == 1
    assert not request.is_answered(0.1)
    gone = refused(alice.renew(name, lease["lease_id"]), 400, "lease_not_current")
    assert gone["ended"] == "transferred"
    shown = alice.status(name).json()
    assert (shown["owner"], shown["metadata"], shown["fencing_token"]) == ("ben", "m", moved["fencing_token"])
    assert alice.renew(name, moved["lease_id"]).status == 200
    assert alice.release(name, moved["lease_id"]).status == 200
    assert request.json()["status"] == "acquired"
    request.close()


def test_transfer_has_no_gap(alice: Api, bob: Api, name: str) -> None:
    """L8, I1: through many transfers a waiter and a try never get the name in between, and tokens only rise."""
    lease = alice.acquired(name, owner="o-0", ttl_seconds=60)
    request = waiting(bob, name)
    for number in range(1, 30):
        moved = alice.transfer(name, lease["lease_id"], to_owner=f"o-{number}").json()
        assert moved["fencing_token"] > lease["fencing_token"]
        assert bob.held(name)["owner"] == f"o-{number}"
        lease = moved
    assert not request.is_answered()
    request.close()


def test_transfer_with_a_lease_id_is_the_holders_own(alice: Api, bob: Api, operator: Api, name: str) -> None:
    """L8: with a lease id only the holder's own token transfers."""
    lease = alice.acquired(name)
    for other in (bob, operator):
        refused(other.transfer(name, lease["lease_id"], to_owner="x"), 400, "lease_not_current")
    assert alice.status(name).json()["fencing_token"] == lease["fencing_token"]


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({}, 422, "invalid_input"),
        ({"to_owner": ""}, 400, "invalid_input"),
        ({"to_owner": "x" * 129}, 400, "invalid_input"),
        ({"to_owner": None}, 422, "invalid_input"),
        ({"to_owner": "x", "ttl_seconds": 0}, 400, "invalid_ttl"),
        ({"to_owner": "x", "ttl_seconds": 86_401}, 400, "invalid_ttl"),
        ({"to_owner": "x", "wait_seconds": 1}, 422, "invalid_input"),
    ],
    ids=str,
)
def test_bad_transfers(alice: Api, name: str, fields: dict[str, object], status: int, code: str) -> None:
    """L8: what cannot be meant is refused, and the lease is the holder's still."""
    lease = alice.acquired(name)
    refused(alice.transfer(name, lease["lease_id"], **fields), status, code)  # type: ignore[arg-type]
    assert alice.renew(name, lease["lease_id"]).status == 200


def test_transfer_can_be_retried(alice: Api, name: str) -> None:
    """C5, L8: a transfer repeated with its key gives the same new lease; after its end it says so."""
    lease = alice.acquired(name, owner="ana")
    key = unique("key")
    moved = alice.transfer(name, lease["lease_id"], key=key, to_owner="ben", ttl_seconds=30).json()
    again = alice.transfer(name, lease["lease_id"], key=key, to_owner="ben", ttl_seconds=30).json()
    assert (again["lease_id"], again["fencing_token"]) == (moved["lease_id"], moved["fencing_token"])
    refused(alice.transfer(name, lease["lease_id"], key=key, to_owner="cara"), 422, "idempotency_conflict")
    alice.release(name, moved["lease_id"])
    answer = alice.transfer(name, lease["lease_id"], key=key, to_owner="ben", ttl_seconds=30)
    refused(answer, 404, "lease_not_current")


def test_transfer_inside_a_session(alice: Api, name: str) -> None:
    """L8a, S2: a transfer with the session's secret stays bound to the session."""
    session = alice.new_session()
    run = Api(alice.host, alice.port, session["session_secret"])
    lease = run.acquired(name, owner="ana")
    moved = run.transfer(name, lease["lease_id"], to_owner="ben").json()
    assert moved["session_id"] == session["session_id"]
    alice.end_session(session["session_id"])
    assert alice.status(name).json()["status"] == "free"


def test_transfer_takes_a_claim_out_of_its_session(alice: Api, name: str) -> None:
    """L8a: a transfer by an access token unbinds the claim, and a session of the new owner takes it up."""
    old, new = alice.new_session(), alice.new_session()
    run, heir = (Api(alice.host, alice.port, each["session_secret"]) for each in (old, new))
    lease = run.acquired(name, owner="ana", ttl_seconds=50)
    moved = alice.transfer(name, lease["lease_id"], to_owner="ben").json()
    assert (moved["session_id"], moved["lease_id"] != lease["lease_id"]) == (None, True)
    assert moved["fencing_token"] > lease["fencing_token"] and moved["expires_in_ms"] <= 50_000
    assert refused(run.renew(name, lease["lease_id"]), 400, "lease_not_current")["ended"] == "transferred"
    refused(heir.renew(name, moved["lease_id"]), 400, "lease_not_current")
    assert alice.end_session(old["session_id"]).status == 204
    taken = heir.acquired(name, owner="ben", resume=True)
    assert (taken["reacquired"], taken["lease_id"]) == (True, moved["lease_id"])
    assert taken["session_id"] == new["session_id"]
    assert heir.renew(name, taken["lease_id"]).status == 200
    assert alice.end_session(new["session_id"]).status == 204
    assert alice.status(name).json()["previous"]["ended"] == "session_ended"


def test_transfer_keeps_the_time_that_is_left(alice: Api, name: str) -> None:
    """L8a: without a ttl of its own a transfer lengthens nothing; with one it does."""
    lease = alice.acquired(name, owner="ana", ttl_seconds=600)
    left = alice.renew(name, lease["lease_id"], ttl_seconds=30).json()["expires_in_ms"]
    session = alice.new_session(ttl_seconds=10)
    bound = alice.acquired(f"{name}-b", session_id=session["session_id"], ephemeral=True, ttl_seconds=600)
    assert alice.transfer(name, lease["lease_id"], to_owner="ben").json()["expires_in_ms"] <= left
    moved = alice.transfer(f"{name}-b", bound["lease_id"], to_owner="ben").json()
    assert moved["expires_in_ms"] <= 10_000, "the session's deadline was the earlier one"
    longer = alice.transfer(f"{name}-b", moved["lease_id"], to_owner="cem", ttl_seconds=600).json()
    assert longer["expires_in_ms"] > 500_000


def test_transfer_without_a_lease_id_needs_admin(
    server: ServerProcess, alice: Api, bob: Api, operator: Api, name: str
) -> None:
    """L8, I11: only `admin` hands over a claim whose lease id it does not know, and is not given the new one."""
    lease = alice.acquired(name, owner="ana")
    run = Api(alice.host, alice.port, operator.new_session()["session_secret"])
    for caller in (alice, bob, run, Api.of(server, callers.READER)):
        refused(caller.hand_over(name, to_owner="eve"), 403, "forbidden")
    refused(operator.post(f"/locks/{name}/transfer", {"lease_id": None, "to_owner": "eve"}), 422, "invalid_input")
    assert alice.status(name).json()["owner"] == "ana"
    key = unique("key")
    for _ in range(2):
        answer = operator.hand_over(name, key=key, to_owner="ben", reason="ill")
        assert (answer.status, answer.body) == (204, b"")
    gone = refused(alice.renew(name, lease["lease_id"]), 400, "lease_not_current")
    assert (gone["ended"], gone["by"], gone["reason"]) == ("transferred", "operator", "ill")
    taken = alice.acquired(name, owner="ben", resume=True)
    assert taken["reacquired"] and taken["fencing_token"] == lease["fencing_token"] + 1
    refused(operator.hand_over(f"{name}-free", to_owner="x"), 404, "not_found")


# Check.


def test_check_knows_the_current_token(alice: Api, bob: Api, name: str) -> None:
    """C6: a guarded resource asks whether a token is the live lease's: an older, a newer or none is not."""
    assert bob.check(name, 1).json() == {"current": False, "fencing_token": None}
    lease = alice.acquired(name)
    token = lease["fencing_token"]
    assert bob.check(name, token).json() == {"current": True, "fencing_token": token}
    assert bob.check(name, token - 1).json() == {"current": False, "fencing_token": token}
    moved = alice.transfer(name, lease["lease_id"], to_owner="ben").json()
    assert bob.check(name, token).json() == {"current": False, "fencing_token": moved["fencing_token"]}
    alice.release(name, moved["lease_id"])
    assert bob.check(name, moved["fencing_token"]).json() == {"current": False, "fencing_token": None}


def test_check_after_expiry(alice: Api, name: str) -> None:
    """L2: a token whose lease ran out is not current, at once."""
    token = alice.acquired(name, ttl_seconds=1)["fencing_token"]
    wait_until(lambda: not alice.check(name, token).json()["current"])


def test_bad_checks(alice: Api, name: str) -> None:
    """A check without a number, or with one that cannot be a token, is refused."""
    for value in (None, "1", -1, 1.5, 2**53, True):
        refused(alice.check(name, value), 422, "invalid_input")
    refused(alice.post(f"/locks/{name}/check", {}), 422, "invalid_input")


# Why.


def _why(api: Api, name: str) -> dict[str, Any]:
    answer = api.why(name)
    assert answer.status == 200, answer
    body: dict[str, Any] = answer.json()
    assert set(body) == {"name", "chain", "waiting", "circle"}
    return body


def test_why_of_free_names(alice: Api, name: str) -> None:
    """A free, a closed and a finished name are a chain of one link that says so."""
    assert [link["status"] for link in _why(alice, name)["chain"]] == ["free"]
    alice.release(name, alice.acquired(name, lock_delay_seconds=20)["lease_id"])
    assert [link["status"] for link in _why(alice, name)["chain"]] == ["closed"]
    other = unique()
    alice.release(other, alice.acquired(other, owner="ana")["lease_id"], outcome="done", remember_seconds=60)
    (link,) = _why(alice, other)["chain"]
    assert (link["status"], link["owner"]) == ("done", "ana")


def test_why_follows_the_chain(alice: Api, bob: Api) -> None:
    """From a name through three owners that wait for each other to the one everybody waits for, with signs of life."""
    stem = unique()
    names = [f"{stem}/{number}" for number in range(3)]
    owners = ["ana", "ben", "cara"]
    leases = [alice.acquired(name, owner=owner) for name, owner in zip(names, owners, strict=True)]
    waits = [waiting(alice, names[number + 1], owner=owners[number]) for number in range(2)]
    outside = waiting(bob, names[0], owner="dora")
    away = bob.acquire(names[0], owner="eve", wait_seconds=0.001).json()["ticket"]
    alice.renew(names[2], leases[2]["lease_id"], note="step 3 of 4", ttl_seconds=50)
    body = _why(bob, names[0])
    assert [(link["name"], link["owner"], link["waits_for"]) for link in body["chain"]] == [
        (names[0], "ana", [names[1]]),
        (names[1], "ben", [names[2]]),
        (names[2], "cara", []),
    ]
    assert body["circle"] is False
    assert [(each["owner"], each["there"]) for each in body["waiting"]] == [("dora", True), ("eve", False)]
    assert all(moment(each["since"]) for each in body["waiting"])
    last = body["chain"][2]
    assert (last["status"], last["note"]) == ("held", "step 3 of 4")
    assert 40_000 < last["expires_in_ms"] <= 50_000
    assert moment(last["last_heartbeat_at"]) >= moment(last["claimed_at"])
    assert abs(seconds_from_now(last["last_heartbeat_at"])) < 10
    text = alice.why(names[0]).text
    assert not any(secret in text for secret in (*(lease["lease_id"] for lease in leases), away))
    for request in (*waits, outside):
        request.close()


def test_why_ends_at_the_prefix_of_the_token(alice: Api, operator: Api, server: ServerProcess) -> None:
    """A token that is confined to a prefix learns nothing of names outside it, also not through a chain of waits."""
    inside, outside = f"{unique()}/inside", unique("outside")
    made = operator.post("/tokens", {"name": unique("token"), "prefix": inside[:8], "scopes": ["read"]}).json()
    alice.acquired(inside, owner="ana")
    alice.acquired(outside, owner="ben")
    with waiting(alice, outside, owner="ana"):
        answer = Api.of(server, made["token"]).why(inside)
        assert [(link["name"], link["waits_for"]) for link in answer.json()["chain"]] == [(inside, [])]
        assert outside not in answer.text
        assert [link["name"] for link in _why(alice, inside)["chain"]] == [inside, outside]


def test_why_reports_no_cycle_for_refused_waits(alice: Api) -> None:
    """D1: a wait that would close a circle was refused, so the chain has an end; one that is away is no wait."""
    stem = unique()
    a, b = f"{stem}/a", f"{stem}/b"
    alice.acquired(a, owner="ana")
    alice.acquired(b, owner="ben")
    request = waiting(alice, b, owner="ana")
    refused(alice.acquire(a, owner="ben", wait_seconds=5), 409, "deadlock")
    assert [link["owner"] for link in _why(alice, a)["chain"]] == ["ana", "ben"]
    request.close()
    wait_until(lambda: waiters(alice, b) == 0)
    assert [link["owner"] for link in _why(alice, a)["chain"]] == ["ana"]
    assert _why(alice, a)["circle"] is False


def test_why_shows_a_hundred_waiters(alice: Api, name: str) -> None:
    """The line is shown to a bound."""
    alice.acquired(name)
    for number in range(105):
        assert alice.acquire(name, owner=f"o-{number:03}", wait_seconds=0.001).json()["status"] == "waiting"
    shown = _why(alice, name)["waiting"]
    assert [each["owner"] for each in shown] == [f"o-{number:03}" for number in range(100)]


def test_a_confined_token_asks_only_of_its_own(alice: Api, operator: Api) -> None:
    """Each of these routes keeps to the token's prefix."""
    stem = unique("mine")
    made = operator.post("/tokens", {"name": unique("tok"), "prefix": f"{stem}/", "scopes": ["read", "claim", "admin"]})
    confined = Api(alice.host, alice.port, made.json()["token"])
    other = unique()
    lease = alice.acquired(other)
    for answer in (
        confined.why(other),
        confined.check(other, 1),
        confined.history(other),
        confined.revoke(other, reason="x"),
        confined.reopen(other),
        confined.transfer(other, lease["lease_id"], to_owner="x"),
    ):
        refused(answer, 403, "forbidden")
    confined.acquired(f"{stem}/a")
    assert confined.revoke(f"{stem}/a", reason="x").status == 204


# Sessions.


def test_sessions_are_listed(carol: Api, dave: Api) -> None:
    """S1: a token sees its own sessions and no secret; a session's secret sees that one."""
    assert carol.sessions().json() == {"sessions": [], "total": 0}
    made = [carol.new_session(name=f"run-{number}", metadata="m") for number in range(3)]
    dave.new_session(name="other")
    carol.acquired(unique(), session_id=made[0]["session_id"], ephemeral=True)
    answer = carol.sessions()
    body = answer.json()
    assert body["total"] == 3
    assert "next_after" not in body
    assert [each["session_id"] for each in body["sessions"]] == sorted(each["session_id"] for each in made)
    shown = {each["name"]: each["lock_count"] for each in body["sessions"]}
    assert shown == {"run-0": 1, "run-1": 0, "run-2": 0}
    assert all(each["active"] and each["metadata"] == "m" for each in body["sessions"])
    assert not any(session["session_secret"] in answer.text for session in made)
    run = Api(carol.host, carol.port, made[1]["session_secret"])
    assert [each["session_id"] for each in run.sessions().json()["sessions"]] == [made[1]["session_id"]]
    carol.end_session(made[0]["session_id"])
    assert carol.sessions().json()["total"] == 2


def test_renew_all(alice: Api, bob: Api, name: str) -> None:
    """S4: one call keeps the session and every lease bound to it alive, each for its own ttl; none is shortened."""
    session = alice.new_session(ttl_seconds=60)
    session_id = session["session_id"]
    fields = {"session_id": session_id, "ephemeral": True}
    short = alice.acquired(f"{name}/short", ttl_seconds=5, **fields)
    long = alice.acquired(f"{name}/long", ttl_seconds=50, **fields)
    loose = alice.acquired(f"{name}/loose", ttl_seconds=2, session_id=session_id)
    for _ in range(4):
        answer = alice.renew_all(session_id)
        body = answer.json()
        assert (answer.status, body["renewed"]) == (200, 2)
        assert 50_000 < body["expires_in_ms"] <= 60_000
        wait_until(lambda: alice.status(f"{name}/short").json()["expires_in_ms"] < 3_500)
    assert alice.status(f"{name}/short").json()["fencing_token"] == short["fencing_token"]
    assert alice.status(f"{name}/long").json()["expires_in_ms"] > 45_000
    assert alice.status(f"{name}/loose").json()["status"] == "free", loose
    assert long["fencing_token"] > short["fencing_token"]
    run = Api(alice.host, alice.port, session["session_secret"])
    assert run.renew_all(session_id).status == 200
    refused(bob.renew_all(session_id), 404, "not_found")
    other = Api(alice.host, alice.port, alice.new_session()["session_secret"])
    refused(other.renew_all(session_id), 404, "not_found")
    alice.end_session(session_id)
    refused(alice.renew_all(session_id), 404, "not_found")
    refused(alice.renew_all("nope"), 400, "invalid_input")
