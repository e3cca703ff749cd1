"""Where Holdfast differs from OctoStore on purpose, with every setting at its default."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.api import Api, lock_path
from tests.support.checks import at_once, has_request_id, is_uuid, moment, refused, seconds_from_now, unique, wait_until


def _statuses(bodies: list[dict[str, Any]]) -> list[str]:
    return sorted(body["status"] for body in bodies)


# Every claim is its own claimer.


def test_five_agents_with_one_token_are_one_owner(alice: Api, name: str) -> None:
    """C3: of five parallel acquires with one token one is acquired and four are held."""
    bodies = at_once([lambda: alice.acquire(name).json()] * 5)
    assert _statuses(bodies) == ["acquired"] + ["held"] * 4


def test_five_agents_with_one_owner_name_are_one_owner(alice: Api, name: str) -> None:
    """C3, C4: the same with an equal `owner`: still one, and the refused are told that the name is their own."""
    bodies = at_once([lambda: alice.acquire(name, owner="triage").json()] * 5)
    assert _statuses(bodies) == ["acquired"] + ["held"] * 4
    assert all(body["same_owner"] is True for body in bodies if body["status"] == "held")


def test_two_subagents_of_one_session_are_one_owner(alice: Api, name: str) -> None:
    """C3: a session shared by five claimers makes one owner, too."""
    session_id = alice.new_session()["session_id"]
    bodies = at_once([lambda: alice.acquire(name, session_id=session_id, ephemeral=True).json()] * 5)
    assert _statuses(bodies) == ["acquired"] + ["held"] * 4


def test_resume_gives_the_owners_own_lease_back(alice: Api, name: str) -> None:
    """C4: with `resume` five parallel acquires of one owner all have the one lease, four of them `reacquired`."""
    bodies = at_once([lambda: alice.acquire(name, owner="triage", resume=True).json()] * 5)
    assert _statuses(bodies) == ["acquired"] * 5
    assert len({(body["lease_id"], body["fencing_token"]) for body in bodies}) == 1
    assert sorted(bool(body.get("reacquired")) for body in bodies) == [False] + [True] * 4


def test_resume_raises_the_expiry_and_never_lowers_it(alice: Api, name: str) -> None:
    """C4: a resumed lease ends at now + ttl if that is later, else when it did before."""
    first = alice.acquired(name, owner="a", ttl_seconds=60)
    longer = alice.acquired(name, owner="a", resume=True, ttl_seconds=600)
    shorter = alice.acquired(name, owner="a", resume=True, ttl_seconds=5)
    assert {body["lease_id"] for body in (first, longer, shorter)} == {first["lease_id"]}
    assert longer["reacquired"] is True and shorter["reacquired"] is True
    assert 590_000 < longer["expires_in_ms"] <= 600_000
    assert 590_000 < shorter["expires_in_ms"] <= 600_000


def test_resume_is_only_for_the_same_owner_of_the_same_token(alice: Api, bob: Api, name: str) -> None:
    """C4: another owner, or another token with the same owner, stays out although it asks to resume."""
    lease = alice.acquired(name, owner="a")
    assert alice.held(name, owner="b", resume=True)["same_owner"] is False
    alice.held(name, resume=True)
    bob.held(name, owner="a", resume=True)
    assert alice.renew(name, lease["lease_id"]).status == 200


def test_resume_in_a_session(alice: Api, name: str) -> None:
    """C4: the same session and owner get their lease back; another session of the same user does not."""
    one, two = (alice.new_session()["session_id"] for _ in range(2))
    first = alice.acquired(name, owner="a", ephemeral=True, session_id=one)
    again = alice.acquired(name, owner="a", ephemeral=True, session_id=one, resume=True)
    assert (again["lease_id"], again["reacquired"]) == (first["lease_id"], True)
    alice.held(name, owner="a", ephemeral=True, session_id=two, resume=True)
    alice.held(name, owner="b", ephemeral=True, session_id=one, resume=True)


def test_resume_of_a_free_name_is_a_claim(alice: Api, name: str) -> None:
    """C4: with nothing to resume, `resume` claims like any other."""
    assert not alice.acquired(name, owner="a", resume=True).get("reacquired")


# Strict bodies.


@pytest.mark.parametrize(
    ("body", "unknown", "nearest"),
    [
        ({"ttl_second": 5}, "ttl_second", "ttl_seconds"),
        ({"metdata": "x"}, "metdata", "metadata"),
        ({"Owner": "x"}, "Owner", "owner"),
        ({"lock_delay": 5}, "lock_delay", "lock_delay_seconds"),
    ],
)
def test_unknown_field_is_named_with_its_neighbour(
    alice: Api, name: str, body: dict[str, Any], unknown: str, nearest: str
) -> None:
    """A field nobody knows is 422, naming it and the nearest one that exists; nothing is granted."""
    details = refused(alice.acquire(name, **body), 422, "invalid_input")["details"]
    assert unknown in details
    assert nearest in details.replace(unknown, "", 1)
    assert alice.status(name).json()["status"] == "free"


def test_unknown_field_on_other_routes(alice: Api, name: str) -> None:
    """Renew, release and sessions refuse unknown fields as well, and change nothing."""
    lease_id = alice.acquired(name, ttl_seconds=600)["lease_id"]
    assert "keep_ttl" in refused(alice.renew(name, lease_id, kep_ttl=True), 422, "invalid_input")["details"]
    assert "colour" in refused(alice.release(name, lease_id, colour="red"), 422, "invalid_input")["details"]
    assert "ttl_seconds" in refused(alice.create_session(ttl_secs=5), 422, "invalid_input")["details"]
    assert alice.status(name).json()["expires_in_ms"] > 590_000


BAD_BODIES = [
    b'{"ttl_seconds": 5, "ttl_seconds": 600}',
    b'{"owner": "a", "ttl_seconds": 5, "owner": "b"}',
    b'{"ttl_seconds": 5, "ttl\\u005fseconds": 600}',
    b'{"ttl_seconds": NaN}',
    b'{"ttl_seconds": Infinity}',
    b'{"ttl_seconds": -Infinity}',
    b'{"metadata": NaN}',
    b'{"metadata": "\\ud800"}',
    b'{"metadata": "\\udc00\\ud800"}',
    b'{"owner": "\\ud83d"}',
    b'{"metadata": "\xed\xa0\x80"}',
    b'{"metadata": "\xff"}',
    b'{"metadata": "\x01"}',
    b'{"ttl_seconds": true}',
    b'{"lock_delay_seconds": false}',
    b'{"ephemeral": 1}',
    b'{"resume": "true"}',
    b'{"metadata": 5}',
    b'{"owner": 5}',
    b"[]",
    b"[60]",
]


@pytest.mark.parametrize("body", BAD_BODIES, ids=[f"{index}" for index in range(len(BAD_BODIES))])
def test_sloppy_json_is_refused(alice: Api, name: str, body: bytes) -> None:
    """Duplicate keys, NaN, lone surrogates, `true` for a number and the like are 400 or 422; nothing is granted."""
    refused(alice.post(f"{lock_path(name)}/acquire", body), (400, 422), "invalid_input")
    assert alice.status(name).json()["status"] == "free"


def test_known_names_inside_values_are_no_duplicates(alice: Api, name: str) -> None:
    """A value that looks like a field is a value: only keys count as duplicates."""
    text = '"ttl_seconds": 1, "ttl_seconds": 2, "owner": "owner"'
    assert alice.acquired(name, ttl_seconds=60, metadata=text, owner="owner")["metadata"] == text


def test_paired_surrogates_are_a_character(alice: Api, name: str) -> None:
    """An escaped pair of surrogates is one character, as JSON has it."""
    answer = alice.post(f"{lock_path(name)}/acquire", b'{"metadata": "\\ud83e\\uddad"}')
    assert answer.json()["metadata"] == "🦭"


def test_acl_is_refused(alice: Api, name: str) -> None:
    """`acl` is 422 and never ignored."""
    assert (
        "acl" in refused(alice.acquire(name, acl={"acquire": ["user:alice"]}), 422, "invalid_input")["details"].lower()
    )


def test_owner_is_at_most_128_characters(alice: Api, name: str) -> None:
    """An owner of 128 characters is taken, of 129 refused."""
    assert alice.acquired(name, owner="é" * 128)["owner"] == "é" * 128
    refused(alice.acquire(unique(), owner="é" * 129), (400, 422), "invalid_input")


def test_ttl_may_be_a_day(alice: Api, name: str) -> None:
    """A TTL of 86 400 s is taken, one second more is 400 `invalid_ttl`; the same for renew."""
    lease = alice.acquired(name, ttl_seconds=86_400)
    assert 86_390_000 < lease["expires_in_ms"] <= 86_400_000
    assert alice.renew(name, lease["lease_id"], ttl_seconds=86_400).status == 200
    refused(alice.renew(name, lease["lease_id"], ttl_seconds=86_401), 400, "invalid_ttl")
    refused(alice.acquire(unique(), ttl_seconds=86_401), 400, "invalid_ttl")


# Names.


def test_literal_slashes_are_part_of_the_name(alice: Api, name: str) -> None:
    """N2: `/locks/repo/app/issue-7/acquire` claims `repo/app/issue-7`, the same name as percent-encoded."""
    path = f"/locks/repo/app/{name}"
    lease = alice.post(f"{path}/acquire", {}).json()
    assert lease["status"] == "acquired"
    assert alice.get(path).json()["name"] == f"repo/app/{name}"
    assert alice.status(f"repo/app/{name}").json()["fencing_token"] == lease["fencing_token"]
    alice.held(f"repo/app/{name}")
    assert alice.post(f"{path}/renew", {"lease_id": lease["lease_id"]}).status == 200
    assert alice.post(f"{path}/release", {"lease_id": lease["lease_id"]}).body == b"null"


@pytest.mark.parametrize(
    "uri",
    [
        "github://acme/app/issues/{}",
        "urn:job:{}",
        "https://example.org/a?b=c&d={}#x",
        "x-y.z+1:{}",
        "file:///tmp/{}",
        "k8s:ns/pod@{}",
    ],
)
def test_uri_names(alice: Api, bob: Api, name: str, uri: str) -> None:
    """N1: a URI is a name, as one percent-encoded segment, shown as it was given."""
    given = uri.format(name)
    lease = alice.acquired(given)
    bob.held(given)
    assert bob.status(given).json()["name"] == given
    assert [lock["name"] for lock in bob.locks(prefix=given).json()["locks"]] == [given]
    assert alice.renew(given, lease["lease_id"]).status == 200
    with bob.watch_lock(given) as stream:
        assert stream.next().json()["lock_name"] == given
    assert alice.release(given, lease["lease_id"]).status == 200


def test_uri_with_literal_slashes(alice: Api, name: str) -> None:
    """N2: a URI may also be written out, double slash and all; it is the same name."""
    uri = f"github://acme/app/issues/{name}"
    lease = alice.post(f"/locks/{uri}/acquire", {}).json()
    assert lease["status"] == "acquired"
    assert alice.get(f"/locks/{quote(uri, safe='')}").json()["fencing_token"] == lease["fencing_token"]
    assert alice.get(f"/locks/{uri}").json()["name"] == uri


def test_last_segment_is_the_verb(alice: Api, name: str) -> None:
    """N2: a known verb as the last segment is the verb, whatever the method; encoded, it is part of the name."""
    refused(alice.get(f"/locks/{name}/acquire"), 405, "invalid_input")
    refused(alice.post(f"/locks/{name}/watch", {}), 405, "invalid_input")
    alice.acquired(f"{name}/acquire")
    assert alice.status(f"{name}/acquire").json()["status"] == "held"
    assert alice.post(f"/locks/{name}/release/acquire", {}).json()["status"] == "acquired"
    assert alice.status(f"{name}/release").json()["status"] == "held"


@pytest.mark.parametrize("reserved", ["list", "status"])
def test_reserved_names(alice: Api, name: str, reserved: str) -> None:
    """N1: `list` and `status` alone cannot be claimed; as a part of a name they can."""
    refused(alice.acquire(reserved), (400, 403), ("invalid_lock_name", "forbidden"))
    alice.acquired(f"{reserved}/{name}")
    alice.acquired(f"{name}/{reserved}")


def test_refused_name_says_why(alice: Api) -> None:
    """N1: a bad name is refused with the reason and the offending character."""
    assert "!" in refused(alice.acquire("what!"), 400, "invalid_lock_name")["details"]


# Refusals.


def test_refusal_has_what_the_caller_needs(alice: Api, bob: Api, name: str) -> None:
    """C2: a refusal names owner, metadata, since when, until when, last heartbeat, note and how many wait. Never the
    lease id.
    """
    lease = alice.acquired(name, owner="agent-3", metadata="pr 7", ttl_seconds=300)
    before = bob.held(name, owner="agent-4")
    time.sleep(0.05)
    alice.renew(name, lease["lease_id"], ttl_seconds=300, note="tests pass")
    answer = bob.acquire(name, owner="agent-4")
    held = answer.json()
    assert held["status"] == "held"
    assert (held["owner"], held["same_owner"], held["metadata"]) == ("agent-3", False, "pr 7")
    assert (held["note"], held["waiting"]) == ("tests pass", 0)
    assert moment(held["claimed_at"]) == moment(before["claimed_at"])
    assert moment(held["last_heartbeat_at"]) > moment(before["last_heartbeat_at"]) >= moment(held["claimed_at"])
    assert abs(seconds_from_now(held["claimed_at"])) < 10
    assert is_uuid(held["holder_id"])
    assert 290_000 < held["retry_after_ms"] <= 300_000
    assert 290 < seconds_from_now(held["expires_at"]) <= 301
    assert lease["lease_id"] not in answer.text
    assert "fencing_token" not in held


def test_refusal_without_an_owner(alice: Api, bob: Api, name: str) -> None:
    """C2: a claim without an owner is refused to others with `owner: null` and `same_owner: false`."""
    alice.acquired(name)
    held = bob.held(name)
    assert (held["owner"], held["same_owner"], held["note"]) == (None, False, None)


def test_on_held_409(alice: Api, bob: Api, name: str) -> None:
    """With `?on_held=409` a held name is a 409 with `Retry-After` and the same body; a free name is still a 200."""
    assert alice.acquire(name, on_held="409", ttl_seconds=100).status == 200
    answer = bob.acquire(name, on_held="409")
    assert answer.status == 409
    assert answer.json()["status"] == "held"
    assert 90 <= int(answer.headers["Retry-After"]) <= 100
    has_request_id(answer)
    assert bob.acquire(name).status == 200


def test_on_held_takes_no_other_word(alice: Api, name: str) -> None:
    """A bad query is 400, before anything is granted."""
    refused(alice.acquire(name, on_held="banana"), 400, "invalid_input")
    assert alice.status(name).json()["status"] == "free"


# Who was there before.


def test_answer_to_a_first_claim(alice: Api, name: str) -> None:
    """T4, C7: a grant also says owner, since when, how long in milliseconds, that it did not wait, and that nobody
    was there before.
    """
    lease = alice.acquired(name, owner="ana", ttl_seconds=100)
    assert lease["owner"] == "ana"
    assert abs(seconds_from_now(lease["claimed_at"])) < 10
    assert 99_000 < lease["expires_in_ms"] <= 100_000
    assert lease["renew_after_ms"] <= 50_000
    assert lease.get("waited_ms", 0) == 0
    assert not lease.get("reacquired")
    assert lease.get("previous") is None


def test_successor_learns_who_was_there(alice: Api, bob: Api, name: str) -> None:
    """C7: after an expiry the successor gets the predecessor's owner, token, last note, how and when it ended;
    attempts count up.
    """
    first = alice.acquired(name, owner="ana", ttl_seconds=600)
    alice.renew(name, first["lease_id"], ttl_seconds=1, note="half way")
    second = wait_until(lambda: (body := bob.acquire(name, owner="ben").json())["status"] == "acquired" and body)
    previous = second["previous"]
    assert (previous["owner"], previous["fencing_token"]) == ("ana", first["fencing_token"])
    assert (previous["ended"], previous["note"]) == ("expired", "half way")
    assert abs(seconds_from_now(previous["at"])) < 15
    assert second["attempts"] == first["attempts"] + 1
    assert bob.status(name).json()["attempts"] == second["attempts"]
    bob.release(name, second["lease_id"])
    third = alice.acquired(name, owner="cleo")
    assert (third["previous"]["owner"], third["previous"]["ended"]) == ("ben", "released")
    assert third["previous"]["note"] is None
    assert third["attempts"] == first["attempts"]


def test_session_end_is_a_way_to_end(alice: Api, bob: Api, name: str) -> None:
    """C7: the successor of a lease that ended with its session is told `session_ended`, and attempts count up."""
    session_id = alice.new_session()["session_id"]
    first = alice.acquired(name, owner="ana", session_id=session_id, ephemeral=True)
    alice.end_session(session_id)
    second = bob.acquired(name)
    assert second["previous"]["ended"] == "session_ended"
    assert second["attempts"] == first["attempts"] + 1


# Renew.


def test_keep_ttl(alice: Api, name: str) -> None:
    """L3: `keep_ttl` renews by the lease's own TTL; without it and without a TTL it is 60 s."""
    lease = alice.acquired(name, ttl_seconds=300)
    renewed = alice.renew(name, lease["lease_id"], keep_ttl=True).json()
    assert 295_000 < renewed["expires_in_ms"] <= 300_000
    assert 55_000 < alice.renew(name, lease["lease_id"]).json()["expires_in_ms"] <= 60_000


def test_note_and_metadata_are_seen_at_once(alice: Api, bob: Api, name: str) -> None:
    """L4: a renewal may carry a note and new metadata; both are visible at once and stay until the next."""
    lease = alice.acquired(name, metadata="old")
    assert alice.renew(name, lease["lease_id"], note="step 1", metadata="new").status == 200
    alice.renew(name, lease["lease_id"])
    for body in (bob.held(name), bob.status(name).json(), bob.locks(prefix=name).json()["locks"][0]):
        assert (body["note"], body["metadata"]) == ("step 1", "new")
    alice.renew(name, lease["lease_id"], note="step 2")
    assert bob.status(name).json()["note"] == "step 2"
    assert bob.status(name).json()["metadata"] == "new"


@pytest.mark.parametrize("field", ["note", "metadata"])
def test_note_and_metadata_have_a_limit(alice: Api, name: str, field: str) -> None:
    """L4: 1024 characters are taken, 1025 are refused and change nothing."""
    lease = alice.acquired(name, ttl_seconds=600)
    refused(alice.renew(name, lease["lease_id"], **{field: "é" * 1025}), (400, 422), "invalid_input")
    assert alice.status(name).json()["expires_in_ms"] > 590_000
    assert alice.renew(name, lease["lease_id"], **{field: "é" * 1024}).status == 200


def test_status_shows_the_claim(alice: Api, bob: Api, name: str) -> None:
    """Status also shows owner, since when, last heartbeat, time left, session, who waits and attempts."""
    session_id = alice.new_session()["session_id"]
    alice.acquired(name, owner="ana", session_id=session_id, ephemeral=True)
    body = bob.status(name).json()
    assert (body["owner"], body["waiting"], body["note"]) == ("ana", 0, None)
    assert 0 < body["expires_in_ms"] <= 60_000
    assert moment(body["last_heartbeat_at"]) >= moment(body["claimed_at"])
    assert body["attempts"] >= 1
    assert "session" in body
