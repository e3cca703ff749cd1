"""Servers to talk to by hand, and a fresh name for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http.conversation import logged
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.server import ServerProcess

MANY_LEASES: dict[str, object] = {"leases_per_principal_max": 10_000_000}
"""Connections that claim without end leave many."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server of this file, with the settings as they come, but for the leases."""
    settings = MANY_LEASES
    data = tmp_path_factory.mktemp("server") / "data"
    with ServerProcess.start(data, settings=settings, tokens=callers.TOKENS) as process:
        yield process
        assert process.is_running(), process.log


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that nobody has asked anything."""
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as process:
        yield process
        assert process.is_running(), process.log


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that waits a second for anything."""
    settings = MANY_LEASES | {"header_timeout_seconds": 1, "body_timeout_seconds": 1, "idle_timeout_seconds": 1}
    data = tmp_path_factory.mktemp("impatient") / "data"
    with ServerProcess.start(data, settings=settings, tokens=callers.TOKENS) as process:
        yield process
        assert process.is_running(), process.log


@pytest.fixture
def alice(server: ServerProcess) -> Api:
    """A caller that may read and claim, on a connection of its own."""
    return Api.of(server, callers.ALICE)


@pytest.fixture
def name() -> str:
    """A name no other test uses."""
    return unique()


@pytest.fixture
def quiet(server: ServerProcess) -> Iterator[None]:
    """Nothing is logged while the test runs."""
    before = logged(server)
    yield
    # What the server had to say is said before it answers the next one.
    assert Api.of(server, callers.ALICE).get("/health").status == 200
    assert logged(server) == before
