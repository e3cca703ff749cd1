"""GET /backup: who may have it, what it holds, and what clients of a restored server see."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.api.auth.secrets import KEY_FILE
from holdfast.engine.recovery import TOKEN_GAP
from holdfast.engine.restore import read_backup, restore, start_after
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import refused, unique, wait_until
from tests.support.server import ServerProcess
from tests.support.visitor import Visitor


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server of this file."""
    data = tmp_path_factory.mktemp("server") / "data"
    with ServerProcess.start(data, tokens=callers.TOKENS) as process:
        yield process
        assert process.is_running(), f"the server ended during the tests; it printed:\n{process.log}"


def restored(server: ServerProcess, tmp_path: Path, backup: bytes) -> Path:
    """Make a data directory of a backup."""
    file = tmp_path / "file"
    file.write_bytes(backup)
    contents = read_backup(file)
    wall_ms = contents.about.wall_ms + 5_000
    start = start_after(contents, wall_ms)
    data = tmp_path / "restored"
    restore(file, contents, start, data, key_file=KEY_FILE, wall_ms=wall_ms, version="test", tell=lambda _message: None)
    assert (data / KEY_FILE).read_bytes() == (server.data / KEY_FILE).read_bytes()
    return data


def test_only_an_operator_without_a_prefix_gets_it(server: ServerProcess) -> None:
    """It holds the authority's key: not for those who read or claim, nor for operators of a part, nor by a secret."""
    operator = Api.of(server, callers.OPERATOR)
    prefix = unique("part/")
    part = operator.post("/tokens", {"name": unique("part"), "scopes": ["read", "claim", "admin"], "prefix": prefix})
    session = operator.create_session(ttl_seconds=60).json()
    for token in (callers.ALICE, callers.READER, part.json()["token"], session["session_secret"]):
        answer = Api.of(server, token).get("/backup")
        refused(answer, 403, "forbidden")
        assert b"holdfast backup" not in answer.body
    assert "confined to a prefix" in Api.of(server, part.json()["token"]).get("/backup").json()["details"]
    refused(Api.of(server, None).get("/backup"), 401, "authentication_required")
    backup = operator.get("/backup")
    assert (backup.status, backup.content_type) == (200, "application/octet-stream")
    assert "no-store" in str(backup.headers["Cache-Control"])


def test_backup_needs_an_access_token_and_no_cookie(server: ServerProcess) -> None:
    """An operator who is signed in at the page gets none by the cookie alone: it holds the key that signs cookies."""
    visitor = Visitor(server)
    visitor.sign_in(callers.OPERATOR)
    assert visitor.get("/ui/here").json()["signed_in"] is True
    for headers in ({}, {"Sec-Fetch-Site": "same-origin", "X-Holdfast-Page": "1"}):
        refused(visitor.get("/backup", headers), 403, "forbidden")


def test_log_names_principal_of_backup(server: ServerProcess) -> None:
    """A backup is a copy of all secrets: the log has a line for each."""
    name = unique("who")
    made = Api.of(server, callers.OPERATOR).post("/tokens", {"name": name, "scopes": ["admin"]})
    assert Api.of(server, made.json()["token"]).get("/backup").status == 200
    wait_until(lambda: server.log.count(f"a backup was made for {name}") == 1)


def test_restored_server_knows_what_the_backup_knew(server: ServerProcess, tmp_path: Path) -> None:
    """Leases live on, session secrets and keys work; what came later is 404; tokens go on 2^32 later; I16 by resync."""
    alice, operator = Api.of(server, callers.ALICE), Api.of(server, callers.OPERATOR)
    job, later = unique("job/"), unique("job/")
    claimed = alice.acquired(job, owner="ana", ttl_seconds=600, key=unique("key"))
    session = alice.create_session(ttl_seconds=600).json()
    lost_later = operator.get("/backup").body
    since = alice.acquired(later, owner="ana", ttl_seconds=600)
    assert alice.release(job, claimed["lease_id"]).status == 200
    data = restored(server, tmp_path, lost_later)
    with ServerProcess.start(data, tokens=callers.TOKENS) as again:
        alice = Api.of(again, callers.ALICE)
        assert alice.status(job).json()["fencing_token"] == claimed["fencing_token"]
        assert alice.renew(job, claimed["lease_id"], ttl_seconds=60).status == 200
        assert Api.of(again, session["session_secret"]).session(session["session_id"]).status == 200
        refused(alice.renew(later, since["lease_id"], ttl_seconds=60), 404, "lease_not_current")
        assert alice.acquired(later, owner="bea")["fencing_token"] > since["fencing_token"] + TOKEN_GAP
        for seen in ("1", str(read_backup(tmp_path / "file").about.seq + 5), str(10**15)):
            with alice.events(last_event_id=seen) as stream:
                assert stream.next().field("event") == "resync", seen
        assert [each["event"] for each in alice.history(job).json()["history"]] == ["granted"]


def test_unread_backup_does_not_delay_others(server: ServerProcess) -> None:
    """One is made at a time; while it waits for its reader others are served; once it is gone the next can begin."""
    operator, alice = Api.of(server, callers.OPERATOR), Api.of(server, callers.ALICE)
    for _ in range(36):
        names = [unique("many/") for _ in range(250)]
        assert alice.claims(all=names, ttl_seconds=600, metadata="x" * 1_000, owner="a").status == 200
    with socket.create_connection((server.host, server.port)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        slow.sendall(
            f"GET /backup HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {callers.OPERATOR}\r\n\r\n".encode()
        )
        assert slow.recv(12) == b"HTTP/1.1 200"
        answer = operator.get("/backup")
        refused(answer, 409, "capacity_exceeded")
        assert "one is made at a time" in answer.json()["details"]
        assert alice.acquired(unique("job/"))["status"] == "acquired"
    wait_until(lambda: operator.get("/backup").status == 200)
