"""One server for each file, and a home for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.mcp.hosts import Home
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server of this file."""
    data = tmp_path_factory.mktemp("server") / "data"
    with ServerProcess.start(data, tokens=callers.TOKENS) as process:
        yield process
        assert process.is_running(), f"the server ended during the tests; it printed:\n{process.log}"
        assert "Traceback" not in process.log, process.log


@pytest.fixture
def home(tmp_path: Path, server: ServerProcess) -> Home:
    """Where the hosts of a test live."""
    return Home(tmp_path, server)


@pytest.fixture
def operator(server: ServerProcess) -> Api:
    """A caller with every scope."""
    return Api.of(server, callers.OPERATOR)


@pytest.fixture
def name() -> str:
    """A name no other test uses."""
    return unique()
