"""The claim loop of the guide, with nothing but a POSIX shell and curl."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import wait_until
from tests.support.program import Program
from tests.support.server import PROJECT, ServerProcess

Start = Callable[..., Program]

SHELLS = [words for words in (["dash"], ["bash"], ["busybox", "sh"]) if shutil.which(words[0])]
MOMENTS = 25
MOMENT_SECONDS = 0.000_4
SHORT = {"HOLDFAST_TTL_SECONDS": "8", "HOLDFAST_OWNER": "shell-1"}


def test_script_is_plain_posix_shell() -> None:
    """The shell that knows only POSIX reads it, people may start it as it is, and it uses no jq."""
    script = PROJECT / "examples" / "claim_loop.sh"
    for shell in ("sh", "dash"):
        assert subprocess.run([shell, "-n", script], check=False).returncode == 0, shell
    assert script.stat().st_mode & 0o111 == 0o111
    code = [line for line in script.read_text().splitlines() if not line.lstrip().startswith("#")]
    assert not any(word in line for line in code for word in ("jq ", "python", "[[", "local ")), code


def test_command_runs_while_the_job_is_its_own(example: Start, alice: Api, name: str, tmp_path: Path) -> None:
    """The command has the input and the fencing token, its exit code is passed on, a failure is recorded, and neither
    the token nor the lease id is ever on a command line."""
    log = _listen_in(tmp_path)
    script = 'read line; echo "$line with token $HOLDFAST_FENCING_TOKEN"; exit 3'
    path = {"PATH": f"{tmp_path}:/usr/local/bin:/usr/bin:/bin"}
    loop = example("claim_loop.sh", name, "sh", "-c", script, env={**SHORT, **path}, stdin="hello\n")
    assert loop.ended() == 3
    status = alice.status(name).json()
    assert (status["status"], status["attempts"], status["previous"]["ended"]) == ("free", 1, "released")
    assert loop.output == f"hello with token {status['previous']['fencing_token']}\n"
    assert log.read_text().count("/locks/") == 2
    assert callers.ALICE not in log.read_text() and "lease_id" not in log.read_text()

    assert example("claim_loop.sh", name, "true", env=SHORT).ended() == 0
    assert alice.status(name).json()["attempts"] == 0, "it has ended well"


def _announce(folder: Path, tool: str) -> None:
    """Put a tool into the folder that says when it is started, and is otherwise the one of this machine."""
    (folder / tool).write_text(f'#!/bin/sh\necho {tool} >&2\nexec "{shutil.which(tool)}" "$@"\n')
    (folder / tool).chmod(0o755)


def _listen_in(folder: Path) -> Path:
    """Put a curl into the folder that writes its command line down; return where."""
    log = folder / "command-lines"
    curl = folder / "curl"
    curl.write_text(f'#!/bin/sh\necho "$@" >>"{log}"\nexec "{shutil.which("curl")}" "$@"\n')
    curl.chmod(0o755)
    return log


def test_no_lease_no_command(example: Start, alice: Api, server: ServerProcess, name: str) -> None:
    """Held, done, refused, unreachable and used wrongly are different exit codes, and the command never runs."""

    def refused(code: int, text: str, **env: str) -> None:
        loop = example("claim_loop.sh", name, "echo", "it ran", env={**SHORT, **env})
        assert loop.ended() == code, loop.output
        assert text in loop.output and "it ran" not in loop.output

    lease = alice.acquired(name, ttl_seconds=60, owner="agent-1")
    refused(75, '"owner":"agent-1"')
    alice.release(name, lease["lease_id"], outcome="done", remember_seconds=60)
    refused(12, '"status":"done"')
    refused(69, "authentication", HOLDFAST_TOKEN="nobody-0123456789abcdef")
    refused(69, "curl: (7)", HOLDFAST_URL="http://127.0.0.1:9")
    refused(69, "nowhere", HOLDFAST_TOKEN="", HOLDFAST_TOKEN_FILE="nowhere")
    refused(64, "8 or more", HOLDFAST_TTL_SECONDS="7")
    assert example("claim_loop.sh", name).ended() == 64


def test_server_is_found_by_itself(example: Start, server: ServerProcess, name: str, tmp_path: Path) -> None:
    """Without variables it finds the server and the token where `make run` has put them, whatever the port."""
    config = tmp_path / "config" / "holdfast"
    config.mkdir(parents=True)
    (config / "client.toml").write_text(f'url = "{server.url}"\ntoken_file = "token"\n')
    (config / "token").write_text(callers.ALICE + "\n")
    loop = example("claim_loop.sh", name, "echo", "it ran", env={**SHORT, "HOLDFAST_URL": "", "HOLDFAST_TOKEN": ""})
    assert (loop.ended(), loop.output) == (0, "it ran\n")


def test_lease_is_renewed_until_it_is_lost(example: Start, alice: Api, operator: Api, name: str) -> None:
    """The lease is renewed while the command runs; when it is revoked the command is ended, and the exit code is 20."""
    loop = example("claim_loop.sh", name, "sh", "-c", "echo at work; exec sleep 100", env=SHORT)
    loop.said("at work")
    claimed = alice.status(name).json()
    assert (claimed["owner"], claimed["last_heartbeat_at"]) == ("shell-1", claimed["claimed_at"])
    wait_until(lambda: alice.status(name).json()["last_heartbeat_at"] > claimed["claimed_at"])
    assert operator.revoke(name, reason="enough").status == 204
    assert loop.ended() == 20
    loop.said("the lease was lost")


def test_command_ends_before_its_lease_can(example: Start, name: str, tmp_path: Path) -> None:
    """When the server does not answer any more, the command is ended before the TTL has passed."""
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        env = {**SHORT, "HOLDFAST_URL": server.url}
        loop = example(
            "claim_loop.sh",
            name,
            "sh",
            "-c",
            "trap 'echo told; exit' TERM; echo at work; sleep 100 >/dev/null 2>&1 & wait",
            env=env,
        )
        loop.said("at work")
        server.pause()
        # What was answered last was asked for before this.
        paused = time.monotonic()
        loop.said("told")
        assert time.monotonic() - paused < 8
        assert loop.ended() == 20


def test_signal_ends_the_command_and_frees_the_job(example: Start, alice: Api, name: str) -> None:
    """A SIGTERM reaches the command, whose own end counts, and the job is free at once."""
    script = "trap 'echo told; exit 7' TERM; echo at work; sleep 100 >/dev/null 2>&1 & wait"
    loop = example("claim_loop.sh", name, "sh", "-c", script, env=SHORT)
    loop.said("at work")
    loop.process.send_signal(signal.SIGTERM)
    loop.said("told")
    assert loop.ended() == 7
    assert alice.status(name).json()["status"] == "free"


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_signal_while_it_starts_leaves_nothing_running(
    example: Start, alice: Api, name: str, tmp_path: Path, shell: list[str]
) -> None:
    """Whenever a SIGTERM comes after the claim, the loop ends, and so does the command, if it was started."""
    _announce(tmp_path, "sed")  # It reads the answer twice; what it is about to start comes right after.
    env = {**SHORT, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for moment in range(MOMENTS):
        job = f"{name}-{moment}"
        loop = example("claim_loop.sh", job, "sleep", "100", env=env, shell=shell)
        loop.said("sed", times=2)
        time.sleep(moment * MOMENT_SECONDS)  # Not for a state: to come at another point of its start each time.
        loop.process.send_signal(signal.SIGTERM)
        code = loop.ended(seconds_max=10)
        assert loop.is_silent, f"moment {moment}: the command runs without an owner"
        assert code in {-signal.SIGTERM, 128 + signal.SIGTERM}, f"moment {moment}: {code}"
        if code > 0:
            assert alice.status(job).json()["status"] == "free", f"moment {moment}: told, and not released"
