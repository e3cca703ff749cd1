"""A real server per file, and the real command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import callers
from tests.support.server import ServerProcess

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server of this file, on a data directory of its own."""
    with ServerProcess.start(tmp_path_factory.mktemp("server") / "data", tokens=callers.TOKENS) as process:
        yield process
        assert process.is_running(), f"the server ended during the tests; it printed:\n{process.log}"


@pytest.fixture
def holdfast(tmp_path: Path) -> Run:
    """Runs `holdfast …` in an environment without anything of the person who runs the tests."""

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "XDG_"))}
        return subprocess.run(
            [sys.executable, "-m", "holdfast", *map(str, arguments)],
            env={
                **clean,
                "XDG_CONFIG_HOME": str(tmp_path / "config"),
                "XDG_STATE_HOME": str(tmp_path / "state"),
                **environment,
            },
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run
