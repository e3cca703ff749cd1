"""Real agent hosts with a scripted model. `make hosts` runs this ring; other runs leave it out with one reason.

A test with a `host` argument runs once for each host for which `expected.py` has a result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hosts.expected import ALLOWED, EXPECTED, GAP, NOT_APPLICABLE, Result, table
from tests.hosts.hosts import HOSTS, VARIABLE, Host
from tests.hosts.scripted_model import ScriptedModel
from tests.hosts.world import World
from tests.support import callers
from tests.support.server import ServerProcess

CELL = "host cell"
Property = Callable[[str, object], None]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Unless `make hosts` runs this ring, deselect all of it but one test, which is skipped with the reason."""
    ring = [item for item in items if item.path.parent == Path(__file__).parent and "world" in _fixtures(item)]
    if ring and VARIABLE not in os.environ:
        ring.pop().add_marker(pytest.mark.skip(reason="real agent hosts are only run by `make hosts`"))
        items[:] = [item for item in items if item not in ring]
        config.hook.pytest_deselected(items=ring)


def _fixtures(item: pytest.Item) -> list[str]:
    return getattr(item, "fixturenames", [])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a case for every host to which it applies."""
    if "host" in metafunc.fixturenames:
        results = EXPECTED[metafunc.function.__name__].results
        hosts = [host for host in HOSTS if results[host.name] is not NOT_APPLICABLE]
        metafunc.parametrize("host", hosts, ids=[host.name for host in hosts])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the observed results as a Markdown table."""
    observed: dict[tuple[str, str], str] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == CELL:
                    test, host, result = str(value).split("|")
                    observed[test, host] = result
    if observed:
        terminalreporter.section("agent hosts")
        for line in table(observed):
            terminalreporter.write_line(line)


class Cell:
    """One cell of the table: compares an observed result with the expected one."""

    def __init__(self, test: str, host: Host, record: Property) -> None:
        self._cell = f"{test}|{host.name}"
        self._expected = EXPECTED[test].results[host.name]
        self._record = record
        record(CELL, f"{self._cell}|failed")

    def is_now(self, result: Result, *details: object) -> None:
        """Record the observed result, and fail unless it is the expected one."""
        is_expected = result is (ALLOWED if self._expected is GAP else self._expected)
        shown = self._expected if is_expected else f"**{result}**, expected {self._expected}"
        self._record(CELL, f"{self._cell}|{shown}")
        assert is_expected, f"expected {self._expected}, observed {result}: {details}"


@pytest.fixture
def cell(request: pytest.FixtureRequest, host: Host, record_property: Property) -> Cell:
    """The cell of the table for this test and host."""
    if host.program is None:
        pytest.skip(f"{host.title} is not installed")
    return Cell(request.node.originalname, host, record_property)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A Holdfast server for all tests of this process; each test has a job of its own."""
    with ServerProcess.start(tmp_path_factory.mktemp("server") / "data", tokens=callers.TOKENS) as process:
        yield process


@pytest.fixture
def world(tmp_path: Path, server: ServerProcess) -> Iterator[World]:
    """The surroundings of one test."""
    with ScriptedModel() as model:
        made = World(tmp_path, server, model)
        try:
            yield made
        finally:
            made.close()
