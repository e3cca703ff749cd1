"""The same promises through TLS, where no side can be closed alone."""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http.conversation import Conversation, has_read_all, logged, memory_mib, pour
from tests.http.histories import request
from tests.http.naive_http import ParsedAnswer
from tests.support import callers
from tests.support.checks import unique, wait_until
from tests.support.server import ServerProcess, serving


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, pem: Path) -> Iterator[ServerProcess]:
    """A server that speaks HTTPS, and waits a second for anything."""
    settings: dict[str, object] = {f"{what}_timeout_seconds": 1 for what in ("header", "body", "idle")}
    settings |= {"tls_cert": pem, "tls_key": pem}
    with serving(tmp_path_factory.mktemp("tls") / "data", settings=settings, tokens=callers.TOKENS) as server:
        before = logged(server)
        yield server
        assert server.is_running() and logged(server) == before


@pytest.fixture
def tls(pem: Path) -> ssl.SSLContext:
    """What a client needs to believe it."""
    return ssl.create_default_context(cafile=str(pem))


def claim(name: str, *fields: str, body: bytes = b"{}", token: str | None = callers.ALICE) -> bytes:
    return request("POST", f"/locks/{name}/acquire", *fields, body=body, token=token)


def ask(server: ServerProcess, tls: ssl.SSLContext, *sent: bytes) -> list[ParsedAnswer]:
    """Everything that is said to this."""
    with Conversation(server, tls=tls) as talk:
        return talk.send(*sent).read_to_the_end()


def held(server: ServerProcess, tls: ssl.SSLContext, name: str) -> list[str]:
    (said,) = ask(server, tls, request("GET", f"/locks?prefix={name}", "Connection: close"))
    return [row["name"] for row in json.loads(said.body)["locks"]]


def test_server_announces_https(secured: ServerProcess, tls: ssl.SSLContext, name: str) -> None:
    """With a certificate and its key the server speaks HTTPS, says so, and hears nothing that is not."""
    assert secured.url.startswith("https://")
    with Conversation(secured) as talk:
        talk.send(claim(name)).read_to_the_end()
        assert b"200 OK" not in talk.received
    assert held(secured, tls, name) == []


def test_long_pipeline(secured: ServerProcess, tls: ssl.SSLContext, name: str) -> None:
    """Three hundred claims in one piece are answered in order, and then the connection ends."""
    claims = [claim(f"{name}/{number:03}") for number in range(300)]
    answers = ask(secured, tls, *claims, request("GET", "/nope", "Connection: close"), claim(f"{name}/behind"))
    assert [said.status for said in answers] == [200] * 300 + [404]
    assert held(secured, tls, name) == [f"{name}/{number:03}" for number in range(300)]


@pytest.mark.parametrize(
    "noise", [b"x", b"\x00" * 5_000, b"GET /health HTTP/1.1\r\n\r\n"], ids=["byte", "nuls", "no-host"]
)
def test_decided_request_is_answered(secured: ServerProcess, tls: ssl.SSLContext, name: str, noise: bytes) -> None:
    """A claim is answered as granted, and then the noise behind it refused."""
    answers = ask(secured, tls, claim(name), noise, claim(f"{name}/behind"))
    assert [said.status for said in answers] == [200, 400]
    assert held(secured, tls, name) == [name]


def test_body_is_never_read_as_a_request(secured: ServerProcess, tls: ssl.SSLContext, name: str) -> None:
    """A wish to upgrade does not make a request of a body, and a trailer lets nobody in."""
    hidden = claim(f"{name}/hidden")
    wish = claim(f"{name}/1", "Connection: Upgrade, close", "Upgrade: h2c", body=hidden)
    assert [said.status for said in ask(secured, tls, wish)] == [400]
    late = claim(f"{name}/2", "Transfer-Encoding: chunked", "Connection: close", body=b"", token=None)
    late += f"2\r\n{{}}\r\n0\r\nAuthorization: Bearer {callers.ALICE}\r\n\r\n".encode()
    assert [said.status for said in ask(secured, tls, late)] == [401]
    assert held(secured, tls, name) == []


def test_continue_comes_in_its_turn(secured: ServerProcess, tls: ssl.SSLContext, name: str) -> None:
    """`100 Continue` comes behind the answers that are owed before it."""
    expecting = claim(f"{name}/2", "Expect: 100-continue", "Connection: close")
    with Conversation(secured, tls=tls) as talk:
        talk.send(claim(name), expecting[:-2]).read_until(lambda data: b"100 Continue" in data)
        answers = talk.send(b"{}").read_to_the_end()
    assert [said.status for said in answers] == [200, 100, 200]


def test_nothing_is_written_into_a_stream(secured: ServerProcess, tls: ssl.SSLContext, name: str) -> None:
    """In a stream are only its frames, whatever was sent behind the request."""
    with Conversation(secured, tls=tls) as talk:
        talk.send(request("GET", f"/locks/{name}/watch"), request("GET", "/health") * 20, b"noise\r\n\r\n")
        talk.read_until(lambda data: b"\n\n\r\n" in data)
        ask(secured, tls, claim(name, "Connection: close"))
        talk.read_until(lambda data: b'"acquired"' in data)
        (said,) = talk.answers()
    assert said.framing == "chunks" and b"HTTP/1." not in said.body


def test_every_state_ends(secured: ServerProcess, tls: ssl.SSLContext) -> None:
    """Silence, half a head, body or handshake, and answers that are not read: all of it is ended in time."""
    large = request("GET", "/openapi.json", token=None) * 100
    talks = [Conversation(secured, receive_bytes=4_096, tls=tls) for _ in range(4)]
    talks.append(Conversation(secured))
    talks.append(Conversation(secured).send(b"\x16\x03\x01"))
    for talk, sent in zip(talks, (b"", b"GET /hea", claim(unique())[:-1], large), strict=False):
        talk.send(sent)
    for talk in talks:
        wait_until(lambda talk=talk: not talk.is_open_at_server(), seconds_max=20)  # type: ignore[misc]
        talk.close()


def test_client_that_reads_nothing_costs_little(secured: ServerProcess, tls: ssl.SSLContext) -> None:
    """Who asks for large answers and reads none can soon send no more, and little is kept for it."""
    before = memory_mib(secured)
    with Conversation(secured, receive_bytes=4_096, tls=tls) as talk:
        sent, how = pour(talk, request("GET", "/openapi.json", token=None) * 100, bytes_max=64 << 20)
        assert how != "taken", sent
        assert memory_mib(secured) - before < 64
        wait_until(lambda: not talk.is_open_at_server(), seconds_max=20)


def _leave_unread(server: ServerProcess, tls: ssl.SSLContext) -> None:
    """Ask for a lot on many connections, read none of it, and leave."""
    asked = request("GET", "/openapi.json", token=None) * 40
    talks = [Conversation(server, receive_bytes=4_096, tls=tls).send(asked) for _ in range(50)]
    wait_until(lambda: has_read_all(server))
    for talk in talks:
        talk.close()
    wait_until(lambda: not any(talk.is_open_at_server() for talk in talks))


def test_closed_connections_free_their_memory(secured: ServerProcess, tls: ssl.SSLContext) -> None:
    """What was encrypted for many who read nothing is gone with them."""
    _leave_unread(secured, tls)
    before = memory_mib(secured)
    for _ in range(10):
        _leave_unread(secured, tls)
    assert memory_mib(secured) - before < 10


def test_handshakes_are_counted_and_evicted(tmp_path: Path, pem: Path, tls: ssl.SSLContext) -> None:
    """Who is in a handshake is a stranger: the eldest gives way at once, no more are kept than there are places, and
    users old and new are served.
    """
    settings: dict[str, object] = {"connections_max": 10, "header_timeout_seconds": 60, "tls_cert": pem}
    asked = request("GET", "/locks")
    with (
        serving(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server,
        contextlib.ExitStack() as stack,
    ):
        user = stack.enter_context(Conversation(server, tls=tls))
        assert user.send(asked).read_answers(1)[0].status == 200
        unauthenticated = [stack.enter_context(Conversation(server)).send(b"\x16\x03\x01") for _ in range(100)]
        wait_until(lambda: not any(talk.is_open_at_server() for talk in unauthenticated[:91]))
        assert any(talk.is_open_at_server() for talk in unauthenticated[91:]), "those that have a place keep it"
        late = stack.enter_context(Conversation(server, tls=tls))
        assert late.send(asked).read_answers(1)[0].status == 200
        assert user.send(asked).read_answers(2)[-1].status == 200
        assert server.terminate() == 0, "handshakes do not keep it from stopping"
