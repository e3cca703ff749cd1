"""The operators' page in a real Chromium, at a real server. Where there is no Chromium, each test says so.

Playwright has a loop of its own in the thread of the test while a browser runs, and other tests of the same process
start loops too. So a browser lives as long as one file of tests, and no longer.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.page_actions import Run, command, environment, wait_for_list
from tests.support import callers, chromium
from tests.support.api import Api
from tests.support.chromium import Readers
from tests.support.server import ServerProcess, serving


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the tests of this folder out where there is no Chromium, and say so: a line for each file."""
    if chromium.find() is None:
        left_out = pytest.mark.skip(reason=f"THE PAGE WAS NOT TRIED IN A BROWSER: {chromium.MISSING}")
        for item in items:
            if item.path.parent == Path(__file__).parent:
                item.add_marker(left_out)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium."""
    with chromium.chromium() as running:
        yield running


@pytest.fixture(scope="module")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server of this file. It wants a browser first: without one it is not needed."""
    with serving(tmp_path_factory.mktemp("server") / "data", tokens=callers.TOKENS) as process:
        yield process
        assert process.is_running(), f"the server ended during the tests; it printed:\n{process.log}"
        assert "Traceback" not in process.log, process.log


@pytest.fixture
def mortal(browser: Browser, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server to kill: nobody else has it."""
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        yield server


@pytest.fixture
def readers(browser: Browser, server: ServerProcess) -> Iterator[Readers]:
    """Those who read its pages. At the end nothing was on a console that no test named, and no policy was broken."""
    those = Readers(browser, server)
    yield those
    assert those.close() == []


@pytest.fixture
def page(readers: Readers) -> Page:
    """The list, as an operator sees it who has just opened it."""
    opened = readers.open(callers.OPERATOR)
    wait_for_list(opened)
    return opened


@pytest.fixture
def alice(server: ServerProcess) -> Api:
    """A worker, by the API."""
    return Api.of(server, callers.ALICE)


@pytest.fixture
def holdfast(server: ServerProcess, tmp_path: Path) -> Run:
    """Runs `holdfast …` as a worker types it."""

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*words), env=environment(server, tmp_path), capture_output=True, text=True, timeout=60, check=False
        )

    return run
