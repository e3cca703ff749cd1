"""The two doors give the same answers: the fast lane is an accelerator, never a second implementation."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.server.operations.table import OPERATIONS
from tests.support import callers
from tests.support.http import Answer, Client, EventStream
from tests.support.server import ServerProcess

SECRET = re.compile(r"holds_[0-9a-f]{32}_[A-Za-z0-9_-]{43}")
VOLATILE = [
    (re.compile(r"req_[0-9a-f]{32}"), "REQUEST"),
    (SECRET, "SESSION_SECRET"),
    (re.compile(r"hold_[0-9A-Za-z]{36}"), "TOKEN"),
    (re.compile(r'(?<="agentName":")[0-9a-f]{8}(-[0-9a-f]{4}){3}(?=")'), "PART_OF_A_PSEUDONYM"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "TIME"),
    (re.compile(r'"(\w+_ms|uptime_seconds|db_size_bytes|disk_free_bytes|heldSince|expiresAt)": ?\d+'), r'"\1":0'),
]
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

Step = tuple[str, str, object, dict[str, str]]

ALICE = {"Authorization": f"Bearer {callers.ALICE}"}
BOB = {"Authorization": f"Bearer {callers.BOB}"}
OPERATOR = {"Authorization": f"Bearer {callers.OPERATOR}"}
KEY = {"Idempotency-Key": "k-1"}
NOBODY = "00000000-0000-4000-8000-000000000000"

STEPS: list[Step] = [
    ("POST", "/locks/a/acquire", {"ttl_seconds": 60, "owner": "ana", "metadata": "é ∆"}, ALICE | KEY),
    ("POST", "/locks/a/acquire", {"ttl_seconds": 60, "owner": "ana", "metadata": "é ∆"}, ALICE | KEY),
    ("POST", "/locks/a/acquire", {"ttl_seconds": 61}, ALICE | KEY),
    ("POST", "/locks/a/acquire", {"owner": "ana"}, BOB),
    ("POST", "/locks/a/acquire?on_held=409", {}, BOB),
    ("POST", "/locks/a/acquire?on_held=999", {}, BOB),
    ("POST", "/locks/a/acquire", {"owner": "ana", "resume": True}, ALICE),
    ("GET", "/locks/a", None, BOB),
    ("HEAD", "/locks/a", None, BOB),
    ("POST", "/locks/a/renew", {"lease_id": "U0", "keep_ttl": True, "note": "half"}, ALICE),
    ("POST", "/locks/a/renew", {"lease_id": NOBODY}, ALICE),
    ("POST", "/locks/a/release", {"lease_id": "U0"}, BOB),
    ("POST", "/locks/a/release", {"lease_id": "U0", "outcome": "failed"}, ALICE),
    ("POST", "/locks/a/release", {"lease_id": "U0"}, ALICE),
    ("POST", "/locks/a/acquire", {"lock_delay_seconds": 5}, BOB),
    ("POST", "/locks/github%3A%2F%2Facme%2Fapp%2F1/acquire", {}, ALICE),
    ("POST", "/locks/repo/app/issue-7/acquire", {}, ALICE),
    ("GET", "/locks?prefix=repo%2F", None, ALICE),
    ("GET", "/locks?limit=1", None, ALICE),
    ("GET", "/locks?limit=x", None, ALICE),
    ("GET", "/locks?colour=red", None, ALICE),
    ("POST", "/locks/bad%20name/acquire", {}, ALICE),
    ("POST", "/locks/%ff/acquire", {}, ALICE),
    ("POST", "/locks//acquire", {}, ALICE),
    ("POST", "/locks/a/acquire", b"{", ALICE | {"Content-Type": "application/json"}),
    ("POST", "/locks/a/acquire", b"{}", ALICE | {"Content-Type": "text/plain"}),
    ("POST", "/locks/a/acquire", {"ttl_second": 5}, ALICE),
    ("POST", "/locks/a/acquire", {"ttl_seconds": -1}, ALICE),
    ("POST", "/locks/a/acquire", {}, {}),
    ("POST", "/locks/a/acquire", {}, {"Authorization": "Bearer nobody-knows-this-one"}),
    ("PUT", "/locks/a/acquire", {}, ALICE),
    ("GET", "/locks/a/history", None, ALICE),
    ("POST", "/sessions", {"ttl_seconds": 5, "name": "run"}, ALICE),
    ("GET", "/sessions/U2", None, ALICE),
    ("GET", "/sessions/nope", None, ALICE),
    ("GET", f"/sessions/{NOBODY}", None, ALICE),
    ("POST", f"/sessions/{NOBODY}/keepalive", None, ALICE),
    ("DELETE", f"/sessions/{NOBODY}", None, ALICE),
    ("POST", "/tokens", {"name": "new", "scopes": ["read"]}, OPERATOR),
    ("POST", "/tokens", {"name": "new"}, OPERATOR),
    ("GET", "/tokens", None, OPERATOR),
    ("GET", "/tokens", None, ALICE),
    ("DELETE", "/tokens/new", None, OPERATOR),
    ("DELETE", "/tokens/new", None, OPERATOR),
    ("GET", "/health", None, {}),
    ("GET", "/healthz", None, {}),
    ("GET", "/readyz", None, {}),
    ("GET", "/status", None, {}),
    ("GET", "/docs", None, {}),
    ("GET", "/openapi.json", None, {}),
    ("GET", "/openapi.yaml", None, {}),
    ("POST", "/locks/w/acquire", {"owner": "ana"}, ALICE),
    ("POST", "/locks/w/acquire", {"owner": "ben", "wait_seconds": 0.01}, BOB),
    ("POST", "/locks/w/acquire", {"owner": "ben", "wait_seconds": 51}, BOB),
    ("POST", "/locks/w/acquire", {"owner": "ben", "ticket": NOBODY}, BOB),
    ("POST", "/locks/w/acquire", {"owner": "ana", "wait_seconds": 1}, ALICE),
    ("GET", "/locks/w/why", None, BOB),
    ("DELETE", f"/tickets/{NOBODY}", None, BOB),
    ("DELETE", "/tickets/nope", None, BOB),
    ("POST", "/claims", {"any": ["w", "x"]}, BOB),
    ("POST", "/claims", {"all": ["w", "y"]}, BOB),
    ("POST", "/claims?on_held=409", {"all": ["w", "y"]}, BOB),
    ("POST", "/claims", {"all": ["w", "y"], "wait_seconds": 0.01}, BOB),
    ("POST", "/claims", {"any": ["y"], "all": ["y"]}, BOB),
    ("POST", "/claims", {"all": ["y", "z"], "owner": "ben"}, BOB | KEY),
    ("POST", "/claims", {"all": ["y", "z"], "owner": "ben"}, BOB | KEY),
    ("POST", "/locks/w/check", {"fencing_token": 1}, BOB),
    ("POST", "/locks/w/transfer", {"lease_id": NOBODY, "to_owner": "x"}, ALICE),
    ("POST", "/locks/w/revoke", {"reason": "stuck"}, ALICE),
    ("POST", "/locks/w/revoke", {"reason": "stuck"}, OPERATOR),
    ("POST", "/locks/w/revoke", {"reason": "stuck"}, OPERATOR),
    ("POST", "/locks/w/reopen", {}, OPERATOR),
    ("GET", "/locks/w/history", None, ALICE),
    ("GET", "/locks/w/history?limit=2", None, ALICE),
    ("GET", "/locks/w/history?limit=x", None, ALICE),
    ("GET", "/sessions", None, ALICE),
    ("POST", "/sessions/U2/renew-all", None, ALICE),
    ("POST", f"/sessions/{NOBODY}/renew-all", None, ALICE),
    ("POST", "/locks/acquire", {"secret": "SECRET", "resourceKey": "test://a/1"}, {}),
    ("POST", "/locks/acquire", {"secret": "SECRET", "resourceKey": "github://acme/app/1"}, {}),
    ("POST", "/locks/acquire", {"secret": "SECRET", "resourceKey": "no uri"}, {}),
    ("POST", "/locks/acquire", {"secret": "nobody", "resourceKey": "test://a/1"}, {}),
    ("POST", "/locks/acquire", b"null", {"Content-Type": ""}),
    ("GET", "/locks/acquire", None, ALICE),
    ("POST", "/locks/heartbeat", {"secret": "SECRET", "resourceKey": "test://a/1", "ttl": 5}, {}),
    ("POST", "/locks/heartbeat", {"secret": "SECRET", "resourceKey": "test://a/1", "ttl": -5}, {}),
    ("GET", "/locks/heartbeat", None, ALICE),
    ("GET", "/locks/list?secret=SECRET", None, {}),
    ("GET", "/locks/list", None, {}),
    ("GET", "/locks/status", None, ALICE),
    ("GET", "/locks/status", None, {}),
    ("POST", "/locks/release", {"secret": "SECRET", "resourceKey": "test://a/1"}, KEY),
    ("POST", "/locks/release", {"secret": "SECRET", "resourceKey": "test://a/1"}, {}),
    ("GET", "/events?after=x", None, ALICE),
    ("GET", "/nowhere", None, {}),
    ("OPTIONS", "/locks", None, {}),
    (
        "POST",
        "/locks/a/acquire",
        b'{"metadata": "%s"}' % (b"x" * 3_000_000),
        ALICE | {"Content-Type": "application/json"},
    ),
]


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Two servers alike in everything but the door."""

    def start(fast_lane: bool) -> ServerProcess:
        data: Path = tmp_path_factory.mktemp("door") / "data"
        return ServerProcess.start(data, settings={"fast_lane": str(fast_lane).lower()}, tokens=callers.TOKENS)

    with start(True) as lane, start(False) as asgi:
        yield lane, asgi


class Scrubbed:
    """What stays of a server's answers when ids and times are named instead of shown."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._secret = ""

    def fill(self, text: str) -> str:
        """Put the ids and the secret that this server gave where a step names them."""
        text = re.sub(r"\bSECRET\b", self._secret, text)
        return re.sub(r"\bU(\d+)\b", lambda found: self._ids[int(found.group(1))], text)

    def scrub(self, text: str) -> str:
        """Name ids in the order of their appearance, and times not at all."""
        if secret := SECRET.search(text):
            self._secret = secret.group()
        for pattern, name in VOLATILE:
            text = pattern.sub(name, text)
        return UUID.sub(self._name, text)

    def _name(self, found: re.Match[str]) -> str:
        if found.group() == NOBODY:
            return NOBODY
        if found.group() not in self._ids:
            self._ids.append(found.group())
        return f"U{self._ids.index(found.group())}"


def _shown(answer: Answer, scrubbed: Scrubbed) -> dict[str, object]:
    headers = {name.lower(): value for name, value in answer.headers.items()}
    for name in ("date", "content-length", "connection"):
        headers.pop(name, None)
    body = scrubbed.scrub(answer.text)
    return {"status": answer.status, "headers": {n: scrubbed.scrub(v) for n, v in headers.items()}, "body": body}


def _walk(server: ServerProcess) -> list[dict[str, object]]:
    client, scrubbed = Client(server.host, server.port, None), Scrubbed()
    shown = []
    for method, path, body, headers in STEPS:
        sent = json.loads(scrubbed.fill(json.dumps(body))) if isinstance(body, dict) else body
        answer = client.request(method, scrubbed.fill(path), sent, headers=headers)
        shown.append({"step": f"{method} {path}"} | _shown(answer, scrubbed))
    return shown


def test_both_doors_answer_alike(doors: tuple[ServerProcess, ServerProcess]) -> None:
    """The same requests get the same status, headers and body through the fast lane and through ASGI."""
    lane, asgi = (_walk(server) for server in doors)
    for through_lane, through_asgi in zip(lane, asgi, strict=True):
        assert through_lane == through_asgi


def test_both_doors_have_a_date_and_a_length(doors: tuple[ServerProcess, ServerProcess]) -> None:
    """Every answer says when it was given and how long it is, whichever door it came through."""
    for server in doors:
        answer = Client(server.host, server.port, callers.ALICE).get("/locks/a")
        assert answer.headers["Date"].endswith("GMT")
        assert int(answer.headers["Content-Length"]) == len(answer.body)


def test_a_watch_passes_both_doors(doors: tuple[ServerProcess, ServerProcess]) -> None:
    """A stream is the same stream from a server whose other answers take the fast lane."""
    for server in doors:
        with EventStream(server.host, server.port, "/locks/never/watch", token=callers.ALICE) as stream:
            assert stream.next_event("released")["lock_name"] == "never"


def test_every_described_operation_is_answered(doors: tuple[ServerProcess, ServerProcess]) -> None:
    """Every operation of the API is described, and every one that is described is answered through both doors."""
    for server in doors:
        client = Client(server.host, server.port, None)
        paths = client.get("/openapi.json").json()["paths"]
        described = {(method.upper(), path) for path, methods in paths.items() for method in methods}
        assert described == {(row.method, row.path) for row in OPERATIONS if row.in_documents}
        assert all(row.in_documents or row.path.startswith("/ui/") for row in OPERATIONS)
        for method, path in described:
            at = path.replace("{name}", "n").replace("{id}", NOBODY)
            answer = client.request("HEAD" if method == "GET" else method, at)
            assert answer.status != 405 and "No such route" not in answer.text, (method, path)


def test_same_headers_again_are_answered_alike(doors: tuple[ServerProcess, ServerProcess]) -> None:
    """Requests that repeat the headers of the one before are read anew in line and body, and answered as themselves."""
    lane, _ = doors
    client = Client(lane.host, lane.port, callers.ALICE)
    tokens = [client.post(f"/locks/alike-{number}/acquire", {"ttl_seconds": 60}).json() for number in range(20)]
    assert [answer["status"] for answer in tokens] == ["acquired"] * 20
    rising = [answer["fencing_token"] for answer in tokens]
    assert rising == sorted(set(rising))
    assert client.post("/locks/alike-3/acquire", {"ttl_seconds": 60}).json()["status"] == "held"
    assert client.post("/locks/alike-3/acquire", {"ttl_seconds": 0}).status == 400
    assert client.get("/locks/alike-3").json()["fencing_token"] == rising[3]
    assert client.get("/locks/alike-3", token=callers.BOB).json()["status"] == "held"
    assert client.get("/locks/alike-3", token="nobody-knows-this-one").status == 401


def test_a_stream_is_not_written_into(doors: tuple[ServerProcess, ServerProcess]) -> None:
    """A request behind a watch on the same connection waits for its end, also when its headers were seen before."""
    lane, _ = doors
    headers = b"Host: localhost\r\nAuthorization: Bearer %b\r\n\r\n" % callers.ALICE.encode()
    with socket.create_connection((lane.host, lane.port), timeout=10) as sock:
        for path in (b"/locks/quiet", b"/locks/quiet/watch"):
            sock.sendall(b"GET %b HTTP/1.1\r\n%b" % (path, headers))
            _read_until(sock, b'"quiet"')
        sock.sendall(b"GET /locks/quiet HTTP/1.1\r\n%b" % headers)
        Client(lane.host, lane.port, callers.ALICE).post("/locks/quiet/acquire", {})
        assert b"HTTP/1.1" not in _read_until(sock, b'"acquired"')


def _read_until(sock: socket.socket, wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        piece = sock.recv(65_536)
        assert piece, f"the connection ended before {wanted!r}: {seen!r}"
        seen += piece
    return seen


def test_a_renewal_is_watched_with_its_token(doors: tuple[ServerProcess, ServerProcess]) -> None:
    """A watch that began after the grant tells a renewal with the token of that grant."""
    lane, _ = doors
    client = Client(lane.host, lane.port, callers.ALICE)
    granted = client.post("/locks/renewed/acquire", {}).json()
    with EventStream(lane.host, lane.port, "/locks/renewed/watch", token=callers.ALICE) as stream:
        stream.next_event("acquired")
        client.post("/locks/renewed/renew", {"lease_id": granted["lease_id"]})
        assert stream.next_event("renewed")["fencing_token"] == granted["fencing_token"]
