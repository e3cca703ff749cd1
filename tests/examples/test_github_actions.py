"""The workflow of the GitHub Actions recipe: its steps run as a runner runs them, against a real server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import wait_until
from tests.support.package import build
from tests.support.program import Program
from tests.support.server import PROJECT, ServerProcess

WORKFLOW = PROJECT / "examples" / "github-actions" / "deploy.yml"
JOB = "deploy-production"
DEPLOY = """#!/bin/sh
echo "deploying with $HOLDFAST_FENCING_TOKEN"
until [ -e go ]; do sleep 0.05; done
echo deployed
"""


class Repository:
    """A repository that was checked out, and what GitHub would fill into its workflow."""

    def __init__(self, name: str, folder: Path, server: ServerProcess) -> None:
        self.workspace = folder / "workspace"
        self.temp = folder / "temp"
        for each in (self.workspace, self.temp):
            each.mkdir(parents=True)
        (self.workspace / "deploy.sh").write_text(DEPLOY)
        (self.workspace / "deploy.sh").chmod(0o755)
        self.added_paths = self.temp / "paths"
        self.added_paths.touch()
        self._context = {
            "github.repository": name,
            "github.run_id": "77",
            "github.run_attempt": "1",
            "github.server_url": "https://github.example",
            "vars.HOLDFAST_URL": server.url,
            "secrets.HOLDFAST_TOKEN": callers.ALICE,
        }
        programs = self.temp / "programs"
        programs.mkdir()
        (programs / "python3").symlink_to(sys._base_executable)  # type: ignore[attr-defined]  # The one that runs the tests.
        self._env = {
            name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PIP_"))
        } | {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "GITHUB_PATH": str(self.added_paths),
            "GITHUB_REPOSITORY": name,
            "RUNNER_TEMP": str(self.temp),
            "HOME": str(self.temp),
        }

    def filled_in(self, env: dict[str, str]) -> dict[str, str]:
        """Values with their expressions replaced. One that GitHub would not know is a KeyError."""
        return {
            name: re.sub(r"\$\{\{ ([\w.]+) \}\}", lambda found: self._context[found[1]], value)
            for name, value in env.items()
        }

    def step(self, name: str, **more: str) -> tuple[list[str | Path], dict[str, str]]:
        """The command and the environment of a step, as a runner on Linux has them."""
        job = workflow()["jobs"]["deploy"]
        (step,) = [step for step in job["steps"] if step.get("name") == name]
        script = self.temp / "step.sh"
        script.write_text(step["run"])
        path = os.pathsep.join([*self.added_paths.read_text().split(), self._env["PATH"]])
        env = self._env | self.filled_in(job["env"]) | self.filled_in(step.get("env", {})) | {"PATH": path} | more
        return ["bash", "-e", script], env


def workflow() -> dict[str, Any]:
    return yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


Deploy = Callable[[str], tuple[Repository, Program]]


@pytest.fixture
def deploy(server: ServerProcess, tmp_path: Path) -> Iterator[Deploy]:
    """Starts the step that deploys, in a repository of this name."""
    with ExitStack() as stack:

        def start(name: str) -> tuple[Repository, Program]:
            repository = Repository(name, tmp_path / name, server)
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            command, env = repository.step("Deploy when it is our turn", PATH=path)
            return repository, stack.enter_context(Program(command, env=env, folder=repository.workspace))

        yield start


def test_workflow_is_one() -> None:
    """The file has what a workflow needs; every step is an action with a version or a script; no secret reaches a step
    that does not need it."""
    text = workflow()
    assert set(text) == {"name", True, "permissions", "jobs"}, "YAML reads `on` as true"
    assert text["permissions"] == {"contents": "read"}
    (job,) = text["jobs"].values()
    for step in job["steps"]:
        assert ("run" in step) != bool(re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step.get("uses", ""))), step
        if "run" in step:
            assert "${{" not in step["run"], "an expression in a script is code of whoever chose its value"
    with_secret = [step["name"] for step in job["steps"] if "secrets." in str(step)]
    assert (with_secret, "secrets." in str(job["env"])) == (["Deploy when it is our turn"], False)


def test_workflow_installs_and_deploys(server: ServerProcess, alice: Api, tmp_path: Path) -> None:
    """The steps of one run: the wheel is installed, the deploy runs while the job is claimed, the history has it."""
    pytest.importorskip("ensurepip", reason="without it `python3 -m venv` makes no pip")
    repository = Repository("acme/app", tmp_path, server)
    build(PROJECT, repository.workspace / "ci")
    (repository.workspace / "go").touch()
    # There is no index here: what the wheel depends on comes from this environment.
    command, env = repository.step("Install Holdfast", PIP_NO_INDEX="1", PIP_NO_DEPS="1")
    done = subprocess.run(command, env=env, cwd=repository.workspace, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    command, env = repository.step("Deploy when it is our turn", PYTHONPATH=sysconfig.get_path("purelib"))
    assert env["PATH"].startswith(str(repository.temp)), "the step finds what was installed before it"
    with Program(command, env=env, folder=repository.workspace) as program:
        assert program.ended() == 0, program.output
        assert re.search(r"deploying with \d+\ndeployed\n", program.output)
    newest = [(each["event"], each["owner"], each["labels"]) for each in alice.history(JOB).json()["history"][:2]]
    label = {"repository": "acme/app"}
    assert newest == [("released", "acme/app-77-1", label), ("granted", "acme/app-77-1", label)]


def test_repositories_deploy_one_after_another(deploy: Deploy, alice: Api) -> None:
    """While one repository deploys, another waits. A run that is cancelled in line leaves it, and one that is cancelled
    while it deploys gives the job to the next."""
    _, first = deploy("acme/app")
    first.said(r"deploying with")
    repository, second = deploy("acme/web")
    wait_until(lambda: alice.status(JOB).json()["waiting"] == 1)
    _, third = deploy("acme/docs")
    wait_until(lambda: alice.status(JOB).json()["waiting"] == 2)
    third.process.send_signal(signal.SIGINT)
    assert third.ended() == 130, third.output
    assert alice.status(JOB).json()["waiting"] == 1
    assert "deploying" not in second.output

    first.process.send_signal(signal.SIGINT)  # What a runner does first, to this process alone.
    assert first.ended() == 130, first.output
    assert "deployed" not in first.output
    second.said(r"deploying with")
    assert alice.status(JOB).json()["owner"] == "acme/web-77-1"
    (repository.workspace / "go").touch()
    assert second.ended() == 0, second.output
    assert alice.status(JOB).json()["status"] == "free"
