"""A server with a proxy in front, for each kind of proxy. Only proofs have these tests: they need nginx and HAProxy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import callers, proof
from tests.support.api import Api
from tests.support.reverse_proxies import PROXY_KINDS, ReverseProxy, front, guide_settings
from tests.support.server import ServerProcess

# A newcomer's `make test` must pass without a proxy, and without a word about what was left out.
collect_ignore_glob = [] if proof.count("proxies: ways to cut a request") else ["test_*.py"]

WATCHES_MAX = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server behind, with the settings of the guide."""
    data = tmp_path_factory.mktemp("server") / "data"
    settings = {**guide_settings(), "watches_per_principal_max": WATCHES_MAX}
    with ServerProcess.start(data, settings=settings, tokens=callers.TOKENS) as process:
        yield process
        assert process.is_running(), f"the server ended during the tests; it printed:\n{process.log}"
        assert "Traceback" not in process.log, process.log


@pytest.fixture(scope="module", params=PROXY_KINDS)
def before(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, server: ServerProcess
) -> Iterator[ReverseProxy]:
    """The proxy before the server."""
    with front(request.param, tmp_path_factory.mktemp("front"), (server.host, server.port)) as running:
        yield running


@pytest.fixture(scope="module")
def alice(server: ServerProcess) -> Api:
    """A caller that comes to the server directly."""
    return Api.of(server, callers.ALICE)


@pytest.fixture(scope="module")
def bob(before: ReverseProxy) -> Api:
    """A caller that comes through the proxy."""
    return before.api(callers.BOB)
