"""A real server per file, and the real command: in this process where one of its own would prove nothing more."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from holdfast.cli import main
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
        words = [str(word) for word in arguments]
        full_environment = {
            **clean,
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "XDG_STATE_HOME": str(tmp_path / "state"),
            **environment,
        }
        # A command behind `--` writes to the real files, and a server changes the process it is in.
        needs_process = "--" in words or words[0] == "serve"
        return (_in_a_process if needs_process else _in_here)(words, full_environment, tmp_path)

    return run


def _in_a_process(words: list[str], environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *words],
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _in_here(words: list[str], environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    out, error = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(error),
    ):
        code = main.run(words)
    shown = []
    for each in (out, error):
        each.seek(0)
        shown.append(each.read())
    return subprocess.CompletedProcess(words, code, *shown)
