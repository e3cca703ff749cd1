"""The fixtures for pytest, used by real test runs of a small project."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.testing import pytest_plugin
from tests.support.checks import wait_until
from tests.support.pages import ROOT
from tests.support.program import Program

TESTS = """
import os, subprocess, sys
import holdfast
import pytest

URLS = set()

def test_claim(holdfast_server, holdfast_client):
    URLS.add(holdfast_server.url)
    with holdfast_client.claim("job") as claim:
        assert claim.owner == "test_claim"
        with pytest.raises(holdfast.JobHeld):
            holdfast_server.client().claim_job("job")

def test_same_server(holdfast_server, holdfast_client):
    URLS.add(holdfast_server.url)
    assert len(URLS) == 1
    assert holdfast_client.job("job").previous.owner == "test_claim"

def test_functions(holdfast_environment):
    with holdfast.claim("other"):
        command = [sys.executable, "-m", "holdfast", "owner", "other"]
        assert subprocess.run(command, capture_output=True).returncode == 0

def test_environment_is_put_back():
    assert "HOLDFAST_URL" not in os.environ
"""


def clean_environment(folder: Path) -> dict[str, str]:
    """Ours without what our own test run told pytest and the client."""
    ours = ("HOLDFAST_", "PYTEST_", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | {"TMPDIR": str(folder)}


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *options]
    return subprocess.run(
        command, cwd=folder, env=clean_environment(folder), capture_output=True, text=True, timeout=120, check=False
    )


def test_fixtures_give_a_server_and_a_client(tmp_path: Path) -> None:
    """Tests of one run share a server, each has a client of its own, and the functions can be led to it."""
    (tmp_path / "test_mine.py").write_text(TESTS)
    result = run_pytest(tmp_path)
    assert result.returncode == 0 and "4 passed" in result.stdout, result.stdout + result.stderr
    assert list(tmp_path.glob("holdfast-testing-*")) == []


def test_each_worker_has_its_own_server(tmp_path: Path) -> None:
    """With pytest-xdist every worker has a server, and nothing of it is left."""
    (tmp_path / "test_mine.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('number', [1, 2])\n"
        "def test_it(number, holdfast_server, tmp_path_factory):\n"
        "    urls = tmp_path_factory.getbasetemp().parent / 'urls'\n"
        "    urls.mkdir(exist_ok=True)\n"
        "    (urls / holdfast_server.url.rpartition(':')[2]).touch()\n"
    )
    result = run_pytest(tmp_path, "-n", "2", "--dist", "each", "--basetemp", str(tmp_path / "temp"))
    assert result.returncode == 0 and "4 passed" in result.stdout, result.stdout + result.stderr
    assert len(list((tmp_path / "temp" / "urls").iterdir())) == 2
    assert list(tmp_path.glob("holdfast-testing-*")) == []


def test_settings_can_be_overridden(tmp_path: Path) -> None:
    """A project's own `holdfast_settings` are those of the server."""
    (tmp_path / "conftest.py").write_text(
        "import pytest\n@pytest.fixture(scope='session')\ndef holdfast_settings(): return {'max_ttl_seconds': 7}\n"
    )
    (tmp_path / "test_mine.py").write_text(
        "import holdfast, pytest\n"
        "def test_it(holdfast_client):\n"
        "    with pytest.raises(holdfast.Refused, match='7'): holdfast_client.claim_job('job', ttl=8)\n"
    )
    result = run_pytest(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_run_that_uses_no_fixture_pays_nothing(tmp_path: Path) -> None:
    """A test run that asks for no fixture of ours starts no server and loads no client."""
    (tmp_path / "test_mine.py").write_text(
        "import sys\n"
        "def test_it():\n"
        "    assert not {'holdfast.client', 'msgspec', 'holdfast.testing.server_process'} & set(sys.modules)\n"
    )
    result = run_pytest(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_fixture_is_in_the_guide() -> None:
    """The guide has a row for each fixture, and for no other."""
    fixtures = re.findall(r"^def (holdfast_\w+)", Path(pytest_plugin.__file__).read_text(), re.MULTILINE)
    guide = (ROOT / "docs" / "guide" / "testing.md").read_text()
    assert sorted(fixtures) == sorted(re.findall(r"^\| `(holdfast_\w+)` \|", guide, re.MULTILINE))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_an_interrupted_run_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C in the middle of a test, or a kill, ends the server of the run and removes its files."""
    (tmp_path / "test_mine.py").write_text(
        "import time\n"
        "def test_it(holdfast_server):\n"
        "    print('guard', holdfast_server._process.pid, flush=True)\n"
        "    while True: time.sleep(0.05)\n"  # A signal that arrives just before a sleep does not interrupt it.
    )
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider"]
    with Program(command, env=clean_environment(tmp_path), folder=tmp_path) as program:
        guard = int(program.said(r"guard (\d+)")[0][1])
        os.kill(program.pid, number)
        wait_until(lambda: not list(tmp_path.glob("holdfast-testing-*")), seconds_max=30)
        program.ended()
    wait_until(lambda: not Path(f"/proc/{guard}").exists(), seconds_max=30)
