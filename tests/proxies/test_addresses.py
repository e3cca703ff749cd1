"""Who a client is, behind a real proxy: the address that a trusted proxy saw, and never what the client says."""

from __future__ import annotations

import contextlib
import http.client
from pathlib import Path

import pytest

from tests.support import callers
from tests.support.reverse_proxies import APPENDS, PROXY_KINDS, front, guide_settings
from tests.support.server import ServerProcess

MAX = 3
WRONG = "nobody-knows-this-one"
FIRST, SECOND, THIRD = "127.0.0.2", "127.0.0.3", "127.0.0.4"
"""All of 127.0.0.0/8 is this machine, so a client can have any of its addresses."""


def status(port: int, source: str, token: str = WRONG, **fields: str) -> int:
    """Ask from this address with this token; the status of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10, source_address=(source, 0))
    headers = {"Authorization": f"Bearer {token}", **{name.replace("_", "-"): value for name, value in fields.items()}}
    with contextlib.closing(connection):
        connection.request("GET", "/locks", headers=headers)
        return connection.getresponse().status


@pytest.mark.parametrize("kind", PROXY_KINDS)
def test_clients_of_a_trusted_proxy_are_counted_apart(kind: str, tmp_path: Path) -> None:
    """Wrong tokens count for the address that the proxy saw, whatever the client itself writes, through one proxy or
    past it; other clients of the proxy and right tokens are not touched.
    """
    settings = {**guide_settings(), "wrong_tokens_per_minute_max": MAX}
    with (
        ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server,
        front(kind, tmp_path, (server.host, server.port)) as before,
    ):
        through = [status(before.port, FIRST, X_Forwarded_For=f"192.0.2.{number}") for number in range(MAX + 1)]
        assert through == [401] * MAX + [429]
        assert status(before.port, FIRST, X_Forwarded_For=SECOND) == 429
        assert status(before.port, FIRST, callers.ALICE) == 200
        assert status(before.port, SECOND) == 401
        past = [status(server.port, THIRD, X_Forwarded_For=f"192.0.2.{number}") for number in range(MAX + 1)]
        assert past == [401] * MAX + [429]
        assert status(server.port, FIRST) == 429, "the same client, past the proxy"


@pytest.mark.parametrize("kind", PROXY_KINDS)
def test_proxy_that_is_not_named_is_not_believed(kind: str, tmp_path: Path) -> None:
    """If the proxy is not among the trusted ones, all who come through it are counted as one client: the proxy."""
    settings = {**guide_settings(), "trusted_proxies": "127.9.9.9", "wrong_tokens_per_minute_max": MAX}
    with (
        ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server,
        front(kind, tmp_path, (server.host, server.port)) as before,
    ):
        assert [status(before.port, source) for source in (FIRST, SECOND, THIRD)] == [401] * MAX
        assert status(before.port, "127.0.0.5") == 429
        assert status(server.port, FIRST) == 401
        assert status(before.port, FIRST, callers.ALICE) == 200


def test_client_address_is_found_through_two_proxies(tmp_path: Path) -> None:
    """If the inner of two trusted proxies appends, the client is whom the outer one saw."""
    settings = {**guide_settings(), "wrong_tokens_per_minute_max": MAX}
    (tmp_path / "outer").mkdir()
    with (
        ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server,
        front(APPENDS, tmp_path, (server.host, server.port)) as inner,
        front("haproxy", tmp_path / "outer", (inner.host, inner.port)) as outer,
    ):
        through = [status(outer.port, FIRST, X_Forwarded_For=f"192.0.2.{number}") for number in range(MAX + 1)]
        assert through == [401] * MAX + [429]
        assert status(outer.port, SECOND) == 401
