"""Health, status, docs and OpenAPI by OctoStore's rules; what a restart keeps; how the server stops."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from pathlib import Path

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import has_request_id, is_uuid, refused, seconds_from_now, unique, wait_until
from tests.support.http import Answer
from tests.support.server import ServerFailed, ServerProcess

ROUTES = {
    "/locks": {"get"},
    "/locks/{}": {"get"},
    "/locks/{}/acquire": {"post"},
    "/locks/{}/renew": {"post"},
    "/locks/{}/release": {"post"},
    "/locks/{}/watch": {"get"},
    "/sessions": {"post"},
    "/sessions/{}": {"get", "delete"},
    "/sessions/{}/keepalive": {"post"},
    "/health": {"get"},
    "/status": {"get"},
}


@pytest.fixture(scope="module")
def server_settings() -> dict[str, object]:
    """OctoStore's rules."""
    return callers.OCTOSTORE_SETTINGS


@pytest.mark.usefixtures("one_server")
def test_health(nobody: Api) -> None:
    """`/health` needs no token and says `ok`, how it stores, and how large the database is."""
    answer = nobody.get("/health")
    assert (answer.status, answer.content_type) == (200, "application/json")
    body = answer.json()
    assert (body["status"], body["storage"]) == ("ok", "wal")
    assert type(body["db_size_bytes"]) is int and body["db_size_bytes"] >= 0
    assert type(body["disk_free_bytes"]) is int and body["disk_free_bytes"] >= 0


def test_status_counts(alice: Api, nobody: Api, name: str) -> None:
    """`/status` needs no token and counts live leases, acquires (a reacquire is one) and releases since the start."""
    before = nobody.get("/status").json()
    assert before["status"] == "ok"
    for field in ("active_locks", "total_users", "total_acquires", "total_releases"):
        assert type(before[field]) is int and before[field] >= 0, field
    assert before["uptime_seconds"] >= 0
    lease = alice.acquired(f"{name}/1", ttl_seconds=3600)
    alice.acquired(f"{name}/1", ttl_seconds=3600)
    alice.acquired(f"{name}/2", ttl_seconds=3600)
    alice.release(f"{name}/1", lease["lease_id"])
    after = nobody.get("/status").json()
    assert after["active_locks"] == before["active_locks"] + 1
    assert after["total_acquires"] == before["total_acquires"] + 3
    assert after["total_releases"] == before["total_releases"] + 1
    assert after["uptime_seconds"] >= before["uptime_seconds"]


def test_refusals_are_counted_apart(alice: Api, bob: Api, nobody: Api, name: str) -> None:
    """A held refusal and a failed release count as neither acquire nor release, but as refusals."""
    lease = alice.acquired(name)
    before = nobody.get("/status").json()
    bob.held(name)
    bob.release(name, lease["lease_id"])
    after = nobody.get("/status").json()
    assert [after[key] for key in ("total_acquires", "total_releases")] == [
        before[key] for key in ("total_acquires", "total_releases")
    ]
    assert after["total_refusals"] == before["total_refusals"] + 2


def test_a_retry_is_counted_once(alice: Api, nobody: Api, name: str) -> None:
    """What has a record is counted by it: the same answer again, for the same key, is no second acquire or release."""
    before = nobody.get("/status").json()
    _, _, lease = (alice.acquire(name, key=f"{name}-in").json() for _ in range(3))
    claims = alice.claims(all=[f"{name}/1", f"{name}/2"]).json()["claims"]
    for _ in range(3):
        assert alice.release(name, lease["lease_id"], key=f"{name}-out").status == 200
    moved = alice.transfer(claims[0]["name"], claims[0]["lease_id"], to_owner="ben")
    assert moved.status == 200
    after = nobody.get("/status").json()
    assert after["total_acquires"] == before["total_acquires"] + 3
    assert after["total_releases"] == before["total_releases"] + 1
    assert after["total_refusals"] == before["total_refusals"]


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages(nobody: Api, path: str) -> None:
    """`/` and `/docs` are HTML for anyone, without script in the page, under a content policy, not to be sniffed."""
    answer = nobody.get(path)
    assert (answer.status, answer.content_type) == (200, "text/html")
    assert "default-src 'none'" in (answer.headers.get("Content-Security-Policy") or "")
    assert answer.headers.get("X-Content-Type-Options") == "nosniff"
    assert "<html" in answer.text.lower()
    assert all("src=" in script for script in re.findall(r"<script[^>]*>", answer.text.lower()))
    has_request_id(answer)


def test_openapi_json(nobody: Api) -> None:
    """`/openapi.json` describes every route of this API, for anyone."""
    answer = nobody.get("/openapi.json")
    assert (answer.status, answer.content_type) == (200, "application/json")
    document = answer.json()
    assert document["openapi"].startswith("3.")
    assert document["info"]["title"] and document["info"]["version"]
    described = {re.sub(r"\{[^}]*\}", "{}", path): set(item) for path, item in document["paths"].items()}
    for path, methods in ROUTES.items():
        assert path in described, path
        assert methods <= described[path], path
    json.dumps(document, allow_nan=False)


def test_openapi_yaml(nobody: Api) -> None:
    """`/openapi.yaml` is YAML of the same document, with its version filled in."""
    answer = nobody.get("/openapi.yaml")
    assert (answer.status, answer.content_type) == (200, "application/yaml")
    document = nobody.get("/openapi.json").json()
    assert "openapi" in answer.text
    assert document["info"]["version"] in answer.text
    for path in document["paths"]:
        assert path in answer.text


def test_every_operation_is_described(nobody: Api) -> None:
    """Every operation of the OpenAPI document has answers, and every reference in it leads somewhere."""
    document = nobody.get("/openapi.json").json()
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method in ("get", "post", "put", "delete"):
                assert operation["responses"], f"{method} {path}"
    for reference in re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document)):
        target = document
        for step in reference.split("/"):
            target = target[step.replace("~1", "/").replace("~0", "~")]


# Restart and stop, each on a server of its own.


def test_restart_keeps_acknowledged_leases(tmp_path: Path) -> None:
    """C6, I5: leases, sessions, delays and the counter come back after a stop and after a kill."""
    server = ServerProcess.start(tmp_path / "data", settings=callers.OCTOSTORE_SETTINGS, tokens=callers.TOKENS)
    try:
        alice, bob = Api.of(server, callers.ALICE), Api.of(server, callers.BOB)
        name = unique()
        session_id = alice.new_session(ttl_seconds=300)["session_id"]
        plain = alice.acquired(f"{name}/plain", ttl_seconds=600, metadata="kept")
        bound = alice.acquired(f"{name}/bound", ttl_seconds=600, ephemeral=True, session_id=session_id)
        cooling = alice.acquired(f"{name}/cooling", lock_delay_seconds=30)
        alice.release(f"{name}/cooling", cooling["lease_id"])
        gone = alice.acquired(f"{name}/gone")
        alice.release(f"{name}/gone", gone["lease_id"])
        holder_id = bob.held(f"{name}/plain")["holder_id"]
        for stop in (lambda old: old.terminate() == 0, lambda old: old.kill() is None):
            assert stop(server), server.log
            server = server.restart()
            held = bob.held(f"{name}/plain")
            assert (held["metadata"], held["holder_id"]) == ("kept", holder_id)
            assert 500 < seconds_from_now(held["expires_at"]) < 620
            assert bob.acquire(f"{name}/cooling").status == 409
            assert bob.status(f"{name}/gone").json()["status"] == "free"
            assert alice.session(session_id).json()["lock_count"] == 1
            assert alice.keepalive(session_id).status == 200
            assert alice.renew(f"{name}/plain", plain["lease_id"], ttl_seconds=600).status == 200
            assert alice.renew(f"{name}/bound", bound["lease_id"], ttl_seconds=600).status == 200
            newer = bob.acquired(unique())["fencing_token"]
            assert newer > gone["fencing_token"]
            gone["fencing_token"] = newer
    finally:
        server.kill()


def test_two_servers_cannot_share_a_data_directory(tmp_path: Path) -> None:
    """A second server on the same data directory refuses to start and says why; the first goes on."""
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        with pytest.raises(ServerFailed) as failed:
            ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS)
        assert failed.value.returncode not in (0, None), failed.value.output
        assert "Traceback" not in failed.value.output
        assert str(tmp_path / "data") in failed.value.output or "data" in failed.value.output.lower()
        Api.of(server, callers.ALICE).acquired(unique())


def test_stop_answers_requests_in_flight(tmp_path: Path) -> None:
    """SIGTERM under load: every request that got an answer got a whole one, the exit code is 0, open watches do not
    hold it up.
    """
    server = ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS)
    try:
        api = Api.of(server, callers.ALICE)
        stream = api.watch_lock(unique())
        stream.next()
        granted: list[tuple[str, str]] = []
        odd: list[Answer] = []
        torn: list[str] = []

        def load() -> None:
            while True:
                name = unique("load")
                try:
                    answer = api.acquire(name, ttl_seconds=600)
                except http.client.IncompleteRead:
                    torn.append(name)
                    return
                except (OSError, http.client.HTTPException):
                    return
                body = answer.json()
                if answer.status == 200 and body["status"] == "acquired":
                    granted.append((name, body["lease_id"]))
                else:
                    odd.append(answer)

        threads = [threading.Thread(target=load, daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(granted) > 50)
        assert server.terminate() == 0, server.log
        for thread in threads:
            thread.join(5)
            assert not thread.is_alive()
        assert stream.wait_for_end(5)
        stream.close()
        assert torn == []
        # A request that came too late may be told so, in words; nothing else may go wrong.
        assert {answer.status for answer in odd} <= {503}
        server = server.restart()
        held = {lock["name"] for lock in _all_locks(Api.of(server, callers.ALICE))}
        assert {name for name, _ in granted} <= held
        assert all(is_uuid(lease_id) for _, lease_id in granted)
    finally:
        server.kill()


def _all_locks(api: Api) -> list[dict[str, object]]:
    locks: list[dict[str, object]] = []
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        query: dict[str, object] = {"limit": 1000}
        if locks:
            query["after"] = locks[-1]["name"]
        page = api.locks(**query).json()["locks"]
        if not page:
            return locks
        locks += page
    raise AssertionError("the list has no end")


def test_wrong_method_on_public_routes(nobody: Api) -> None:
    """Public routes take GET alone."""
    for path in ("/health", "/status", "/docs", "/openapi.yaml", "/openapi.json"):
        refused(nobody.request("DELETE", path), 405, "invalid_input")
