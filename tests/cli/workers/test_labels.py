"""`--label KEY=VALUE` on the commands that claim and that look, against a real server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.background_command import BackgroundCommand, clean_environment
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.server import ServerProcess

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli(server: ServerProcess, holdfast: Run) -> Run:
    """Runs `holdfast …` against the server of this file."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return holdfast(*arguments, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.ALICE)

    return run


def test_claimed_labels_are_shown_and_found(cli: Run) -> None:
    """`claim --label` marks, `owner` and `jobs` show it, `jobs --label` finds it; of several all must be there."""
    prefix = unique("marked") + "/"
    assert cli("claim", prefix + "a", "--label", "team=infra", "--label", "pr=7").returncode == 0
    assert cli("claim", prefix + "b", "--label", "team=infra").returncode == 0
    assert cli("claim", prefix + "c").returncode == 0
    assert "labels          team=infra, pr=7" in cli("owner", prefix + "a").stdout
    assert "labels" not in cli("owner", prefix + "c").stdout
    shown = cli("jobs", prefix).stdout
    assert "LABELS" in shown and "team=infra, pr=7" in shown
    assert "LABELS" not in cli("jobs", prefix + "c").stdout
    found = json.loads(cli("jobs", prefix, "--label", "team=infra", "--label", "pr=7", "--json").stdout)["jobs"]
    assert [(each["job_id"], each["labels"]) for each in found] == [(prefix + "a", {"team": "infra", "pr": "7"})]
    none = cli("jobs", prefix, "--label", "team=web")
    assert (none.returncode, none.stdout, none.stderr) == (0, "", "no job like this is claimed\n")


def test_refusal_shows_the_owners_labels(cli: Run) -> None:
    """With --json a refused claim says what the owner's claim is marked with."""
    job = unique("marked")
    cli("claim", job, "--owner", "ana", "--label", "team=infra")
    refused = cli("claim", job, "--owner", "ben", "--json")
    assert refused.returncode == 1 and json.loads(refused.stdout)["labels"] == {"team": "infra"}


def test_run_marks_its_claim(cli: Run) -> None:
    """`run --label` claims with labels, which others see while the command runs."""
    job = unique("marked")
    look = (sys.executable, "-m", "holdfast", "jobs", job, "--json")
    shown = cli("run", job, "--label", "team=infra", "--keep-token", "--", *look)
    assert json.loads(shown.stdout)["jobs"][0]["labels"] == {"team": "infra"}, shown


def test_watch_filters_by_label(server: ServerProcess, tmp_path: Path) -> None:
    """`watch --label` prints what concerns claims with the label, and nothing else."""
    prefix = unique("marked") + "/"
    api = Api.of(server, callers.ALICE)
    api.acquired(prefix + "first", owner="ana", labels={"team": "web"})
    after = api.history(prefix + "first").json()["history"][0]["seq"] - 1
    environment = clean_environment(tmp_path, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.ALICE)
    with BackgroundCommand(
        "watch", prefix, "--after", str(after), "--label", "team=infra", environment=environment
    ) as watch:
        api.acquired(prefix + "second", owner="ben", labels={"team": "infra"})
        watch.until("second")
        assert "first" not in watch.shown


@pytest.mark.parametrize("given", ["team", "=infra"])
def test_a_label_without_key_or_value_is_a_usage_error(cli: Run, given: str) -> None:
    """What is no KEY=VALUE is refused before anything is asked, with how to write it."""
    wrong = cli("claim", "job", "--label", given)
    assert wrong.returncode == 64 and "write it as --label KEY=VALUE" in wrong.stderr


@pytest.mark.parametrize("command", [("claim", "job"), ("jobs",)])
def test_a_label_with_two_values_is_a_usage_error(cli: Run, command: tuple[str, ...]) -> None:
    """Which one is meant cannot be known, so neither is passed over; the same twice is the same."""
    wrong = cli(*command, "--label", "team=infra", "--label", "team=web")
    assert wrong.returncode == 64 and "--label 'team' stands twice with different values" in wrong.stderr
    assert cli("jobs", "--label", "team=infra", "--label", "team=infra").returncode == 0
