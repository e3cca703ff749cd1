"""POST /leases/watch: whoever holds a claim learns of its end at once, and of nothing else (L9)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import refused, unique, wait_until
from tests.support.http import EventStream
from tests.support.server import ServerProcess, serving

SAID = {"id", "name", "ended", "at", "by", "reason"}


@pytest.fixture(scope="module")
def server_settings() -> dict[str, object]:
    """Few streams for one token, and few names in a call."""
    return {"lease_watches_per_principal_max": 6, "names_per_call_max": 20}


def _following(stream: EventStream) -> dict[str, Any]:
    frame = stream.next()
    assert frame.field("event") == "following", frame
    found: dict[str, Any] = frame.json()
    return found


def _end(stream: EventStream) -> dict[str, Any]:
    frame = stream.next()
    assert frame.field("event") == "ended", frame
    found: dict[str, Any] = frame.json()
    assert set(found) == SAID
    return found


def test_revocation_is_reported_immediately_with_its_author(alice: Api, operator: Api, name: str) -> None:
    """L9: the holder of a lease with a long ttl hears of its revocation now, with the reason, and hears it once."""
    lease, other = alice.acquired(name, ttl_seconds=3600), f"{name}-other"
    held = alice.acquired(other, ttl_seconds=3600)
    with alice.watch_leases({name: lease["lease_id"], other: held["lease_id"]}) as stream:
        first = _following(stream)
        assert (first["following"], first["ended"], first["unknown"]) == (2, [], [])
        assert operator.revoke(name, reason="wrong branch").status == 204
        end = _end(stream)
        assert (end["id"], end["name"], end["ended"]) == (lease["lease_id"], name, "revoked")
        assert (end["by"], end["reason"]) == ("operator", "wrong branch")
        alice.release(other, held["lease_id"])
        assert _end(stream)["ended"] == "released", "the next that is told is the end of the other"


def test_every_kind_of_end_is_reported(alice: Api, name: str) -> None:
    """L9: released, expired, transferred, session_ended: each says how it ended, a session's own end too."""
    session = alice.create_session(ttl_seconds=60).json()["session_id"]
    bound = alice.acquired(f"{name}-bound", session_id=session, ephemeral=True, ttl_seconds=60)["lease_id"]
    passed = alice.acquired(f"{name}-passed", ttl_seconds=60)["lease_id"]
    short = alice.acquired(f"{name}-short", ttl_seconds=60)["lease_id"]
    leases = {f"{name}-bound": bound, f"{name}-passed": passed, f"{name}-short": short}
    with alice.watch_leases(leases, [session]) as stream:
        assert _following(stream)["following"] == 4
        assert alice.transfer(f"{name}-passed", passed, to_owner="next").status == 200
        handed = _end(stream)
        assert (handed["id"], handed["ended"], handed["by"]) == (passed, "transferred", "alice")
        assert alice.renew(f"{name}-short", short, ttl_seconds=1).status == 200
        assert (_end(stream)["id"], alice.end_session(session).status) == (short, 204)
        ends = [_end(stream), _end(stream)]
    assert [(end["id"], end["name"], end["ended"]) for end in ends] == [
        (session, None, "deleted"),
        (bound, f"{name}-bound", "session_ended"),
    ]


def test_transfer_by_an_operator_reaches_the_old_session(alice: Api, operator: Api, name: str) -> None:
    """L8a, L9: the stream of a session's secret reports a lease that an operator handed over."""
    run = Api(alice.host, alice.port, alice.new_session()["session_secret"])
    lease = run.acquired(name, owner="ana", ttl_seconds=60)["lease_id"]
    with run.watch_leases({name: lease}) as stream:
        assert _following(stream)["following"] == 1
        assert operator.hand_over(name, to_owner="ben", reason="ill").status == 204
        end = _end(stream)
    assert (end["id"], end["ended"], end["by"], end["reason"]) == (lease, "transferred", "operator", "ill")


def test_ended_leases_are_in_the_first_frame(alice: Api, operator: Api, name: str) -> None:
    """An end that came before the stream is in its first frame; what nobody knows is said to be unknown."""
    gone = alice.acquired(name, ttl_seconds=60)["lease_id"]
    operator.revoke(name, reason="too slow")
    session = alice.create_session(ttl_seconds=60).json()["session_id"]
    alice.end_session(session)
    never, no_session = str(uuid4()), str(uuid4())
    with alice.watch_leases({name: gone, f"{name}-never": never}, [session, no_session]) as stream:
        first = _following(stream)
    assert [(end["id"], end["ended"], end["reason"]) for end in first["ended"]] == [
        (gone, "revoked", "too slow"),
        (session, "deleted", None),
    ]
    assert all(set(end) == SAID for end in first["ended"])
    assert (first["following"], first["unknown"]) == (0, [never, no_session])


def test_later_claims_are_added(alice: Api, bob: Api, operator: Api, name: str) -> None:
    """One stream serves a process: leases are added to it by its id, by whoever could have opened it alone."""
    with alice.watch_leases() as stream:
        id_ = _following(stream)["stream"]
        lease = alice.acquired(name, ttl_seconds=60)["lease_id"]
        added = alice.add_to_lease_watch(id_, leases={name: lease}).json()
        assert (added["stream"], added["following"], added["ended"]) == (id_, 1, [])
        assert alice.add_to_lease_watch(id_, leases={name: lease}).json()["following"] == 1, "twice is once"
        refused(bob.add_to_lease_watch(id_, leases={name: lease}), 404, "not_found")
        refused(alice.add_to_lease_watch(str(uuid4()), leases={name: lease}), 404, "not_found")
        operator.revoke(name, reason="r")
        assert _end(stream)["id"] == lease
        late = alice.add_to_lease_watch(id_, leases={name: lease}).json()
        assert (late["following"], [end["ended"] for end in late["ended"]]) == (0, ["revoked"])
    wait_until(lambda: alice.add_to_lease_watch(id_, leases={}).status == 404)


def test_leases_of_other_principals_are_unknown(alice: Api, bob: Api, operator: Api, name: str) -> None:
    """L3: who may not renew a lease may not follow it, with its id either: not living, and not when it has ended."""
    lease = alice.acquired(name, ttl_seconds=60)["lease_id"]
    session = alice.create_session(ttl_seconds=60).json()["session_id"]
    with bob.watch_leases({name: lease}, [session]) as stream:
        first = _following(stream)
        assert (first["following"], first["unknown"]) == (0, [lease, session])
        operator.revoke(name, reason="r")
        late = bob.add_to_lease_watch(first["stream"], leases={name: lease}).json()
        assert (late["ended"], late["unknown"]) == ([], [lease])


def test_session_secret_watches_its_own_leases(server: ServerProcess, alice: Api, name: str) -> None:
    """S3: a run follows its own session and what is bound to it; its end is told before the stream ends with it."""
    opened = alice.create_session(ttl_seconds=60).json()
    run = Api.of(server, opened["session_secret"])
    lease = run.acquired(name, ttl_seconds=60)["lease_id"]
    foreign = alice.acquired(f"{name}-other", ttl_seconds=60)["lease_id"]
    with run.watch_leases({name: lease, f"{name}-other": foreign}, [opened["session_id"]]) as stream:
        first = _following(stream)
        assert (first["following"], first["unknown"]) == (2, [foreign])
        refused(alice.add_to_lease_watch(first["stream"], leases={}), 404, "not_found")
        alice.end_session(opened["session_id"])
        assert [_end(stream)["id"], _end(stream)["id"]] == [opened["session_id"], lease]
        assert stream.wait_for_end(5)


def test_claim_secret_watches_its_claim(server: ServerProcess, alice: Api, operator: Api, name: str) -> None:
    """What a command inside of `holdfast run` has is good for the ends of its own claim, and for no other."""
    lease = alice.acquired(name, ttl_seconds=60, key=unique())["lease_id"]
    other = alice.acquired(f"{name}-other", ttl_seconds=60, key=unique())["lease_id"]
    secret = alice.post("/claims/secret", {"lock_name": name, "lease_id": lease}).json()["claim_secret"]
    child = Api.of(server, secret)
    with child.watch_leases({name: lease, f"{name}-other": other}) as stream:
        first = _following(stream)
        assert (first["following"], first["unknown"]) == (1, [other])
        operator.revoke(name, reason="r")
        assert _end(stream)["id"] == lease
    with child.watch_leases({name: lease}) as stream:
        assert [end["ended"] for end in _following(stream)["ended"]] == ["revoked"]


def test_claim_secret_displaces_no_stream_of_its_token(tmp_path: Path) -> None:
    """L9: however often a command follows its claim, its supervisor hears of the revocation; the command is told."""
    with serving(tmp_path / "data", tokens=callers.TOKENS) as server, contextlib.ExitStack() as stack:
        holder = Api.of(server, callers.ALICE)
        lease = holder.acquired("job", ttl_seconds=600, key=unique())["lease_id"]
        secret = holder.post("/claims/secret", {"lock_name": "job", "lease_id": lease}).json()["claim_secret"]
        supervisor = stack.enter_context(holder.watch_leases({"job": lease}))
        assert _following(supervisor)["following"] == 1
        streams = [stack.enter_context(Api.of(server, secret).watch_leases({"job": lease})) for _ in range(9)]
        for stream in streams:
            _following(stream)
        frame = streams[0].next()
        assert (frame.field("event"), frame.json()) == ("displaced", {"id": lease})
        assert streams[0].wait_for_end(5)
        Api.of(server, callers.OPERATOR).revoke("job", reason="r")
        assert [_end(stream)["ended"] for stream in (supervisor, *streams[1:])] == ["revoked"] * 9


def test_cookie_ends_with_its_token(server: ServerProcess, operator: Api, name: str) -> None:
    """A token that is revoked follows nothing any more; the end of its sessions is the last that it hears."""
    token = operator.post("/tokens", {"name": unique(), "scopes": ["claim"]}).json()
    holder = Api.of(server, token["token"])
    session = holder.create_session(ttl_seconds=60).json()["session_id"]
    lease = holder.acquired(name, ttl_seconds=60, session_id=session, ephemeral=True)["lease_id"]
    with holder.watch_leases({name: lease}, [session]) as stream, holder.watch_leases() as idle:
        assert _following(stream)["following"] == 2
        assert _following(idle)["following"] == 0
        assert operator.delete(f"/tokens/{token['name']}").status == 204
        ends = [_end(stream), _end(stream)]
        assert [(end["id"], end["ended"]) for end in ends] == [(session, "revoked"), (lease, "session_ended")]
        assert stream.wait_for_end(5)
        assert idle.wait_for_end(5), "one that follows nothing ends too"


def test_lease_watches_have_their_own_limit(alice: Api, dave: Api, name: str) -> None:
    """A token has so many streams, apart from its watches, and is told the setting."""
    streams = [dave.watch_leases() for _ in range(6)]
    try:
        for stream in streams:
            _following(stream)
        with dave.watch_leases() as refused_one:
            assert refused_one.status == 429
            assert b"lease_watches_per_principal_max" in refused_one.refusal
        with dave.watch_lock(name) as watching, alice.watch_leases() as of_another:
            assert watching.next().json()["event"] == "released"
            assert _following(of_another)["following"] == 0
    finally:
        for stream in streams:
            stream.close()

    def opens_again() -> bool:
        with dave.watch_leases() as stream:
            return stream.status == 200

    wait_until(opens_again)


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"leases": {"a": "no-uuid"}}, 422, "not a UUID"),
        ({"sessions": ["no-uuid"]}, 422, "not a UUID"),
        ({"lease_ids": []}, 422, "did you mean 'leases'"),
        ({"leases": {f"n{n}": str(uuid4()) for n in range(15)}, "sessions": [str(uuid4())] * 6}, 422, "names_per_call"),
        (b'{"leases": {"a": "%b", "a": "%b"}}' % ((str(uuid4()).encode(),) * 2), 400, "stands twice"),
        (b"{", 400, "not JSON"),
    ],
)
def test_a_bad_body_is_refused_with_the_reason(alice: Api, body: object, status: int, says: str) -> None:
    """What cannot be meant is refused before a stream begins."""
    with EventStream(alice.host, alice.port, "/leases/watch", token=alice.token, body=body) as stream:
        assert (stream.status, says in stream.refusal.decode()) == (status, True), stream.refusal


def test_lease_watch_requires_claim_scope_and_post(server: ServerProcess, alice: Api, name: str) -> None:
    """Who may not claim holds nothing to follow. Ids never stand in an address: there is no GET."""
    with Api.of(server, callers.READER).watch_leases() as stream:
        assert (stream.status, b"'claim'" in stream.refusal) == (403, True)
    refused(alice.get("/leases/watch"), 405, "invalid_input")
    with Api.of(server, None).watch_leases() as stream:
        assert stream.status == 401


def test_a_connection_that_claimed_before_opens_a_stream(alice: Api, operator: Api, name: str) -> None:
    """The lane's short way for a repeated head does not take a stream for a plain request."""
    lease = alice.acquired(name, ttl_seconds=60)["lease_id"]
    body = b'{"leases": {"%b": "%b"}}' % (name.encode(), lease.encode())
    head = "POST {} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n"
    head += "Content-Length: {}\r\n\r\n"
    plain = body.replace(b"leases", b"labels")  # As long as the other; refused, which does not matter here.
    requests = [
        head.format(path, alice.token, len(body)).encode() + sent
        for path, sent in ((f"/locks/{name}/acquire", plain), ("/leases/watch", body))
    ]
    answer = alice.raw(requests[0] + requests[1], answers=3, timeout_seconds=2)
    assert answer.count(b"HTTP/1.1 ") == 2
    assert b"HTTP/1.1 200 " in answer and b"event: following" in answer, answer


def test_lease_watch_ends_when_the_server_stops(tmp_path: Path) -> None:
    """A server that is told to stop does not wait for those who follow."""
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        api = Api.of(server, callers.ALICE)
        lease = api.acquired("job", ttl_seconds=60)["lease_id"]
        with api.watch_leases({"job": lease}) as stream:
            _following(stream)
            server.terminate()
            assert stream.wait_for_end(5)
