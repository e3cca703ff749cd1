"""What a node that follows tells those who have no token."""

from __future__ import annotations

import uuid

import pytest

from holdfast.cluster.election import public_reason
from holdfast.cluster.node import FollowerHealth, Node
from holdfast.http.messages import Request, request_from
from holdfast.journal.interface import JournalUnavailableError, Leadership, Peer

LEADERSHIP = Leadership(
    authority="authority",
    epoch=1,
    term_id="t" * 32,
    heartbeat=1,
    is_held=True,
    node="node1",
    process="p" * 32,
    url="http://10.0.0.5:7420",
    last_seq=0,
    now_ms=0,
    since_wall_ms=0,
    format=1,
    version="test",
)
SECRETS = ("10.0.0.5", "db.internal", "node1", "refused")


@pytest.mark.parametrize("path", [b"/health", b"/readyz", b"/health/leader"])
@pytest.mark.parametrize("state", ["linked", "no link", "no store", "nobody"])
def test_health_says_no_address_and_no_error(path: bytes, state: str) -> None:
    """N-34: anybody may ask how a node is, and hears neither where the others are nor what the store said."""
    node = Node(Peer(node="node2", process=uuid.uuid4().hex, url="", version="test", format_max=99, tokens=""))
    node.is_linked = state == "linked"
    if state == "no store":
        error = JournalUnavailableError("db.internal:5432 refused it")
        node.trouble = public_reason(error)
    if state in {"linked", "no link"}:
        node.set_leader(LEADERSHIP, None)
    said: list[bytes] = []

    def reply(_request: Request, _status: int, body: bytes, _headers: object) -> None:
        said.append(body)

    FollowerHealth(node, "postgresql").handlers()[path](request_from(b"GET", path, b"", {}, b""), reply)
    (body,) = said
    assert not [secret for secret in SECRETS if secret.encode() in body], body
