"""Acquire by OctoStore's rules: acquired, held, reacquired, limited, and every name it takes or refuses."""

from __future__ import annotations

import uuid
from functools import partial

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import at_once, is_uuid, moment, refused, seconds_from_now, unique, wait_until


@pytest.fixture(scope="module")
def server_settings() -> dict[str, object]:
    """OctoStore's rules."""
    return callers.OCTOSTORE_SETTINGS


def test_acquired_has_everything_the_holder_needs(alice: Api, name: str) -> None:
    """C1: a free name is granted at once, with lease id, token, expiry, when to renew, and the metadata."""
    answer = alice.acquire(name, ttl_seconds=120, metadata="build 7")
    assert answer.status == 200
    lease = answer.json()
    assert lease["status"] == "acquired"
    assert is_uuid(lease["lease_id"])
    assert type(lease["fencing_token"]) is int and lease["fencing_token"] >= 1
    assert 115 < seconds_from_now(lease["expires_at"]) <= 121
    assert type(lease["renew_after_ms"]) is int and 58_000 < lease["renew_after_ms"] <= 60_000
    assert lease["metadata"] == "build 7"


def test_ttl_is_sixty_seconds_unless_said(alice: Api, name: str) -> None:
    """Without `ttl_seconds` a lease lives 60 s and should be renewed after half of that."""
    lease = alice.acquired(name)
    assert 55 < seconds_from_now(lease["expires_at"]) <= 61
    assert 28_000 < lease["renew_after_ms"] <= 30_000
    assert lease["metadata"] is None


@pytest.mark.parametrize("ttl_seconds", [1, 3600])
def test_ttl_bounds_are_inside(alice: Api, name: str, ttl_seconds: int) -> None:
    """A TTL of 1 s and of 3600 s is taken."""
    lease = alice.acquired(name, ttl_seconds=ttl_seconds)
    assert 0 < lease["renew_after_ms"] <= ttl_seconds * 500


@pytest.mark.parametrize("ttl_seconds", [0, 3601, 86_400])
def test_ttl_outside_is_400(alice: Api, name: str, ttl_seconds: int) -> None:
    """A TTL of 0 or more than 3600 is 400 `invalid_ttl` and grants nothing."""
    refused(alice.acquire(name, ttl_seconds=ttl_seconds), 400, "invalid_ttl")
    assert alice.status(name).json()["status"] == "free"


@pytest.mark.parametrize("metadata", ["", "x" * 1024, "é" * 1024, "🦭" * 1024, 'quotes " and \\ and \n lines', "null"])
def test_metadata_is_returned_unchanged(alice: Api, bob: Api, name: str, metadata: str) -> None:
    """Metadata of up to 1024 Unicode characters, the empty text too, comes back as it was sent."""
    assert alice.acquired(name, metadata=metadata)["metadata"] == metadata
    assert bob.held(name)["metadata"] == metadata
    assert bob.status(name).json()["metadata"] == metadata


@pytest.mark.parametrize("metadata", ["x" * 1025, "🦭" * 1025])
def test_longer_metadata_is_400(alice: Api, name: str, metadata: str) -> None:
    """1025 characters of metadata are 400 `invalid_input`."""
    refused(alice.acquire(name, metadata=metadata), 400, "invalid_input")


def test_held_names_no_secret(alice: Api, bob: Api, name: str) -> None:
    """C2: a refusal is a 200 with holder, expiry, metadata and when to try again; no lease id, no token, no Retry-
    After.
    """
    lease = alice.acquired(name, ttl_seconds=120, metadata="mine")
    answer = bob.acquire(name, ttl_seconds=5, metadata="theirs")
    assert answer.status == 200
    held = answer.json()
    assert held["status"] == "held"
    assert is_uuid(held["holder_id"])
    assert held["metadata"] == "mine"
    assert abs((moment(held["expires_at"]) - moment(lease["expires_at"])).total_seconds()) < 2
    assert type(held["retry_after_ms"]) is int and 115_000 < held["retry_after_ms"] <= 120_000
    assert "lease_id" not in held and "fencing_token" not in held
    assert lease["lease_id"] not in answer.text
    assert answer.headers.get("Retry-After") is None


def test_holder_id_is_a_stable_pseudonym(alice: Api, bob: Api, carol: Api, name: str) -> None:
    """The holder id is the same for everything a user holds, differs between users, and is not the user's own id."""
    for index in (1, 2):
        alice.acquired(f"{name}/{index}")
    carol.acquired(f"{name}/3")
    holders = [bob.held(f"{name}/{index}")["holder_id"] for index in (1, 2, 3)]
    assert holders[0] == holders[1] != holders[2]
    assert bob.status(f"{name}/1").json()["holder_id"] == holders[0]
    session = alice.new_session()
    assert alice.session(session["session_id"]).json()["user_id"] != holders[0]


def test_same_user_gets_its_lease_again(alice: Api, name: str) -> None:
    """C4 with `reentrant=holder`: the same user gets the same lease id and token; the stored metadata stays."""
    first = alice.acquired(name, ttl_seconds=30, metadata="first")
    again = alice.acquired(name, ttl_seconds=120, metadata="second", lock_delay_seconds=30)
    assert (again["lease_id"], again["fencing_token"]) == (first["lease_id"], first["fencing_token"])
    assert again["metadata"] == "first"
    assert seconds_from_now(again["expires_at"]) > 100
    assert 50_000 < again["renew_after_ms"] <= 60_000
    # The delay of the second request was ignored: the name is open right after the release.
    assert alice.release(name, first["lease_id"]).status == 200
    alice.acquired(name)


def test_reacquire_never_lowers_the_expiry(alice: Api, name: str) -> None:
    """Asking again with a shorter TTL leaves the expiry where it was."""
    first = alice.acquired(name, ttl_seconds=300)
    again = alice.acquired(name, ttl_seconds=5)
    assert again["lease_id"] == first["lease_id"]
    assert abs((moment(again["expires_at"]) - moment(first["expires_at"])).total_seconds()) < 2
    assert again["renew_after_ms"] > 140_000
    assert seconds_from_now(alice.status(name).json()["expires_at"]) > 290


def test_reacquire_ignores_a_session(alice: Api, name: str) -> None:
    """A reacquire of a plain lease with a `session_id` is the same plain lease; the session gets nothing."""
    first = alice.acquired(name)
    session_id = alice.new_session()["session_id"]
    assert alice.acquired(name, session_id=session_id)["lease_id"] == first["lease_id"]
    assert alice.session(session_id).json()["lock_count"] == 0


def test_processes_with_one_token_share_a_plain_lock(alice: Api, name: str) -> None:
    """With `reentrant=holder` five parallel acquires with one token all get the one lease."""
    bodies = at_once([lambda: alice.acquired(name)] * 5)
    assert len({body["lease_id"] for body in bodies}) == 1
    assert len({body["fencing_token"] for body in bodies}) == 1


def test_users_exclude_each_other(alice: Api, bob: Api, carol: Api, name: str) -> None:
    """I1: of parallel acquires by different users exactly one is granted."""
    answers = at_once([partial(api.acquire, name) for api in (alice, bob, carol)])
    assert sorted(answer.json()["status"] for answer in answers) == ["acquired", "held", "held"]


def test_tokens_rise_with_every_new_lease(alice: Api, bob: Api, name: str) -> None:
    """C6: each new lease of any name has a greater token, across release; a renewal keeps it."""
    tokens = []
    for index in range(3):
        lease = alice.acquired(f"{name}/{index}")
        tokens.append(lease["fencing_token"])
        alice.renew(f"{name}/{index}", lease["lease_id"])
        assert bob.status(f"{name}/{index}").json()["fencing_token"] == lease["fencing_token"]
    alice.release(f"{name}/0", alice.acquired(f"{name}/0")["lease_id"])
    tokens.append(bob.acquired(f"{name}/0")["fencing_token"])
    assert tokens == sorted(set(tokens))


def test_expired_name_goes_to_the_next(alice: Api, bob: Api, name: str) -> None:
    """T3: an expired lease is no obstacle: the successor gets a new lease id and a greater token."""
    first = alice.acquired(name, ttl_seconds=60)
    bob.held(name)
    assert alice.renew(name, first["lease_id"], ttl_seconds=1).status == 200
    second = wait_until(lambda: (body := bob.acquire(name).json())["status"] == "acquired" and body)
    assert second["lease_id"] != first["lease_id"]
    assert second["fencing_token"] > first["fencing_token"]


def test_delay_bounds(alice: Api, name: str) -> None:
    """A delay of 30 s is taken, of 31 s is 400 `invalid_input`."""
    alice.acquired(name, lock_delay_seconds=30)
    refused(alice.acquire(unique(), lock_delay_seconds=31), 400, "invalid_input")


def test_ephemeral_needs_a_live_session_of_the_caller(alice: Api, bob: Api, name: str) -> None:
    """`ephemeral` without a session is 400; a session that is unknown or somebody else's is 404 `not_found`."""
    refused(alice.acquire(name, ephemeral=True), 400, "invalid_input")
    foreign = bob.new_session()["session_id"]
    for session_id in (str(uuid.uuid4()), foreign):
        refused(alice.acquire(name, ephemeral=True, session_id=session_id), 404, "not_found")
        refused(alice.acquire(name, session_id=session_id), 404, "not_found")
    assert alice.status(name).json()["status"] == "free"


def test_acl_is_never_ignored(alice: Api, name: str) -> None:
    """`acl` is 422 although unknown fields are ignored: a list of who may enter must not be dropped in silence."""
    refused(alice.acquire(name, acl={"acquire": ["user:alice"]}), 422, "invalid_input")
    assert alice.status(name).json()["status"] == "free"


# Names.


@pytest.mark.parametrize(
    "given",
    [
        "a",
        "Build_7.2-rc",
        "repo/app/issue-1",
        "./a/.",
        ".hidden",
        "...",
        "jöb/日本語/٣",
        "x" * 64,
        "/".join(["y" * 64, "y" * 64, "y" * 64, "y" * 61]),
        "é" * 32,
        "__elections/x",
        "-",
        "a/release",
    ],
)
def test_names_that_are_taken(alice: Api, given: str) -> None:
    """N1: letters and digits of any script, `-`, `_`, `.`, joined by `/`; 256 bytes, 64 per component."""
    lease = alice.acquired(given)
    status = alice.status(given).json()
    assert (status["name"], status["status"]) == (given, "held")
    assert alice.renew(given, lease["lease_id"]).status == 200
    assert alice.release(given, lease["lease_id"]).status == 200


@pytest.mark.parametrize(
    "given",
    [
        "a b",
        "a!",
        "a*",
        "a@b",
        "a\\b",
        "a?b",
        "a#b",
        "a%b",
        "/a",
        "a/",
        "a//b",
        "a/../b",
        "../a",
        "x" * 65,
        "é" * 33,
        "/".join(["y" * 64, "y" * 64, "y" * 64, "y" * 62]),
        "🦭",
        "a\nb",
        "a\u200bb",
    ],
)
def test_names_that_are_refused(alice: Api, given: str) -> None:
    """N1: anything else is 400 `invalid_lock_name`, on every route, with the reason."""
    lease_id = str(uuid.uuid4())
    for answer in (
        alice.acquire(given),
        alice.status(given),
        alice.renew(given, lease_id),
        alice.release(given, lease_id),
    ):
        refused(answer, 400, "invalid_lock_name")


def test_names_are_compared_byte_for_byte(alice: Api, bob: Api, name: str) -> None:
    """N1: names that differ in case are different names."""
    alice.acquired(f"{name}/A")
    bob.acquired(f"{name}/a")


@pytest.mark.parametrize("caller", ["alice", "operator"])
def test_election_names_are_reserved(request: pytest.FixtureRequest, caller: str) -> None:
    """Names beginning `__election/` are 403 `forbidden` on every route, for everyone."""
    api: Api = request.getfixturevalue(caller)
    name = "__election/room-1234"
    lease_id = str(uuid.uuid4())
    answers = [api.acquire(name), api.status(name), api.renew(name, lease_id), api.release(name, lease_id)]
    answers.append(api.get("/locks/__election%2Froom-1234/watch"))
    for answer in answers:
        refused(answer, 403, "forbidden")


# The limit.


def test_a_user_holds_at_most_a_hundred(alice: Api, carol: Api, name: str) -> None:
    """The 101st lease is 403 `lock_limit_exceeded`, also on a name held by another; one's own may be reacquired; a
    release frees a slot.
    """
    session_id = carol.new_session()["session_id"]
    holder_id = _holder_of(carol, alice)
    already = sum(lock["holder_id"] == holder_id for lock in carol.locks().json()["locks"])
    leases = {}
    for index in range(100 - already):
        # A lease bound to a session counts like any other.
        fields: dict[str, object] = {"ephemeral": True, "session_id": session_id} if index == 0 else {}
        leases[index] = carol.acquired(f"{name}/{index}", **fields)
    alice.acquired(f"{name}/taken")
    refused(carol.acquire(f"{name}/more"), 403, "lock_limit_exceeded")
    refused(carol.acquire(f"{name}/taken"), 403, "lock_limit_exceeded")
    refused(carol.acquire(f"{name}/more", ephemeral=True, session_id=session_id), 403, "lock_limit_exceeded")
    assert carol.acquired(f"{name}/1")["lease_id"] == leases[1]["lease_id"]
    assert carol.renew(f"{name}/1", leases[1]["lease_id"]).status == 200
    assert alice.status(f"{name}/more").json()["status"] == "free"
    # The session is judged before the limit.
    refused(carol.acquire(f"{name}/more", ephemeral=True, session_id=str(uuid.uuid4())), 404, "not_found")
    assert carol.end_session(session_id).status == 204
    carol.acquired(f"{name}/more")
    refused(carol.acquire(f"{name}/yet-more"), 403, "lock_limit_exceeded")
    assert carol.release(f"{name}/1", leases[1]["lease_id"]).status == 200
    carol.acquired(f"{name}/yet-more")


def test_parallel_acquires_cannot_exceed_the_limit(dave: Api, name: str) -> None:
    """With one place left, eight parallel acquires of eight names make one lease."""
    for index in range(99):
        dave.acquired(f"{name}/{index}")
    answers = at_once([partial(dave.acquire, f"{name}/last-{index}") for index in range(8)])
    granted = [answer for answer in answers if answer.status == 200]
    assert len(granted) == 1
    for answer in answers:
        if answer.status != 200:
            refused(answer, 403, "lock_limit_exceeded")


def _holder_of(caller: Api, witness: Api) -> str:
    """The pseudonym others see for this caller."""
    name = unique("who")
    lease = caller.acquired(name)
    holder: str = witness.held(name)["holder_id"]
    caller.release(name, lease["lease_id"])
    return holder
