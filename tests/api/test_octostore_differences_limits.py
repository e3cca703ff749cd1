"""The ordered list, probes, quotas, the lock delay, and tokens that only rise, with every setting at its default."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import at_once, has_request_id, refused, wait_until
from tests.support.server import ServerProcess


def _statuses(bodies: list[dict[str, Any]]) -> list[str]:
    return sorted(body["status"] for body in bodies)


# List.


def test_list_is_ordered_and_paged(alice: Api, name: str) -> None:
    """The list is ordered by name and comes in pages: `limit` bounds one, `after` continues it."""
    names = [f"{name}/{tail}" for tail in ("b", "a", "c", "a-1", "Z", "ä", "10", "9")]
    for each in names:
        alice.acquired(each)
    ordered = sorted(names, key=str.encode)
    assert [lock["name"] for lock in alice.locks(prefix=name).json()["locks"]] == ordered
    seen: list[str] = []
    for _ in range(len(names)):
        query: dict[str, object] = {"prefix": name, "limit": 3}
        if seen:
            query["after"] = seen[-1]
        page = [lock["name"] for lock in alice.locks(**query).json()["locks"]]
        assert len(page) <= 3
        if not page:
            break
        seen += page
    assert seen == ordered


def test_list_filters(alice: Api, bob: Api, name: str) -> None:
    """The list can be narrowed to an owner or to a session, together with a prefix."""
    session_id = alice.new_session()["session_id"]
    alice.acquired(f"{name}/1", owner="ana", session_id=session_id, ephemeral=True)
    alice.acquired(f"{name}/2", owner="ben", session_id=session_id)
    bob.acquired(f"{name}/3", owner="ana")
    by_owner = alice.locks(prefix=name, owner="ana").json()["locks"]
    assert [lock["name"] for lock in by_owner] == [f"{name}/1", f"{name}/3"]
    by_session = {lock["name"] for lock in alice.locks(prefix=name, session=session_id).json()["locks"]}
    # A plain lease that only names a session counts in it but does not belong to it; both readings are open.
    assert f"{name}/1" in by_session and f"{name}/3" not in by_session
    assert alice.locks(prefix=name, owner="nobody").json()["locks"] == []


@pytest.mark.parametrize("query", ["limit=abc", "limit=-1", "limit=1.5", "session=not-a-uuid"])
def test_bad_query_is_400(alice: Api, query: str) -> None:
    """A query value of the wrong kind is 400 `invalid_input`."""
    refused(alice.get(f"/locks?{query}"), 400, "invalid_input")


# Health, limits, delay.


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes(nobody: Api, path: str) -> None:
    """`/healthz` and `/readyz` are 200 for anyone while the server takes writes."""
    answer = nobody.get(path)
    assert answer.status == 200
    has_request_id(answer)


def test_quotas(tmp_path: Path) -> None:
    """Sessions and watches beyond the limit are 429 `quota_exceeded`, for that principal alone; an end makes room."""
    settings = {"sessions_per_principal_max": 3, "watches_per_principal_max": 2}
    with ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server:
        alice, bob = Api.of(server, callers.ALICE), Api.of(server, callers.BOB)
        sessions = [alice.new_session()["session_id"] for _ in range(3)]
        refused(alice.create_session(), 429, "quota_exceeded")
        bob.new_session()
        alice.end_session(sessions[0])
        answers = at_once([alice.create_session] * 4)
        assert sorted(answer.status for answer in answers) == [201, 429, 429, 429]

        streams = [alice.watch_lock("watched") for _ in range(2)]
        for stream in streams:
            stream.next()
        refused(alice.get("/locks/watched/watch"), 429, "quota_exceeded")
        with bob.watch_lock("watched") as stream:
            stream.next()
        streams.pop().close()

        def watch_again() -> bool:
            with alice.watch_lock("watched") as stream:
                return stream.status == 200

        wait_until(watch_again)
        streams.pop().close()


def test_lock_delay(alice: Api, bob: Api, name: str) -> None:
    """L6: after its release a name with a delay is 409 `delayed` to everyone, reads free, and opens again."""
    lease = alice.acquired(name, lock_delay_seconds=1, owner="ana")
    began = time.monotonic()
    alice.release(name, lease["lease_id"])
    answer = bob.acquire(name)
    body = answer.json()
    assert (answer.status, body["status"], body["lock_delay_seconds"]) == (409, "delayed", 1)
    assert alice.acquire(name, owner="ana", resume=True).status == 409
    assert bob.status(name).json()["status"] == "free"
    wait_until(lambda: bob.acquire(name).status == 200)
    assert time.monotonic() - began >= 0.99


def test_tokens_rise_across_every_kind_of_end(tmp_path: Path) -> None:
    """C6: a later grant has a greater token, across release, expiry, session end, stop and kill."""
    server = ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS)
    try:
        alice = Api.of(server, callers.ALICE)
        tokens = []
        lease = alice.acquired("job")
        tokens.append(lease["fencing_token"])
        alice.release("job", lease["lease_id"])
        tokens.append(alice.acquired("job", ttl_seconds=1)["fencing_token"])
        session_id = alice.new_session()["session_id"]
        bound = {"session_id": session_id, "ephemeral": True}
        body = wait_until(lambda: (got := alice.acquire("job", **bound).json())["status"] == "acquired" and got)
        tokens.append(body["fencing_token"])
        alice.end_session(session_id)
        for stop in (ServerProcess.terminate, ServerProcess.kill):
            lease = alice.acquired("job")
            tokens.append(lease["fencing_token"])
            alice.release("job", lease["lease_id"])
            stop(server)
            server = server.restart()
        tokens.append(alice.acquired("job")["fencing_token"])
        assert tokens == sorted(set(tokens))
    finally:
        server.kill()


def test_no_secret_is_logged(server: ServerProcess, alice: Api, name: str) -> None:
    """Neither tokens nor lease ids appear in what the server prints."""
    lease = alice.acquired(name)
    alice.release(name, lease["lease_id"])
    alice.get("/locks", token="a-wrong-token-0123456789")
    for secret in (callers.ALICE, callers.OPERATOR, lease["lease_id"], "a-wrong-token-0123456789"):
        assert secret not in server.log
