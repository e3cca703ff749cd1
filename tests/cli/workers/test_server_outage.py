"""`run` and `claim` while the server is away: they say so, come back to their place, and end when the wait is over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.background_command import CLOCK, BackgroundCommand, clean_environment
from tests.support import callers
from tests.support.api import Api
from tests.support.server import ServerProcess

JOB = "away/job"
COMMANDS = (
    ["run", "-w", "60s", JOB, "--", "echo", "it ran"],
    ["run", JOB, "--", "echo", "it ran"],
    ["run", "--any", "-w", "60s", JOB, "--", "echo", "it ran"],
    ["claim", "-w", "60s", JOB],
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that the test may kill."""
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as process:
        yield process


def started(server: ServerProcess, home: Path, *arguments: str, terminal: bool = False) -> BackgroundCommand:
    environment = clean_environment(home, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.ALICE)
    return BackgroundCommand(*arguments, environment=environment, terminal=terminal)


def held(server: ServerProcess) -> str:
    lease_id: str = Api.of(server, callers.BOB).acquired(JOB, owner="ben", ttl_seconds=600)["lease_id"]
    return lease_id


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_waiter_keeps_its_position_after_an_outage(server: ServerProcess, tmp_path: Path, command: list[str]) -> None:
    """W2: a server that is away for longer than we would ask without a wait: it is said, and the wait goes on."""
    lease_id = held(server)
    with started(server, tmp_path, *command) as waiter:
        waiter.until("none of the jobs is free" if "--any" in command else "1st in line, held by ben")
        server.kill()
        shown = waiter.until("the server is away (connection refused); trying until ")
        until = "it is back" if command[1] == JOB else CLOCK
        assert re.search(rf"holdfast: the server is away \(connection refused\); trying until {until}\n", shown)
        with server.restart() as again:
            position = "none of the jobs" if "--any" in command else "1st in line, held by ben"
            waiter.until(f"holdfast: the server is back\n{position}")
            Api.of(again, callers.BOB).release(JOB, lease_id)
            assert waiter.end() == 0
    assert f"acquired {JOB}" in waiter.shown
    assert waiter.shown.count("the server is away") == 1


def test_server_that_hangs(server: ServerProcess, tmp_path: Path) -> None:
    """A server that does not answer is away too, also on a terminal, where the line of the place is written over."""
    held(server)
    with started(server, tmp_path, "claim", "-w", "60s", JOB, terminal=True) as waiter:
        waiter.until("1st in line")
        server.pause()
        waiter.until("the server is away (the answer did not come in time)")
        server.resume()
        waiter.until("the server is back")
        waiter.interrupt()
        assert waiter.end() == 130


def test_away_when_the_wait_is_over(server: ServerProcess, tmp_path: Path) -> None:
    """A server that is still away when the wait is over is exit code 69, and nothing is run."""
    held(server)
    with started(server, tmp_path, "run", "-w", "4s", JOB, "--", "echo", "it ran") as waiter:
        waiter.until("1st in line")
        server.kill()
        assert waiter.end() == 69
    assert "it ran" not in waiter.shown and "no answer from" in waiter.shown.splitlines()[-1]
