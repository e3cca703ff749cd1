"""The ttl that nobody asked for: it fits the server, in the commands and in Python."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast, Refused
from tests.support import callers
from tests.support.api import Api
from tests.support.server import ServerProcess

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that gives no lease for longer than 30 seconds."""
    data = tmp_path_factory.mktemp("server") / "data"
    with ServerProcess.start(data, tokens=callers.TOKENS, settings={"max_ttl_seconds": 30}) as process:
        yield process


@pytest.fixture
def alice(server: ServerProcess, holdfast: Run) -> Run:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return holdfast(*arguments, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.ALICE)

    return run


@pytest.mark.parametrize(
    "command",
    [
        ["claim", "ttl/1"],
        ["claim", "ttl/2", "-w", "1s"],
        ["claim", "--any", "ttl/3", "ttl/4"],
        ["claim", "ttl/5", "ttl/6"],
        ["run", "ttl/7", "--", "true"],
        ["run", "--any", "ttl/8", "--", "true"],
    ],
)
def test_plain_commands_fit_the_server(alice: Run, command: list[str]) -> None:
    """A server whose longest ttl is below the usual one gives its own, and says until when."""
    done = alice(*command)
    assert done.returncode == 0, done
    assert "(30 s)" in done.stdout + done.stderr


@pytest.mark.parametrize(
    "command", [["claim", "--ttl", "60s", "ttl/9"], ["run", "--ttl", "60s", "ttl/9", "--", "true"]]
)
def test_a_ttl_that_was_asked_for_is_refused(alice: Run, command: list[str]) -> None:
    """What somebody asked for is not made shorter in silence: it is refused, with the limit."""
    done = alice(*command)
    assert done.returncode == 64 and "--ttl is 1 to 30" in done.stderr


def test_python_fits_the_server(server: ServerProcess, tmp_path: Path) -> None:
    """A claim that is renewed has the server's own ttl unless one is given, and that is refused if it is too long."""
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    with Holdfast(server.url, token=callers.ALICE, environment=environment) as client:
        with client.claim("ttl/10") as claim:
            assert 25 < claim.remaining <= 30
        with client.claim_all(["ttl/10", "ttl/11"]) as claims:
            assert 25 < claims.remaining <= 30
        with pytest.raises(Refused, match="1 to 30"):
            client.claim("ttl/10", ttl=60)
    assert Api.of(server, callers.ALICE).status("ttl/10").json()["status"] == "free"
