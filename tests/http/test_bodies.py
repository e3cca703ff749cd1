"""Where a body ends, and what does not count in it: wishes for another protocol, trailers, extensions."""

from __future__ import annotations

import json

import pytest

from tests.http.conversation import Conversation, memory_mib, pour
from tests.http.histories import request
from tests.support import callers
from tests.support.api import Api
from tests.support.server import ServerProcess

CHUNKED = "Transfer-Encoding: chunked"
MIB = 1 << 20


def claim(name: str, *fields: str, body: bytes = b"{}", token: str | None = callers.ALICE) -> bytes:
    return request("POST", f"/locks/{name}/acquire", *fields, body=body, token=token)


# Other protocols.


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("wish", ["websocket", "h2c", "TLS/1.3", "x/1, y/2"])
@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_wish_to_upgrade_is_ignored(server: ServerProcess, alice: Api, name: str, wish: str, framing: str) -> None:
    """A body stays the body of its request, whichever protocol the sender wishes for: it is never run as a request."""
    hidden = claim(f"{name}/hidden")
    fields = ("Connection: Upgrade, HTTP2-Settings", f"Upgrade: {wish}", "HTTP2-Settings: AAMAAABk")
    if framing == "length":
        bad = claim(f"{name}/1", *fields, body=hidden)
        good = claim(f"{name}/2", *fields)
    else:
        bad = claim(f"{name}/1", *fields, CHUNKED, body=b"") + b"%x\r\n%b\r\n0\r\n\r\n" % (len(hidden), hidden)
        good = claim(f"{name}/2", *fields, CHUNKED, body=b"") + b"2\r\n{}\r\n0\r\n\r\n"
    for sent, status in ((bad, 400), (good, 200)):
        with Conversation(server) as talk:
            answers = talk.send(sent, claim(f"{name}/next/{status}")).half_close().read_to_the_end()
        assert [said.status for said in answers] in ([status], [status, 200])
        assert answers[0].closes == (len(answers) == 1)
    held = {row["name"] for row in alice.locks(prefix=f"{name}/").json()["locks"]}
    assert f"{name}/hidden" not in held and f"{name}/1" not in held and f"{name}/2" in held


@pytest.mark.usefixtures("quiet")
def test_wish_to_upgrade_without_a_body(server: ServerProcess) -> None:
    """A GET that wishes for another protocol is answered as a GET."""
    wish = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13")
    with Conversation(server) as talk:
        answers = talk.send(request("GET", "/health", *wish), request("GET", "/nope")).half_close().read_to_the_end()
    assert [said.status for said in answers] in ([200], [200, 404])


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("trailing", ["nothing", "a request", "noise"])
def test_connect_opens_no_tunnel(server: ServerProcess, alice: Api, name: str, trailing: str) -> None:
    """CONNECT is refused, the connection ends, and what follows is never run."""
    more = {"nothing": b"", "a request": claim(f"{name}/trailing"), "noise": b"\x16\x03\x01"}[trailing]
    connect = b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n"
    with Conversation(server) as talk:
        answers = talk.send(claim(f"{name}/before"), connect, more).read_to_the_end()
    assert [said.status for said in answers] == [200, answers[-1].status]
    assert answers[1].closes and (400 <= answers[1].status < 500 or answers[1].status == 501)
    assert [row["name"] for row in alice.locks(prefix=f"{name}/").json()["locks"]] == [f"{name}/before"]


# Trailers and extensions.


@pytest.mark.usefixtures("quiet")
def test_trailer_does_not_authenticate(server: ServerProcess, alice: Api, name: str) -> None:
    """An Authorization in a trailer does not count: 401, and the next request is read as itself."""
    trailer = f"Authorization: Bearer {callers.ALICE}\r\n".encode()
    with Conversation(server) as talk:
        talk.send(claim(name, CHUNKED, body=b"", token=None), b"2\r\n{}\r\n0\r\n", trailer, b"\r\n")
        talk.send(claim(name, token=None), request("GET", f"/locks/{name}"))
        assert [said.status for said in talk.read_answers(3)] == [401, 401, 200]
    assert alice.status(name).json()["status"] == "free"


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "trailer",
    [
        b"Host: elsewhere\r\nHost: more\r\n",
        b"Authorization: Bearer nobody-knows-this-one\r\n",
        b"Content-Type: text/plain\r\nIdempotency-Key: a\r\nIdempotency-Key: b\r\n",
        b"Upgrade: h2c\r\n",
        b"Expect: 100-continue\r\n",
    ],
)
def test_trailers_are_ignored(server: ServerProcess, name: str, trailer: bytes) -> None:
    """A field that would change a request changes nothing as a trailer, neither of this request nor of the next."""
    with Conversation(server) as talk:
        talk.send(
            claim(name, CHUNKED, body=b""), b"2\r\n{}\r\n0\r\n", trailer, b"\r\n", request("GET", f"/locks/{name}")
        )
        answers = talk.read_answers(2)
    assert [json.loads(said.body)["status"] for said in answers] == ["acquired", "held"]
    assert not any(said.closes for said in answers)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "trailer",
    [
        b"Content-Length: 50\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
    ],
)
def test_framing_does_not_belong_into_trailers(server: ServerProcess, alice: Api, name: str, trailer: bytes) -> None:
    """A trailer that says how the message or the connection ends is refused: nothing is done, the connection ends."""
    with Conversation(server) as talk:
        talk.send(claim(name, CHUNKED, body=b""), b"2\r\n{}\r\n0\r\n", trailer, b"\r\n", claim(f"{name}/trailing"))
        answers = talk.read_to_the_end()
    assert [said.status for said in answers] == [400] and answers[0].closes
    assert [alice.status(one).json()["status"] for one in (name, f"{name}/trailing")] == ["free", "free"]


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("line", [b"X-Same: 1\r\n", b"X-Large: " + b"x" * 40_000 + b"\r\n"], ids=["many", "large"])
def test_large_trailers_are_refused(server: ServerProcess, alice: Api, name: str, line: bytes) -> None:
    """Trailers have the limit of heads: beyond it the request is refused, not done, and the connection ends."""
    trailers = line * (40_000 // len(line) + 1)
    with Conversation(server) as talk:
        talk.send(claim(name, CHUNKED, body=b""), b"2\r\n{}\r\n0\r\n", trailers, b"\r\n", claim(f"{name}/trailing"))
        answers = talk.read_to_the_end()
    assert len(answers) == 1 and answers[0].status in (400, 431) and answers[0].closes
    assert [alice.status(one).json()["status"] for one in (name, f"{name}/trailing")] == ["free", "free"]


ENDLESS = {
    "a trailer": (b"2\r\n{}\r\n0\r\nX-Endless: ", b"x" * 65_536),
    "trailers": (b"2\r\n{}\r\n0\r\n", b"X-Same: 1\r\n" * 6_000),
    "a chunk extension": (b"2;x=", b"x" * 65_536),
    "chunk extensions": (b"", (b"1;" + b"e" * 15_000 + b"\r\n \r\n") * 4),
    "digits of a size": (b"", b"0" * 65_536),
}


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("kind", ENDLESS)
def test_endless_request_costs_no_memory(server: ServerProcess, name: str, kind: str) -> None:
    """Trailers and extensions that never end are refused or thrown away: 64 MiB of them are not kept."""
    start, more = ENDLESS[kind]
    before = memory_mib(server)
    with Conversation(server) as talk:
        talk.send(claim(name, CHUNKED, body=b""), start)
        pour(talk, more, bytes_max=64 * MIB)
        assert memory_mib(server) - before < 24
