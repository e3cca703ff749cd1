"""`holdfast.testing.server()`: a real server for one test, of which nothing is left afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast.testing
from holdfast.testing import RunningServer, ServerFailedError, server
from tests.support.checks import wait_until
from tests.support.program import Program

# Starts a server, says where everything is, and waits until somebody ends it.
STARTER = """
import json, signal
from holdfast.testing import server
with server() as running:
    print(json.dumps({"guard": running._process.pid, "folder": str(running._folder)}), flush=True)
    signal.pause()
"""

# Forks while a server runs. The copy does something; the original says how that ended, and whether it is still served.
FORKING = """
import os, signal, warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # From Python 3.12 on.
from holdfast.testing import server
with server() as running:
    if not (copy := os.fork()):
        signal.alarm(20)
        {in_the_copy}
        os._exit(0)
    guard, code = running._process, os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
    assert guard.poll() is None
    print("copy", code, "token", running.client().claim_job("job").fencing_token, flush=True)
"""


def said_by(folder: Path, script: str) -> tuple[str, str]:
    """Run a script in a folder, and return what it wrote."""
    command = [sys.executable, "-P", "-c", script]
    env = {**os.environ, "TMPDIR": str(folder)}
    ran = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return ran.stdout, ran.stderr


def is_gone(group: int) -> bool:
    """Has every process of the group ended?"""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def holdfast_command(running: RunningServer, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", *words]
    return subprocess.run(command, env=running.env(**more), capture_output=True, text=True, timeout=60, check=False)


def test_server_starts_with_one_line() -> None:
    """A server of one's own takes claims, and is gone with all its files when the block ends."""
    with server() as running:
        guard, folder = running._process, running.data.parent
        assert guard is not None and running.data.is_dir()
        with running.client(owner="me").claim("job") as claim:
            owner = running.client().get_job_owner("job")
            assert owner is not None and (owner.owner, owner.fencing_token) == ("me", claim.fencing_token)
    assert is_gone(guard.pid)
    assert not folder.exists()


def test_restart_keeps_what_was_claimed() -> None:
    """After a kill and after a stop the same address serves the same leases, and the same token is taken."""
    with server() as running:
        client = running.client()
        claim = client.claim_job("job", "me")
        where = (running.url, running.token)
        for end in (running.kill, running.stop, running.restart):
            end()
            running.restart()
            assert (running.url, running.token) == where
            owner = client.get_job_owner("job")
            assert owner is not None and owner.fencing_token == claim.fencing_token


def test_a_killed_server_is_gone_until_it_is_started() -> None:
    """Between `kill` and `restart` nobody answers, and a second `kill` is harmless."""
    with server() as running:
        running.kill()
        running.kill()
        client = holdfast.Holdfast(running.url, token=running.token, retry_seconds=0)
        with client, pytest.raises(holdfast.Unreachable):
            client.get_job_owner("job")


def test_commands_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `env()` a command uses this server alone, whatever the user's own variables say."""
    monkeypatch.setenv("HOLDFAST_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("HOLDFAST_TOKEN_FILE", "/nowhere")
    monkeypatch.setenv("HOLDFAST_OWNER", "somebody")
    with server() as running:
        assert holdfast_command(running, "claim", "job", HOLDFAST_OWNER="me").returncode == 0
        shown = holdfast_command(running, "owner", "job", "--json")
        assert json.loads(shown.stdout)["owner"]["owner"] == "me"
        assert holdfast_command(running, "release", "job", HOLDFAST_OWNER="me").returncode == 0
        assert running.env(MORE="1")["MORE"] == "1"


def test_settings_reach_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings are those of `holdfast serve`, and no file of the working directory is read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holdfast.toml").write_text("no_such_setting = 1\n")
    with server(max_ttl_seconds=30, log_requests=True) as running:
        with pytest.raises(holdfast.Refused, match="30"):
            running.client().claim_job("job", ttl=31)
        wait_until(lambda: "/locks/job/acquire" in running.log)


def test_a_server_that_cannot_start_says_why() -> None:
    """What the server says when it does not start is in the error; what is chosen here cannot be set."""
    with pytest.raises(ServerFailedError, match="no_such_setting"), server(no_such_setting=1):
        pass
    with pytest.raises(TypeError, match="tokens: a server for tests chooses this itself"), server(tokens="a:b"):
        pass


def test_the_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra `server` the error says what to install."""
    (tmp_path / "apsw.py").write_text("raise ModuleNotFoundError(\"No module named 'apsw'\", name='apsw')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ServerFailedError, match=r" install -e '\.\[server\]'"), server():
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_dead_test_run_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """Whichever signal ends the test run, its server ends too and the folder is removed."""
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with Program([sys.executable, "-c", STARTER], env=env, folder=tmp_path) as program:
        where = json.loads(program.said(r"\{.*\}")[0][0])
        assert Path(where["folder"]).parent == tmp_path and not is_gone(where["guard"])
        os.kill(program.pid, number)
        wait_until(lambda: is_gone(where["guard"]) and not Path(where["folder"]).exists(), seconds_max=30)


def test_a_forked_process_does_not_keep_it_alive(tmp_path: Path) -> None:
    """When the test run is killed, its server ends, also if a process that was forked from it lives on."""
    forked = STARTER.replace("    signal.pause()", "    import os\n    os.fork()\n    signal.pause()")
    with Program(
        [sys.executable, "-c", forked], env={**os.environ, "TMPDIR": str(tmp_path)}, folder=tmp_path
    ) as program:
        where = json.loads(program.said(r"\{.*\}")[0][0])
        os.kill(program.pid, signal.SIGKILL)
        wait_until(lambda: is_gone(where["guard"]) and not Path(where["folder"]).exists(), seconds_max=30)


def test_a_forked_process_that_leaves_the_block_ends_nothing(tmp_path: Path) -> None:
    """The server belongs to the process that started it: a copy of that process comes out at once, and it serves on."""
    assert said_by(tmp_path, FORKING.format(in_the_copy="raise SystemExit(7)")) == ("copy 7 token 1\n", "")


@pytest.mark.parametrize("verb", ["kill", "stop", "restart"])
def test_a_forked_process_cannot_end_it(tmp_path: Path, verb: str) -> None:
    """Whoever did not start the server is told so, and it serves on as the same process."""
    out, err = said_by(tmp_path, FORKING.format(in_the_copy=f"running.{verb}()"))
    assert out == "copy 1 token 1\n"
    assert re.search(r"RuntimeError: the server is that of process \d+, which started it; end it there\n$", err)


def test_files_of_the_working_directory_are_not_the_program(tmp_path: Path) -> None:
    """A test run may stand in a folder with modules named as ours or as Python's own: the server is the real one."""
    for name in ("holdfast", "select", "json"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('this is not {name}')\n")
    script = "from holdfast.testing import server\nwith server() as running: print(running.client().check('job', 1))"
    assert said_by(tmp_path, script) == ("False\n", "")


def test_a_killed_guard_leaves_nothing() -> None:
    """Whoever kills the guard alone does not keep the server running, nor the test run waiting for it."""
    with server() as running:
        guard, folder = running._process, running.data.parent
        assert guard is not None
        guard.kill()
    wait_until(lambda: is_gone(guard.pid), seconds_max=30)
    assert not folder.exists()


def test_public_names_load() -> None:
    """Every public name of `holdfast.testing` exists, and a misspelt one is refused."""
    assert [name for name in holdfast.testing.__all__ if not hasattr(holdfast.testing, name)] == []
    with pytest.raises(AttributeError, match="sever"):
        getattr(holdfast.testing, "sever")  # noqa: B009 - a type checker would refuse the name itself


def test_calling_process_imports_no_server_code() -> None:
    """`server()` and the plugin import neither the engine nor anything of the extra `server`."""
    text = """
import sys
import holdfast.testing.pytest_plugin
assert "holdfast.client" not in sys.modules and "msgspec" not in sys.modules, "a plugin that is not used costs nothing"
from holdfast.testing import server
forbidden = {"apsw", "httptools", "holdfast.engine", "holdfast.journal", "holdfast.server", "holdfast.core"}
assert not forbidden & set(sys.modules), forbidden & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)
