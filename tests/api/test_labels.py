"""Labels: what claims are marked with, shown wherever a claim is shown, and what lists and events can be asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import refused, unique
from tests.support.http import EventStream
from tests.support.pending import waiting
from tests.support.server import ServerProcess

INFRA = {"team": "infra", "pr": "1842", "url": "https://a:1/b"}


def _names(api: Api, prefix: str, *labels: str) -> list[str]:
    answer = api.locks(prefix=prefix, label=list(labels))
    assert answer.status == 200, answer
    return [lock["name"].removeprefix(prefix) for lock in answer.json()["locks"]]


def _changes(stream: EventStream, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while len(found) < count:
        found += stream.next(10).json()["changes"]
    return found


def test_labels_are_shown_wherever_a_claim_is(alice: Api, bob: Api, name: str) -> None:
    """They stand in the grant, the refusal, the look, the list, and the refusal of several; renewals leave them."""
    lease = alice.acquired(name, owner="ana", labels=INFRA)
    assert lease["labels"] == INFRA
    alice.renew(name, lease["lease_id"], metadata="new", note="half")
    assert bob.held(name)["labels"] == INFRA
    assert bob.status(name).json()["labels"] == INFRA
    assert bob.locks(prefix=name).json()["locks"][0]["labels"] == INFRA
    assert bob.claims(all=[name, unique("other")]).json()["held"][0]["labels"] == INFRA
    moved = alice.transfer(name, lease["lease_id"], to_owner="cem").json()
    assert moved["labels"] == INFRA


@pytest.mark.parametrize("labels", [None, {}])
def test_without_labels_nothing_is_said_of_them(alice: Api, bob: Api, name: str, labels: dict[str, str] | None) -> None:
    """A claim without labels is answered as it always was: no field more."""
    assert "labels" not in alice.acquired(name, labels=labels)
    assert "labels" not in bob.held(name)
    assert "labels" not in bob.status(name).json()


def test_a_list_can_be_asked_for_labels(alice: Api, bob: Api, name: str) -> None:
    """`label=key:value` is split at the first colon, and repeated it means and; it goes with the other filters."""
    prefix = name + "/"
    alice.acquired(prefix + "a", owner="ana", labels=INFRA)
    bob.acquired(prefix + "b", owner="ben", labels={"team": "infra", "pr": "7"})
    bob.acquired(prefix + "c", owner="ben", labels={"team": "web", "empty": ""})
    alice.acquired(prefix + "d")
    assert _names(bob, prefix) == ["a", "b", "c", "d"]
    assert _names(bob, prefix, "team:infra") == ["a", "b"]
    assert _names(bob, prefix, "team:infra", "pr:7") == ["b"]
    assert _names(bob, prefix, "url:https://a:1/b") == ["a"]
    assert _names(bob, prefix, "empty:") == ["c"]
    assert _names(bob, prefix, "team:infra", "team:web") == []
    assert _names(bob, prefix, "team:inf") == []
    found = bob.locks(prefix=prefix, label="team:infra", owner="ben").json()
    assert ([lock["name"] for lock in found["locks"]], found["total"]) == ([prefix + "b"], 1)
    page = bob.locks(prefix=prefix, label="team:infra", limit=1).json()
    assert (page["locks"][0]["name"], page["next_after"]) == (prefix + "a", prefix + "a")
    assert bob.locks(prefix=prefix, label="team:infra", limit=1, after=prefix + "a").json()["next_after"] is None


def test_events_can_be_asked_for_labels(alice: Api, bob: Api, operator: Api, name: str) -> None:
    """Grants, places in line, handovers and every end carry their labels, so a reader can ask for those alone."""
    prefix = name + "/"
    job, other = prefix + "job", prefix + "other"
    with bob.events(prefix=prefix, label=["team:infra", "pr:1842"]) as stream:
        stream.wait_for_comment(5)
        lease = alice.acquired(job, owner="ana", labels=INFRA)
        alice.acquired(other, owner="ana", labels={"team": "infra"})
        request = waiting(bob, job, owner="ben", labels={"team": "web"})
        alice.release(job, lease["lease_id"])
        operator.revoke(job, reason="maintenance")
        again = alice.acquired(job, owner="ana", labels=INFRA)
        bob.acquire(other, owner="ben", wait_seconds=0.001, labels=INFRA)
        moved = alice.transfer(job, again["lease_id"], to_owner="cem").json()
        alice.release(job, moved["lease_id"], outcome="done", remember_seconds=60)
        changes = _changes(stream, 6)
        request.close()
    assert [(each["event"], each["owner"]) for each in changes] == [
        ("granted", "ana"),
        ("released", "ana"),
        ("granted", "ana"),
        ("waiting", "ben"),
        ("transferred", "cem"),
        ("done", "cem"),
    ]
    assert all(each["labels"] == INFRA for each in changes)


def test_waiter_keeps_labels_of_its_claim(alice: Api, bob: Api, name: str) -> None:
    """Who is granted after a wait has the labels it asked for, and leaving the line tells them too."""
    lease = alice.acquired(name)
    with bob.events(prefix=name, label="who:ben") as stream:
        stream.wait_for_comment(5)
        ticket = bob.acquire(name, owner="ben", wait_seconds=0.001, labels={"who": "ben"}).json()["ticket"]
        assert bob.leave(ticket).status == 204
        assert [each["event"] for each in _changes(stream, 2)] == ["waiting", "left"]
    request = waiting(bob, name, owner="ben", labels={"who": "ben"})
    alice.release(name, lease["lease_id"])
    assert request.json()["labels"] == {"who": "ben"}
    request.close()


def test_labels_survive_a_restart(tmp_path: Path) -> None:
    """What was acknowledged with labels has them after kill -9, in leases and in the line (I5)."""
    data = tmp_path / "data"
    server = ServerProcess.start(data, tokens=callers.TOKENS)
    api = Api.of(server, callers.ALICE)
    api.acquired("job", owner="ana", labels=INFRA, ttl_seconds=600)
    ticket = api.acquire("job", owner="ben", wait_seconds=0.001, labels={"who": "ben"}).json()["ticket"]
    server.kill()
    with ServerProcess.start(data, tokens=callers.TOKENS) as again:
        api = Api.of(again, callers.ALICE)
        shown = api.status("job").json()
        assert shown["labels"] == INFRA
        assert api.release("job", api.acquired("job", owner="ana", resume=True)["lease_id"]).status == 200
        granted = api.acquire("job", owner="ben", wait_seconds=1, ticket=ticket, labels={"who": "ben"}).json()
        assert (granted["status"], granted["labels"]) == ("acquired", {"who": "ben"})


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ({f"k{number}": "v" for number in range(17)}, "at most 16 labels"),
        ({"": "v"}, "no key of a label"),
        ({"a b": "v"}, "no key of a label"),
        ({"a:b": "v"}, "no key of a label"),
        ({"ü": "v"}, "no key of a label"),
        ({"k" * 64: "v"}, "no key of a label"),
        ({"k": "v" * 129}, "at most 128 characters"),
    ],
)
def test_malformed_label_is_refused(alice: Api, name: str, labels: dict[str, str], says: str) -> None:
    """Too many, a key that is none, a value that is too long: 400 says what is allowed, and nothing is claimed."""
    assert says in refused(alice.acquire(name, labels=labels), 400, "invalid_input")["details"]
    assert says in refused(alice.claims(all=[name], labels=labels), 400, "invalid_input")["details"]
    assert alice.status(name).json()["status"] == "free"


def test_the_largest_labels_are_taken(alice: Api, name: str) -> None:
    """Sixteen of them, keys of 63 characters, values of 128: all of it comes back."""
    largest = {f"{'aZ9._-/' * 9}"[:61] + f"{number:02}": "ü" * 128 for number in range(16)}
    assert alice.acquired(name, labels=largest)["labels"] == largest


FULL = {f"{number:063}": "\x01" * 128 for number in range(16)}
"""As long as they can be: in JSON such a character takes six bytes."""


def test_labels_that_many_names_would_multiply_are_refused(alice: Api, name: str) -> None:
    """They stand in the lease of every name, so a small request for all of many would make megabytes."""
    names = [f"{name}/{number}" for number in range(1000)]
    says = refused(alice.claims(all=names, labels=FULL), 400, "invalid_input")["details"]
    assert "at most 1048576" in says and "fewer jobs" in says and "fewer labels" in says
    assert refused(alice.claims(all=names[:79], labels=FULL), 400, "invalid_input")
    assert alice.status(names[0]).json()["status"] == "free"
    a_kilobyte = {f"{number:02}": "v" * 120 for number in range(8)}
    for taken, labels in ((names[:78], FULL), (names, a_kilobyte)):
        session = alice.new_session()["session_id"]
        answer = alice.claims(all=taken, labels=labels, session_id=session, ephemeral=True)
        assert len(answer.json()["claims"]) == len(taken)
        assert alice.status(taken[-1]).json()["labels"] == labels
        assert alice.delete(f"/sessions/{session}").status == 204


def test_the_first_of_many_names_takes_the_largest_labels(alice: Api, name: str) -> None:
    """Only one name gets them."""
    assert alice.claims(any=[f"{name}/{number}" for number in range(1000)], labels=FULL).json()["status"] == "acquired"
    assert alice.status(f"{name}/0").json()["labels"] == FULL


@pytest.mark.parametrize("body", ['{"labels": {"a": 1}}', '{"labels": ["a"]}', '{"labels": "a:b"}'])
def test_labels_of_another_type_are_refused(alice: Api, name: str, body: str) -> None:
    """Labels are an object of texts; anything else is 422 and says where."""
    answer = alice.request("POST", f"/locks/{name}/acquire", body=body.encode())
    assert "labels" in refused(answer, 422, "invalid_input")["details"]


def test_a_label_that_stands_twice_is_refused(alice: Api, name: str) -> None:
    """Two values for one key: which one is meant cannot be known, so neither is taken."""
    answer = alice.request("POST", f"/locks/{name}/acquire", body=b'{"labels": {"a": "1", "a": "2"}}')
    assert "stands twice" in refused(answer, 400, "invalid_input")["details"]


def test_a_query_for_what_is_no_label_is_refused(alice: Api) -> None:
    """Without a colon there is no value to look for; where a route has no labels, asking for one is refused."""
    for answer in (alice.locks(label="team"), alice.get("/events?label=team")):
        assert "key:value" in refused(answer, 400, "invalid_input")["details"]
    assert "label" in refused(alice.get("/locks/job?label=a:b"), 400, "invalid_input")["details"]


def test_labels_are_part_of_a_request(alice: Api, name: str) -> None:
    """A retry with the same key and other labels is another request; with the same ones it is answered again (C5)."""
    key = unique("key")
    first = alice.acquire(name, key=key, labels=INFRA).json()
    assert alice.acquire(name, key=key, labels=INFRA).json()["lease_id"] == first["lease_id"]
    refused(alice.acquire(name, key=key, labels={"team": "web"}), 422, "idempotency_conflict")
    refused(alice.acquire(name, key=key), 422, "idempotency_conflict")


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (b'{"labels": {"a": "1", "b": "2"}}', b'{"labels": {"b": "2", "a": "1"}}'),
        (b'{"labels": {}}', b"{}"),
        (b"{}", b'{"labels": null}'),
    ],
)
def test_a_retry_may_write_the_same_labels_in_another_way(alice: Api, name: str, first: bytes, again: bytes) -> None:
    """An object has no order, and no labels are the same as none: such a retry gets the first answer again (C5)."""
    key = {"Idempotency-Key": unique("key")}
    path = f"/locks/{name}/acquire"
    granted = alice.request("POST", path, body=first, headers=key).json()
    assert alice.request("POST", path, body=again, headers=key).json()["lease_id"] == granted["lease_id"]


def test_the_document_says_that_a_label_may_stand_several_times(alice: Api) -> None:
    """A client that is made from the OpenAPI document can ask for several labels at once."""
    paths = alice.get("/openapi.json").json()["paths"]
    for path in ("/locks", "/events"):
        schemas = {each["name"]: each["schema"] for each in paths[path]["get"]["parameters"]}
        assert schemas["label"] == {"type": "array", "items": {"type": "string"}}
        assert schemas["prefix"] == {"type": "string"}
