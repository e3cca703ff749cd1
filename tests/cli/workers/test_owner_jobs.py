"""`holdfast owner` and `holdfast jobs`, against a real server."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.background_command import CLOCK, BackgroundCommand, clean_environment
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import moment_over, unique, wait_until
from tests.support.pending import waiting
from tests.support.server import ServerProcess

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def reader(server: ServerProcess, holdfast: Run) -> Run:
    """Runs `holdfast …` with a token that may only look."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return holdfast(*arguments, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.READER)

    return run


@pytest.fixture
def api(server: ServerProcess) -> Api:
    return Api.of(server, callers.ALICE)


def fields(shown: str) -> dict[str, str]:
    """The lines after the first, as name and value."""
    pairs = [re.fullmatch(r"  (\S.*?)  +(.*)", line) for line in shown.splitlines()[1:]]
    return {pair[1]: pair[2] for pair in pairs if pair}


def test_owner_of_a_held_job(reader: Run, api: Api, server: ServerProcess) -> None:
    """Who owns it, since when, the last heartbeat, until when, the note, the metadata, who waits, who was before."""
    job = unique()
    first = api.acquired(job, owner="agent-1")
    api.renew(job, first["lease_id"], note="gave up")
    api.release(job, first["lease_id"], outcome="failed")
    lease = api.acquired(job, owner="agent-2", ttl_seconds=600, metadata='{"model":"small"}')
    api.renew(job, lease["lease_id"], keep_ttl=True, note="half way")
    with waiting(Api.of(server, callers.BOB), job, owner="agent-3"):
        wait_until(lambda: api.status(job).json()["waiting"] == 1)
        done = reader("owner", job)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == f"{job} is held by agent-2"
    printed = fields(done.stdout)
    assert re.fullmatch(rf"{CLOCK} \(\d+ s\)", printed["since"])
    assert re.fullmatch(rf"{CLOCK} \(\d+ s ago\)", printed["last heartbeat"])
    assert re.fullmatch(rf"{CLOCK} \((9|10) min left\)", printed["until"])
    assert (printed["note"], printed["metadata"], printed["fencing token"]) == (
        "half way",
        "model=small",
        str(lease["fencing_token"]),
    )
    assert printed["waiting"].startswith("1 ") and printed["attempts"].startswith("2 ")
    assert re.fullmatch(r"agent-1, released as failed \d+ s ago; its note: gave up", printed["before"])


def test_owner_of_a_free_job_is_1(reader: Run, api: Api) -> None:
    """A job that nobody owns is said plainly, with exit code 1 and who was there before."""
    job = unique()
    done = reader("owner", job)
    assert (done.returncode, done.stdout) == (1, f"{job} is free\n")
    api.release(job, api.acquired(job, owner="agent-1")["lease_id"])
    done = reader("owner", job)
    assert done.returncode == 1 and "agent-1, released" in fields(done.stdout)["before"]


def test_owner_of_a_closed_job(reader: Run, api: Api) -> None:
    """A free job that is closed for a while says until when."""
    job = unique()
    api.release(job, api.acquired(job, lock_delay_seconds=30)["lease_id"])
    assert re.search(r"\(\d+ s left\)", fields(reader("owner", job).stdout)["closed until"])


def test_owner_of_a_done_job_is_12(reader: Run, api: Api) -> None:
    """Finished work is said plainly, with exit code 12, by whom, when, and what came of it."""
    job = unique()
    lease = api.acquired(job, owner="agent-1")
    api.release(job, lease["lease_id"], outcome="done", remember_seconds=600, result="pull request 7")
    done = reader("owner", job)
    assert (done.returncode, done.stdout.splitlines()[0]) == (12, f"{job} is done")
    printed = fields(done.stdout)
    assert printed["by"].startswith("agent-1 at ") and printed["result"] == "pull request 7"
    assert "--redo" in done.stderr


def test_owner_as_json(reader: Run, api: Api) -> None:
    """With --json it is the whole record, and the exit code is the same."""
    job = unique()
    done = reader("owner", job, "--json")
    assert (done.returncode, json.loads(done.stdout)["status"], json.loads(done.stdout)["owner"]) == (1, "free", None)
    api.acquired(job, owner="agent-1")
    printed = json.loads(reader("owner", job, "--json").stdout)
    assert (printed["status"], printed["owner"]["owner"]) == ("held", "agent-1")


def test_jobs_is_a_table(reader: Run, api: Api) -> None:
    """`jobs` has a row for each claimed job under the prefix, uncut in a pipe."""
    prefix = unique("list") + "/"
    one = api.acquired(f"{prefix}one", owner="agent-1")
    api.renew(f"{prefix}one", one["lease_id"], note="n" * 300)
    api.acquired(f"{prefix}two", owner="agent-2", ttl_seconds=600)
    head, *rows = reader("jobs", prefix).stdout.splitlines()
    assert head.split() == ["JOB", "OWNER", "AGE", "HEARTBEAT", "LEFT", "WAITING", "NOTE"]
    assert [row.split()[:2] for row in rows] == [[f"{prefix}one", "agent-1"], [f"{prefix}two", "agent-2"]]
    assert "n" * 300 in rows[0] and re.search(r"\d+ s +\d+ s ago +(9|10) min +0", rows[1])
    assert [row["owner"] for row in json.loads(reader("jobs", prefix, "--json").stdout)["jobs"]] == [
        "agent-1",
        "agent-2",
    ]


def test_jobs_are_filtered(reader: Run, api: Api) -> None:
    """`--owner` and `--session` leave what belongs to them."""
    prefix = unique("filter") + "/"
    session = api.new_session()["session_id"]
    api.acquired(f"{prefix}one", owner="agent-1")
    api.acquired(f"{prefix}two", owner="agent-2", session_id=session, ephemeral=True)
    for option, value in (("--owner", "agent-2"), ("--session", session)):
        _, row = reader("jobs", prefix, option, value).stdout.splitlines()
        assert row.startswith(f"{prefix}two ")


def test_empty_result_is_stated_on_standard_error(reader: Run) -> None:
    """Where nothing is claimed, standard output is empty and standard error says so."""
    done = reader("jobs", unique("nothing"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no job like this is claimed\n")


def test_table_fits_the_terminal(server: ServerProcess, api: Api, tmp_path: Path) -> None:
    """On a terminal no line is longer than it is wide, and every letter of a name is there."""
    job = unique("a-rather-long-name-of-a-job-that-somebody-made-up/part")
    lease = api.acquired(job, owner="an-agent-with-a-long-name")
    api.renew(job, lease["lease_id"], note="words " * 20)
    environment = clean_environment(tmp_path, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.READER)
    with BackgroundCommand("jobs", job, environment=environment, terminal=True) as listing:
        assert listing.end() == 0
        lines = re.sub(r"\x1b\[[0-9;]*m", "", listing.shown).replace("\r", "").splitlines()
    assert max(map(len, lines)) <= 80
    width = lines[0].index("OWNER")
    assert "".join(line[:width].strip() for line in lines[1:]) == job


def test_narrow_terminal_loses_no_column(server: ServerProcess, api: Api, tmp_path: Path) -> None:
    """On a terminal too narrow for the table each job is a few lines of its own, with all that the table has."""
    prefix = unique("narrow") + "/"
    lease = api.acquired(f"{prefix}one", owner="agent-1")
    api.renew(f"{prefix}one", lease["lease_id"], note="half way")
    api.acquired(f"{prefix}two", owner="agent-2")
    environment = clean_environment(tmp_path, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.READER, NO_COLOR="1")
    with BackgroundCommand("jobs", prefix, environment=environment, terminal=True, columns=40) as listing:
        assert listing.end() == 0
        one, two = re.split(rf"^{prefix}", listing.shown.replace("\r", ""), flags=re.MULTILINE)[1:]
    names = ["owner", "age", "heartbeat", "left", "waiting"]
    assert list(fields(one)) == [*names, "note"] and list(fields(two)) == names
    assert (fields(one)["owner"], fields(one)["note"]) == ("agent-1", "half way")


def test_jobs_at_a_past_time(reader: Run, api: Api) -> None:
    """`--at` lists who had what then, with the same filters, and says beside it which moment and record that is."""
    prefix = unique("then") + "/"
    lease = api.acquired(f"{prefix}one", owner="agent-1", ttl_seconds=600, labels={"team": "web"})
    api.acquired(f"{prefix}two", owner="agent-2")
    at = moment_over()
    api.release(f"{prefix}one", lease["lease_id"])
    done = reader("jobs", prefix, "--at", at)
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["JOB", "OWNER", "SINCE", "AGE", "TTL", "FENCING", "TOKEN", "LABELS"]
    assert [row.split()[:2] for row in rows] == [[f"{prefix}one", "agent-1"], [f"{prefix}two", "agent-2"]]
    assert re.search(rf"{CLOCK} +\d+ s +10 min +{lease['fencing_token']} +team=web$", rows[0])
    assert re.fullmatch(rf"as of {CLOCK} \(\d+ s ago\), record \d+; times to live as claimed\n", done.stderr)
    for option, value in (("--owner", "agent-1"), ("--label", "team=web")):
        _, row = reader("jobs", prefix, "--at", at, option, value).stdout.splitlines()
        assert row.startswith(f"{prefix}one ")
    printed = json.loads(reader("jobs", prefix, "--at", at, "--json").stdout)
    assert [each["owner"] for each in printed["jobs"]] == ["agent-1", "agent-2"] and printed["record"] > 0
    assert [each["job_id"] for each in json.loads(reader("jobs", prefix, "--json").stdout)["jobs"]] == [f"{prefix}two"]


def test_jobs_at_a_past_time_without_owners(reader: Run) -> None:
    """A moment without jobs is said beside an empty result; one in the future, and what is no time, are refused."""
    done = reader("jobs", unique("nothing"), "--at", "0s")
    assert (done.returncode, done.stdout) == (0, "") and "no job like this was claimed at " in done.stderr
    ahead = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    done = reader("jobs", "--at", ahead)
    assert done.returncode != 0 and "in the future" in done.stderr
    assert reader("jobs", "--at", "soon").returncode == 64
