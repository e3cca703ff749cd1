"""One server per file, clients of it of both kinds, and a fresh name per test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from tests.client.both import KINDS, Both
from tests.client.peer import Peer
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server of this file, on a data directory of its own."""
    with ServerProcess.start(tmp_path_factory.mktemp("server") / "data", tokens=callers.TOKENS) as process:
        yield process
        assert process.is_running(), f"the server ended during the tests; it printed:\n{process.log}"


@pytest.fixture
def nowhere(tmp_path: Path) -> dict[str, str]:
    """An environment in which nothing is configured."""
    return {"XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path)}


@pytest.fixture
def client(server: ServerProcess, nowhere: dict[str, str]) -> Iterator[Holdfast]:
    """A client for threads."""
    with Holdfast(server.url, token=callers.ALICE, environment=nowhere) as holdfast:
        yield holdfast


@pytest.fixture(params=KINDS)
def open_client(
    request: pytest.FixtureRequest, server: ServerProcess, nowhere: dict[str, str]
) -> Iterator[Callable[..., Any]]:
    """Makes clients of either kind, with the manners of the one for threads."""
    both = Both(request.param)

    def make(token: str | None = callers.ALICE, **options: Any) -> Any:  # noqa: ANN401 - a client of either kind
        return both.client(**{"url": server.url, "token": token, "environment": nowhere, **options})

    yield make
    both.close()


@pytest.fixture
def either(open_client: Callable[..., Any]) -> Any:  # noqa: ANN401 - a client of either kind
    """A client of either kind."""
    return open_client()


@pytest.fixture
def operator(server: ServerProcess) -> Api:
    """A caller with every scope, who knows nothing of clients."""
    return Api.of(server, callers.OPERATOR)


@pytest.fixture
def job() -> str:
    """A name no other test uses."""
    return unique("job")


@pytest.fixture
def peer() -> Iterator[Peer]:
    """A server that is not Holdfast's."""
    with Peer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
