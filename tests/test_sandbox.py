"""A sandbox without a network is named where a connection fails in it, with what to do instead."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable

import pytest

from holdfast import AsyncHoldfast, Holdfast, neterrors
from holdfast.client import minihttp
from holdfast.errors import Unreachable
from tests.support import callers

CODEX = {"CODEX_SANDBOX_NETWORK_DISABLED": "1"}
REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
FORBIDDEN = PermissionError(errno.EPERM, "Operation not permitted")


@pytest.fixture
def url() -> str:
    """An address at which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize(
    ("error", "environment", "word"),
    [
        (REFUSED, {}, ""),
        (REFUSED, CODEX, "Codex"),
        (FORBIDDEN, CODEX, "Codex"),
        (FORBIDDEN, {}, "sandbox"),
        (FORBIDDEN, {"CODEX_SANDBOX_NETWORK_DISABLED": "0"}, "sandbox"),
        (PermissionError(errno.EACCES, "Permission denied"), {}, ""),
        (TimeoutError(), {}, ""),
        (ssl.SSLError(ssl.SSL_ERROR_SSL, "wrong version number"), {}, ""),  # The number is that of EPERM.
    ],
)
def test_hint_names_the_sandbox(error: Exception, environment: dict[str, str], word: str) -> None:
    """The variable of Codex, or the error of a forbidden system call, tells that there is a sandbox."""
    found = neterrors.hint(error, environment)
    assert bool(found) == bool(word) and word in found


def ask_with_threads(url: str) -> None:
    with Holdfast(url, token=callers.ALICE, retry_seconds=0) as client:
        client.list_claimed_jobs()


def ask_with_coroutines(url: str) -> None:
    async def ask() -> None:
        async with AsyncHoldfast(url, token=callers.ALICE, retry_seconds=0) as client:
            await client.list_claimed_jobs()

    asyncio.run(ask())


@pytest.mark.parametrize("ask", [ask_with_threads, ask_with_coroutines])
@pytest.mark.parametrize("variable", ["0", "1"])
def test_clients_name_the_sandbox(
    monkeypatch: pytest.MonkeyPatch, url: str, ask: Callable[[str], None], variable: str
) -> None:
    """Both clients put what to do into the hint, so the commands do not ask whether the server runs."""
    monkeypatch.setenv("CODEX_SANDBOX_NETWORK_DISABLED", variable)
    with pytest.raises(Unreachable) as caught:
        ask(url)
    assert ("sandbox" in caught.value.hint) == (variable == "1") and not caught.value.was_sent


def test_light_client_names_the_sandbox(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """The client of hooks and `rlock` does too; a socket that cannot be made is a server that was not reached."""
    addresses = minihttp.addresses(url, "HOLDFAST_URL", "")
    monkeypatch.delenv("CODEX_SANDBOX_NETWORK_DISABLED", raising=False)
    with pytest.raises(minihttp.UnreachableError) as caught:
        minihttp.ask(addresses, "GET", "/locks", "", b"")
    assert "sandbox" not in str(caught.value)

    def forbidden(*_: object) -> None:
        raise FORBIDDEN

    monkeypatch.setattr("holdfast.client.minihttp._socket.socket", forbidden)
    with pytest.raises(minihttp.UnreachableError) as caught:
        minihttp.ask(addresses, "GET", "/locks", "", b"")
    assert "sandbox" in str(caught.value) and not isinstance(caught.value, minihttp.LostError)
