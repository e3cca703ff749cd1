"""How large a body may be, and for whom it is read, on every route."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.api.auth.auth import Auth, StaticTokens
from holdfast.api.auth.secrets import AuthorityKey
from holdfast.api.decoding import body_bytes_max
from holdfast.api.router import Routes
from holdfast.api.service import ApiService
from holdfast.config import Settings
from holdfast.core.values import Limits
from holdfast.engine.engine import Engine
from holdfast.http.messages import SMALL_BODY_BYTES, request_from
from holdfast.server.components import OPERATIONS
from holdfast.testing.clock import ManualClock
from holdfast.wire.problems import Problem
from tests.engine.harness import run
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import refused, unique
from tests.support.gateway import Run
from tests.support.http import Answer, EventStream
from tests.support.memory_journal import MemoryJournal
from tests.support.raw import head, one, send
from tests.support.server import PROJECT, ServerProcess

LIMITS = {(row.method, row.path): body_bytes_max(row, Settings()) for row in OPERATIONS}
ID = "00000000-0000-4000-8000-000000000000"
WORDS, OWNER = "😀" * 1_024, "😀" * 128
PATH = "/".join(["a" * 64] * 3)
NAME = f"{PATH}/{'a' * 61}"
LABELS = {f"{'a' * 62}{chr(ord('a') + index)}": "😀" * 128 for index in range(16)}
TERMS = {
    "ttl_seconds": 2**32 - 1,
    "metadata": WORDS,
    "owner": OWNER,
    "session_id": f"{{{ID}}}",
    "ephemeral": False,
    "lock_delay_seconds": 2**32 - 1,
    "redo": False,
    "labels": LABELS,
    "ticket": f"urn:uuid:{ID}",
    "wait_seconds": 4294967295.999,
}


def _written(value: object) -> str:
    """JSON as long as it can be without blanks: every character is an escape, or two."""
    match value:
        case dict():
            return "{" + ", ".join(f"{_written(key)}: {_written(each)}" for key, each in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_written, value)) + "]"
        case str():
            units = value.encode("utf-16-be").hex()
            return '"' + "".join(f"\\u{units[index : index + 4]}" for index in range(0, len(units), 4)) + '"'
        case _:
            return json.dumps(value)


FOLLOWED = {"leases": {f"{PATH}/{'a' * 57}{index:04}": ID for index in range(1_000)}, "sessions": []}
_RUN = {"secret": "s" * 82, "resourceKey": f"file:{'a' * 251}"}
LARGEST = {
    path: _written(body)
    for path, body in {
        "/locks/{name}/acquire": TERMS | {"resume": False},
        "/claims": TERMS | {"all": [f"{PATH}/{'a' * 57}{index:04}" for index in range(1_000)]},
        "/claims/secret": {"lock_name": NAME, "lease_id": ID},
        "/leases/watch": FOLLOWED,
        "/lease-watches/{id}": FOLLOWED,
        "/locks/{name}/renew": {"lease_id": ID, "ttl_seconds": 2**32 - 1, "keep_ttl": False}
        | {"note": WORDS, "metadata": WORDS},
        "/locks/{name}/release": {"lease_id": ID, "outcome": "done", "remember_seconds": 2**32 - 1, "result": WORDS},
        "/locks/{name}/transfer": {"lease_id": ID, "to_owner": OWNER, "ttl_seconds": 2**32 - 1, "reason": WORDS},
        "/locks/{name}/check": {"fencing_token": 2**53 - 1},
        "/locks/{name}/revoke": {"reason": WORDS},
        "/locks/{name}/reopen": {"reason": WORDS},
        "/sessions": {"ttl_seconds": 2**32 - 1, "name": OWNER, "metadata": WORDS},
        "/tokens": {"name": "a" * 64, "scopes": ["read", "claim", "admin"], "prefix": NAME},
        "/tokens/{name}/rotate": {"expires_in_seconds": 2**32 - 1, "keep_sessions": False, "never_expires": False},
        "/locks/acquire": _RUN | {"ttl": 1.5},
        "/locks/heartbeat": _RUN | {"ttl": 1.5},
        "/locks/release": _RUN,
    }.items()
}
"""The largest body that each route has a use for, as a client may write it."""
BODIES = sorted(LARGEST)
WRONG = "nobody-knows-this-one"
SIGNED = sorted(row.path for row in OPERATIONS if row.body is not None and row.scope is not None)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server of this file."""
    data = tmp_path_factory.mktemp("sizes") / "data"
    with ServerProcess.start(data, tokens=callers.TOKENS) as process:
        yield process
        assert process.is_running(), process.log


def _post(api: Api, path: str, body: bytes) -> Answer:
    if path == "/leases/watch":
        with EventStream(api.host, api.port, path, token=api.token, body=body) as stream:
            return Answer(stream.status, stream.headers, stream.refusal)
    return api.post(path.replace("{name}", "sized").replace("{id}", ID), body)


def _padded(text: str, size: int) -> bytes:
    return text.encode() + b" " * (size - len(text.encode()))


def test_every_route_with_a_body_is_looked_at() -> None:
    """No route that takes a body is left out of what follows."""
    assert {row.path for row in OPERATIONS if row.body is not None} == set(LARGEST)


@pytest.mark.parametrize("path", BODIES)
def test_the_largest_legal_body_is_read(operator: Api, path: str) -> None:
    """A body in which everything is as long as it may be, in the longest way to write it, is read; a byte over the
    limit of its route is 413, also where that is small.
    """
    limit = LIMITS["POST", path]
    assert len(LARGEST[path].encode()) <= limit
    answer = _post(operator, path, _padded(LARGEST[path], limit))
    assert answer.status not in {413, 415, 422}, answer
    assert b"not JSON" not in answer.body, answer
    answer = _post(operator, path, _padded(LARGEST[path], limit + 1))
    assert answer.status == 413, answer
    assert str(limit) in answer.text


@pytest.mark.parametrize("path", SIGNED)
def test_a_small_body_is_looked_at_first(nobody: Api, path: str) -> None:
    """A malformed body of at most 16 KiB is 400, whoever sends it: the order of checks is that of the reference."""
    limit = min(LIMITS["POST", path], SMALL_BODY_BYTES)
    refused(_post(nobody, path, _padded("{", limit)), 400, "invalid_input")


@pytest.mark.parametrize("path", [path for path in SIGNED if LIMITS["POST", path] > SMALL_BODY_BYTES])
def test_large_body_requires_authentication(server: ServerProcess, operator: Api, path: str) -> None:
    """Over 16 KiB it is asked first who sends it: 401 for a body that is 400 when a known one sends it."""
    body = _padded("{", SMALL_BODY_BYTES + 1)
    refused(_post(Api.of(server, None), path, body), 401, "authentication_required")
    refused(_post(Api.of(server, WRONG), path, body), 401, "authentication_failed")
    refused(_post(operator, path, body), 400, "invalid_input")


def test_a_large_body_needs_the_scope_too(server: ServerProcess) -> None:
    """A known token without the scope is told so before its large body is read."""
    body = _padded("{", SMALL_BODY_BYTES + 1)
    refused(_post(Api.of(server, callers.READER), "/claims", body), 403, "forbidden")


LARGE = ("Host: localhost", "Content-Type: application/json")


@pytest.mark.parametrize(
    ("path", "token", "status", "code"),
    [
        ("/claims", WRONG, 401, "authentication_failed"),
        ("/claims", callers.READER, 403, "forbidden"),
        ("/locks/a/check", WRONG, 401, "authentication_failed"),
        ("/locks/acquire", WRONG, 413, None),
        ("/health", WRONG, 405, "invalid_input"),
        ("/nowhere", WRONG, 404, "not_found"),
    ],
)
@pytest.mark.parametrize("announced", [True, False], ids=["length", "chunks"])
def test_the_rest_of_a_large_body_is_not_waited_for(
    server: ServerProcess, path: str, token: str, status: int, code: str | None, announced: bool
) -> None:
    """Who may not send a large body is told so when 16 KiB of it are there, or on its head alone if that says how much
    will come: the rest never comes, and is not missed.
    """
    sized = ("Content-Length: 1000000",) if announced else ("Transfer-Encoding: chunked",)
    begun = b"" if announced else b"%x\r\n%b\r\n" % (SMALL_BODY_BYTES + 1, b"[" * (SMALL_BODY_BYTES + 1))
    sent = head("POST", path, *LARGE, f"Authorization: Bearer {token}", *sized) + begun
    answer = one(send(Api.of(server, None), sent))
    assert answer.status == status, answer
    if code is not None:
        refused(answer, status, code)


def test_large_body_of_authenticated_client_is_read(server: ServerProcess) -> None:
    """A known caller may send what its route takes, in pieces; a byte more ends it."""
    limit = LIMITS["POST", "/claims"]
    start = head("POST", "/claims", *LARGE, f"Authorization: Bearer {callers.ALICE}", "Transfer-Encoding: chunked")
    chunk = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
    reply = send(Api.of(server, None), start + chunk * (limit // 0x8000 + 1), timeout_seconds=20)
    assert str(limit) in refused(one(reply), 413, "invalid_input")["details"]


def test_the_gateway_says_it_in_its_own_words(alice: Api) -> None:
    """The gateway's routes take 16 KiB, other fields included; more is 413 with `ok` and `error`."""
    asked = Run(alice)
    wanted = {"secret": asked.secret, "resourceKey": f"file:///{unique()}", "other": ""}
    bytes_left = SMALL_BODY_BYTES - len(json.dumps(wanted))
    assert _post(alice, "/locks/acquire", json.dumps(wanted | {"other": "x" * bytes_left}).encode()).status == 200
    answer = _post(alice, "/locks/release", json.dumps(wanted | {"other": "x" * (bytes_left + 1)}).encode())
    assert answer.status == 413, answer
    assert answer.json() == {"ok": False, "error": f"The body may have at most {SMALL_BODY_BYTES} bytes."}


def test_body_limit_admits_ignored_fields(tmp_path: Path) -> None:
    """Where unknown fields are ignored, every route takes them in its limit."""
    with ServerProcess.start(tmp_path, settings={"unknown_fields": "ignore"}, tokens=callers.TOKENS) as server:
        alice = Api.of(server, callers.ALICE)
        body = json.dumps({"fencing_token": 1, "other": ""}).encode()
        bytes_left = LIMITS["POST", "/locks/{name}/check"] - len(body)
        filled = body.replace(b'""', b'"' + b"x" * bytes_left + b'"')
        assert _post(alice, "/locks/{name}/check", filled).status == 200
        refused(_post(alice, "/locks/{name}/check", filled + b" "), 413, "invalid_input")


def test_the_settings_count() -> None:
    """The limits follow the settings: a longer metadata, more names, a smaller body."""
    sizes = {row.path: row for row in OPERATIONS if row.method == "POST"}

    def most(path: str, **settings: int) -> int:
        return body_bytes_max(sizes[path], Settings(**settings))  # type: ignore[arg-type]

    assert most("/locks/{name}/renew", metadata_chars_max=2_048) == most("/locks/{name}/renew") + 2 * 12 * 1_024
    assert most("/claims", names_per_call_max=10) == most("/locks/{name}/renew") + 10 * 2_400
    assert most("/claims", names_per_call_max=100_000) == Settings().body_bytes_max
    assert most("/claims", body_bytes_max=500) == most("/locks/acquire", body_bytes_max=500) == 500


def test_body_limit_of_a_connection() -> None:
    """`body_limit` knows from the head alone how much may come: nothing beyond 16 KiB for nobody, or where there is no
    route.
    """

    async def ask(clock: ManualClock) -> None:
        engine = Engine(MemoryJournal(), Limits(), clock=clock, version="test")
        await engine.start()
        auth = Auth(StaticTokens.parse(callers.TOKENS), AuthorityKey(b"k" * 32))
        routes = Routes(ApiService(engine, auth, Settings()), OPERATIONS)

        def limit(method: str, path: str, token: str | None) -> int | tuple[int, str]:
            headers = {} if token is None else {b"authorization": f"Bearer {token}".encode()}
            try:
                return routes.body_limit(request_from(method.encode(), path.encode(), b"", headers, b""))
            except Problem as problem:
                return problem.status, problem.code

        assert limit("POST", "/claims", callers.ALICE) == LIMITS["POST", "/claims"]
        assert limit("POST", "/locks/a/acquire", callers.ALICE) == LIMITS["POST", "/locks/{name}/acquire"]
        assert limit("POST", "/claims", None) == (401, "authentication_required")
        assert limit("POST", "/claims", WRONG) == (401, "authentication_failed")
        assert limit("POST", "/claims", callers.READER) == (403, "forbidden")
        assert limit("POST", "/locks/acquire", None) == SMALL_BODY_BYTES
        assert limit("GET", "/health", None) == SMALL_BODY_BYTES
        assert limit("POST", f"/sessions/{ID}/keepalive", None) == SMALL_BODY_BYTES
        assert limit("POST", "/locks/a/check", None) == (401, "authentication_required")
        assert limit("POST", "/nowhere", callers.ALICE) == (404, "not_found")
        assert limit("PUT", "/claims", callers.ALICE) == (405, "invalid_input")
        await engine.stop()

    run(ask)


def test_the_reference_has_the_limits() -> None:
    """The table in the HTTP reference says of every route how much it takes with the settings as they come."""
    page = (PROJECT / "docs/reference/http.md").read_text(encoding="utf-8")
    section = page.partition("### How large a body may be")[2].partition("\n#")[0]
    found: dict[str, int] = {}
    for paths, number in re.findall(r"^\| (`POST [^|]+) \| ([0-9 ]+) \|", section, re.MULTILINE):
        for path in re.findall(r"`(?:POST )?(/[^`]+)`", paths):
            found[path] = int(number.replace(" ", ""))
    assert found == {path: LIMITS["POST", path] for path in LARGEST}
