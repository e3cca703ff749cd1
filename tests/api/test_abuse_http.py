"""Abuse of HTTP itself: smuggling, odd framing, pipelines, huge heads, slow senders, too many connections."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import callers, pending
from tests.support.api import Api
from tests.support.checks import has_request_id, refused, unique, wait_until
from tests.support.http import Connection, exchange, parse_answers
from tests.support.raw import facts, head, one, refused_or_closed, send
from tests.support.server import ServerProcess

TARGET = "/locks/abuse-target/acquire"
AUTHORIZED = f"Authorization: Bearer {callers.ALICE}"
JSON_HEADERS = ("Host: localhost", AUTHORIZED, "Content-Type: application/json")
SMUGGLED = head("POST", "/locks/abuse-smuggled/acquire", *JSON_HEADERS, "Content-Length: 2") + b"{}"


# Framing.

SMUGGLING: dict[str, bytes] = {
    "length-and-chunks": head(
        "POST", TARGET, *JSON_HEADERS, f"Content-Length: {len(SMUGGLED) + 5}", "Transfer-Encoding: chunked"
    )
    + b"0\r\n\r\n"
    + SMUGGLED,
    "chunks-and-length": head(
        "POST", TARGET, *JSON_HEADERS, "Transfer-Encoding: chunked", f"Content-Length: {len(SMUGGLED) + 5}"
    )
    + b"0\r\n\r\n"
    + SMUGGLED,
    "two-lengths": head("POST", TARGET, *JSON_HEADERS, "Content-Length: 0", f"Content-Length: {len(SMUGGLED)}")
    + SMUGGLED,
    "list-of-lengths": head("POST", TARGET, *JSON_HEADERS, f"Content-Length: 0, {len(SMUGGLED)}") + SMUGGLED,
    "negative-length": head("POST", TARGET, *JSON_HEADERS, "Content-Length: -1") + SMUGGLED,
    "signed-length": head("POST", TARGET, *JSON_HEADERS, "Content-Length: +0") + SMUGGLED,
    "hex-length": head("POST", TARGET, *JSON_HEADERS, "Content-Length: 0x0") + SMUGGLED,
    "empty-length": head("POST", TARGET, *JSON_HEADERS, "Content-Length:") + SMUGGLED,
    "wordy-length": head("POST", TARGET, *JSON_HEADERS, "Content-Length: none") + SMUGGLED,
    "huge-length": head("POST", TARGET, *JSON_HEADERS, "Content-Length: 99999999999999999999999999") + SMUGGLED,
    "length-with-blank": head("POST", TARGET, *JSON_HEADERS, "Content-Length : 0") + SMUGGLED,
    "unknown-coding": head("POST", TARGET, *JSON_HEADERS, "Transfer-Encoding: xchunked") + SMUGGLED,
    "coding-not-last": head("POST", TARGET, *JSON_HEADERS, "Transfer-Encoding: chunked, identity")
    + b"0\r\n\r\n"
    + SMUGGLED,
    "coding-with-blank": head("POST", TARGET, *JSON_HEADERS, "Transfer-Encoding : chunked") + b"0\r\n\r\n" + SMUGGLED,
    "bad-chunk-size": head("POST", TARGET, *JSON_HEADERS, "Transfer-Encoding: chunked") + b"zz\r\n\r\n" + SMUGGLED,
    "negative-chunk": head("POST", TARGET, *JSON_HEADERS, "Transfer-Encoding: chunked") + b"-1\r\n\r\n" + SMUGGLED,
    "huge-chunk-size": head("POST", TARGET, *JSON_HEADERS, "Transfer-Encoding: chunked")
    + b"f" * 40
    + b"\r\n"
    + SMUGGLED,
    "chunk-without-end": head("POST", TARGET, *JSON_HEADERS, "Transfer-Encoding: chunked")
    + b"1\r\n{}\r\n0\r\n\r\n"
    + SMUGGLED,
    "nul-in-a-value": head("POST", TARGET, *JSON_HEADERS, "X-Odd: a\x00b", "Content-Length: 1") + b"{" + SMUGGLED[:0],
    "nul-in-a-name": head("POST", TARGET, *JSON_HEADERS, "X\x00Odd: a", "Content-Length: 1") + b"{",
    "cr-in-a-value": head("POST", TARGET, *JSON_HEADERS, "X-Odd: a\rContent-Length: 0", "Content-Length: 1") + b"{",
    "no-colon": head("POST", TARGET, *JSON_HEADERS, "nonsense", "Content-Length: 1") + b"{",
    "blank-first": head("POST", TARGET, " Host: localhost", *JSON_HEADERS[1:], "Content-Length: 1") + b"{",
}


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize("kind", SMUGGLING)
def test_smuggling_is_refused(alice: Api, kind: str) -> None:
    """A request whose end can be read in two ways is refused, and what hides behind it is never done."""
    reply = send(alice, SMUGGLING[kind], timeout_seconds=4)
    # One where the server waits for more of a body is neither answered nor closed in this time: that is no harm.
    for answer in reply.answers():
        assert 400 <= answer.status < 500, answer
    assert alice.status("abuse-smuggled").json()["status"] == "free"


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize(
    "payload",
    [
        b"GET /health HTTP/1.1\nHost: localhost\n\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Folded: a\r\n b\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    ],
    ids=["bare-lf", "folded", "no-host", "blank-lines-first", "two-hosts"],
)
def test_sloppy_heads_are_answered_or_refused(alice: Api, payload: bytes) -> None:
    """What RFC 9112 lets a server take or refuse is taken or refused: 200 or 400, or a closed connection."""
    refused_or_closed(send(alice, payload), 200, 400)


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize(
    "payload",
    [
        b"\x00" * 100 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
        b"hello\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /health\r\n\r\n",
        b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET /health FTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET  /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=[
        "nuls",
        "tls",
        "hello",
        "method-only",
        "http-0.9",
        "version",
        "protocol",
        "two-blanks",
        "http-2",
        "connect",
        "options",
    ],
)
def test_noise_is_refused(alice: Api, payload: bytes) -> None:
    """What is no request of ours is refused with a 4xx or a closed connection, and the server goes on."""
    reply = send(alice, payload, timeout_seconds=2)
    for answer in reply.answers():
        assert answer.status < 500
    assert alice.get("/health").status == 200


def test_upgrade_is_ignored(alice: Api) -> None:
    """A wish for WebSocket or HTTP/2 is ignored or refused: there is no other protocol here."""
    for wish in ("websocket", "h2c"):
        request = head(
            "GET", "/health", "Host: localhost", f"Upgrade: {wish}", "Connection: Upgrade", "Sec-WebSocket-Key: x"
        )
        reply = send(alice, request, timeout_seconds=3)
        assert reply.answers(), reply.data
        assert reply.answers()[0].status in (200, 400, 426)


# What is allowed.


def test_pipelined_requests_are_answered_in_order(alice: Api, name: str) -> None:
    """Requests sent in one piece are answered in order, writes before the reads behind them, whichever door they
    take.
    """
    acquire = head("POST", f"/locks/{name}/acquire", *JSON_HEADERS, "Content-Length: 2") + b"{}"
    status = head("GET", f"/locks/{name}", "Host: localhost", AUTHORIZED)
    health = head("GET", "/health", "Host: localhost")
    missing = head("GET", "/nope", "Host: localhost")
    reply = exchange(alice.host, alice.port, acquire + status + acquire + health + missing + status, answers=6)
    answers = reply.answers()
    assert [answer.status for answer in answers] == [200, 200, 200, 200, 404, 200]
    bodies = [answer.json() for answer in answers]
    assert [body.get("status") for body in bodies] == ["acquired", "held", "held", "ok", None, "held"]
    assert bodies[1]["fencing_token"] == bodies[0]["fencing_token"]
    assert len({has_request_id(answer) for answer in answers}) == 6
    alice.release(name, bodies[0]["lease_id"])


def test_long_pipeline(alice: Api) -> None:
    """Two hundred requests in one piece get two hundred answers, in order."""
    names = [unique() for _ in range(200)]
    payload = b"".join(head("GET", f"/locks/{name}", "Host: localhost", AUTHORIZED) for name in names)
    answers = exchange(alice.host, alice.port, payload, answers=200, timeout_seconds=20).answers()
    assert [answer.json()["name"] for answer in answers] == names


def test_request_in_pieces(alice: Api, name: str) -> None:
    """A request that arrives byte by byte is a request like any other."""
    payload = head("POST", f"/locks/{name}/acquire", *JSON_HEADERS, "Content-Length: 2", "Connection: close") + b"{}"
    with socket.create_connection((alice.host, alice.port), timeout=10) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for index in range(len(payload)):
            sock.sendall(payload[index : index + 1])
        data = _read_to_the_end(sock)
    lease = parse_answers(data, closed=True)[0].json()
    assert lease["status"] == "acquired"
    alice.release(name, lease["lease_id"])


def test_http_1_0(alice: Api) -> None:
    """An HTTP/1.0 request is answered, and the connection closed."""
    reply = exchange(alice.host, alice.port, head("GET", "/health", version="HTTP/1.0"))
    assert one(reply).status == 200
    wait = exchange(alice.host, alice.port, head("GET", "/locks", AUTHORIZED, version="HTTP/1.0"), linger_seconds=2)
    assert (one(wait).status, wait.closed) == (200, True)


def test_connection_close_is_honoured(alice: Api) -> None:
    """`Connection: close` closes after the answer; without it the connection stays open for the next request."""
    for path in ("/health", "/locks/abuse-never-held"):
        reply = exchange(
            alice.host,
            alice.port,
            head("GET", path, "Host: localhost", AUTHORIZED, "Connection: close"),
            linger_seconds=2,
        )
        assert (one(reply).status, reply.closed) == (200, True)
    with Connection(alice.host, alice.port) as connection:
        connection.request("GET", "/health")
        port = connection._http.sock.getsockname()[1]
        for path in ("/health", "/locks", "/locks/abuse-never-held", "/nope"):
            connection.request("GET", path, token=callers.ALICE)
            assert connection._http.sock.getsockname()[1] == port


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize("path", ["/health", "/locks", "/locks/abuse-standing", "/openapi.json", "/nope"])
def test_head_has_no_body(alice: Api, path: str) -> None:
    """HEAD is answered as GET without a body (or refused with 405), and the connection stays in step."""
    with Connection(alice.host, alice.port) as connection:
        answer = connection.request("HEAD", path, token=callers.ALICE)
        assert answer.status in (200, 404, 405)
        assert answer.body == b""
        has_request_id(answer)
        assert connection.request("GET", "/health").json()["status"] == "ok"


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize("path", ["/health", "/locks", TARGET, "/sessions", "/nope"])
def test_options_allows_no_origin(alice: Api, path: str) -> None:
    """OPTIONS does nothing, and no origin is allowed unless one was configured."""
    answer = alice.request(
        "OPTIONS", path, headers={"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    )
    assert answer.status < 500
    assert answer.headers.get("Access-Control-Allow-Origin") is None
    has_request_id(answer)


def test_expect_continue(alice: Api, name: str) -> None:
    """`Expect: 100-continue` is answered with 100 and then the answer; where the body would be too large, with 413 at
    once.
    """
    start = head(
        "POST",
        f"/locks/{name}/acquire",
        *JSON_HEADERS,
        "Expect: 100-continue",
        "Content-Length: 2",
        "Connection: close",
    )
    with socket.create_connection((alice.host, alice.port), timeout=10) as sock:
        sock.sendall(start)
        assert sock.recv(4096).startswith(b"HTTP/1.1 100")
        sock.sendall(b"{}")
        lease = parse_answers(_read_to_the_end(sock), closed=True)[0].json()
    assert lease["status"] == "acquired"
    alice.release(name, lease["lease_id"])
    large = head("POST", TARGET, *JSON_HEADERS, "Expect: 100-continue", "Content-Length: 3000000")
    assert one(send(alice, large)).status in (413, 417)


# Heads that are too large.


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize(
    "headers",
    [
        ["X-Large: " + "x" * 20_000],
        [f"X-{index}: {'y' * 100}" for index in range(200)],
        [f"X-{index}: 1" for index in range(5_000)],
        ["Cookie: " + "x" * 1_000_000],
    ],
    ids=["one-header", "many-headers", "very-many-headers", "a-megabyte"],
)
def test_large_heads_are_431(alice: Api, headers: list[str]) -> None:
    """A head of more than 16 KiB is 431, in the envelope, and the connection is closed."""
    reply = send(alice, head("GET", "/locks", "Host: localhost", AUTHORIZED, *headers), linger_seconds=2)
    refused(one(reply), 431, "invalid_input")
    assert reply.closed


@pytest.mark.usefixtures("nothing_changes")
def test_endless_head_is_cut(alice: Api) -> None:
    """A head that never ends is refused after 16 KiB, wherever it is long."""
    for payload in (b"GET /" + b"x" * 100_000, b"GET / HTTP/1.1\r\nX-" + b"x" * 100_000, b"x" * 100_000):
        reply = send(alice, payload)
        refused_or_closed(reply, 400, 414, 431)


def test_ordinary_heads_fit(alice: Api) -> None:
    """A head of 12 KiB is fine."""
    reply = send(alice, head("GET", "/locks", "Host: localhost", AUTHORIZED, "X-Large: " + "x" * 12_000))
    assert one(reply).status == 200


# Slow senders and crowds, on a server with short patience.


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that waits a second for a head or a body, two for the next request."""
    settings = {"header_timeout_seconds": 1, "body_timeout_seconds": 1, "idle_timeout_seconds": 2}
    data = tmp_path_factory.mktemp("impatient") / "data"
    with ServerProcess.start(data, settings=settings, tokens=callers.TOKENS) as process:
        yield process
        assert process.is_running(), process.log


def _read_to_the_end(sock: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(1 << 16):
            data += piece
    return data


def _dribble(server: ServerProcess, start: bytes, drop: bytes, seconds_max: float) -> bytes:
    """Send `start`, then `drop` again and again, until the server ends the connection; return what it said."""
    deadline = time.monotonic() + seconds_max
    data = b""
    with socket.create_connection((server.host, server.port), timeout=seconds_max) as sock:
        sock.sendall(start)
        sock.settimeout(0.2)
        while time.monotonic() < deadline:
            try:
                piece = sock.recv(1 << 16)
                if not piece:
                    return data
                data += piece
            except TimeoutError:
                if drop:
                    with contextlib.suppress(OSError):
                        sock.send(drop)
            except OSError:
                return data
    raise AssertionError(f"still open after {seconds_max} s; it said {data!r}")


SLOW: dict[str, tuple[bytes, bytes]] = {
    "silent": (b"", b""),
    "half-a-line": (b"GET /hea", b""),
    "half-a-head": (b"GET /health HTTP/1.1\r\nHost: localhost\r\n", b""),
    "dribbled-head": (b"GET /health HTTP/1.1\r\n", b"X-A: b\r\n"),
    "no-body": (head("POST", TARGET, *JSON_HEADERS, "Content-Length: 2"), b""),
    "half-a-body": (head("POST", TARGET, *JSON_HEADERS, "Content-Length: 100") + b'{"ttl', b""),
    "dribbled-body": (head("POST", TARGET, *JSON_HEADERS, "Content-Length: 1000"), b" "),
    "dribbled-chunks": (head("POST", TARGET, *JSON_HEADERS, "Transfer-Encoding: chunked"), b"1\r\n \r\n"),
    "half-a-chunk": (head("POST", TARGET, *JSON_HEADERS, "Transfer-Encoding: chunked") + b"5\r\n{", b""),
}


@pytest.mark.parametrize("kind", SLOW)
def test_slow_sender_is_cut_off(impatient: ServerProcess, kind: str) -> None:
    """A sender that takes too long, however busy it looks, gets a 408 or a closed connection, and changes nothing."""
    before = facts(Api.of(impatient, callers.ALICE))
    data = _dribble(impatient, *SLOW[kind], seconds_max=8)
    for answer in parse_answers(data, closed=True):
        refused(answer, 408, ("invalid_input", "request_timeout", "timeout"))
    # On a connection of its own: the one from before has idled too, and may be closed just as it is used.
    assert facts(Api.of(impatient, callers.ALICE)) == before


def test_idle_connection_is_closed(impatient: ServerProcess) -> None:
    """A connection on which no further request comes is closed; one that is used in time is not."""
    request = head("GET", "/health", "Host: localhost")
    with socket.create_connection((impatient.host, impatient.port), timeout=8) as sock:
        began = time.monotonic()
        sock.sendall(request)
        data = _read_to_the_end(sock)
        assert time.monotonic() - began >= 1
    assert one_status(data) == 200


def one_status(data: bytes) -> int:
    """The status of the first answer."""
    return parse_answers(data, closed=True)[0].status


def test_open_watch_is_not_idle(impatient: ServerProcess) -> None:
    """A watch is no idle connection: it outlives every timeout of senders."""
    api = Api.of(impatient, callers.ALICE)
    name = unique()
    with api.watch_lock(name) as stream:
        stream.next()
        # Twice the idle timeout, on another connection's clock.
        lease = api.acquired(f"{name}/clock", ttl_seconds=4)
        wait_until(lambda: api.status(f"{name}/clock").json()["status"] == "free", every_seconds=0.2)
        assert lease["status"] == "acquired"
        held = api.acquired(name)
        assert stream.next().json()["event"] == "acquired"
        api.release(name, held["lease_id"])


def test_slow_senders_do_not_delay_others(impatient: ServerProcess) -> None:
    """Beside a hundred half-sent requests, ordinary ones are answered."""
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            sock = stack.enter_context(socket.create_connection((impatient.host, impatient.port), timeout=8))
            sock.sendall(b"POST /locks/x/acquire HTTP/1.1\r\nHost: localhost\r\n")
        api = Api.of(impatient, callers.ALICE)
        for _ in range(20):
            name = unique()
            assert api.release(name, api.acquired(name)["lease_id"]).status == 200


def test_abandoned_requests_do_not_delay_others(alice: Api) -> None:
    """Callers that hang up in the middle, or before the answer, leave nothing open behind them."""
    for _ in range(50):
        with socket.create_connection((alice.host, alice.port), timeout=5) as sock:
            sock.sendall(head("POST", TARGET, *JSON_HEADERS, "Content-Length: 100") + b"{")
        with socket.create_connection((alice.host, alice.port), timeout=5) as sock:
            sock.sendall(head("GET", "/locks", "Host: localhost", AUTHORIZED))
    assert alice.get("/health").status == 200


def test_connections_have_a_limit(tmp_path: Path) -> None:
    """Beyond `connections_max` a caller is refused in words (503), users inside go on, and a place that is left is free
    again.
    """
    settings = {"connections_max": 10}
    with (
        ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server,
        contextlib.ExitStack() as stack,
    ):
        inside = [stack.enter_context(Connection(server.host, server.port)) for _ in range(10)]
        for token, connection in zip([callers.ALICE] * 9 + [callers.BOB], inside, strict=True):
            assert connection.request("GET", "/locks", token=token).status == 200
        data = _outside(server)
        answers = parse_answers(data, closed=True)
        assert answers, f"refused without a word: {data!r}"
        assert answers[0].status == 503
        refused(answers[0], 503, (answers[0].json()["code"],))
        for connection in inside:
            assert connection.request("GET", "/health").status == 200
        for connection in inside[:5]:
            connection.close()

        def let_in() -> bool:
            return parse_answers(_outside(server), closed=True)[0].status == 200

        wait_until(let_in)


def test_unauthenticated_connections_are_evicted_first(tmp_path: Path) -> None:
    """When all places are taken, the eldest on which nobody known has asked gives way; a user's is never taken."""
    settings = {"connections_max": 10}
    with (
        ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server,
        contextlib.ExitStack() as stack,
    ):
        user = stack.enter_context(Connection(server.host, server.port))
        assert user.request("GET", "/locks", token=callers.ALICE).status == 200
        stream = stack.enter_context(Api.of(server, callers.BOB).events())
        stream.wait_for_comment(5)
        address = (server.host, server.port)
        unauthenticated = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(40)]
        late = stack.enter_context(Connection(server.host, server.port))
        assert late.request("GET", "/locks", token=callers.ALICE).status == 200
        assert user.request("GET", "/locks", token=callers.ALICE).status == 200
        assert unauthenticated[0].recv(1) == b"", "the eldest was to give way"
        name = unique()
        Api.of(server, callers.ALICE).acquired(name)
        assert stream.next().json()["changes"][0]["name"] == name


def test_unauthenticated_connections_are_evicted_before_descriptors_run_out(tmp_path: Path) -> None:
    """Where the machine allows fewer descriptors than connections, as many are taken as it has room for. The log says
    so, strangers give way, and for users nothing is missing, files included.
    """
    with (
        ServerProcess.start(
            tmp_path / "data", tokens=callers.TOKENS, wrapper=["prlimit", "--nofile=256:256"]
        ) as server,
        contextlib.ExitStack() as stack,
    ):
        assert "this process may have 256 files open: 128 connections are taken, and not 10000" in server.log
        user = stack.enter_context(Connection(server.host, server.port))
        assert user.request("GET", "/locks", token=callers.ALICE).status == 200
        address = (server.host, server.port)
        unauthenticated = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(300)]
        assert unauthenticated[0].recv(1) == b"", "the eldest was to give way"
        late = stack.enter_context(Connection(server.host, server.port))
        assert late.request("GET", "/locks", token=callers.BOB).status == 200
        assert late.request("GET", "/", token=callers.BOB).status == 200, "the page has files"
        assert user.request("GET", "/locks", token=callers.ALICE).status == 200


def test_one_user_cannot_take_every_connection(tmp_path: Path) -> None:
    """The last tenth of `connections_max` is for users who have few: one that has many is told so (429), also where it
    only waits in line, and another user gets in. What the first one closes it may open again.
    """
    with (
        ServerProcess.start(tmp_path / "data", settings={"connections_max": 20}, tokens=callers.TOKENS) as server,
        contextlib.ExitStack() as stack,
    ):
        name = unique()
        Api.of(server, callers.BOB).acquired(name, ttl_seconds=60)
        waits = {"wait_seconds": 30}
        address = (server.host, server.port)
        those = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(17)]
        for waiter in those:
            waiter.sendall(pending.payload(f"/locks/{name}/acquire", callers.ALICE, waits))
        bob = Api.of(server, callers.BOB)
        wait_until(lambda: pending.waiters(bob, name) == 17)
        late = stack.enter_context(Connection(server.host, server.port))
        answer = late.request("POST", f"/locks/{name}/acquire", waits, token=callers.ALICE)
        refused(answer, 429, ("quota_exceeded",))
        assert "17 connections" in answer.json()["details"]
        assert late.request("GET", "/locks", token=callers.OPERATOR).status == 200
        for waiter in those[:5]:
            waiter.close()
        again = stack.enter_context(Connection(server.host, server.port))
        wait_until(lambda: again.request("GET", "/locks", token=callers.ALICE).status == 200)


def _outside(server: ServerProcess) -> bytes:
    """Connect, hear what the server has to say by itself, else ask it; return all of it."""
    request = head("GET", "/health", "Host: localhost", "Connection: close")
    with socket.create_connection((server.host, server.port), timeout=5) as sock:
        sock.settimeout(0.3)
        with contextlib.suppress(TimeoutError):
            data = sock.recv(1 << 16)
            sock.settimeout(5)
            return data + _read_to_the_end(sock)
        sock.settimeout(5)
        sock.sendall(request)
        return _read_to_the_end(sock)
