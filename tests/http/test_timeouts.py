"""No state of a connection lasts for ever, and one who does not read costs little: the server's patience has an end."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.http.conversation import Conversation, logged, memory_mib, pour
from tests.http.histories import request
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique, wait_until
from tests.support.server import ServerProcess, serving

MIB = 1 << 20
SECONDS_MAX = 60.0
"""Far more than the second that the server waits for anything, and the two for which it hears out what it refused."""

LARGE = request("GET", "/openapi.json", token=None)
POST = ("POST", "/locks/never/acquire")


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
@pytest.mark.parametrize("seconds", [1, 60], ids=["impatient", "patient"])
def test_client_that_reads_nothing_is_not_read_from(tmp_path: Path, path: str, seconds: int) -> None:
    """Who asks for large answers and reads none can soon send no more; the server keeps little for it, others go on,
    and when its time is up the connection is ended.
    """
    settings = {f"{what}_timeout_seconds": seconds for what in ("header", "body", "idle")}
    ask = request("GET", path, token=None) * 100
    with serving(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server:
        api = Api.of(server, callers.ALICE)
        api.get(path)
        before, log = memory_mib(server), logged(server)
        with Conversation(server, receive_bytes=4_096) as talk:
            sent, how = pour(talk, ask, bytes_max=64 * MIB)
            assert how != "taken", f"{sent} bytes of requests were read"
            assert memory_mib(server) - before < 64
            assert api.acquired(unique())
            if seconds == 1:
                wait_until(lambda: not talk.is_open_at_server(), seconds_max=SECONDS_MAX)
        assert memory_mib(server) - before < 64
        assert logged(server) == log


def test_many_clients_that_read_nothing_are_bounded(tmp_path: Path) -> None:
    """Thirty at a time cost thirty times little, and all of them are ended in time."""
    settings = {f"{what}_timeout_seconds": 1 for what in ("header", "body", "idle")}
    with (
        serving(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server,
        contextlib.ExitStack() as stack,
    ):
        api = Api.of(server, callers.ALICE)
        api.get("/openapi.json")
        before = memory_mib(server)
        talks = [stack.enter_context(Conversation(server, receive_bytes=4_096)) for _ in range(30)]
        for talk in talks:
            talk.send(LARGE * 50)
            assert api.get("/healthz").status == 200
        assert memory_mib(server) - before < 64
        for talk in talks:
            wait_until(lambda talk=talk: not talk.is_open_at_server(), seconds_max=SECONDS_MAX)  # type: ignore[misc]


# Every state ends.


def _nothing(_talk: Conversation) -> None:
    """Say nothing more."""


def _drip(drop: bytes) -> Callable[[Conversation], None]:
    def more(talk: Conversation) -> None:
        with contextlib.suppress(OSError):
            talk.sock.send(drop, socket.MSG_DONTWAIT)

    return more


START_OF_CHUNKS = request(*POST, "Transfer-Encoding: chunked", body=b"")
STATES: dict[str, tuple[bytes, Callable[[Conversation], None]]] = {
    "silent": (b"", _nothing),
    "silent after an answer": (request("GET", "/health"), _nothing),
    "half a request line": (b"GET /hea", _nothing),
    "half a head": (b"GET /health HTTP/1.1\r\nHost: a\r\n", _nothing),
    "a head that drips": (b"GET /health HTTP/1.1\r\nHost: a\r\n", _drip(b"X: 1\r\n")),
    "half a second head": (request("GET", "/health") + b"GET /hea", _nothing),
    "no body": (request(*POST, "Content-Length: 2"), _nothing),
    "half a body": (request(*POST, body=b'{"metadata": "x"}')[:-3], _nothing),
    "a body that drips": (request(*POST, "Content-Length: 2000"), _drip(b" ")),
    "no continue awaited": (request(*POST, "Expect: 100-continue", "Content-Length: 2"), _nothing),
    "half a chunk": (START_OF_CHUNKS + b"5\r\n{", _nothing),
    "half a size of a chunk": (START_OF_CHUNKS + b"5", _nothing),
    "half an extension": (START_OF_CHUNKS + b"5;x=", _drip(b"x")),
    "chunks that drip": (START_OF_CHUNKS, _drip(b"1\r\n \r\n")),
    "half a trailer": (START_OF_CHUNKS + b"2\r\n{}\r\n0\r\nX: ", _nothing),
    "trailers that drip": (START_OF_CHUNKS + b"2\r\n{}\r\n0\r\n", _drip(b"X: 1\r\n")),
    "blank lines that drip": (b"", _drip(b"\r\n")),
    "blank lines that drip after an answer": (request("GET", "/health"), _drip(b"\r\n")),
    "answers not read": (LARGE * 100, _nothing),
    "answers not read, and more asked": (LARGE * 100, _drip(LARGE)),
    "answers not read, and half a head": (LARGE * 100 + b"GET /hea", _nothing),
    "a refusal not read": (b"nonsense\r\n\r\n", _nothing),
    "a refusal not read, and more said": (b"nonsense\r\n\r\n", _drip(b"x" * 1_000)),
    "a refusal behind answers not read": (LARGE * 100 + b"nonsense\r\n\r\n", _nothing),
    "an end behind answers not read": (LARGE * 100 + request("GET", "/health", "Connection: close"), _nothing),
    "an end, and more said": (request("GET", "/health", "Connection: close"), _drip(b"x" * 1_000)),
    "a tunnel": (b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", _drip(b"x")),
    "a wish to upgrade": (request("GET", "/health", "Connection: Upgrade", "Upgrade: h2c"), _drip(b"x")),
    "HTTP/1.0": (request("GET", "/health", version="1.0"), _nothing),
    "a body too large": (request(*POST, "Content-Length: 99999999"), _drip(b"x" * 10_000)),
}
HALF_CLOSED: dict[str, bytes] = {
    "half-closed at once": b"",
    "half-closed after a request": request("GET", "/health"),
    "half-closed in a head": b"GET /hea",
    "half-closed in a body": request(*POST, "Content-Length: 2"),
    "half-closed in a chunk": START_OF_CHUNKS + b"5\r\n{",
    "half-closed, answers not read": LARGE * 100,
    "half-closed in a stream": request("GET", "/locks/never/watch"),
    "half-closed in a wait": request("POST", "/locks/held/acquire", body=b'{"wait_seconds": 40}'),
    "half-closed, refusal not read": b"nonsense\r\n\r\n",
}


def test_every_state_ends(impatient: ServerProcess) -> None:
    """However a connection stands still or drips, with or without an end of sending, the server ends it in time."""
    api, log = Api.of(impatient, callers.ALICE), logged(impatient)
    lease = api.acquired("held", ttl_seconds=600)
    with contextlib.ExitStack() as stack:
        open_: dict[str, tuple[Conversation, Callable[[Conversation], None]]] = {}
        for state, (sent, more) in STATES.items():
            talk = stack.enter_context(Conversation(impatient, receive_bytes=4_096))
            open_[state] = (talk.send(sent), more)
        for state, sent in HALF_CLOSED.items():
            talk = stack.enter_context(Conversation(impatient, receive_bytes=4_096))
            open_[state] = (talk.send(sent).half_close(), _nothing)
        deadline = time.monotonic() + SECONDS_MAX
        while open_ and time.monotonic() < deadline:
            for talk, more in open_.values():
                more(talk)
            time.sleep(0.1)
            open_ = {state: one for state, one in open_.items() if one[0].is_open_at_server()}
        assert not open_, f"still open after {SECONDS_MAX} s: {', '.join(open_)}"
    api = Api.of(impatient, callers.ALICE)
    assert api.release("held", lease["lease_id"]).status == 200
    assert logged(impatient) == log


def test_unread_stream_is_ended(impatient: ServerProcess, name: str) -> None:
    """A reader of a stream that takes nothing of what is ready for it is cut off; until then it costs little."""
    api = Api.of(impatient, callers.ALICE)
    before = memory_mib(impatient)
    with Conversation(impatient, receive_bytes=4_096) as talk:
        talk.send(request("GET", f"/events?prefix={name}"))
        talk.read_until(lambda data: b"\n\n" in data)
        deadline = time.monotonic() + SECONDS_MAX
        while talk.is_open_at_server() and time.monotonic() < deadline:
            names = [f"{name}/{unique()}" for _ in range(500)]
            api.claims(all=names, metadata="x" * 1_000, ttl_seconds=1)
        assert not talk.is_open_at_server()
        assert memory_mib(impatient) - before < 200


def test_waiter_is_not_timed_out(impatient: ServerProcess, name: str) -> None:
    """A wait in line is no idleness: it lasts as long as it was asked for."""
    api = Api.of(impatient, callers.ALICE)
    lease = api.acquired(name, ttl_seconds=600)
    with Conversation(impatient) as talk:
        talk.send(request("POST", f"/locks/{name}/acquire", body=b'{"wait_seconds": 40}', token=callers.BOB))
        with Conversation(impatient) as idle:
            # Twice the patience with one who says nothing, on another connection's clock.
            idle.read_to_the_end()
        with Conversation(impatient) as idle:
            idle.read_to_the_end()
        api = Api.of(impatient, callers.ALICE)
        assert api.release(name, lease["lease_id"]).status == 200
        assert b'"acquired"' in talk.read_answers(1)[0].body
