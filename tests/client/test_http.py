"""Both transports, against a real HTTP server in a thread: the same facts of each."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import msgspec
import pytest

from holdfast.client.config import Target
from holdfast.client.effects import Close, Flow, Open, Read
from holdfast.client.requests import job_path
from holdfast.errors import NotAllowed, Refused, ServerError, SettingsError, Unreachable
from tests.client.peer import Peer
from tests.client.transports import TRANSPORTS, EitherTransport

TOKEN = "hold_secret_0123456789"


class Thing(msgspec.Struct):
    """What the tests ask for."""

    value: int


@pytest.fixture(params=TRANSPORTS)
def open_to(request: pytest.FixtureRequest) -> Iterator[Callable[..., EitherTransport]]:
    opened: list[EitherTransport] = []

    def to(url: str, token: str | None = TOKEN, environment: dict[str, str] | None = None) -> EitherTransport:
        way = EitherTransport(request.param, Target(url, "test", token, "test"), environment or {})
        opened.append(way)
        return way

    yield to
    for way in opened:
        way.close()


def test_json_goes_and_comes(peer: Peer, open_to: Callable[..., EitherTransport]) -> None:
    """A request carries the token and the JSON; the reply is decoded into what was promised."""
    assert open_to(peer.url).ask("POST", "/things", Thing, {"a": "ü"}) == Thing(1)
    ((method, path, headers, body),) = peer.asked
    assert (method, path, body) == ("POST", "/things", '{"a":"ü"}'.encode())
    assert headers["authorization"] == f"Bearer {TOKEN}"
    assert headers["content-type"] == "application/json"
    assert headers["user-agent"].startswith("holdfast/")


def test_no_token_no_header(peer: Peer, open_to: Callable[..., EitherTransport]) -> None:
    """Without a token there is no Authorization header, and without a body no Content-Type."""
    open_to(peer.url, None).ask("GET", "/things", Thing)
    (request,) = peer.asked
    assert {"authorization", "content-type"}.isdisjoint(request[2])


def test_empty_success(peer: Peer, open_to: Callable[..., EitherTransport]) -> None:
    """A 204 is a reply without content."""
    peer.answer = (204, {}, b"")
    assert open_to(peer.url).ask("DELETE", "/things/1", type(None)) is None


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(peer: Peer, open_to: Callable[..., EitherTransport], status: int) -> None:
    """A redirect is an error: the token goes nowhere but where it was meant to."""
    peer.answer = (status, {"Location": f"{peer.url}/elsewhere"}, b"")
    with pytest.raises(Refused, match="redirect") as caught:
        open_to(peer.url).ask("GET", "/things", Thing)
    assert caught.value.status == status
    assert [path for _, path, _, _ in peer.asked] == ["/things"]


@pytest.mark.parametrize(("status", "kind"), [(401, NotAllowed), (403, NotAllowed), (404, Refused), (503, Refused)])
def test_envelope_becomes_an_exception(
    peer: Peer, open_to: Callable[..., EitherTransport], status: int, kind: type[Refused]
) -> None:
    """A refusal carries its status, code, details and request id."""
    envelope = {"error": "No", "code": "some_code", "details": "Do that.", "request_id": "r-1", "retry_after_ms": 5}
    peer.answer = (status, {}, msgspec.json.encode(envelope))
    with pytest.raises(Refused) as caught:
        open_to(peer.url).ask("GET", "/things", Thing)
    error = caught.value
    assert type(error) is kind
    assert (error.status, error.code, error.details, error.request_id) == (status, "some_code", "Do that.", "r-1")
    assert str(error) == "No: Do that."


@pytest.mark.parametrize(("code", "kind"), [("too_many_wrong_tokens", NotAllowed), ("quota_exceeded", Refused)])
def test_wrong_tokens_are_not_allowed(
    peer: Peer, open_to: Callable[..., EitherTransport], code: str, kind: type[Refused]
) -> None:
    """A 429 for wrong tokens is about the token, as a 401 is; one for a quota is not."""
    peer.answer = (429, {}, msgspec.json.encode({"error": "No", "code": code}))
    with pytest.raises(Refused) as caught:
        open_to(peer.url).ask("GET", "/things", Thing)
    assert type(caught.value) is kind


@pytest.mark.parametrize("body", [b"", b"<html>bad gateway</html>", b"[]", b'{"error": 5}'])
def test_refusal_of_somebody_else(peer: Peer, open_to: Callable[..., EitherTransport], body: bytes) -> None:
    """A refusal without our envelope is still one, and says that it is not a Holdfast server's."""
    peer.answer = (502, {}, body)
    with pytest.raises(Refused, match="not how a Holdfast server refuses; a proxy") as caught:
        open_to(peer.url).ask("GET", "/things", Thing)
    assert (caught.value.status, caught.value.code) == (502, "unexpected")


@pytest.mark.parametrize(("text", "seconds"), [("7", 7.0), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("-1", None)])
def test_retry_after_of_somebody_else(
    peer: Peer, open_to: Callable[..., EitherTransport], text: str, seconds: float | None
) -> None:
    """What stands in between may say in its header when to try again, in seconds; anything else says nothing."""
    peer.answer = (429, {"Retry-After": text}, b"slow down")
    with pytest.raises(Refused) as caught:
        open_to(peer.url).ask("GET", "/things", Thing)
    assert caught.value.retry_after == seconds


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"value": "text"}', b"\xff"])
def test_success_of_somebody_else(peer: Peer, open_to: Callable[..., EitherTransport], body: bytes) -> None:
    """A success that is not what was promised is an error, not a guess."""
    peer.answer = (200, {}, body)
    with pytest.raises(ServerError, match="check the address"):
        open_to(peer.url).ask("GET", "/things", Thing)


def test_answer_has_a_limit(
    peer: Peer, open_to: Callable[..., EitherTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer beyond the limit is an error, and the connection is usable afterwards."""
    monkeypatch.setattr("holdfast.client.transport.ANSWER_BYTES_MAX", 1_000)
    way = open_to(peer.url)
    peer.answer = (200, {}, b" " * 100_000)
    with pytest.raises(ServerError, match="more than 1000 bytes"):
        way.send("GET", "/things")
    peer.answer = (200, {}, b'{"value": 2}')
    assert way.ask("GET", "/things", Thing) == Thing(2)


def test_refused_connection_is_unreachable(open_to: Callable[..., EitherTransport]) -> None:
    """A closed port is `Unreachable`, with the address and the reason in plain words."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(Unreachable, match="connection refused") as caught:
            open_to(url).send("GET", "/things")
    assert caught.value.url == url


def test_silent_server_times_out(open_to: Callable[..., EitherTransport]) -> None:
    """A server that accepts and says nothing is `Unreachable` once the time is over."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(Unreachable, match="did not come in time"):
            open_to(f"http://127.0.0.1:{silent.getsockname()[1]}").send("GET", "/things")


def test_half_an_answer(peer: Peer, open_to: Callable[..., EitherTransport]) -> None:
    """An answer that breaks off is `Unreachable`: half of it is not an answer."""
    peer.answer = (200, {"Content-Length": "500", "Connection": "close"}, b'{"value": 1}')
    with pytest.raises(Unreachable):
        open_to(peer.url).ask("GET", "/things", Thing)


def test_no_proxy_for_loopback(peer: Peer, open_to: Callable[..., EitherTransport]) -> None:
    """A proxy in the environment is not asked for a loopback address."""
    environment = {"http_proxy": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1"}
    assert open_to(peer.url, TOKEN, environment).ask("GET", "/things", Thing) == Thing(1)


def test_proxy_for_others(peer: Peer, open_to: Callable[..., EitherTransport]) -> None:
    """Another host is reached through the proxy, with the proxy's own password, unless no_proxy names it."""
    environment = {"HTTP_PROXY": peer.url.replace("//", "//ana:pw@")}
    assert open_to("http://holdfast.invalid", None, environment).ask("GET", "/things", Thing) == Thing(1)
    ((_, path, headers, _),) = peer.asked
    assert path == "http://holdfast.invalid/things"
    assert headers["proxy-authorization"] == "Basic YW5hOnB3"
    with pytest.raises(Unreachable):
        open_to("http://holdfast.invalid", None, {**environment, "NO_PROXY": "x, .invalid"}).send("GET", "/things")
    assert len(peer.asked) == 1


@pytest.mark.parametrize(
    "proxy", ["http://ana:pw@[::1", "http://ana:pw@", "socks5://ana:pw@x:1", "ana:pw@\udcff", "x:0"]
)
def test_proxy_that_is_no_address(open_to: Callable[..., EitherTransport], proxy: str) -> None:
    """An address of a proxy that cannot be used is a wrong setting, and is not shown: it may hold a password."""
    with pytest.raises(SettingsError, match="http_proxy") as caught:
        open_to("http://holdfast.invalid", None, {"http_proxy": proxy})
    assert "pw" not in str(caught.value)


def test_token_is_not_in_repr(peer: Peer, open_to: Callable[..., EitherTransport]) -> None:
    """Neither the transport nor what it raises shows the token."""
    peer.answer = (401, {}, b"")
    way = open_to(peer.url)
    with pytest.raises(NotAllowed) as caught:
        way.ask("GET", "/things", Thing)
    assert TOKEN not in f"{way.transport!r} {caught.value!r} {caught.value}"


def test_key_has_a_header_of_its_own(peer: Peer, open_to: Callable[..., EitherTransport]) -> None:
    """C5: the key of a request travels as Idempotency-Key, and one without a key has no such header."""
    way = open_to(peer.url)
    way.send("POST", "/things", {}, "key-1")
    way.send("POST", "/things", {})
    assert [headers.get("idempotency-key") for _, _, headers, _ in peer.asked] == ["key-1", None]


def test_token_is_in_its_header_only(peer: Peer, open_to: Callable[..., EitherTransport]) -> None:
    """The token is in the Authorization header and nowhere else: not in the path, another header or the body."""
    open_to(peer.url).send("POST", "/things", {"a": 1}, "key-1")
    ((method, path, headers, body),) = peer.asked
    assert headers.pop("authorization") == f"Bearer {TOKEN}"
    assert TOKEN not in f"{method} {path} {headers} {body!r}"


@pytest.mark.parametrize(
    ("job", "path"),
    [
        ("a/b", "/locks/a%2Fb"),
        ("github://x/y", "/locks/github%3A%2F%2Fx%2Fy"),
        ("\u00fc", "/locks/%C3%BC"),
        ("a%2Fb", "/locks/a%252Fb"),
        ("a.b", "/locks/a.b"),
        (".", "/locks/%2E"),
        ("..", "/locks/%2E%2E"),
    ],
)
def test_names_arrive_as_they_were_encoded(
    peer: Peer, open_to: Callable[..., EitherTransport], job: str, path: str
) -> None:
    """N2: a name travels as one percent-encoded segment, and nothing on the way tidies it."""
    open_to(peer.url).send("GET", job_path(job, "acquire"))
    assert [asked for _, asked, _, _ in peer.asked] == [f"{path}/acquire"]


def test_answer_without_a_length_has_a_limit(
    peer: Peer, open_to: Callable[..., EitherTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit holds for an answer that does not say how long it is."""
    monkeypatch.setattr("holdfast.client.transport.ANSWER_BYTES_MAX", 1_000)
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in [b" " * 900] * 5) + b"0\r\n\r\n"
    peer.answer = (200, {"Content-Length": "", "Transfer-Encoding": "chunked"}, body)
    with pytest.raises(ServerError, match="more than 1000 bytes"):
        open_to(peer.url).send("GET", "/things")


def test_cookies_and_compression_are_left_alone(peer: Peer, open_to: Callable[..., EitherTransport]) -> None:
    """What an answer wants remembered is forgotten, and its body is taken as it came."""
    way = open_to(peer.url)
    peer.answer = (200, {"Set-Cookie": "a=b"}, b'{"value": 1}')
    way.send("GET", "/things")
    assert way.ask("GET", "/things", Thing) == Thing(1)
    assert "cookie" not in peer.asked[1][2]


def test_stream_may_have_a_body(peer: Peer, open_to: Callable[..., EitherTransport]) -> None:
    """A stream is opened with any method and a JSON body: what it is about need not stand in its address."""

    def follow() -> Flow[tuple[int, bytes]]:
        stream = yield Open("/follow", {"Accept": "text/event-stream"}, 5.0, "POST", {"leases": ["a"]})
        received = yield Read(stream)
        yield Close(stream)
        return stream.status, received

    assert open_to(peer.url).run(follow()) == (200, b'{"value": 1}')
    ((method, path, headers, body),) = peer.asked
    assert (method, path, body) == ("POST", "/follow", b'{"leases":["a"]}')
    assert (headers["accept"], headers["content-type"]) == ("text/event-stream", "application/json")
