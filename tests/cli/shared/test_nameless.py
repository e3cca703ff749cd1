"""A claim that names no owner is shown by its access token's name and its metadata, wherever a person looks."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from holdfast import Holdfast, JobDone, JobHeld, NotInTime
from holdfast.wire.replies import shown_as
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique, wait_until
from tests.support.pending import waiting
from tests.support.server import ServerProcess

Run = Callable[..., subprocess.CompletedProcess[str]]

ALICE = "(access token alice, issue=1842)"
BARE = "(access token alice)"


@pytest.fixture
def alice(server: ServerProcess) -> Api:
    return Api.of(server, callers.ALICE)


@pytest.fixture
def bob(server: ServerProcess, holdfast: Run) -> Run:
    """Runs `holdfast …` with somebody else's access token."""
    return lambda *arguments: holdfast(*arguments, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.BOB)


def claimed(api: Api, job: str) -> str:
    """Claim a job as a plain OctoStore client does: without an owner. Return the lease id."""
    lease_id: str = api.acquired(job, ttl_seconds=600, metadata='{"issue": 1842, "model": "small"}')["lease_id"]
    return lease_id


@pytest.mark.parametrize(
    ("metadata", "shown"),
    [
        (None, "(access token ci)"),
        ("{}", "(access token ci)"),
        ("  \n", "(access token ci)"),
        ("runner=7\nmore", "(access token ci, runner=7)"),
        ('{"ok": true, "x": 1}', "(access token ci, ok=true)"),
        ('{"at": {"a": null}}', "(access token ci, at={…})"),
        ('{"at": [1, 2]}', "(access token ci, at=[…])"),
        ('{"a \\"b\\"": "c, d"}', '(access token ci, a "b"=c, d)'),
        ('{"half', '(access token ci, {"half)'),
        ("x" * 41, f"(access token ci, {'x' * 39}…)"),
    ],
)
def test_words(metadata: str | None, shown: str) -> None:
    """The access token, and the first field or line of the metadata: as it was sent, and never very long."""
    assert shown_as("ci", metadata) == shown
    assert shown_as(None) == "(no owner given)"


def test_commands_name_the_nameless(alice: Api, bob: Run) -> None:
    """`owner`, `jobs`, `why`, `history` and a refusal say which access token it is; none shows a dash."""
    job = unique()
    lease_id = claimed(alice, job)
    assert bob("owner", job).stdout.startswith(f"{job} is held by {ALICE}\n")
    assert ALICE in bob("jobs", job).stdout
    assert f"{job} is held by {BARE} since" in bob("why", job).stdout
    assert f"{job} is held by {ALICE} since" in bob("claim", job).stderr
    alice.release(job, lease_id)
    assert f"{BARE}, released" in bob("owner", job).stdout
    rows = bob("history", job).stdout.splitlines()[1:]
    assert all(BARE in row for row in rows[:2])


@pytest.mark.parametrize(
    "metadata", ['{"a":' + "[" * 1019, '{"a":' + "[" * 500 + "]" * 500 + "}"], ids=["open", "closed"]
)
def test_commands_show_any_metadata(alice: Api, bob: Run, metadata: str) -> None:
    """Metadata that is nested deep is shown like any other, for people and as JSON; too deep, it is a text."""
    job = unique()
    alice.acquired(job, ttl_seconds=600, metadata=metadata)
    for command in (("owner", job), ("owner", "--json", job), ("jobs", job), ("jobs", "--json", job), ("why", job)):
        done = bob(*command)
        assert (done.returncode, done.stderr) == (0, ""), command
        assert job in done.stdout
    refused = bob("claim", job)
    assert refused.returncode == 1 and "(access token alice, a=[…])" in refused.stderr


def test_an_end_that_the_holder_did_not_ask_for(alice: Api, server: ServerProcess, bob: Run) -> None:
    """Who was before is named too, although the operator ended it: the record of the end says whose it was."""
    job = unique()
    claimed(alice, job)
    Api.of(server, callers.OPERATOR).post(f"/locks/{job}/revoke", {"reason": "stuck"})
    assert f"{BARE}, revoked" in bob("owner", job).stdout
    assert f"{BARE}, revoked" in bob("claim", job).stdout + bob("owner", job).stdout
    revoked = bob("history", job).stdout.splitlines()[2]
    assert BARE in revoked and "operator" in revoked


def test_nameless_waiter_is_shown(alice: Api, bob: Run) -> None:
    """Somebody in line without an owner's name is shown in the same way."""
    job = unique()
    claimed(alice, job)
    with waiting(alice, job):
        wait_until(lambda: alice.status(job).json()["waiting"] == 1)
        assert f"1. {BARE} for" in bob("why", job).stdout


def test_python_names_the_nameless(alice: Api, server: ServerProcess) -> None:
    """`JobHeld`, `NotInTime` and `JobDone` say it in their text and as `shown_as`; `owner` stays None."""
    job, finished = unique(), unique()
    claimed(alice, job)
    alice.release(finished, claimed(alice, finished), outcome="done", remember_seconds=60)
    with Holdfast(server.url, token=callers.BOB) as client:
        with pytest.raises(JobHeld, match=r"held by \(access token alice, issue=1842\) since") as held:
            client.claim_job(job, "bob")
        assert (held.value.owner, held.value.shown_as) == (None, ALICE)
        with pytest.raises(NotInTime, match=r"held by \(access token alice, issue=1842\)"):
            client.claim(job, wait=0.2)
        with pytest.raises(JobHeld) as several:
            client.claim_all_jobs([job])
        assert ALICE in str(several.value)
        with pytest.raises(JobDone, match=r"done: by \(access token alice\) at"):
            client.claim_job(finished, "bob")
        owner = client.get_job_owner(job)
    assert owner is not None
    assert (owner.owner, owner.shown_as) == (None, ALICE)


def test_with_an_owner_nothing_is_added(alice: Api, server: ServerProcess) -> None:
    """The field is there only for the nameless: an owner's name is what it was."""
    job = unique()
    alice.acquired(job, owner="agent-1", metadata="x")
    printed = Api.of(server, callers.BOB).status(job).json()
    assert printed["owner"] == "agent-1" and "shown_as" not in printed
