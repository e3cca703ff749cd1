"""A git repository with a remote, and the guard's pre-push hook in every checkout of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from examples.demo.errors import FailedError

SECONDS_MAX = 30.0
BRANCH = "main"
RULES = """# What an agent touches, and the job that it must have for that.
ttl = "10s"

[[rule]]
command = "git push"
job = "push-{branch}"
"""
SAYS = "holdfast guard: "
"""How a line of the guard begins."""


class Repository:
    """Somewhere to push to, in a folder that all agents see."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._remote = folder / "origin.git"

    def create(self, env: Mapping[str, str]) -> None:
        """Make it, with the rule file as its first commit."""
        _git(["init", "--quiet", "--bare", "--initial-branch", BRANCH, self._remote], self._folder, env)
        first = self._clone("first", env)
        (first / "holdfast-guard.toml").write_text(RULES)
        (first / "CHANGELOG.md").write_text("# Changelog\n")
        _git(["add", "."], first, env)
        _git(["commit", "--quiet", "--message", "Rules for the guard"], first, env)
        _git(["push", "--quiet", "origin", f"HEAD:{BRANCH}"], first, env)

    def checkout(self, agent: str, env: Mapping[str, str]) -> Path:
        """A checkout for one agent, with the guard's hooks in place."""
        checkout = self._clone(agent, env)
        run(["holdfast", "guard", "git", "install"], checkout, env)
        return checkout

    def commits(self, env: Mapping[str, str]) -> list[str]:
        """The jobs that the commits at the remote were made for, oldest first."""
        trailer = ["log", "--reverse", "--format=%(trailers:key=Job,valueonly,separator=%x20)", BRANCH]
        return _git(trailer, self._remote, env).split()

    def _clone(self, name: str, env: Mapping[str, str]) -> Path:
        _git(["clone", "--quiet", self._remote, self._folder / name], self._folder, env)
        return self._folder / name


def commit(checkout: Path, job: str, text: str, env: Mapping[str, str]) -> None:
    """Write a line into the changelog, and commit it for a job."""
    with (checkout / "CHANGELOG.md").open("a") as changelog:
        changelog.write(f"- {text}\n")
    _git(["commit", "--quiet", "--all", "--message", f"{text}\n\nJob: {job}"], checkout, env)


def push(checkout: Path, env: Mapping[str, str]) -> str | None:
    """Push; None if that went well, else what the guard said. Any other refusal is a `FailedError`."""
    command = ["git", "push", "origin", BRANCH]
    done = _ended(command, checkout, env)
    if done.returncode == 0:
        return None
    for line in done.stderr.splitlines():
        if line.startswith(SAYS):
            return line.removeprefix(SAYS)
    raise _failed(command, done)


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment for git: nothing of the user's own, and nothing of a git that may have started us."""
    ours = {name: value for name, value in env.items() if not name.startswith("GIT_")}
    nobody = {f"GIT_{role}_{what}": "demo" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return {**ours, **nobody, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0"}


def _git(arguments: Sequence[str | Path], folder: Path, env: Mapping[str, str]) -> str:
    return run(["git", *map(str, arguments)], folder, env)


def run(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> str:
    """Run a command to its end; return what it printed. Raises `FailedError`."""
    done = _ended(command, folder, env)
    if done.returncode:
        raise _failed(command, done)
    return done.stdout


def _ended(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_MAX,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FailedError(f"`{' '.join(command)}` failed: {error}") from None


def _failed(command: Sequence[str], done: subprocess.CompletedProcess[str]) -> FailedError:
    return FailedError(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr.strip()}")
