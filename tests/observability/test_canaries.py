"""Canaries: what is put into any field, header or query of any route, and all that is a secret, is in no log.

Names, owners and the names of access tokens are what the log is about, so they are shown; a secret of ours that
somebody put there by mistake is not. Everything else never reaches the log, whatever it looks like.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest

from holdfast.api.operation import Operation
from holdfast.server.components import OPERATIONS
from tests.support import callers
from tests.support.api import Api
from tests.support.gateway import Run
from tests.support.server import ServerProcess
from tests.support.visitor import FORM, Visitor, page_of

_numbers = itertools.count(1)
SHOWN = frozenset(
    {"name", "names", "owner", "any", "all", "lock_name", "resourceKey", "agent", "to", "to_owner", "prefix"}
)
"""Fields of bodies that hold names and owners: their canaries look like secrets of ours."""
FORM_FIELDS = ("token", "form_token", "reason", "owner", "next", "name", "to", "lease_id", "note")
"""What forms of the page have, and some more."""
HEADERS = (
    "Authorization",
    "Cookie",
    "Idempotency-Key",
    "User-Agent",
    "Referer",
    "Origin",
    "X-Forwarded-For",
    "X-Forwarded-Proto",
    "X-Request-Id",
    "X-Holdfast-Page",
    "Last-Event-ID",
    "On-Held",
    "traceparent",
    "Accept",
    "Content-Type",
    "Sec-Fetch-Site",
)


def canary() -> str:
    """A text that nobody else writes; it looks like no secret, so nothing hides it."""
    return f"canary{next(_numbers):05}feathers"


def secret_canary() -> str:
    """A text that looks like an access token."""
    return f"hold_Canary{next(_numbers):05}feathersAndWingsAndSongs"


@pytest.fixture(params=["json", "human"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    settings = {
        "log_requests": True,
        "log_events": True,
        "log_format": request.param,
        "trusted_proxies": "127.0.0.1",
        "wrong_tokens_per_minute_max": 1_000_000,
    }
    with ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as process:
        yield process


@pytest.fixture
def who(request: pytest.FixtureRequest) -> str | None:
    """Whoever asks: another one of each server."""
    return {"json": None, "human": callers.READER}[request.node.callspec.id]


def _value(kind: object, shown: bool) -> object:
    """A value for a field of this type, with a canary in it wherever a text may be."""
    made = secret_canary if shown else canary
    written = str(kind)
    if "dict" in written:
        return {made(): made()}
    if "list" in written or "tuple" in written:
        return [made(), made()]
    return made()


def _body(operation: Operation) -> Iterator[dict[str, object]]:
    """Bodies with canaries: one of all fields, and one for each field."""
    if operation.body is None:
        yield {canary(): canary()}
        return
    hints = typing.get_type_hints(operation.body)
    names = {field.encode_name: hints[field.name] for field in msgspec.structs.fields(operation.body)}
    yield {name: _value(kind, name in SHOWN) for name, kind in names.items()}
    for name, kind in names.items():
        yield {name: _value(kind, name in SHOWN)}
    yield {canary(): canary()}


def _paths(operation: Operation) -> Iterator[str]:
    """The path with a secret in the place of each item, as it is and percent-encoded; and a query of canaries."""
    secret = secret_canary()
    hidden = "".join(f"%{ord(letter):02X}" for letter in secret)
    for item in dict.fromkeys([secret, hidden]):
        yield re.sub(r"\{\w+\}", item, operation.path)
    known = "&".join(f"{name}={canary()}" for name in [*operation.query, "unknown", canary()])
    yield f"{operation.path.replace('{', '').replace('}', '')}?{known}&token={secret_canary()}"


def _ask(server: ServerProcess, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> int:
    """Ask, and take the status alone: of a stream nothing more may come."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=10)
    with contextlib.closing(connection), contextlib.suppress(ConnectionError, http.client.HTTPException):
        connection.request(method, path, body, headers)
        return connection.getresponse().status
    return 0


def _assert_no_canary(server: ServerProcess, *secrets: str) -> None:
    assert server.terminate() == 0
    log = server.log
    assert "feathers" not in log, [line for line in log.splitlines() if "feathers" in line][:5]
    assert [secret for secret in secrets if secret and secret in log] == []
    assert "Traceback" not in log, log[-5_000:]


def test_routes_log_no_canary(server: ServerProcess, who: str | None) -> None:
    """Every route, with canaries in its path, query, headers and body: nothing of it is logged, whoever asks."""
    known = {} if who is None else {"Authorization": f"Bearer {who}"}
    typed = {"Content-Type": "application/json"}
    asked = 0
    for operation in OPERATIONS:
        if operation.path == "/backup":
            continue  # For the operator it is all that there is, each time.
        for path in _paths(operation):
            for body in _body(operation):
                written = json.dumps(body).encode() if operation.method in {"POST", "PUT", "PATCH"} else None
                asked += _ask(server, operation.method, path, written, {**known, **typed}) > 0
        if operation.method == "POST":
            form = urlencode({name: canary() for name in (*FORM_FIELDS, canary())}).encode()
            typed_form = {"Content-Type": FORM, "Origin": f"http://{server.host}:{server.port}"}
            for path in _paths(operation):
                asked += _ask(server, "POST", path, form, {**known, **typed_form}) > 0
        for name in [*HEADERS, *operation.headers]:
            value = f"Bearer {canary()}feathersfeathers" if name == "Authorization" else canary()
            value = f"holdfast={value}; __Host-holdfast={value}" if name == "Cookie" else value
            asked += _ask(server, operation.method, quote(operation.path, safe="/"), b"{}", {**known, name: value}) > 0
    assert asked > len(OPERATIONS) * 15
    _assert_no_canary(server, callers.READER, callers.OPERATOR)


def _worked(server: ServerProcess) -> list[str]:
    """Use every field of a claim's whole life, with canaries that are accepted. Return all secrets that were told."""
    alice, operator = Api.of(server, callers.ALICE), Api.of(server, callers.OPERATOR)
    secrets: list[Any] = []
    lease = alice.acquired(
        "work", owner=secret_canary(), metadata=canary(), labels={"team": canary()}, key=canary(), ttl_seconds=600
    )
    secrets += [lease["lease_id"], alice.renew("work", lease["lease_id"], note=canary(), metadata=canary()).json()]
    asked = {"lock_name": "work", "lease_id": lease["lease_id"]}
    secrets.append(alice.post("/claims/secret", asked).json().get("claim_secret"))
    assert (
        alice.release(
            "work", lease["lease_id"], outcome="done", remember_seconds=60, result=canary(), key=canary()
        ).status
        == 200
    )
    assert operator.reopen("work", reason=canary()).status in {200, 204}
    lease = alice.acquired("work", metadata=canary())
    moved = alice.transfer("work", lease["lease_id"], to_owner=secret_canary())
    assert moved.status == 200, moved
    secrets += [lease["lease_id"], moved.json().get("lease_id")]
    assert operator.revoke("work", reason=canary()).status == 204
    session = alice.new_session(ttl_seconds=600, metadata=canary())
    secrets.append(session["session_secret"])
    mine = Api.of(server, session["session_secret"])
    mine.acquired(secret_canary(), metadata=canary())
    run = Run(alice)
    assert run.rlock("file:///work").status == 200
    made = operator.post("/tokens", {"name": "made"}).json()["token"]
    assert Api.of(server, made).acquire(f"{secret_canary()}/x").status == 200
    rotated = operator.post("/tokens/made/rotate", {}).json()["token"]
    assert Api.of(server, made).get("/locks").status == 401
    assert operator.delete("/tokens/made").status == 204
    assert alice.end_session(session["session_id"]).status == 204
    secrets += [made, rotated, run.secret]
    return [text for text in secrets if isinstance(text, str)]


def _visited(server: ServerProcess) -> list[str]:
    """Do with the page what an operator does, with canaries in its forms. Return the cookie and the signed field."""
    Api.of(server, callers.ALICE).acquired("paged", metadata=canary())
    visitor = Visitor(server)
    visitor.sign_in(callers.OPERATOR)
    secrets = [*visitor.cookies.values(), visitor.form_token()]
    assert len(secrets) == 2
    assert visitor.get(f"/?q={canary()}").status == 200
    fields = {**page_of(visitor.get("/ui/jobs/paged")).fields, "reason": canary()}
    assert visitor.send("/ui/jobs/paged/revoke", fields).status == 303
    return secrets


def test_claim_lifecycle_logs_no_canary(server: ServerProcess) -> None:
    """Metadata, notes, labels, keys, results, reasons, lease ids, secrets of sessions and claims, access tokens: all of
    them are used, and none is logged. Each grant and each end is.
    """
    secrets = _worked(server)
    assert len(secrets) >= 8
    secrets += _visited(server)
    _assert_no_canary(server, callers.ALICE, callers.OPERATOR, *secrets)
    assert "granted" in server.log and "revoked" in server.log and "hold_..." in server.log
