"""For every test: signals and compiled modules as at a terminal, and counts told at the end of a run.

Whatever tests put on record as `count: …` is added up and printed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import callers, proof, signals
from tests.support.reverse_proxies import make_certificate
from tests.support.server import ServerProcess, serving

COUNT = "count: "


def pytest_configure() -> None:
    """Drop the signals that were inherited, here and in every worker; refuse a proof that there is not."""
    signals.reset()
    # Hundreds of servers and commands are started: each would compile all that it imports again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        proof.run_of(os.environ)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Path]:
    """Makes a file somebody else's: root gives it away, and any other user becomes another one in its own eyes."""

    def give_away(path: Path) -> Path:
        user = os.geteuid()
        if user == 0:
            os.chown(path, 4_242, -1, follow_symlinks=False)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        return path

    return give_away


@pytest.fixture(scope="session")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1 that signed itself, with its key."""
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory, pem: Path) -> Iterator[ServerProcess]:
    """A server that speaks HTTPS."""
    data = tmp_path_factory.mktemp("tls") / "data"
    with serving(data, settings={"tls_cert": pem, "tls_key": pem}, tokens=callers.TOKENS) as server:
        yield server


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Add up the counts of all tests, whichever process ran them, and print a line for each."""
    counts: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, value in report.user_properties:
                    if name.startswith(COUNT) and isinstance(value, int):
                        counts[name.removeprefix(COUNT)] += value
    if counts:
        terminalreporter.section("counts")
        for name, value in sorted(counts.items()):
            terminalreporter.write_line(f"{value:>12,}  {name}")
