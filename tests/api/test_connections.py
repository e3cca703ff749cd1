"""Responses of one connection: their header, streams, and requests that repeat the header of the one before."""

from __future__ import annotations

import socket

from holdfast.server.components import OPERATIONS
from tests.support import callers
from tests.support.http import Client, EventStream
from tests.support.server import ServerProcess

ANONYMOUS = "00000000-0000-4000-8000-000000000000"


def test_every_response_has_a_date_and_a_length(server: ServerProcess) -> None:
    """Every answer says when it was given and how long it is."""
    answer = Client(server.host, server.port, callers.ALICE).get("/locks/a")
    assert answer.headers["Date"].endswith("GMT")
    assert int(answer.headers["Content-Length"]) == len(answer.body)


def test_a_watch_is_a_stream(server: ServerProcess) -> None:
    """A watch of a name that nobody has begins with `released`."""
    with EventStream(server.host, server.port, "/locks/never/watch", token=callers.ALICE) as stream:
        assert stream.next_event("released")["lock_name"] == "never"


def test_every_described_operation_is_answered(server: ServerProcess) -> None:
    """Every operation of the API is described, and every one that is described is answered."""
    client = Client(server.host, server.port, None)
    paths = client.get("/openapi.json").json()["paths"]
    described = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert described == {(row.method, row.path) for row in OPERATIONS if row.in_documents}
    assert all(row.in_documents or row.path.startswith("/ui/") for row in OPERATIONS)
    for method, path in described:
        at = path.replace("{name}", "n").replace("{id}", ANONYMOUS)
        answer = client.request("HEAD" if method == "GET" else method, at)
        assert answer.status != 405 and "No such route" not in answer.text, (method, path)


def test_same_headers_again_are_answered_alike(server: ServerProcess) -> None:
    """Requests that repeat the headers of the one before are read anew in line and body, and answered as themselves."""
    client = Client(server.host, server.port, callers.ALICE)
    tokens = [client.post(f"/locks/alike-{number}/acquire", {"ttl_seconds": 60}).json() for number in range(20)]
    assert [answer["status"] for answer in tokens] == ["acquired"] * 20
    rising = [answer["fencing_token"] for answer in tokens]
    assert rising == sorted(set(rising))
    assert client.post("/locks/alike-3/acquire", {"ttl_seconds": 60}).json()["status"] == "held"
    assert client.post("/locks/alike-3/acquire", {"ttl_seconds": 0}).status == 400
    assert client.get("/locks/alike-3").json()["fencing_token"] == rising[3]
    assert client.get("/locks/alike-3", token=callers.BOB).json()["status"] == "held"
    assert client.get("/locks/alike-3", token="nobody-knows-this-one").status == 401


def test_a_stream_is_not_written_into(server: ServerProcess) -> None:
    """A request behind a watch on the same connection waits for its end, also when its headers were seen before."""
    headers = b"Host: localhost\r\nAuthorization: Bearer %b\r\n\r\n" % callers.ALICE.encode()
    with socket.create_connection((server.host, server.port), timeout=10) as sock:
        for path in (b"/locks/quiet", b"/locks/quiet/watch"):
            sock.sendall(b"GET %b HTTP/1.1\r\n%b" % (path, headers))
            _read_until(sock, b'"quiet"')
        sock.sendall(b"GET /locks/quiet HTTP/1.1\r\n%b" % headers)
        Client(server.host, server.port, callers.ALICE).post("/locks/quiet/acquire", {})
        assert b"HTTP/1.1" not in _read_until(sock, b'"acquired"')


def _read_until(sock: socket.socket, wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        piece = sock.recv(65_536)
        assert piece, f"the connection ended before {wanted!r}: {seen!r}"
        seen += piece
    return seen


def test_a_renewal_is_watched_with_its_token(server: ServerProcess) -> None:
    """A watch that began after the grant tells a renewal with the token of that grant."""
    client = Client(server.host, server.port, callers.ALICE)
    granted = client.post("/locks/renewed/acquire", {}).json()
    with EventStream(server.host, server.port, "/locks/renewed/watch", token=callers.ALICE) as stream:
        stream.next_event("acquired")
        client.post("/locks/renewed/renew", {"lease_id": granted["lease_id"]})
        assert stream.next_event("renewed")["fencing_token"] == granted["fencing_token"]
