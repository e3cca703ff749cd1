"""Answers without an end: nothing is written into them, whatever is sent behind the request."""

from __future__ import annotations

import re

import pytest

from tests.http.conversation import Conversation, logged, memory_mib, pour
from tests.http.histories import request
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import wait_until
from tests.support.server import ServerProcess

TRAILING = {
    "a claim": request("POST", "/locks/NAME/behind/acquire", body=b"{}"),
    "many requests": request("GET", "/health") * 30,
    "another stream": request("GET", "/locks/NAME/watch"),
    "a refusal": request("GET", "/nope"),
    "one that expects": request("POST", "/locks/NAME/behind/acquire", "Expect: 100-continue", body=b"{}"),
    "half a head": b"GET /health HTTP/1.1\r\nHo",
    "half a body": request("POST", "/locks/NAME/behind/acquire", body=b"{}")[:-1],
    "a byte": b"x",
    "noise": bytes(range(128, 256)) * 4,
    "a bad head": b"GET /health HTTP/1.1\r\nnonsense\r\n\r\n",
    "a large head": b"GET /health HTTP/1.1\r\nX: " + b"x" * 40_000,
    "a large body": request("POST", "/locks/NAME/behind/acquire", "Content-Length: 99999999"),
    "a tunnel": b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
    "a wish to upgrade": request("GET", "/health", "Connection: Upgrade", "Upgrade: h2c"),
}
FRAMES_WANTED = {"/locks/NAME/watch": 3, "/events?prefix=NAME": 2, "/leases/watch": 1}
"""How things are, unless it is `/events`; the claim; the release. Nobody follows the lease of this claim."""
FRAMES = re.compile(rb"((data|id|event): ?[^\n]*\n|:[^\n]*\n|\n)*")


@pytest.mark.parametrize("at_once", [True, False], ids=["at-once", "later"])
@pytest.mark.parametrize("path", FRAMES_WANTED)
@pytest.mark.parametrize("kind", TRAILING)
def test_nothing_is_written_into_a_stream(
    server: ServerProcess, alice: Api, name: str, kind: str, path: str, at_once: bool
) -> None:
    """Whatever stands behind the request for a stream, in it are only its frames, and its chunks stay chunks."""
    trailing = TRAILING[kind].replace(b"NAME", name.encode())
    stream = request("GET", path.replace("NAME", name))
    if path == "/leases/watch":
        stream = request("POST", path, body=b"{}")
    log = logged(server)
    with Conversation(server) as talk:
        talk.send(stream, trailing if at_once else b"")
        talk.read_until(lambda data: b"\n\n\r\n" in data)
        talk.send(b"" if at_once else trailing)
        lease = alice.acquired(name)
        alice.release(name, lease["lease_id"])
        # It may also end there, because of what was sent behind it.
        talk.read_until(lambda data: data.count(b"data: ") >= FRAMES_WANTED[path] or talk.ended)
        talk.read_now()
    said = talk.answers()[0]
    assert (said.status, said.framing) == (200, "chunks")
    assert said.get("content-type") == "text/event-stream"
    assert FRAMES.fullmatch(said.body) and b"HTTP/1." not in said.body, said.body
    if trailing not in (TRAILING["a byte"], TRAILING["noise"], TRAILING["a bad head"]):
        assert b"data:" in said.body
    assert len(talk.answers()) <= 2
    assert logged(server) == log


def test_stream_after_responses_is_served(server: ServerProcess, alice: Api, name: str) -> None:
    """A stream begins when the answers before it are out, and shows what they did."""
    with Conversation(server) as talk:
        claims = [request("POST", f"/locks/{name}/acquire", body=b"{}") for _ in range(10)]
        talk.send(*claims, request("GET", f"/locks/{name}/watch"))
        talk.read_until(lambda data: b"\n\n\r\n" in data)
        answers = talk.answers()
        assert [said.framing for said in answers] == ["length"] * 10 + ["chunks"]
        assert b'"acquired"' in answers[-1].body


def test_refused_stream_gets_a_complete_response(server: ServerProcess, name: str) -> None:
    """A stream that is refused is answered in its turn, and the connection goes on."""
    refused = request("GET", f"/locks/{name}/watch", token=None)
    plain = request("GET", "/health")
    with Conversation(server) as talk:
        talk.send(plain, refused, plain, refused, request("HEAD", f"/locks/{name}/watch"), plain)
        methods = ["GET", "GET", "GET", "GET", "HEAD", "GET"]
        assert [said.status for said in talk.read_answers(6, methods)] == [200, 401, 200, 401, 200, 200]


def test_stream_ends_with_its_reader(server: ServerProcess, name: str) -> None:
    """The end of sending ends a stream, and the connection with it."""
    for path in (f"/locks/{name}/watch", "/events"):
        with Conversation(server) as talk:
            talk.send(request("GET", path)).read_until(lambda data: b"\n\n\r\n" in data)
            talk.half_close().read_to_the_end()
            wait_until(lambda: not talk.is_open_at_server())


def test_input_after_a_stream_costs_no_memory(server: ServerProcess, name: str) -> None:
    """Requests without end behind a stream are not kept, and the stream goes on."""
    before = memory_mib(server)
    with Conversation(server) as talk:
        talk.send(request("GET", f"/locks/{name}/watch")).read_until(lambda data: b"\n\n\r\n" in data)
        pour(talk, request("GET", "/health") * 1_000, bytes_max=64 << 20)
        assert memory_mib(server) - before < 24
        talk.sock.settimeout(20)
        Api.of(server, callers.ALICE).acquired(name)
        talk.read_until(lambda data: b'"acquired"' in data)
