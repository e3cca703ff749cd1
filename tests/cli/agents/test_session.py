"""`holdfast session`, against a real server."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.testing import server as server_for_tests
from tests.cli.background_command import BackgroundCommand, clean_environment
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.server import ServerProcess

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def alice(server: ServerProcess, holdfast: Run) -> Run:
    """Runs `holdfast …` with alice's token."""

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return holdfast(*arguments, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.ALICE, **environment)

    return run


@pytest.fixture
def api(server: ServerProcess) -> Api:
    return Api.of(server, callers.ALICE)


def exported(shown: str) -> dict[str, str]:
    """What the lines would put into a shell's environment."""
    words = [shlex.split(line) for line in shown.splitlines()]
    assert all(word[0] == "export" and len(word) == 2 for word in words)
    return dict(word[1].partition("=")[::2] for word in words)


def test_start_prints_what_a_shell_needs(alice: Run, api: Api, server: ServerProcess) -> None:
    """`start` prints exports and nothing else; the session lives for the server's resourceLockTimeout."""
    done = alice("session", "start", "nightly review")
    assert (done.returncode, done.stderr) == (0, "")
    printed = exported(done.stdout)
    assert set(printed) == {"GATEWAY_URL", "SHUTDOWN_SECRET", "HOLDFAST_SESSION"}
    assert printed["GATEWAY_URL"] == server.url
    session = api.session(printed["HOLDFAST_SESSION"]).json()
    assert (session["name"], session["active"]) == ("nightly review", True)
    printed = json.loads(alice("session", "start", "--json").stdout)
    assert printed["expires_in"] == api.get("/status").json()["resource_lock_timeout_seconds"]


def test_shortened_session_is_reported(holdfast: Run, tmp_path: Path) -> None:
    """A server clamps a session's ttl without a refusal (S1): both commands say so, and go on."""
    with ServerProcess.start(tmp_path, settings={"max_session_ttl_seconds": 300}, tokens=callers.TOKENS) as server:
        known = {"HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": callers.ALICE}
        asked = [("start", "--ttl", "10m"), ("exec", "--ttl", "10m", "x", "--", "true")]
        for more in asked:
            done = holdfast("session", *more, **known)
            assert done.returncode == 0 and "less than the 10 min that were asked for" in done.stderr, done
        done = holdfast("session", "start", "--ttl", "5m", **known)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_session_that_is_answered_late_is_not_shortened(holdfast: Run, tmp_path: Path) -> None:
    """A server that was slow gave all the time that was asked for: nothing is said of its settings."""
    with ServerProcess.start(tmp_path, tokens=callers.TOKENS) as server:
        server.pause()
        slow = threading.Timer(4, server.resume)
        slow.start()
        known = {"HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": callers.ALICE}
        done = holdfast("session", "exec", "--ttl", "30", "x", "--", "true", **known)
        slow.join()
        assert (done.returncode, done.stderr) == (0, "")


def test_a_note_on_what_rlock_has(alice: Run) -> None:
    """A lock of `rlock` takes no note: its run knows no lease id. Who tries is told that, and what does instead."""
    folder = shlex.quote(str(Path(sys.executable).parent))
    program = f"PATH={folder}:$PATH; rlock a://note-on-lock && holdfast note a://note-on-lock half"
    done = alice("session", "exec", unique(), "--", "sh", "-c", program)
    assert done.returncode == 64 and "what `rlock` has locked takes no note" in done.stderr, done


def test_options_of_start(alice: Run, api: Api) -> None:
    """`--ttl` is its life, and metadata is attached."""
    printed = json.loads(alice("session", "start", "s", "--ttl", "90s", "-m", "run=7", "--json").stdout)
    assert (printed["name"], printed["expires_in"]) == ("s", 90.0)
    assert api.session(printed["session_id"]).json()["metadata"] == '{"run":"7"}'


def test_eval_rlock_claim_and_end(server: ServerProcess, api: Api, tmp_path: Path) -> None:
    """In one shell: `eval` of start, `rlock`, `claim` and `end`; both locks belong to the session and end with it."""
    key, job, name = f"github://acme/app/issues/{unique()}", unique(), unique("run")
    command = f"{shlex.quote(sys.executable)} -m holdfast"
    script = f"""
        set -e
        eval "$({command} session start {name})"
        rlock {key} >&2
        {command} claim {job} >&2
        {command} jobs --session "$HOLDFAST_SESSION" --json
        {command} session end
    """
    environment = clean_environment(tmp_path, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.ALICE)
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    listed, _, said = done.stdout.rpartition("}\n")
    assert sorted(each["job_id"] for each in json.loads(listed + "}")["jobs"]) == sorted([key, job])
    assert said.startswith("session ") and "is ended" in said
    assert api.status(job).json()["status"] == api.status(key).json()["status"] == "free"


def test_end_by_id(alice: Run, api: Api) -> None:
    """`end` takes an id, else HOLDFAST_SESSION, else it is a mistake; one that is not there is one too."""
    session = api.new_session()["session_id"]
    assert json.loads(alice("session", "end", session, "--json").stdout) == {"status": "ended", "session_id": session}
    assert api.session(session).status == 404 or not api.session(session).json()["active"]
    session = api.new_session()["session_id"]
    assert alice("session", "end", HOLDFAST_SESSION=session).returncode == 0
    done = alice("session", "end")
    assert done.returncode == 64 and "holdfast session list" in done.stderr
    assert alice("session", "end", "264a786c-0000-4000-8000-000000000000").returncode == 64


def test_list(server: ServerProcess, holdfast: Run) -> None:
    """`list` has a row for each of one's sessions; without any it says so beside the result."""

    def dave(*arguments: str) -> subprocess.CompletedProcess[str]:
        return holdfast("session", "list", *arguments, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.DAVE)

    done = dave()
    assert (done.returncode, done.stdout) == (0, "") and "session start" in done.stderr
    api = Api.of(server, callers.DAVE)
    session = api.new_session(name="nightly", metadata='{"run":7}', ttl_seconds=60)["session_id"]
    api.acquired(unique(), session_id=session, ephemeral=True)
    head, row = dave().stdout.splitlines()
    assert head.split() == ["SESSION", "NAME", "UNTIL", "LEFT", "CLAIMS", "METADATA"]
    assert (row.split()[0], row.split()[1], row.split()[-2:]) == (session, "nightly", ["1", "run=7"])
    assert json.loads(dave("--json").stdout)["sessions"][0]["session_id"] == session


def test_claim_with_a_session_that_is_gone(alice: Run, api: Api) -> None:
    """A claim for a session that has ended is not made, and the line says what to do."""
    session = api.new_session()["session_id"]
    api.end_session(session)
    done = alice("claim", unique(), HOLDFAST_SESSION=session)
    assert (done.returncode, done.stdout) == (64, "")
    assert "unset HOLDFAST_SESSION" in done.stderr


def test_terminal_shows_how_to_use_it(server: ServerProcess, tmp_path: Path) -> None:
    """On a terminal a hint says that the lines are for `eval`."""
    environment = clean_environment(tmp_path, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.ALICE)
    with BackgroundCommand("session", "start", "night", environment=environment, terminal=True) as starting:
        assert starting.end() == 0
        assert 'eval "$(holdfast session start night)"' in starting.shown


def test_the_command_gets_the_address_for_clients_elsewhere(tmp_path: Path, holdfast: Run) -> None:
    """With `public_url` the server says which address works in a container: `session exec` and `start` hand it out."""
    public = "http://127.0.0.1:1/elsewhere"
    with server_for_tests(public_url=public) as running:
        shown = holdfast(
            "session", "exec", "a", "--", "sh", "-c", "echo $GATEWAY_URL $HOLDFAST_URL", **running.environment()
        )
        assert shown.stdout == f"{public} {public}\n"
        started = holdfast("session", "start", "b", **running.environment())
        assert exported(started.stdout)["GATEWAY_URL"] == public
        with running.client() as client, client.session("c") as session:
            assert session.url == session.environment["GATEWAY_URL"] == public
