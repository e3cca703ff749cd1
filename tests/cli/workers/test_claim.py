"""`holdfast claim` and what follows it, against a real server."""

from __future__ import annotations

import json
import re
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.background_command import CLOCK, BackgroundCommand, clean_environment
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique, wait_until
from tests.support.server import ServerProcess

Run = Callable[..., subprocess.CompletedProcess[str]]
ACQUIRED = re.compile(rf"acquired (\S+), fencing token (\d+), until {CLOCK} \(2 min\)\n")
LEASE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.fixture
def alice(server: ServerProcess, holdfast: Run) -> Run:
    """Runs `holdfast …` with alice's token, as the owner agent-1 unless told otherwise."""

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        ours = {"HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": callers.ALICE, "HOLDFAST_OWNER": "agent-1"}
        return holdfast(*arguments, **{**ours, **environment})

    return run


@pytest.fixture
def aside(server: ServerProcess, tmp_path: Path) -> Callable[..., BackgroundCommand]:
    """Starts `holdfast …` beside the test with alice's token."""

    def start(*arguments: str, terminal: bool = False, **more: str) -> BackgroundCommand:
        ours = {"HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": callers.ALICE, "HOLDFAST_OWNER": "agent-1"}
        return BackgroundCommand(
            *arguments, environment=clean_environment(tmp_path, **{**ours, **more}), terminal=terminal
        )

    return start


@pytest.fixture
def api(server: ServerProcess) -> Api:
    return Api.of(server, callers.ALICE)


def stored_files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "state" / "holdfast" / "leases").glob("*"))


def refused(done: subprocess.CompletedProcess[str], code: int) -> str:
    """Insist on the exit code and on one line of complaint at the end; return that line."""
    assert done.returncode == code, done
    assert done.stdout == ""
    line = done.stderr.splitlines()[-1]
    assert line.startswith("holdfast: ")
    return line


def test_heartbeat_beyond_today_has_a_date(alice: Run) -> None:
    """A claim that lives into the next day says on which day it ends, after a heartbeat too."""
    job = unique()
    assert alice("claim", job).returncode == 0
    assert re.fullmatch(
        rf"renewed {job}, until \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d \(1 d\)\n",
        alice("heartbeat", job, "--ttl", "24h").stdout,
    )


def test_claim_heartbeat_release_without_a_lease_id(alice: Run, api: Api, tmp_path: Path) -> None:
    """`claim`, `heartbeat`, `note` and `release` follow each other without anybody seeing the lease id."""
    job = unique("github://acme/app/issues")
    claimed = alice("claim", job)
    assert claimed.returncode == 0, claimed.stderr
    found = ACQUIRED.fullmatch(claimed.stdout)
    assert found and found[1] == job
    (file,) = stored_files(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    renewed = alice("heartbeat", job, "--ttl", "5m", "--note", "half way")
    assert renewed.stdout.startswith(f"renewed {job}, until ") and "(5 min)" in renewed.stdout
    assert alice("note", job, "almost").stdout.startswith(f"noted on {job}, until ")
    assert api.status(job).json()["note"] == "almost"
    released = alice("release", job)
    assert (released.returncode, released.stdout) == (0, f"released {job}\n")
    assert api.status(job).json()["status"] == "free"
    assert stored_files(tmp_path) == []
    assert not any(LEASE.search(each.stdout + each.stderr) for each in (claimed, renewed, released))


def test_previous_owner_is_shown(alice: Run) -> None:
    """A claim tells who had the job before, how that ended, its last note, and how often it was tried."""
    job = unique()
    alice("claim", job, "--note", "tests fail")
    alice("release", job, "--failed")
    shown = alice("claim", job, HOLDFAST_OWNER="agent-2").stdout.splitlines()
    assert re.fullmatch(r"before: agent-1, released as failed \d+ s ago; its note: tests fail", shown[1])
    assert shown[2].startswith("attempt 2")


def test_held_is_1(alice: Run) -> None:
    """A held job is exit code 1 and one line: who, since when, how alive, its note, what to do."""
    job = unique()
    alice("claim", job, "--note", "half way")
    line = refused(alice("claim", job, HOLDFAST_OWNER="agent-2"), 1)
    assert re.fullmatch(
        rf"holdfast: {job} is held by agent-1 since {CLOCK} \(\d+ s\), last heartbeat \d+ s ago; note: half way;"
        rf" try again in \d+ (s|min), wait with -w, or ask `holdfast why {job}`",
        line,
    )


def test_held_by_oneself(alice: Run) -> None:
    """Whoever holds it itself is told so, and how to take it back, whether it would wait (13) or not (1)."""
    job = unique()
    alice("claim", job)
    printed = rf"holdfast: you hold {job} yourself, as agent-1, "
    back = rf"take it back with `holdfast claim {job} --resume`"
    for command in (["claim", job], ["run", "-n", job, "--", "true"]):
        assert re.match(rf"{printed}since {CLOCK} .*; {back}", refused(alice(*command), 1))
    assert re.match(rf"{printed}and would wait for ever; {back}", refused(alice("claim", "-w", "5s", job), 13))


def test_refusal_as_json(alice: Run) -> None:
    """With --json a refusal is an object on standard output, and the exit code stays."""
    job = unique()
    alice("claim", job, "-m", "model=small")
    done = alice("claim", job, "--json", HOLDFAST_OWNER="agent-2")
    printed = json.loads(done.stdout)
    assert (done.returncode, printed["status"], printed["owner"], printed["exit_code"]) == (1, "held", "agent-1", 1)
    assert printed["metadata"] == {"model": "small"} and printed["retry_after"] > 0
    assert "held by agent-1" in done.stderr


def test_claim_as_json(alice: Run, tmp_path: Path) -> None:
    """With --json a claim has everything, the lease id too."""
    job = unique()
    printed = json.loads(alice("claim", job, "--json", "--no-keep").stdout)
    assert (printed["status"], printed["job_id"], printed["owner"], printed["attempts"]) == (
        "acquired",
        job,
        "agent-1",
        1,
    )
    assert LEASE.fullmatch(printed["lease_id"]) and printed["fencing_token"] >= 1
    assert stored_files(tmp_path) == []
    renewed = json.loads(alice("heartbeat", job, "--json", HOLDFAST_LEASE=printed["lease_id"]).stdout)
    assert renewed["status"] == "renewed" and 0 < renewed["expires_in"] <= 120
    released = json.loads(alice("release", job, "--json", "--lease", printed["lease_id"]).stdout)
    assert released == {"status": "released", "job_id": job, "outcome": None}


def test_not_in_time_is_11(alice: Run) -> None:
    """A wait that is over is exit code 11; without a terminal the place in line is a line of its own."""
    job = unique()
    alice("claim", job)
    done = alice("claim", job, "-w", "1s", HOLDFAST_OWNER="agent-2")
    assert "not acquired in time" in refused(done, 11)
    first, _ = done.stderr.splitlines()
    assert re.fullmatch(r"1st in line, held by agent-1 for \d+ s", first)


def test_wait_ends_with_the_job(alice: Run, aside: Callable[..., BackgroundCommand]) -> None:
    """Whoever waits gets the job as soon as it is given back."""
    job = unique()
    alice("claim", job)
    with aside("claim", job, "-w", "30s", HOLDFAST_OWNER="agent-2") as waiting:
        waiting.until("1st in line")
        alice("release", job)
        assert waiting.end() == 0
        assert f"acquired {job}, fencing token" in waiting.shown


def test_done_is_12(alice: Run) -> None:
    """Finished work is exit code 12 with what came of it, unless one says --redo."""
    job = unique()
    alice("claim", job)
    assert alice("release", job, "--done", "--result", "pull request 7").stdout == f"released {job} as done\n"
    line = refused(alice("claim", job, HOLDFAST_OWNER="agent-2"), 12)
    assert "is done: by agent-1 at" in line and "result: pull request 7" in line and "--redo" in line
    assert alice("claim", job, "--redo").returncode == 0


def test_done_is_remembered_for_the_given_time(alice: Run, server: ServerProcess) -> None:
    """`--remember` is the server's `remember_seconds`, a day unless told otherwise."""
    for options, hours in (((), 24), (("--remember", "2h"), 2)):
        job = unique()
        alice("claim", job)
        alice("release", job, "--done", *options)
        printed = Api.of(server, callers.ALICE).acquire(job).json()
        assert printed["status"] == "done"
        assert abs(printed["remembered_for_ms"] - hours * 3_600_000) < 60_000


def test_deadlock_is_13(alice: Run, api: Api, aside: Callable[..., BackgroundCommand]) -> None:
    """A wait that would close a circle is exit code 13, and the line has the circle."""
    one, two = unique("one"), unique("two")
    # Owners of its own: the server may learn later than the next test begins that nobody waits here any more.
    ana, ben = unique("ana"), unique("ben")
    alice("claim", one, HOLDFAST_OWNER=ana)
    alice("claim", two, HOLDFAST_OWNER=ben)
    with aside("claim", two, "-w", "30s", HOLDFAST_OWNER=ana) as waiting:
        waiting.until("1st in line")
        wait_until(lambda: api.status(two).json()["waiting"] == 1)
        line = refused(alice("claim", one, "-w", "30s", HOLDFAST_OWNER=ben), 13)
        assert "would never end" in line and one in line and two in line


def test_interrupt_leaves_the_queue(alice: Run, api: Api, aside: Callable[..., BackgroundCommand]) -> None:
    """Ctrl-C while waiting is exit code 130 and one line, and the place in the line is gone at once."""
    job = unique()
    alice("claim", job)
    with aside("claim", job, "-w", "5m", HOLDFAST_OWNER="agent-2") as waiting:
        waiting.until("1st in line")
        wait_until(lambda: api.status(job).json()["waiting"] == 1)
        waiting.interrupt()
        assert waiting.end() == 130
        assert api.status(job).json()["waiting"] == 0
        _, line = waiting.shown.splitlines()
        assert line.startswith("holdfast: interrupted; nothing was claimed") and job in line


def test_terminal_shows_colours_and_hints(alice: Run, aside: Callable[..., BackgroundCommand]) -> None:
    """On a terminal results are in colour, with a hint what to do next."""
    job = unique()
    alice("claim", job)
    with aside("claim", job, "-w", "30s", terminal=True, HOLDFAST_OWNER="agent-2") as waiting:
        waiting.until("1st in line, held by agent-1 for")
        alice("release", job)
        assert waiting.end() == 0
        assert f"\x1b[32macquired\x1b[0m {job}, fencing token" in waiting.shown
        assert "holdfast heartbeat" in waiting.shown


def test_no_color(aside: Callable[..., BackgroundCommand]) -> None:
    """With NO_COLOR a terminal gets none."""
    job = unique()
    with aside("claim", job, terminal=True, NO_COLOR="1") as claiming:
        assert claiming.end() == 0
        assert f"acquired {job}" in claiming.shown and "\x1b" not in claiming.shown


def test_resume_needs_the_same_owner(alice: Run) -> None:
    """C4: `--resume` gives the live claim back to its owner, with the same token, and to nobody else."""
    job = unique()
    first = json.loads(alice("claim", job, "--json").stdout)
    again = json.loads(alice("claim", job, "--resume", "--json").stdout)
    assert (again["lease_id"], again["fencing_token"], again["reacquired"]) == (
        first["lease_id"],
        first["fencing_token"],
        True,
    )
    assert alice("claim", job, "--resume").stdout.startswith(
        f"acquired again: {job}, fencing token {first['fencing_token']}, "
    )
    refused(alice("claim", job, "--resume", HOLDFAST_OWNER="agent-2"), 1)


def test_stored_lease_is_not_for_another_owner(alice: Run, api: Api) -> None:
    """Whoever says it is somebody else cannot release what this one claimed, and is not sent to take its name."""
    job = unique()
    alice("claim", job)
    for verb in (("heartbeat", job), ("release", job), ("note", job, "x"), ("transfer", job, "--to", "me")):
        line = refused(alice(*verb, HOLDFAST_OWNER="agent-2"), 64)
        assert "'agent-1'" in line and "'agent-2'" in line and "leave it to that one" in line
    assert api.status(job).json()["owner"] == "agent-1"
    assert alice("release", job, "--owner", "agent-1", HOLDFAST_OWNER="agent-2").returncode == 0


def test_owner_named_once_is_enough(alice: Run) -> None:
    """Where HOLDFAST_OWNER is not set, what was claimed with --owner is released without it."""
    job = unique()
    assert alice("claim", job, "--owner", "agent-5", HOLDFAST_OWNER="").returncode == 0
    assert alice("release", job, HOLDFAST_OWNER="").returncode == 0


def test_unknown_local_lease_is_64(alice: Run) -> None:
    """Without a lease id there is nothing to renew or release: exit code 64, and the line says where one comes from."""
    for verb in ("heartbeat", "release"):
        assert "HOLDFAST_LEASE" in refused(alice(verb, unique()), 64)


def test_lease_in_the_environment_is_that_of_its_job(alice: Run) -> None:
    """HOLDFAST_LEASE beside HOLDFAST_JOB is for that job; another job has what was kept for it."""
    job, other = unique(), unique()
    lease = json.loads(alice("claim", job, "--json", "--no-keep").stdout)["lease_id"]
    alice("claim", other)
    inside = {"HOLDFAST_JOB": job, "HOLDFAST_LEASE": lease}
    assert alice("heartbeat", job, **inside).returncode == 0
    assert alice("release", other, **inside).returncode == 0
    assert alice("release", job, **inside).returncode == 0


def test_lost_is_20(alice: Run, server: ServerProcess, tmp_path: Path) -> None:
    """A claim that an operator ended is exit code 20 for heartbeat and release, with who and why."""
    job = unique()
    alice("claim", job)
    assert Api.of(server, callers.OPERATOR).revoke(job, reason="its host was replaced").status == 204
    for verb in ("heartbeat", "heartbeat", "release"):
        line = refused(alice(verb, job), 20)
        assert "operator has revoked it: its host was replaced" in line and f"holdfast owner {job}" in line
    assert stored_files(tmp_path) == []


def test_lease_that_cannot_be_stored_is_printed(alice: Run, tmp_path: Path) -> None:
    """Where the state cannot be written the claim stands, and its lease id is printed instead."""
    (tmp_path / "file").write_text("")
    job = unique()
    done = alice("claim", job, XDG_STATE_HOME=str(tmp_path / "file" / "state"))
    assert done.returncode == 0
    lease = done.stdout.splitlines()[-1].removeprefix("lease ")
    assert LEASE.fullmatch(lease) and "cannot be kept" in done.stderr
    assert alice("release", job, HOLDFAST_LEASE=lease).returncode == 0


def test_any_takes_the_first_free_one(alice: Run) -> None:
    """`--any` claims one of several; several without it are claimed all or none."""
    one, two, three = unique("a"), unique("b"), unique("c")
    alice("claim", one)
    done = alice("claim", "--any", one, two, three, HOLDFAST_OWNER="agent-2")
    assert done.stdout.startswith(f"acquired {two}, fencing token ")
    line = refused(alice("claim", one, two, three, HOLDFAST_OWNER="agent-3"), 1)
    assert "is held by" in line
    line = refused(alice("claim", "--any", one, two, "-w", "1s", HOLDFAST_OWNER="agent-3"), 11)
    assert "not acquired in time" in line and f"{one} is held by agent-1" in line
    alice("release", one)
    alice("release", two, HOLDFAST_OWNER="agent-2")
    printed = json.loads(alice("claim", one, two, three, "--json").stdout)
    assert [each["job_id"] for each in printed["claims"]] == sorted([one, two, three], key=[one, two, three].index)
    for job in (one, two, three):
        assert alice("release", job).returncode == 0


@pytest.mark.parametrize(
    ("options", "metadata"),
    [
        (("-m", "model=small", "--meta", "trace=a=b"), '{"model":"small","trace":"a=b"}'),
        (("--metadata", "plain words"), "plain words"),
        (("--metadata", '{"a": 1}'), '{"a": 1}'),
    ],
)
def test_metadata(alice: Run, api: Api, options: tuple[str, ...], metadata: str) -> None:
    """Metadata is fields, or a text that goes as it is."""
    job = unique()
    assert alice("claim", job, *options).returncode == 0
    assert api.status(job).json()["metadata"] == metadata


def test_transfer_hands_on(alice: Run, api: Api) -> None:
    """`transfer` makes another the owner without a gap, prints the new lease id, and keeps it in that one's name."""
    job = unique()
    before = json.loads(alice("claim", job, "--json").stdout)
    done = alice("transfer", job, "--to", "agent-9", "--ttl", "2m", "--reason", "end of shift")
    assert api.history(job).json()["history"][0]["reason"] == "end of shift"
    first, last = done.stdout.splitlines()
    assert re.fullmatch(rf"handed to agent-9: {job}, fencing token \d+, until {CLOCK} \(2 min\)", first)
    assert LEASE.fullmatch(last.removeprefix("lease ")) and before["lease_id"] not in last
    assert api.status(job).json()["owner"] == "agent-9"
    refused(alice("heartbeat", job, HOLDFAST_LEASE=before["lease_id"]), 20)
    refused(alice("heartbeat", job), 20)
    assert alice("release", job, HOLDFAST_OWNER="agent-9").returncode == 0


def test_claim_resumes_what_an_operator_took_out_of_a_session(alice: Run, api: Api, server: ServerProcess) -> None:
    """L8a: `claim --owner NAME --resume`, as the page recommends, takes a claim of a session after a transfer."""
    for own in (None, api.new_session()["session_id"]):
        job, session = unique(), api.new_session()["session_id"]
        alice("claim", job, "--session", session)
        operator = Api.of(server, callers.OPERATOR)
        assert operator.hand_over(job, to_owner="agent-9", reason="end of shift").status == 204
        assert api.end_session(session).status == 204
        resumed = alice("claim", job, "--owner", "agent-9", "--resume", *(["--session", own] if own else []))
        assert resumed.returncode == 0, resumed.stderr
        shown = api.status(job).json()
        assert (shown["owner"], shown["session"]) == ("agent-9", own)
        assert alice("release", job, "--owner", "agent-9").returncode == 0


def test_each_owner_of_one_user_learns_its_own_loss(alice: Run, server: ServerProcess) -> None:
    """Who lost a claim that another owner of the same user has now is told how it ended, and not the other's name."""
    job = unique()
    alice("claim", job, "--owner", "ci-7")
    Api.of(server, callers.OPERATOR).revoke(job, reason="stuck")
    alice("claim", job, "--owner", "ci-8")
    line = refused(alice("heartbeat", job, "--owner", "ci-7"), 20)
    assert "has revoked it: stuck" in line and "ci-8" not in line
    assert alice("heartbeat", job, "--owner", "ci-8").returncode == 0
    refused(alice("release", job, "--owner", "ci-7"), 20)
    assert alice("release", job, "--owner", "ci-8").returncode == 0, "it is kept although the other one was told"


def test_missing_owner_name_is_asked_for(alice: Run, api: Api, server: ServerProcess) -> None:
    """Where several owners of one user have claimed a job, the last one's claim is not for whoever names nobody."""
    job = unique()
    alice("claim", job, "--owner", "ci-7")
    Api.of(server, callers.OPERATOR).revoke(job, reason="stuck")
    alice("claim", job, "--owner", "ci-8")
    for verb in (("heartbeat", job), ("release", job), ("note", job, "x"), ("transfer", job, "--to", "me")):
        line = refused(alice(*verb, HOLDFAST_OWNER=""), 64)
        assert "'ci-8', 'ci-7'" in line and "--owner NAME" in line
    assert (api.status(job).json()["owner"], api.status(job).json()["note"]) == ("ci-8", None)
    assert alice("release", job, HOLDFAST_OWNER="ci-8").returncode == 0


def test_shell_that_claimed_needs_no_name(alice: Run, server: ServerProcess) -> None:
    """What this very shell claimed is its own, also where another owner of the same user had the job before."""
    job = unique()
    alice("claim", job, "--owner", "ci-7")
    Api.of(server, callers.OPERATOR).revoke(job, reason="stuck")
    assert alice("claim", job, HOLDFAST_OWNER="").returncode == 0
    assert alice("heartbeat", job, HOLDFAST_OWNER="").returncode == 0
    assert alice("release", job, HOLDFAST_OWNER="").returncode == 0


def test_claim_binds_to_the_session(alice: Run, api: Api) -> None:
    """A claim made where HOLDFAST_SESSION is set ends with that session."""
    job = unique()
    session = api.new_session(ttl_seconds=60)["session_id"]
    assert alice("claim", job, HOLDFAST_SESSION=session).returncode == 0
    assert api.status(job).json()["session"] == session
    assert api.end_session(session).status in {200, 204}
    assert "session has ended" in refused(alice("heartbeat", job), 20)
    assert "Session not found" in refused(alice("claim", job, HOLDFAST_SESSION=session), 64)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("claim",), "JOB"),
        (("claim", "a", "--ttl", "5x"), "90s, 15m"),
        (("claim", "a", "b", "--resume"), "name one"),
        (("claim", "a", "-m", "novalue"), "KEY=VALUE"),
        (("claim", "a", "-m", "a=b", "--metadata", "x"), "exclude"),
        (("claim", ""), "a job needs a name"),
        (("release", " "), "a job needs a name"),
        (("release", "a", "--done", "--failed"), "exclude"),
        (("release", "a", "--result", "x"), "--done"),
        (("release", "a", "--remember", "1d"), "--done"),
        (("transfer", "a"), "--to"),
    ],
)
def test_mistakes_are_64(alice: Run, arguments: tuple[str, ...], said: str) -> None:
    """A mistake is exit code 64 and one line that says what to write."""
    assert said in refused(alice(*arguments), 64)


def test_foreign_text_is_harmless(alice: Run, api: Api) -> None:
    """What others wrote into notes and names does not act on the terminal."""
    job = unique()
    lease = api.acquired(job, owner="evil\u202e\u009b31m")
    api.renew(job, lease["lease_id"], note="a\x1b[2Jb\nholdfast: fake")
    for arguments in (("claim", job), ("owner", job), ("jobs", job), ("why", job), ("history", job)):
        done: Any = alice(*arguments)
        assert not {"\x1b", "\u009b", "\u202e"} & set(done.stdout + done.stderr), arguments
        assert not any(line.startswith("holdfast: fake") for line in (done.stdout + done.stderr).splitlines())
