"""Heads: counted in full, read in one way only."""

from __future__ import annotations

import json

import pytest

from tests.http.conversation import Conversation
from tests.http.histories import request
from tests.http.judge import ON_EVERY_ANSWER
from tests.support import callers
from tests.support.api import Api
from tests.support.http import Client
from tests.support.server import ServerProcess


def ask(server: ServerProcess, *requests: bytes, methods: tuple[str, ...] = ()) -> list[tuple[int, bytes]]:
    """The statuses and bodies of these, on a connection of their own that is closed after them."""
    last = request("GET", "/nowhere", "Connection: close")
    with Conversation(server) as talk:
        said = talk.send(*requests, last).read_to_the_end((*methods, "GET"))
    return [(one.status, one.body) for one in said[: len(requests)]]


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "fields",
    [
        ["X-Same: 0123456789"] * 1_000,
        ["X-Same:"] * 3_000,
        ["Accept: */*"] * 2_000,
        [f"X-{number}: 0123456789" for number in range(1_000)],
        ["X-Large: " + "x" * 17_000],
    ],
    ids=["same", "same-and-empty", "accept", "different", "one"],
)
@pytest.mark.parametrize("pieces", [1, 7])
def test_every_field_counts(server: ServerProcess, alice: Api, name: str, fields: list[str], pieces: int) -> None:
    """A head has at most 16 KiB, however often a field is repeated and in however many pieces it comes: else 431."""
    head = request("POST", f"/locks/{name}/acquire", *fields, body=b"{}")
    size = len(head) // pieces + 1
    with Conversation(server) as talk:
        talk.send(request("GET", "/health"))
        for at in range(0, len(head), size):
            talk.send(head[at : at + size])
        assert [said.status for said in talk.read_to_the_end()] == [200, 431]
    assert alice.status(name).json()["status"] == "free"


@pytest.mark.usefixtures("quiet")
def test_long_pipeline_is_no_large_head(server: ServerProcess) -> None:
    """The limit is for one head: many that came in one piece are not added up, and the last may be half there."""
    head = request("GET", "/health", "X-Large: " + "x" * 12_000)
    with Conversation(server) as talk:
        talk.send(head * 10, head[:9_000]).read_answers(10)
        talk.send(head[9_000:])
        assert [said.status for said in talk.read_answers(11)] == [200] * 11


TWICE = {
    "host": ("Host: localhost",),
    "another host": ("Host: elsewhere",),
    "authorization": (f"Authorization: Bearer {callers.ALICE}",),
    "another authorization": (f"Authorization: Bearer {callers.BOB}",),
    "content-type": ("Content-Type: application/json",),
    "another content-type": ("Content-Type: text/plain",),
    "idempotency-key": ("Idempotency-Key: a", "Idempotency-Key: a"),
    "two idempotency-keys": ("Idempotency-Key: a", "Idempotency-Key: b"),
}


@pytest.mark.parametrize("what", TWICE)
def test_ambiguous_field_is_refused(server: ServerProcess, name: str, what: str) -> None:
    """A field that is read may stand once; twice is 400 and nothing happens."""
    ((status, body),) = ask(server, request("POST", f"/locks/{name}/acquire", *TWICE[what], body=b"{}"))
    assert (status, json.loads(body)["code"]) == (400, "invalid_input")
    assert Api.of(server, callers.ALICE).status(name).json()["status"] == "free"


@pytest.mark.parametrize(
    "origin", ["http://localhost", "http://127.0.0.1:7420", "HTTP://localhost", "https://localhost"]
)
def test_absolute_form_equals_the_origin_form(server: ServerProcess, name: str, origin: str) -> None:
    """`GET http://host/path` is answered as `GET /path`."""
    methods = ("POST", "GET", "GET", "HEAD", "GET", "GET")
    absolute = ask(
        server,
        request("POST", f"{origin}/locks/{name}/acquire?on_held=409", body=b"{}"),
        request("GET", f"{origin}/locks/{name}"),
        request("GET", f"{origin}/locks?prefix={name}"),
        request("HEAD", f"{origin}/health"),
        request("GET", f"{origin}/health?x=1"),
        request("GET", f"{origin}/nope"),
        methods=methods,
    )
    assert [status for status, _ in absolute] == [200, 200, 200, 200, 200, 404]
    assert json.loads(absolute[0][1])["status"] == "acquired"
    assert json.loads(absolute[1][1])["name"] == name
    assert len(json.loads(absolute[2][1])["locks"]) == 1
    assert ask(server, request("GET", f"{origin}/"))[0][0] == 200


def test_absolute_form_without_a_path(server: ServerProcess) -> None:
    """`GET http://host` asks for `/`."""
    assert [status for status, _ in ask(server, request("GET", "http://localhost"))] == [200]


def test_blanks_around_a_value_are_stripped(server: ServerProcess, name: str) -> None:
    """Blanks and tabs before and behind the value of a field do not count."""
    fields = f"Host: \t localhost \t \r\nAuthorization: \t Bearer {callers.ALICE} \t \r\n"
    plain = f"GET /locks/{name} HTTP/1.1\r\n{fields}\r\n".encode()
    assert [status for status, _ in ask(server, plain)] == [200]


def test_absolute_form_of_a_stream(server: ServerProcess, name: str) -> None:
    """A stream can be asked for in the absolute form as well."""
    with Conversation(server) as talk:
        talk.send(request("GET", f"http://localhost/locks/{name}/watch")).read_until(lambda data: b"\n\n" in data)
        assert talk.answers()[0].get("content-type") == "text/event-stream"


TARGETS: dict[str, tuple[int, str | None]] = {
    "/locks/NAME#part": (200, None),
    "/locks/NAME?#part": (200, None),
    "/health#part": (200, None),
    "/health?a=b#part": (200, None),
    "/locks?prefix=NAME#part": (200, None),
    "/locks/NAME%23part": (400, "invalid_lock_name"),
    "/#": (200, None),
    "http://localhost/health#part": (200, None),
    "//localhost/health": (404, "not_found"),
    "/health?": (200, None),
    "/health;x": (404, "not_found"),
    "*": (404, "not_found"),
    "?": (400, "invalid_input"),
    "health": (400, "invalid_input"),
    "http://": (400, "invalid_input"),
    "http:///health": (400, "invalid_input"),
    "http://localhost": (200, None),
    "http://localhost?x": (200, None),
    "/locks/NAME\\x": (400, "invalid_lock_name"),
    "/locks/a%2Fb": (200, None),
    "/locks/%": (400, "invalid_lock_name"),
}


def _shown(server: ServerProcess, target: str) -> tuple[int, str | None]:
    with Conversation(server) as talk:
        said = talk.send(request("GET", target, "Connection: close")).read_to_the_end()[0]
    problem = json.loads(said.body) if said.get("content-type") == "application/json" else {}
    return said.status, problem.get("code")


@pytest.mark.parametrize(("target", "expected"), TARGETS.items())
def test_odd_targets(server: ServerProcess, name: str, target: str, expected: tuple[int, str | None]) -> None:
    """A fragment is dropped, an absolute URL is reduced to its path, and nothing else is guessed."""
    assert _shown(server, target.replace("NAME", name)) == expected


def test_http_1_0_gets_no_chunks(server: ServerProcess, name: str) -> None:
    """HTTP/1.0 is answered without chunks, and closed after its answer."""
    for path in ("/health", "/docs", "/openapi.json", f"/locks/{name}", "/nope"):
        with Conversation(server) as talk:
            answers = talk.send(request("GET", path, version="1.0"), request("GET", "/health")).read_to_the_end()
        assert len(answers) == 1 and answers[0].framing == "length", path


def test_http_1_0_gets_a_stream_until_the_end(server: ServerProcess, name: str) -> None:
    """A stream for HTTP/1.0 is what comes until the connection ends."""
    with Conversation(server) as talk:
        talk.send(request("GET", f"/locks/{name}/watch", version="1.0"))
        talk.read_until(lambda data: b"\n\n" in data)
        Api.of(server, callers.ALICE).acquired(name)
        talk.read_until(lambda data: b'"acquired"' in data)
        said = talk.answers()[0]
        assert said.framing == "close" and said.body.startswith(b"data: ")


def test_every_response_is_no_store(server: ServerProcess, name: str) -> None:
    """`Cache-Control: no-store` and `X-Content-Type-Options: nosniff` stand on every answer, whatever it is."""
    client = Client(server.host, server.port, callers.OPERATOR)
    lease = client.post(f"/locks/{name}/acquire", {}).json()["lease_id"]
    body = b'{"metadata": "%b"}' % (b"x" * 3_000_000)
    answers = [
        client.get(path)
        for path in ("/", "/docs", "/openapi.json", "/openapi.yaml", "/health", "/healthz", "/readyz", "/status")
    ]
    answers += [client.get(path) for path in ("/locks", f"/locks/{name}", f"/locks/{name}/history", "/nope", "/tokens")]
    answers += [client.request("HEAD", path) for path in ("/docs", f"/locks/{name}", f"/locks/{name}/watch", "/nope")]
    answers += [client.request(method, "/locks") for method in ("PUT", "OPTIONS", "DELETE")]
    answers += [
        client.post(f"/locks/{name}/acquire", {}),
        client.post(f"/locks/{name}/acquire", {"colour": 1}),
        client.post(f"/locks/{name}/acquire", b"{"),
        client.post(f"/locks/{name}/acquire", {}, token=None),
        client.post(f"/locks/{name}/release", {"lease_id": lease}),
        client.post("/sessions", {}),
        client.post("/locks/acquire", {"secret": "x", "resourceKey": "a://b"}),
        client.post(f"/locks/{name}/acquire", body),
    ]
    with Conversation(server) as talk:
        talk.send(request("GET", f"/locks/{name}/watch")).read_until(lambda data: b"\n\n" in data)
        stream = talk.answers()[0]
    for header, value in ON_EVERY_ANSWER.items():
        assert value in stream.get(header)
        for answer in answers:
            assert answer.headers.get_all(header) == [value], answer


@pytest.mark.parametrize(
    "sent",
    [
        b"x",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nX: " + b"x" * 20_000,
        request("POST", "/locks/never/acquire", "Content-Length: 99999999"),
        b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
    ],
    ids=["noise", "no-host", "large-head", "large-body", "tunnel"],
)
def test_refusals_are_no_store(server: ServerProcess, sent: bytes) -> None:
    """So does what the lane itself refuses, which is in our envelope as any other refusal."""
    with Conversation(server) as talk:
        (said,) = talk.send(sent).read_to_the_end()
    assert {name: said.get(name) for name in ON_EVERY_ANSWER} == ON_EVERY_ANSWER
    assert set(json.loads(said.body)) >= {"error", "code", "details", "request_id"}
    assert said.get("x-request-id") == json.loads(said.body)["request_id"]
