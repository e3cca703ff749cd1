"""What the commands do and say while the token in their file is rotated, with a real server and real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.api.auth.secrets import CLAIM_PREFIX, SESSION_PREFIX
from holdfast.cli.shared.refusals import SECRET_PREFIXES
from holdfast.privatefiles import replace
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique, wait_until
from tests.support.server import ServerProcess

SECONDS_MAX = 30


class RotatedToken:
    """A folder with a token file, commands that read it, and what they said."""

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        self.operator = Api.of(server, callers.OPERATOR)
        self.folder = folder
        self.file = folder / "its.token"
        self.name = unique("turned")
        self.write(self.operator.post("/tokens", {"name": self.name}).json()["token"])
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "XDG_"))}
        own = {"HOLDFAST_URL": server.url, "HOLDFAST_TOKEN_FILE": str(self.file), "XDG_CONFIG_HOME": str(folder)}
        self.environment = {**clean, **own}
        self.started: list[subprocess.Popen[bytes]] = []

    def write(self, token: str) -> None:
        replace(self.file, f"{token}\n".encode())

    def rotate(self) -> str:
        return str(self.operator.post(f"/tokens/{self.name}/rotate").json()["token"])

    def start(self, said: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command. What it says is in the file `said`."""
        with (self.folder / said).open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", *arguments],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def said(self, name: str) -> str:
        return (self.folder / name).read_text()


@pytest.fixture
def rotated(server: ServerProcess, tmp_path: Path) -> Iterator[RotatedToken]:
    found = RotatedToken(server, tmp_path)
    yield found
    for process in found.started:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_run_reports_refused_renewals(rotated: RotatedToken) -> None:
    """A run says once that it is not renewed, why, and from which file its token is; then it goes on.

    What its command is told is no advice to look for another token.
    """
    script = f"touch ready; until [ -e go ]; do sleep 0.1; done; {sys.executable} -m holdfast note $HOLDFAST_JOB half"
    run = rotated.start("run", "run", unique("job"), "--ttl", "6s", "--", "sh", "-c", f"{script}; echo noted: $?")
    wait_until((rotated.folder / "ready").exists, seconds_max=SECONDS_MAX)
    token = rotated.rotate()
    wait_until(lambda: "was not renewed" in rotated.said("run"), seconds_max=SECONDS_MAX)
    rotated.write(token)
    (rotated.folder / "go").touch()
    assert run.wait(SECONDS_MAX) == 0, rotated.said("run")
    (line,) = [line for line in rotated.said("run").splitlines() if "was not renewed" in line]
    assert "revoked" in line and str(rotated.file) in line
    assert "noted: 77" in rotated.said("run") and "A run that has the new token goes on" in rotated.said("run")
    assert "Put a token" not in rotated.said("run")


def test_waits_and_watches_continue(rotated: RotatedToken) -> None:
    """`run -w`, `claim -w` and `watch` wait for the new token in the file, and go on."""
    jobs = [unique("busy"), unique("busy")]
    held = [rotated.operator.acquired(job, ttl_seconds=600) for job in jobs]
    run = rotated.start("run", "run", jobs[0], "-w", "60s", "--", "true")
    claim = rotated.start("claim", "claim", jobs[1], "-w", "60s")
    rotated.start("watch", "watch", rotated.name, "--after", "0")
    rotated.operator.acquired(f"{rotated.name}-1")
    wait_until(lambda: f"{rotated.name}-1" in rotated.said("watch"), seconds_max=SECONDS_MAX)
    for job in jobs:
        wait_until(lambda job=job: rotated.operator.status(job).json()["waiting"] == 1, seconds_max=SECONDS_MAX)  # type: ignore[misc]
    token = rotated.rotate()
    refused = rotated.start("jobs", "jobs")
    assert refused.wait(SECONDS_MAX) == 77
    assert str(rotated.file) in rotated.said("jobs") and "HOLDFAST_TOKEN" not in rotated.said("jobs")
    rotated.write(token)
    rotated.operator.acquired(f"{rotated.name}-2")
    wait_until(lambda: f"{rotated.name}-2" in rotated.said("watch"), seconds_max=SECONDS_MAX)
    for job, lease in zip(jobs, held, strict=True):
        rotated.operator.release(job, lease["lease_id"])
    assert run.wait(SECONDS_MAX) == 0, rotated.said("run")
    assert claim.wait(SECONDS_MAX) == 0, rotated.said("claim")
    assert rotated.said("watch").count(f"{rotated.name}-1") == 1


def test_prefixes_of_secrets_are_the_servers() -> None:
    """The commands know a secret by how it begins, as the server makes it."""
    assert set(SECRET_PREFIXES) == {CLAIM_PREFIX, SESSION_PREFIX}
