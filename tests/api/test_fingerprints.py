"""What a request comes to is the same in every release: the journal keeps it, and a retry may come after an upgrade."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.api.auth.auth import Caller
from holdfast.api.context import RequestContext
from holdfast.api.decoding import reader_for
from holdfast.config import Settings
from holdfast.http.messages import request_from
from holdfast.server.components import OPERATIONS

LEASE = b"11111111-2222-4333-8444-555555555555"
TERMS = (
    b'"ttl_seconds":60,"metadata":"m","owner":"ana","session_id":"%b","ephemeral":true,"lock_delay_seconds":3,'
    b'"wait_seconds":5,"redo":true' % LEASE
)


def read(method: str, path: str, segment: bytes, body: bytes) -> RequestContext:
    """Read a request as the server does, for a caller that may do everything."""
    api: Any = SimpleNamespace(
        settings=Settings(),
        admit=lambda *_: Caller("alice", frozenset()),
        name_for=lambda text, *_: text,
    )
    operation = next(each for each in OPERATIONS if (each.method, each.path) == (method, path))
    headers = {b"content-type": b"application/json", b"idempotency-key": b"k"}
    request = request_from(method.encode(), b"", b"", headers, body)
    return reader_for(api, operation)(request, segment, lambda *_: None)


@pytest.mark.parametrize(
    ("method", "path", "segment", "body", "expected"),
    [
        ("POST", "/locks/{name}/acquire", b"job", b"{}", "b25eefe45a8689854bdcbaf7"),
        ("POST", "/locks/{name}/acquire", b"job", b'{%b,"resume":true}' % TERMS, "093bec1815535a8fb875edee"),
        ("POST", "/claims", b"", b'{%b,"all":["a","b"]}' % TERMS, "bdefcba76e2d5150f306a113"),
        (
            "POST",
            "/locks/{name}/release",
            b"job",
            b'{"lease_id":"%b","outcome":"done","remember_seconds":9,"result":"r"}' % LEASE,
            "2014342c8cc75303a6149d5c",
        ),
        (
            "POST",
            "/locks/{name}/transfer",
            b"job",
            b'{"lease_id":"%b","to_owner":"ben"}' % LEASE,
            "ce57324225ded8f869c53e61",
        ),
        ("POST", "/sessions", b"", b'{"name":"run"}', "1f56ec0cef38f421090b741d"),
        ("DELETE", "/sessions/{id}", LEASE, b"", "27eb43d92f24452c05e82858"),
    ],
)
def test_a_retry_after_an_upgrade_is_the_same_request(
    method: str, path: str, segment: bytes, body: bytes, expected: str
) -> None:
    """C5: 0.1.0 expected these fingerprints; another one for the same request would be a conflict of its key."""
    assert read(method, path, segment, body).fingerprint == expected


def test_fingerprint_ignores_wait_and_ticket() -> None:
    """C5: how long a claim waits and at which place in line is no part of what it asks for; its owner is."""
    path = "/locks/{name}/acquire"
    first = read("POST", path, b"job", b'{"owner":"ana","wait_seconds":20}')
    later = read("POST", path, b"job", b'{"owner":"ana","wait_seconds":3,"ticket":"%b"}' % LEASE)
    other = read("POST", path, b"job", b'{"owner":"ben","wait_seconds":20}')
    assert first.fingerprint == later.fingerprint != other.fingerprint
