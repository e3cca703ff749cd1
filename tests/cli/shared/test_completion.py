"""`holdfast completion`: the scripts, and what they ask."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.background_command import clean_environment
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.server import ServerProcess

Complete = Callable[..., list[str]]


def ask(environment: dict[str, str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Ask as a shell's script does."""
    return subprocess.run(
        [sys.executable, "-m", "holdfast"],
        env={**environment, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.fixture
def environment(server: ServerProcess, tmp_path: Path) -> dict[str, str]:
    return clean_environment(tmp_path, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.ALICE)


def as_bash(environment: dict[str, str], line: str) -> list[str]:
    done = ask(environment, _HOLDFAST_COMPLETE="bash_complete", HOLDFAST_LINE=line)
    assert (done.returncode, done.stderr) == (0, "")
    return [item.removeprefix("plain,") for item in done.stdout.splitlines() if item]


def as_zsh(environment: dict[str, str], line: str) -> list[str]:
    words = line.split(" ")
    done = ask(environment, _HOLDFAST_COMPLETE="zsh_complete", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[::3] == ["plain"] * (len(lines) // 3)
    return [name.replace("\\:", ":") for name in lines[1::3]]


def as_fish(environment: dict[str, str], line: str) -> list[str]:
    words = line.split(" ")
    done = ask(environment, _HOLDFAST_COMPLETE="fish_complete", COMP_WORDS=" ".join(words[:-1]), COMP_CWORD=words[-1])
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    if "plain" in lines:
        return lines[1::3]
    return [line.removeprefix("plain,").split("\t")[0] for line in lines]


@pytest.mark.parametrize("complete", [as_bash, as_zsh, as_fish])
def test_every_shell_completes(complete: Complete, environment: dict[str, str], server: ServerProcess) -> None:
    """Commands, options and the names of claimed jobs are completed in bash, zsh and fish."""
    assert {"heartbeat", "history"} <= set(complete(environment, "holdfast h"))
    assert "start" in complete(environment, "holdfast session s")
    assert complete(environment, "holdfast claim --no") == ["--note", "--no-keep"]
    job = unique("github://acme/app/issues")
    Api.of(server, callers.ALICE).acquired(job)
    for command in ("owner", "why", "history", "revoke", "jobs"):
        assert complete(environment, f"holdfast {command} {job[:-3]}") == [job]


@pytest.mark.parametrize("line", ["run job -- ca", "run job -- ls -", "session exec name -- ca"])
def test_files_complete_after_the_dashes(line: str, environment: dict[str, str]) -> None:
    """What stands behind `--` is another command's: it is completed with files, not with our jobs and options."""
    assert as_bash(environment, f"holdfast {line}") == [f"file,{line.rsplit(maxsplit=1)[-1]}"]


def test_own_jobs_need_no_server(environment: dict[str, str]) -> None:
    """`heartbeat` and `release` complete what was claimed from here, without asking anybody."""
    job = unique("own")
    command = [sys.executable, "-m", "holdfast", "claim", job]
    subprocess.run(command, env=environment, capture_output=True, timeout=30, check=True)
    for verb in ("heartbeat", "note", "release", "transfer"):
        assert as_bash({**environment, "HOLDFAST_URL": "http://127.0.0.1:1"}, f"holdfast {verb} own") == [job]


def test_server_that_is_silent_or_gone_costs_nothing(environment: dict[str, str]) -> None:
    """Where the server does not answer soon, or is configured wrongly, there are no names and no error."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert as_bash({**environment, "HOLDFAST_URL": url}, "holdfast owner x") == []
    assert as_bash({**environment, "HOLDFAST_URL": url}, "holdfast owner x") == []
    assert as_bash({**environment, "HOLDFAST_URL": "nonsense"}, "holdfast owner x") == []
    assert as_bash({**environment, "HOLDFAST_TOKEN": "wrong"}, "holdfast owner x") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_printed(shell: str, environment: dict[str, str]) -> None:
    """`holdfast completion SHELL` prints a script that asks the command itself."""
    command = [sys.executable, "-m", "holdfast", "completion", shell]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=True)
    assert f"_HOLDFAST_COMPLETE={shell}_complete" in done.stdout and done.stderr == ""


def test_bash_itself(environment: dict[str, str], server: ServerProcess, tmp_path: Path) -> None:
    """bash runs the script: names with colons, and with what a shell would act on, are completed as typed."""
    stem = unique("github://acme/app/issues")
    Api.of(server, callers.ALICE).acquired(stem)
    odd = unique("shop://a?item=1&price=$2")
    Api.of(server, callers.ALICE).acquired(odd)
    command = tmp_path / "bin" / "holdfast"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    command.chmod(0o755)
    script = """
        eval "$(holdfast completion bash)"
        complete_line() {
            COMP_LINE="$1" COMP_POINT=${#1} COMPREPLY=()
            COMP_WORDBREAKS=$' \\t\\n"\\'><=;|&(:'
            _holdfast_completion holdfast
            printf '%s\\n' "${COMPREPLY[@]}" --
        }
        complete_line "holdfast rel"
        complete_line "holdfast owner $STEM"
        complete_line "holdfast owner shop://a"
        complete_line "holdfast owner \\"shop://a"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**environment, "PATH": f"{command.parent}:{environment['PATH']}", "STEM": stem[:-3]},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    first, second, third, fourth, _ = done.stdout.split("--\n")
    assert first.split() == ["release"]
    assert second.strip() == stem.removeprefix("github:")
    assert third.strip() == "//" + odd.removeprefix("shop://").replace("?", "\\?").replace("&", "\\&").replace(
        "$", "\\$"
    )
    assert fourth.strip() == odd
    assert done.stderr == ""
