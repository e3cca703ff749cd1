"""`holdfast revoke`, `reopen` and `check`, against a real server."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.server import ServerProcess

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def operator(server: ServerProcess, holdfast: Run) -> Run:
    """Runs `holdfast …` as an operator."""

    def run(*arguments: object, token: str = callers.OPERATOR) -> subprocess.CompletedProcess[str]:
        return holdfast(*arguments, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=token)

    return run


@pytest.fixture
def api(server: ServerProcess) -> Api:
    return Api.of(server, callers.ALICE)


def test_revoke_ends_a_claim(operator: Run, api: Api) -> None:
    """`revoke` ends somebody's claim, and the holder's next call says by whom and why."""
    job = unique()
    lease = api.acquired(job)["lease_id"]
    done = operator("revoke", job, "--reason", "its host was replaced")
    assert (done.returncode, done.stdout) == (0, f"{job} is revoked\n")
    assert "its command under `holdfast run` is killed" in done.stderr, "it says what happens to the holder (L9)"
    assert re.search(r"at its next renewal, within (4\d|5\d|60) s", done.stderr), done.stderr
    reply = api.renew(job, lease).json()
    assert (reply["code"], reply["by"], reply["reason"]) == ("revoked", "operator", "its host was replaced")


def test_revoke_needs_a_reason_and_the_scope(operator: Run, api: Api) -> None:
    """Without a reason it is 64, without the scope 77, and for a free job 64."""
    job = unique()
    api.acquired(job)
    assert operator("revoke", job).returncode == 64
    done = operator("revoke", job, "--reason", "x", token=callers.ALICE)
    assert done.returncode == 77 and "scope" in done.stderr
    assert operator("revoke", unique(), "--reason", "x").returncode == 64


def test_reopen_lets_work_be_done_again(operator: Run, api: Api) -> None:
    """`reopen` lets finished work be claimed again."""
    job = unique()
    api.release(job, api.acquired(job)["lease_id"], outcome="done", remember_seconds=600)
    assert api.acquire(job).json()["status"] == "done"
    done = operator("reopen", job, "--reason", "it was wrong")
    assert (done.returncode, done.stdout) == (0, f"{job} can be claimed again\n")
    api.acquired(job)
    assert operator("reopen", job, token=callers.ALICE).returncode == 77


def test_check_reports_a_current_token(operator: Run, api: Api) -> None:
    """`check` ends with 0 for the token of the live claim and with 1 for any other."""
    job = unique()
    lease = api.acquired(job)
    token = lease["fencing_token"]
    done = operator("check", job, token)
    assert (done.returncode, done.stdout) == (0, f"fencing token {token} of {job} is current\n")
    done = operator("check", job, token - 1, "--json")
    assert (done.returncode, json.loads(done.stdout)) == (1, {"job_id": job, "token": token - 1, "current": False})
    api.release(job, lease["lease_id"])
    assert operator("check", job, token).returncode == 1
    assert operator("check", job, "x").returncode == 64


def test_results_as_json(operator: Run, api: Api) -> None:
    """With --json operators get objects, and so does whoever is refused."""
    job = unique()
    api.acquired(job)
    reply = json.loads(operator("revoke", job, "--reason", "x", "--json", token=callers.ALICE).stdout)
    assert (reply["status"], reply["code"], reply["exit_code"]) == ("not_allowed", "forbidden", 77)
    assert json.loads(operator("revoke", job, "--reason", "x", "--json").stdout) == {
        "status": "revoked",
        "job_id": job,
        "reason": "x",
    }
    api.release(job, api.acquired(job)["lease_id"], outcome="done", remember_seconds=600)
    assert json.loads(operator("reopen", job, "--json").stdout)["status"] == "reopened"
