"""The log of requests: one line for each, whatever becomes of it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import has_request_id, unique, wait_until
from tests.support.pending import waiters, waiting
from tests.support.server import ServerProcess

SETTINGS = {"log_requests": True, "trusted_proxies": "127.0.0.1"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data = tmp_path_factory.mktemp("logged") / "data"
    with ServerProcess.start(data, settings=SETTINGS, tokens=callers.TOKENS) as process:
        yield process
        assert "Traceback" not in process.log


def lines_of(server: ServerProcess) -> list[dict[str, Any]]:
    """The lines of requests so far."""
    lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    return [line for line in lines if line["logger"] == "holdfast.requests"]


def _line(server: ServerProcess, request_id: str) -> dict[str, Any]:
    (line,) = wait_until(lambda: [line for line in lines_of(server) if line["request_id"] == request_id])
    return dict(line)


def test_a_request_is_one_line(server: ServerProcess) -> None:
    """Method, path, route, status, time, request id, access token and client; the message says it to people."""
    name = unique()
    alice = Api.of(server, callers.ALICE)
    answer = alice.post(f"/locks/{name}/acquire?", {"metadata": "m"}, headers={"X-Forwarded-For": "192.0.2.7"})
    line = _line(server, has_request_id(answer))
    assert line["message"] == f"POST /locks/{name}/acquire 200 {line['ms']} ms {answer.request_id}"
    assert {key: line[key] for key in ("method", "path", "route", "status", "principal", "client")} == {
        "method": "POST",
        "path": f"/locks/{name}/acquire",
        "route": "/locks/{name}/acquire",
        "status": 200,
        "principal": "alice",
        "client": "192.0.2.7",
    }
    assert 0 <= line["ms"] < 10_000


def test_refusals_are_lines_too(server: ServerProcess) -> None:
    """A route that is none, a wrong token, another name of a host, and a body that is none."""
    asked = [
        (Api.of(server, callers.ALICE).get("/nothing/here"), 404, None, "alice"),
        (Api.of(server, "nobody-knows-this-one").get("/locks"), 401, "/locks", None),
        (Api.of(server, callers.ALICE).get("/locks", headers={"Host": "other.example"}), 421, "/locks", None),
        (Api.of(server, callers.ALICE).post("/sessions", b"{"), 400, "/sessions", None),
    ]
    for answer, status, route, principal in asked:
        line = _line(server, has_request_id(answer))
        assert (line["status"], line["route"]) == (status, route)
        assert line["principal"] in {principal, None}


def test_a_stream_is_a_line_when_it_ends(server: ServerProcess) -> None:
    """A stream has its line at its end, with the time that it was open."""
    alice = Api.of(server, callers.ALICE)
    name = unique()
    with alice.watch_lock(name):
        alice.acquired(name)
        assert not [line for line in lines_of(server) if line["path"].endswith(f"{name}/watch")]
    (line,) = wait_until(lambda: [line for line in lines_of(server) if line["path"].endswith(f"{name}/watch")])
    assert (line["status"], line["route"], line["principal"]) == (200, "/locks/{name}/watch", "alice")


def test_request_log_writes_disconnected_client(tmp_path: Path) -> None:
    """Somebody who waits in line and goes away was never answered, and the line says so."""
    with ServerProcess.start(tmp_path / "data", settings=SETTINGS, tokens=callers.TOKENS) as server:
        alice, bob = Api.of(server, callers.ALICE), Api.of(server, callers.BOB)
        name = unique()
        alice.acquired(name)
        waiting(bob, name).close(reset=True)
        wait_until(lambda: waiters(alice, name) == 0)
        left = wait_until(lambda: [line for line in lines_of(server) if line["status"] is None])
        assert [line["path"] for line in left] == [f"/locks/{name}/acquire"]
        assert "the client left" in left[0]["message"]


def test_request_log_writes_malformed_request(tmp_path: Path) -> None:
    """What the parser refuses has a line with its status and request id."""
    with ServerProcess.start(tmp_path / "data", settings=SETTINGS, tokens=callers.TOKENS) as server:
        with socket.create_connection((server.host, server.port), timeout=10) as sock:
            sock.sendall(b"GET /locks HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n")
            assert b"400" in sock.recv(4_096)
        (line,) = wait_until(lambda: lines_of(server))
        assert line["status"] == 400 and line["request_id"].startswith("req_")


def test_request_log_is_off_by_default(tmp_path: Path) -> None:
    """Without the settings a server that does its work says nothing."""
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        alice = Api.of(server, callers.ALICE)
        alice.release("deploy", alice.acquired("deploy")["lease_id"])
        assert server.terminate() == 0
        assert not [line for line in server.log.splitlines() if line.startswith("{")]
