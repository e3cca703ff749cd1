"""Fixtures for pytest: a test that asks for `holdfast_server` or `holdfast_client` gets a real server.

pytest finds this module once Holdfast is installed. Until a fixture is used it costs only its own import.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast import Holdfast
    from holdfast.testing.server_process import RunningServer

OWNER_CHARS_MAX = 128


@pytest.fixture(scope="session")
def holdfast_settings() -> Mapping[str, str | float | bool]:
    """The settings of the server. Override it in your conftest.py to change them."""
    return {}


@pytest.fixture(scope="session")
def holdfast_server(holdfast_settings: Mapping[str, str | float | bool]) -> Iterator[RunningServer]:
    """A real server with an empty store, one for the whole test run (with pytest-xdist, one for each worker)."""
    from holdfast.testing.server_process import server  # noqa: PLC0415 - paid for by those who use it

    with server(**holdfast_settings) as running:
        yield running


@pytest.fixture
def holdfast_client(holdfast_server: RunningServer, request: pytest.FixtureRequest) -> Iterator[Holdfast]:
    """A new client for this test. Its claims have the test's name as their owner."""
    with holdfast_server.client(owner=request.node.name[:OWNER_CHARS_MAX]) as client:
        yield client


@pytest.fixture
def holdfast_environment(holdfast_server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> RunningServer:
    """Let `holdfast.claim`, the other functions and all commands use the server while this test runs."""
    for name, value in holdfast_server.environment().items():
        monkeypatch.setenv(name, value)
    return holdfast_server
