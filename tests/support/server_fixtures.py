"""One server per file, callers with fixed tokens, and a fresh name per test.

With `HOLDFAST_THROUGH=follower` each file asks a node that follows, and another one on the same PostgreSQL answers.
What holds of one server must hold of several, whichever is asked. `make prove` ends with that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.postgres import running
from tests.support.raw import facts
from tests.support.server import ServerProcess


@pytest.fixture(scope="module")
def server_settings() -> dict[str, object]:
    """What the file's server is started with. A file that wants other settings overrides this."""
    return {}


@pytest.fixture(scope="session")
def store_of_nodes() -> Iterator[str | None]:
    """The store of the nodes that are asked; None if each file has a server of its own."""
    if os.environ.get("HOLDFAST_THROUGH") != "follower":
        yield None
        return
    with running("through") as postgres:
        yield postgres.url


@pytest.fixture
def one_server(store_of_nodes: str | None) -> None:
    """For a test of what is so on one server, and otherwise on several."""
    if store_of_nodes is not None:
        pytest.skip("this is about a server on a directory")


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, server_settings: dict[str, object], store_of_nodes: str | None
) -> Iterator[ServerProcess]:
    """The server of this file, on a data directory of its own; or a node that follows."""
    folder = tmp_path_factory.mktemp("server")
    if store_of_nodes is not None:
        with Cluster(folder, store_of_nodes, tokens=callers.TOKENS, nodes=2, settings=server_settings) as both:
            both.all_ready()
            yield both.followers(both.leader())[0].server
        return
    data = folder / "data"
    with ServerProcess.start(data, settings=server_settings, tokens=callers.TOKENS) as process:
        yield process
        assert process.is_running(), f"the server ended during the tests; it printed:\n{process.log}"


@pytest.fixture(scope="module")
def alice(server: ServerProcess) -> Api:
    """A caller that may read and claim."""
    return Api.of(server, callers.ALICE)


@pytest.fixture(scope="module")
def bob(server: ServerProcess) -> Api:
    """Another one."""
    return Api.of(server, callers.BOB)


@pytest.fixture(scope="module")
def carol(server: ServerProcess) -> Api:
    """A third one, for tests that use up what one principal may have."""
    return Api.of(server, callers.CAROL)


@pytest.fixture(scope="module")
def dave(server: ServerProcess) -> Api:
    """A fourth one, for the same."""
    return Api.of(server, callers.DAVE)


@pytest.fixture(scope="module")
def operator(server: ServerProcess) -> Api:
    """A caller with every scope."""
    return Api.of(server, callers.OPERATOR)


@pytest.fixture(scope="module")
def nobody(server: ServerProcess) -> Api:
    """A caller without a token."""
    return Api.of(server, None)


@pytest.fixture
def name() -> str:
    """A name no other test uses."""
    return unique()


@pytest.fixture(scope="module")
def standing_lease(alice: Api) -> dict[str, Any]:
    """A lease that must outlive all abuse."""
    return alice.acquired("abuse-standing", ttl_seconds=86_400, metadata="stands")


@pytest.fixture
def nothing_changes(alice: Api, standing_lease: dict[str, Any], server: ServerProcess) -> Iterator[None]:
    """List, counter and counts are the same after the test as before it, and the server still serves."""
    before = facts(alice)
    yield
    assert server.is_running(), server.log
    assert facts(alice) == before
