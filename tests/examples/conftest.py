"""One server per file, its callers, and a way to start an example as its user does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.program import Program
from tests.support.server import PROJECT, ServerProcess

Start = Callable[..., Program]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server of this file, on a data directory of its own."""
    data = tmp_path_factory.mktemp("server") / "data"
    with ServerProcess.start(data, tokens=callers.TOKENS) as process:
        yield process
        assert process.is_running(), f"the server ended during the tests; it printed:\n{process.log}"


@pytest.fixture(scope="module")
def alice(server: ServerProcess) -> Api:
    """The principal whose token the examples use."""
    return Api.of(server, callers.ALICE)


@pytest.fixture(scope="module")
def operator(server: ServerProcess) -> Api:
    """A caller with every scope."""
    return Api.of(server, callers.OPERATOR)


@pytest.fixture
def name() -> str:
    """A name no other test uses."""
    return unique("job")


@pytest.fixture
def example(server: ServerProcess, tmp_path: Path) -> Iterator[Start]:
    """Starts an example by its file's name, with arguments, in the test's own folder; `env` adds to its environment."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    mine |= {"HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": callers.ALICE, "XDG_CONFIG_HOME": str(tmp_path / "config")}
    mine.pop("PYTHONUNBUFFERED", None)  # It would write a line in two pieces, and those of several processes mingle.
    mine |= {"PYTHONPATH": str(PROJECT / "src"), "PYTHONWARNINGS": "error"}
    with ExitStack() as stack:

        def start(
            file: str,
            *arguments: object,
            env: dict[str, str] | None = None,
            stdin: str | None = None,
            shell: Sequence[str] = ("sh",),
        ) -> Program:
            interpreter = [sys.executable] if file.endswith(".py") else shell
            command: list[str | Path] = [*interpreter, PROJECT / "examples" / file, *map(str, arguments)]
            program = Program(command, env={**mine, **(env or {})}, folder=tmp_path, stdin=stdin)
            return stack.enter_context(program)

        yield start
