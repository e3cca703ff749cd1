"""Lock watch by OctoStore's rules: server-sent events with a snapshot first and nothing secret in them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import moment, refused, seconds_from_now, unique
from tests.support.http import EventStream

WITH_LEASE = {"event", "lock_name", "fencing_token", "expires_at", "observed_at"}
WITHOUT_LEASE = {"event", "lock_name", "observed_at"}


@pytest.fixture(scope="module")
def server_settings() -> dict[str, object]:
    """OctoStore's rules."""
    return callers.OCTOSTORE_SETTINGS


@pytest.fixture(scope="module", autouse=True)
def quiet_stream(alice: Api) -> Iterator[EventStream]:
    """A stream on which nothing happens, opened first so that its keep-alive costs the last test little time."""
    with alice.watch_lock(unique("quiet")) as stream:
        yield stream


def test_stream_says_what_it_is(alice: Api, name: str) -> None:
    """A watch is 200, `text/event-stream`, `no-cache`."""
    with alice.watch_lock(name) as stream:
        assert stream.status == 200
        assert (stream.headers.get("Content-Type") or "").split(";")[0] == "text/event-stream"
        assert "no-cache" in (stream.headers.get("Cache-Control") or "")


def test_snapshot_of_a_free_name(alice: Api, name: str) -> None:
    """The first frame of a free name is `released`, and a frame is one `data:` line and nothing else."""
    with alice.watch_lock(name) as stream:
        frame = stream.next()
        assert len(frame.lines) == 1
        assert frame.lines[0].startswith("data: ")
        body = frame.json()
        assert set(body) == WITHOUT_LEASE
        assert (body["event"], body["lock_name"]) == ("released", name)
        assert abs(seconds_from_now(body["observed_at"])) < 5


def test_snapshot_of_a_held_name(alice: Api, bob: Api, name: str) -> None:
    """The first frame of a held name is `acquired` with token and expiry, for any reader."""
    lease = alice.acquired(f"{name}/x", metadata="private enough")
    with bob.watch_lock(f"{name}/x") as stream:
        frame = stream.next()
        body = frame.json()
        assert set(body) == WITH_LEASE
        assert (body["event"], body["lock_name"]) == ("acquired", f"{name}/x")
        assert body["fencing_token"] == lease["fencing_token"]
        assert abs((moment(body["expires_at"]) - moment(lease["expires_at"])).total_seconds()) < 2
        assert lease["lease_id"] not in frame.data and "private" not in frame.data


def test_watch_reports_lease_lifecycle(alice: Api, bob: Api, name: str) -> None:
    """Watchers hear `acquired`, `renewed`, `renewed` for a reacquire, `released`, in order, and never a secret."""
    with bob.watch_lock(name) as stream:
        assert stream.next().json()["event"] == "released"
        lease = alice.acquired(name, metadata="hidden", ttl_seconds=60)
        alice.renew(name, lease["lease_id"], ttl_seconds=120)
        alice.acquired(name, ttl_seconds=600)
        alice.release(name, lease["lease_id"])
        frames = [stream.next() for _ in range(4)]
        bodies = [frame.json() for frame in frames]
        assert [body["event"] for body in bodies] == ["acquired", "renewed", "renewed", "released"]
        for body in bodies[:3]:
            assert set(body) == WITH_LEASE
            assert body["fencing_token"] == lease["fencing_token"]
        assert set(bodies[3]) == WITHOUT_LEASE
        times = [moment(body["expires_at"]) for body in bodies[:3]]
        assert times == sorted(times)
        for frame in frames:
            assert len(frame.lines) == 1
            assert lease["lease_id"] not in frame.data and "hidden" not in frame.data


def test_watch_reports_expiry_in_time(alice: Api, bob: Api, name: str) -> None:
    """L2: `expired` leaves within 250 ms of its time, and not before it."""
    with bob.watch_lock(name) as stream:
        stream.next()
        began = time.monotonic()
        alice.acquired(name, ttl_seconds=1)
        granted = time.monotonic()
        assert stream.next_event("acquired")["lock_name"] == name
        frame = stream.next()
        body = frame.json()
        assert (body["event"], set(body)) == ("expired", WITHOUT_LEASE)
        assert frame.received_at - began >= 0.99
        # A loaded machine may be late by itself; OctoStore takes up to 5 s.
        assert frame.received_at - granted < 2.0


def test_end_of_a_session_is_released(alice: Api, name: str) -> None:
    """Deleting a session tells `released` to those who watch its ephemeral leases."""
    session_id = alice.new_session()["session_id"]
    alice.acquired(name, ephemeral=True, session_id=session_id)
    with alice.watch_lock(name) as stream:
        assert stream.next().json()["event"] == "acquired"
        alice.end_session(session_id)
        body = stream.next().json()
        assert (body["event"], set(body)) == ("released", WITHOUT_LEASE)
        assert session_id not in str(body)


def test_watch_reports_only_its_name(alice: Api, name: str) -> None:
    """A watch hears of its own name alone, not of names that begin with it."""
    with alice.watch_lock(name) as stream:
        stream.next()
        alice.acquired(f"{name}/child")
        alice.acquired(f"{name}x")
        alice.acquired(name)
        assert stream.next().json()["lock_name"] == name


def test_watch_does_not_report_refusals_and_reads(alice: Api, bob: Api, name: str) -> None:
    """A held refusal, a read and a failed renewal are no events."""
    lease = alice.acquired(name)
    with alice.watch_lock(name) as stream:
        stream.next()
        bob.held(name)
        bob.status(name)
        bob.renew(name, lease["lease_id"])
        alice.release(name, lease["lease_id"])
        assert stream.next().json()["event"] == "released"


def test_watchers_receive_the_same_events(alice: Api, name: str) -> None:
    """Every watcher of a name hears every event."""
    streams = [alice.watch_lock(name) for _ in range(5)]
    try:
        for stream in streams:
            stream.next()
        lease = alice.acquired(name)
        alice.release(name, lease["lease_id"])
        for stream in streams:
            assert [stream.next().json()["event"] for _ in range(2)] == ["acquired", "released"]
    finally:
        for stream in streams:
            stream.close()


def test_errors_are_ordinary_answers(alice: Api, nobody: Api) -> None:
    """A watch without a token is 401, of a bad name 400, of a reserved name 403: plain envelopes, no stream."""
    refused(nobody.get("/locks/a/watch"), 401, "authentication_required")
    refused(alice.get("/locks/a/watch", token="unknown-0123456789"), 401, "authentication_failed")
    refused(alice.get("/locks/a%20b/watch"), 400, "invalid_lock_name")
    refused(alice.get("/locks/__election%2Fx/watch"), 403, "forbidden")


def test_quiet_stream_gets_keepalives(quiet_stream: EventStream) -> None:
    """A stream on which nothing happens carries a comment every 15 s."""
    comment = quiet_stream.wait_for_comment(20)
    assert comment.received_at - quiet_stream.opened_at < 18
