"""A real server for each file, and a repository with rules for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.guard.agents import World
from tests.support import callers
from tests.support.api import Api
from tests.support.server import ServerProcess

RULES = """
[[rule]]
paths = "src/auth/**"
job = "area:auth"

[[rule]]
paths = ["src/billing/**", "**/*.sql"]
job = "area:billing"

[[rule]]
command = "git push"
job = "push-{branch}"

[[rule]]
tool = "mcp__deploy__*"
arguments = { environment = "prod*" }
job = "deploy:{argument.environment}"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server of this file."""
    with ServerProcess.start(tmp_path_factory.mktemp("server") / "data", tokens=callers.TOKENS) as process:
        yield process


@pytest.fixture
def api(server: ServerProcess) -> Api:
    """Somebody else who asks the server."""
    return Api.of(server, callers.BOB)


@pytest.fixture
def world(tmp_path: Path, server: ServerProcess) -> Iterator[World]:
    """A repository with rules, and whoever works in it. Every test ends with nothing held and no daemon left."""
    made = World(tmp_path, {"HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": callers.ALICE})
    made.rules(RULES)
    (made.repository / "src" / "auth").mkdir(parents=True)
    (made.repository / "src" / "auth" / "login.py").write_text("a\n")
    made.git("init", "-q")
    try:
        yield made
    finally:
        made.close()
        operator = Api.of(server, callers.OPERATOR)
        for held in operator.locks().json()["locks"]:
            operator.revoke(held["name"], reason="the test is over")
