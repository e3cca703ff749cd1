"""GET /ui/live: rows as they change, for whoever may read them, and for no longer than that."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import refused, unique, wait_until
from tests.support.http import EventStream, Frame
from tests.support.pending import waiting
from tests.support.server import ServerProcess
from tests.support.visitor import Visitor

PATH = "/ui/live"


def _live(api: Api, **headers: str) -> EventStream:
    return EventStream(api.host, api.port, PATH, token=api.token, headers=headers)


def _hello(stream: EventStream) -> dict[str, Any]:
    frame = stream.next()
    assert frame.field("event") == "hello", frame
    body: dict[str, Any] = frame.json()
    return body


def _find(stream: EventStream, fits: Callable[[dict[str, Any]], Any], seconds_max: float = 10.0) -> Any:  # noqa: ANN401 - what is found
    """What the first frame that fits says. Frames of others are passed over."""
    deadline = time.monotonic() + seconds_max
    while True:
        frame: Frame = stream.next(max(0.1, deadline - time.monotonic()))
        assert frame.field("event") == "rows", frame
        found = fits(frame.json())
        if found:
            return found


def _row(stream: EventStream, name: str) -> dict[str, Any]:
    found: dict[str, Any] = _find(
        stream, lambda body: next((row for row in body.get("rows", ()) if row["name"] == name), None)
    )
    return found


def _heartbeat(stream: EventStream, name: str) -> list[Any]:
    found: list[Any] = _find(
        stream, lambda body: next((heartbeat for heartbeat in body.get("beats", ()) if heartbeat[0] == name), None)
    )
    return found


def _gone(stream: EventStream, name: str) -> dict[str, Any]:
    found: dict[str, Any] = _find(
        stream, lambda body: next((gone for gone in body.get("gone", ()) if gone["name"] == name), None)
    )
    return found


def _with_token(operator: Api, scopes: list[str], **more: str) -> tuple[str, Api]:
    """The name of a new token, and a caller who has it."""
    name = unique("token")
    made = operator.post("/tokens", {"name": name, "scopes": scopes, **more})
    assert made.status == 201, made
    return name, Api(operator.host, operator.port, made.json()["token"])


# What is told.


def test_stream_begins_with_its_position(alice: Api) -> None:
    """The stream is one of server-sent events that nobody keeps, and begins with the server's time and record."""
    with _live(alice) as stream:
        assert stream.status == 200
        assert (stream.headers.get("Content-Type") or "").split(";")[0] == "text/event-stream"
        assert "no-store" in (stream.headers.get("Cache-Control") or "")
        hello = _hello(stream)
        assert abs(hello["now"] - time.time() * 1_000) < 60_000 and hello["seq"] >= 1


def test_stream_shows_job_lifecycle(alice: Api, bob: Api, operator: Api, name: str) -> None:
    """A claim, its heartbeat, its note, its line and its end are told as they happen, and never a lease id."""
    with _live(bob) as stream:
        _hello(stream)
        lease = alice.acquired(name, owner="ana", ttl_seconds=60, labels={"team": "web"}, metadata='{"model":"m"}')
        row = _row(stream, name)
        assert (row["owner"], row["labels"], row["fields"]) == ("ana", {"team": "web"}, [["model", "m"]])
        # Two clocks, each in whole milliseconds.
        assert row["ttl"] == 60_000 and abs(row["until"] - row["beat"] - row["ttl"]) <= 2
        alice.renew(name, lease["lease_id"], ttl_seconds=120)
        heartbeat = _heartbeat(stream, name)
        assert heartbeat[1] == row["token"] and heartbeat[4] == 120_000 and heartbeat[3] > row["until"]
        alice.renew(name, lease["lease_id"], note="tests pass")
        assert _row(stream, name)["note"] == "tests pass"
        request = waiting(bob, name, owner="ben")
        assert _row(stream, name)["line"] == 1
        request.close()
        operator.revoke(name, reason="maintenance")
        gone = _gone(stream, name)
        assert (gone["how"], gone["owner"], gone["by"], gone["reason"]) == ("revoked", "ana", "operator", "maintenance")
    assert not any(lease["lease_id"] in line for frame in stream.comments for line in frame.lines)


def test_a_claim_is_seen_soon(alice: Api, bob: Api) -> None:
    """From a claim to its row it takes far less than a second, where nothing else keeps the machine busy."""
    with _live(bob) as stream:
        _hello(stream)
        took = []
        for _ in range(5):
            name = unique()
            began = time.monotonic()
            alice.acquired(name, ttl_seconds=5)
            _row(stream, name)
            took.append(time.monotonic() - began)
        assert min(took) < 1.0, took


def test_finished_work_and_a_claim_without_an_owner(alice: Api, bob: Api, name: str) -> None:
    """Finished work is gone as `done`. A claim that named no owner is shown by its token, and marked."""
    with _live(bob) as stream:
        _hello(stream)
        lease = alice.acquired(name, ttl_seconds=60)
        row = _row(stream, name)
        assert row["unnamed"] and "alice" in row["owner"]
        alice.release(name, lease["lease_id"], outcome="done", remember_seconds=60)
        assert _gone(stream, name)["how"] == "done"


def test_many_changes_come_as_few_frames(alice: Api, bob: Api, name: str) -> None:
    """A hundred heartbeats in a row are told in a few frames: changes of a job are gathered."""
    lease = alice.acquired(name, ttl_seconds=60)
    with _live(bob) as stream:
        _hello(stream)
        began = time.monotonic()
        for _ in range(100):
            alice.renew(name, lease["lease_id"])
        took = time.monotonic() - began
        alice.renew(name, lease["lease_id"], note="the last")
        frames = 0

        def seen(body: dict[str, Any]) -> bool:
            nonlocal frames
            frames += 1
            return any(row["name"] == name and row.get("note") == "the last" for row in body.get("rows", ()))

        assert _find(stream, seen)
        assert frames <= took / 0.2 + 4, (frames, took)


# Who is told.


def test_stream_requires_read_scope(server: ServerProcess, nobody: Api, operator: Api) -> None:
    """Without a token it is 401, without the scope `read` 403, both as JSON."""
    refused(nobody.get(PATH), 401, "authentication_required")
    _, claimer = _with_token(operator, ["claim"])
    refused(claimer.get(PATH), 403, "forbidden")
    assert server.is_running()


def test_a_confined_token_sees_its_prefix_alone(alice: Api, operator: Api) -> None:
    """A token that is confined to a prefix is told of jobs below it, and of no others."""
    prefix = unique("acme") + "/"
    _, reader = _with_token(operator, ["read"], prefix=prefix)
    with _live(reader) as stream:
        _hello(stream)
        alice.acquired(unique("other"), ttl_seconds=60)
        alice.acquired(f"{prefix}job", ttl_seconds=60)
        frame = stream.next()
        assert [row["name"] for row in frame.json()["rows"]] == [f"{prefix}job"] and "totals" not in frame.json()
        assert "other-" not in frame.data


def test_a_revoked_token_ends_its_stream(alice: Api, operator: Api) -> None:
    """The stream ends at once with its token, and nothing of what happens afterwards is told."""
    name, reader = _with_token(operator, ["read"])
    with _live(reader) as stream:
        _hello(stream)
        assert operator.delete(f"/tokens/{name}").status == 204
        assert stream.wait_for_end(3)
        alice.acquired(unique(), ttl_seconds=5)
    with pytest.raises(AssertionError, match="ended"):
        stream.next(0.1)


def test_the_cookie_of_the_page_opens_it(server: ServerProcess, alice: Api, operator: Api, name: str) -> None:
    """The stream is opened with the cookie of whoever is signed in, and ends with the token behind it."""
    token_name, reader = _with_token(operator, ["read"])
    visitor = Visitor(server)
    assert reader.token is not None
    visitor.sign_in(reader.token)
    cookie = "; ".join(f"{key}={value}" for key, value in visitor.cookies.items())
    with EventStream(server.host, server.port, PATH, headers={"Cookie": cookie}) as stream:
        _hello(stream)
        alice.acquired(name, ttl_seconds=60)
        assert _row(stream, name)["name"] == name
        assert operator.delete(f"/tokens/{token_name}").status == 204
        assert stream.wait_for_end(3)


def test_a_session_secret_reads_until_its_session_ends(alice: Api, name: str) -> None:
    """With a session's secret the stream is open for as long as the session is."""
    session = alice.new_session(ttl_seconds=60)
    runner = Api(alice.host, alice.port, session["session_secret"])
    with _live(runner) as stream:
        _hello(stream)
        alice.acquired(name, ttl_seconds=60)
        assert _row(stream, name)["name"] == name
        alice.end_session(session["session_id"])
        assert stream.wait_for_end(3)


# What it costs.


def test_streams_are_bounded_for_each_token(carol: Api, server_settings: dict[str, object]) -> None:
    """A token may have so many pages open, and is then refused with the reason. They are no watches."""
    most = int(str(server_settings["watches_per_principal_max"]))
    streams = [_live(carol) for _ in range(most)]
    try:
        for stream in streams:
            _hello(stream)
        refused(carol.get(PATH), 429, "quota_exceeded")
        with carol.events() as other:
            assert other.status == 200
    finally:
        for stream in streams:
            stream.close()
    wait_until(lambda: carol.request("HEAD", PATH).status == 200)


@pytest.fixture(scope="module")
def server_settings() -> dict[str, object]:
    """Few streams, so that they are soon used up."""
    return {"watches_per_principal_max": 6}


TURNS = 15
"""Of 700 KB each: more than the kernel keeps on the way to somebody who takes nothing, and than is kept for it."""


def test_stalled_reader_gets_resync(server: ServerProcess, dave: Api, bob: Api) -> None:
    """Who does not read for long is not kept for: it is told `resync`, and goes on from there."""
    # Rows that are large, so that they soon fill all that the machine itself keeps on the way.
    labels = {f"label-{number}": "🦞" * 128 for number in range(16)}
    names = [unique("big") for _ in range(60)]
    leases = [dave.acquired(name, ttl_seconds=300, labels=labels)["lease_id"] for name in names]
    head = f"GET {PATH} HTTP/1.1\r\nHost: {server.host}:{server.port}\r\nAuthorization: Bearer {callers.BOB}\r\n\r\n"
    sock, other = socket.socket(), socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    with sock, other:
        for each in (sock, other):
            each.settimeout(20)
            each.connect((server.host, server.port))
            each.sendall(head.encode())
        for turn in range(TURNS):
            for name, lease in zip(names, leases, strict=True):
                dave.renew(name, lease, note=f"{turn}:" + "🦞" * 1_000)
            # One who reads tells when it was told: what changes faster than that is told once.
            received = b""
            while f'"note":"{turn}:'.encode() not in received or names[-1].encode() not in received:
                received += other.recv(1 << 20)
        seen = b""
        while b"event: resync" not in seen[-200_000:]:
            more = sock.recv(65_536)
            assert more, "the stream ended"
            seen += more
        last = unique("last")
        dave.acquired(last, ttl_seconds=60)
        while last.encode() not in seen[-200_000:]:
            seen += sock.recv(65_536)
    assert bob.get("/healthz").status == 200
