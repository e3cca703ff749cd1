"""`holdfast serve`: how settings reach the server, and how it ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import refused
from tests.support.server import ServerFailed, ServerProcess


def ttl_limit(server: ServerProcess) -> int:
    """Find out which `max_ttl_seconds` the server has, of those the tests use."""
    api = Api.of(server, callers.ALICE)
    return max(ttl for ttl in (100, 200, 300) if api.acquire(f"ttl/{ttl}", ttl_seconds=ttl).status == 200)


def test_settings_reach_the_server(tmp_path: Path) -> None:
    """The file, the environment and `--set` reach the server, each before the one before it."""
    config = tmp_path / "some.toml"
    config.write_text("max_ttl_seconds = 100\n")
    variable = {"HOLDFAST_MAX_TTL_SECONDS": "200"}
    chosen = {"max_ttl_seconds": 300}
    with ServerProcess.start(tmp_path / "a", tokens=callers.TOKENS, config=config) as server:
        assert ttl_limit(server) == 100
    with ServerProcess.start(tmp_path / "b", tokens=callers.TOKENS, config=config, env=variable) as server:
        assert ttl_limit(server) == 200
    with ServerProcess.start(
        tmp_path / "c", tokens=callers.TOKENS, config=config, env=variable, settings=chosen
    ) as server:
        assert ttl_limit(server) == 300
        refused(Api.of(server, callers.ALICE).acquire("ttl/301", ttl_seconds=301), 400, "invalid_ttl")


def test_unknown_variable_is_a_warning(tmp_path: Path) -> None:
    """A HOLDFAST_ variable that means nothing is reported, and the server starts."""
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS, env={"HOLDFAST_MAX_TTL": "5"}) as server:
        assert "HOLDFAST_MAX_TTL is not known" in server.log
        assert "did you mean HOLDFAST_MAX_TTL_SECONDS?" in server.log
        line = next(line for line in server.log.splitlines() if "HOLDFAST_MAX_TTL is" in line)
        assert json.loads(line)["level"] == "warning", "it is a line of the log like any other"


def test_variables_of_clients_are_passed_over(tmp_path: Path) -> None:
    """A shell in which workers run starts a server without a word about what they use."""
    env = {"HOLDFAST_OWNER": "ana", "HOLDFAST_JOB": "x", "HOLDFAST_PORT": "tcp://10.0.0.1:7420"}
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS, env=env) as server:
        server.terminate()
        assert "not known" not in server.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_stops_on_sigterm(tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM and Ctrl-C end the server with exit code 0 and without a traceback."""
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        server.process.send_signal(number)
        assert server.process.wait(20) == 0
        assert "Traceback" not in server.log


def test_bad_setting_stops_the_start(holdfast: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    """A setting that cannot be used is exit code 64 and one line, and no directory is made."""
    done = holdfast("serve", "--data", tmp_path / "data", HOLDFAST_LISTEN="nowhere")
    assert done.returncode == 64
    (line,) = done.stderr.splitlines()
    assert line.startswith("holdfast: listen (HOLDFAST_LISTEN)")
    assert not (tmp_path / "data").exists()


def test_found_file_is_named_in_the_greeting(tmp_path: Path) -> None:
    """A server says which file it took settings from, also one that only lay in its working directory; else nothing."""
    file = tmp_path / "holdfast.toml"
    file.write_text("max_ttl_seconds = 100\n")
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS, folder=tmp_path) as server:
        assert ttl_limit(server) == 100
    assert f"Settings are from {file}\n" in server.log
    file.rename(tmp_path / "some.toml")
    config = Path("some.toml")
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS, folder=tmp_path, config=config) as server:
        assert server.terminate() == 0
    assert f"Settings are from {tmp_path / 'some.toml'}\n" in server.log
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS, folder=tmp_path) as server:
        assert server.terminate() == 0
    assert "Data is in" in server.log and "Settings are from" not in server.log


def test_the_greeting_leads_to_the_page(tmp_path: Path) -> None:
    """A server says where its page is: at its public address, if it has one."""
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        assert server.terminate() == 0
    assert f"The page for a browser is {server.url}/," in server.log
    settings = {"public_url": "https://locks.example"}
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS, settings=settings) as server:
        assert server.terminate() == 0
    assert "The page for a browser is https://locks.example/," in server.log


@pytest.mark.parametrize("line", ["listen = '0.0.0.0:7420'", "tokens = 'eve:0123456789abcdef:admin'", "data = 'data'"])
def test_discovered_file_cannot_disable_authentication(
    holdfast: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, line: str
) -> None:
    """A holdfast.toml that somebody left in the directory cannot say who gets in, or where: exit code 64, one line."""
    (tmp_path / "holdfast.toml").write_text(line + "\n")
    done = holdfast("serve", "--data", tmp_path / "data", "--listen", "127.0.0.1:nowhere")
    assert done.returncode == 64
    (complaint,) = done.stderr.splitlines()
    assert complaint.startswith(f"holdfast: {line.split(maxsplit=1)[0]} ({tmp_path / 'holdfast.toml'})")
    assert "--config holdfast.toml" in complaint and "0123456789abcdef" not in complaint
    assert not (tmp_path / "data").exists()


def test_address_in_use_is_one_line(tmp_path: Path) -> None:
    """An address that somebody else listens on is exit code 69 and a line that says what to do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ServerFailed) as failed:
            ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS, listen=f"127.0.0.1:{taken.getsockname()[1]}")
    assert failed.value.returncode == 69
    assert "--listen" in failed.value.output and "Traceback" not in failed.value.output
