"""Commands with several addresses: the next is asked where one does not answer, and no leader is said plainly."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.background_command import BackgroundCommand, clean_environment
from tests.cli.conftest import Run
from tests.client.peer import LEADERLESS, nobody, peering, silent
from tests.cluster.proxy import TcpProxy
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique, wait_until
from tests.support.server import ServerProcess


@pytest.fixture
def dead() -> Iterator[str]:
    """An address where nobody listens."""
    with nobody() as url:
        yield url


def test_job_is_reached_by_every_address(holdfast: Run, server: ServerProcess, dead: str) -> None:
    """N-35: HOLDFAST_URL and --url take several; what was claimed by the one list is given back by another."""
    job = unique("job")
    known = {"HOLDFAST_TOKEN": callers.ALICE}
    assert holdfast("claim", job, HOLDFAST_URL=f"{dead},{server.url}", **known).returncode == 0
    assert holdfast("heartbeat", job, "--url", server.url, **known).returncode == 0
    assert holdfast("owner", job, "--url", f"{server.url},{dead}", **known).returncode == 0
    assert holdfast("release", job, "--url", f"{server.url},{dead}", **known).returncode == 0
    assert holdfast("release", job, "--url", dead, **known).returncode == 64, "it is forgotten at all of them"


def test_client_toml_names_several(holdfast: Run, server: ServerProcess, dead: str, tmp_path: Path) -> None:
    """`url` in client.toml may be several too, and its token goes to all of them."""
    folder = tmp_path / "config" / "holdfast"
    folder.mkdir(parents=True)
    (folder / "token").write_text(callers.ALICE)
    (folder / "token").chmod(0o600)
    (folder / "client.toml").write_text(f'url = "{dead},{server.url}"\ntoken_file = "token"\n')
    assert holdfast("jobs").returncode == 0


def test_silent_address_is_skipped(holdfast: Run, server: ServerProcess) -> None:
    """One that takes connections and never answers costs some seconds, and no more."""
    with silent() as hangs:
        done = holdfast("jobs", HOLDFAST_URL=f"{hangs},{server.url}", HOLDFAST_TOKEN=callers.ALICE)
    assert done.returncode == 0, done.stderr


def test_missing_leader_is_reported(holdfast: Run, dead: str) -> None:
    """N-31: if no node leads for some seconds, it is exit code 69, and the line says what that means."""
    with peering(LEADERLESS) as one, peering(LEADERLESS) as other:
        known = {"HOLDFAST_URL": f"{one.url},{dead},{other.url}", "HOLDFAST_TOKEN": callers.ALICE}
        done = holdfast("claim", "job", **known)
        assert len(one.asked) > 1, "they were asked again"
    assert done.returncode == 69
    assert "no node leads right now, and nothing was changed" in done.stderr


def test_unreachable_addresses_are_reported(holdfast: Run, dead: str) -> None:
    """If nobody is there, all addresses are named, with exit code 69."""
    with nobody() as other:
        done = holdfast("jobs", HOLDFAST_URL=f"{dead},{other}", HOLDFAST_TOKEN=callers.ALICE)
    assert done.returncode == 69 and dead in done.stderr and other in done.stderr


def test_each_address_is_checked(holdfast: Run, server: ServerProcess) -> None:
    """Plain HTTP to another machine is refused among others too, before anything is sent."""
    done = holdfast("jobs", HOLDFAST_URL=f"{server.url},http://other.example", HOLDFAST_TOKEN=callers.ALICE)
    assert done.returncode == 64 and "http://other.example unencrypted" in done.stderr


def test_command_outlives_its_first_address(server: ServerProcess, tmp_path: Path) -> None:
    """`run` keeps its claim through the other address, and the command inside has both."""
    job = unique("job")
    with TcpProxy(server.host, server.port) as one, TcpProxy(server.host, server.port) as other:
        urls = f"http://{one.host}:{one.port},http://{other.host}:{other.port}"
        environment = clean_environment(tmp_path, HOLDFAST_URL=urls, HOLDFAST_TOKEN=callers.ALICE)
        shell = 'echo "at $HOLDFAST_URL"; read line < "$FIFO"; holdfast note "$HOLDFAST_JOB" half && echo noted'
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        environment["FIFO"] = str(fifo)
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        with BackgroundCommand("run", "--ttl", "6s", job, "--", "sh", "-c", shell, environment=environment) as running:
            running.until(f"at {urls}")
            one.hold()
            count = other.fates.total() + 3
            wait_until(lambda: other.fates.total() >= count, seconds_max=30)
            fifo.write_text("go on\n")
            assert running.end() == 0
            after = Api.of(server, callers.BOB).get(f"/locks/{job}").json()
        one.restore()
    assert "noted" in running.shown
    assert after["status"] == "free"
