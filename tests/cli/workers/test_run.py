"""`holdfast run`: the claim around a command, with a real server and real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.cli.shared.options import REMEMBER_SECONDS_MAX
from holdfast.core.values import REMEMBER_MS_MAX
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import wait_until
from tests.support.server import ServerProcess
from tests.support.supervised import SECONDS_MAX, is_dead, program

Started = subprocess.Popen[str]
Start = Callable[..., Started]
ENTRY = ("-m", "holdfast")
IMPATIENT = (
    "-c",
    "from holdfast.cli import main; from holdfast.cli.workers import run; run.RETRY_SECONDS = 1; main.main()",
)
"""The same, but a server that is gone is not waited for with the release."""
PATIENT = (
    "-c",
    (
        "from holdfast.cli import main; from holdfast.client import loss_stream as stream;"
        " stream.RELEASED_SECONDS = 30; main.main()"
    ),
)
"""The same, but what gives its claim back may take its time to end: the machine may be busy."""

INTERRUPTED = (
    "-c",
    """
import os, signal, sys
from holdfast.cli import main
class Finder:
    def find_spec(self, name, *_):
        if name == "holdfast.run.supervisor":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
main.main()
""",
)
"""The same, but Ctrl-C comes just after the job was got, before the command can be started."""


@pytest.fixture
def api(server: ServerProcess) -> Api:
    return Api.of(server, callers.ALICE)


def environment(server: ServerProcess, folder: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "XDG_"))}
    return {
        **clean,
        "HOLDFAST_URL": server.url,
        "HOLDFAST_TOKEN": callers.ALICE,
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_STATE_HOME": str(folder / "state"),
    }


@pytest.fixture
def start(server: ServerProcess, tmp_path: Path) -> Iterator[Start]:
    """Starts `holdfast run …` and leaves it running; whatever still runs at the end is killed."""
    started: list[Started] = []

    def run(
        *arguments: object, on: ServerProcess | None = None, folder: Path = tmp_path, entry: tuple[str, ...] = ENTRY
    ) -> Started:
        process = subprocess.Popen(
            [sys.executable, *entry, "run", *map(str, arguments)],
            env=environment(on or server, tmp_path),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def run(start: Start) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `holdfast run …` to its end."""

    def to_end(*arguments: object, on: ServerProcess | None = None) -> subprocess.CompletedProcess[str]:
        process = start(*arguments, on=on)
        out, error = process.communicate(timeout=SECONDS_MAX)
        return subprocess.CompletedProcess(process.args, process.returncode, out, error)

    return to_end


Run = Callable[..., subprocess.CompletedProcess[str]]


def pids(folder: Path) -> list[int]:
    file = folder / "pids"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def wait_for_command(folder: Path) -> int:
    wait_until(lambda: pids(folder), seconds_max=SECONDS_MAX)
    return pids(folder)[0]


def is_free(api: Api, job: str) -> bool:
    return bool(api.status(job).json()["status"] == "free")


# The good way.


@pytest.mark.parametrize(("command", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -USR1 $$", 128 + 10)])
def test_the_commands_own_exit_code(run: Run, api: Api, command: str, code: int) -> None:
    """The exit code is the command's own, 128 + n for a signal, and the job is free afterwards."""
    assert run("run/code", "--", "sh", "-c", command).returncode == code
    assert is_free(api, "run/code")


def test_output_is_the_commands(run: Run) -> None:
    """Standard output carries the command's output alone; what we say goes to standard error."""
    ended = run("run/output", "--", "echo", "hello")
    assert ended.stdout == "hello\n"
    assert "acquired run/output, fencing token" in ended.stderr
    assert run("-q", "run/output", "--", "true").stderr == ""


def test_the_command_knows_its_claim(run: Run, api: Api) -> None:
    """The job, its fencing token and the lease id are in the environment, and the token is the current one."""
    script = 'printf "%s\\n" "$HOLDFAST_JOB" "$HOLDFAST_FENCING_TOKEN" "$HOLDFAST_LEASE" "$HOLDFAST_JOBS"'
    ended = run("run/env", "--", "sh", "-c", script)
    assert ended.returncode == 0
    job, token, lease_id, jobs = ended.stdout.splitlines()
    assert job == "run/env"
    assert json.loads(jobs) == [{"job": "run/env", "fencing_token": int(token), "lease_id": lease_id}]
    assert api.acquired("run/env")["previous"]["fencing_token"] == int(token)


def test_next_owner_sees_the_previous_owner(run: Run, api: Api) -> None:
    """A command that takes over finds the last owner, how that ended, and its last note (C7)."""
    claim = api.acquired("run/previous", owner="agent-2", ttl_seconds=60)
    assert api.renew("run/previous", claim["lease_id"], ttl_seconds=1, note="half done").status == 200
    script = 'echo "$HOLDFAST_PREVIOUS_OWNER/$HOLDFAST_PREVIOUS_ENDED/$HOLDFAST_PREVIOUS_NOTE"'
    ended = run("run/previous", "--", "sh", "-c", script)
    assert ended.stdout == "agent-2/expired/half done\n"
    assert "before: agent-2, expired" in ended.stderr


def test_renewed_while_it_runs(start: Start, api: Api, tmp_path: Path) -> None:
    """A command that takes longer than the ttl keeps its job: it is renewed meanwhile."""
    process = start("run/long", "--ttl", "5s", "--", *program("beat()"))
    wait_for_command(tmp_path)
    first = api.status("run/long").json()
    # A heartbeat after the first lease would have ended, by the server's own clock, on the same claim.
    first_end = datetime.fromisoformat(first["claimed_at"]) + timedelta(seconds=5)

    def outlived() -> bool:
        now = api.status("run/long").json()
        assert (now["status"], now["fencing_token"]) == ("held", first["fencing_token"])
        return datetime.fromisoformat(now["last_heartbeat_at"]) > first_end

    wait_until(outlived, seconds_max=SECONDS_MAX)
    process.terminate()
    assert process.wait(SECONDS_MAX) == 128 + signal.SIGTERM
    assert is_free(api, "run/long")


def test_failure_counts_as_an_attempt(run: Run, api: Api) -> None:
    """A command that fails leaves the attempts counting; one that succeeds ends them (C7)."""
    assert run("run/attempts", "--", "false").returncode == 1
    assert run("run/attempts", "--", "false").returncode == 1
    assert api.acquired("run/attempts")["attempts"] == 3


def test_next_run_sees_the_failure(run: Run, holdfast: Run, server: ServerProcess) -> None:
    """C7: a run after a failed one says who failed, that it failed, and which attempt this is; a good end, nothing."""
    job = "run/failed"
    assert "before" not in run(job, "--owner", "agent-1", "--", "false").stderr
    owner = holdfast("owner", job, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.ALICE).stdout
    assert re.search(r"agent-1, released as failed \d+ s ago", owner) and "1 since it last ended well" in owner
    second = run(job, "--owner", "agent-2", "--", "sh", "-c", 'echo "$HOLDFAST_ATTEMPTS"')
    assert re.search(r"holdfast: before: agent-1, released as failed \d+ s ago\n", second.stderr)
    assert "holdfast: attempt 2: it has not ended well so far\n" in second.stderr
    assert second.stdout == "2\n"
    third = run(job, "--", "true")
    assert re.search(r"holdfast: before: agent-2, released \d+ s ago\n$", third.stderr)


def test_success_is_remembered(run: Run, api: Api) -> None:
    """With --remember a success makes the job done: the next run ends with 12 and runs nothing (L5)."""
    assert run("run/done", "--remember", "1h", "--", "false").returncode == 1
    assert run("run/done", "--remember", "1h", "--", "true").returncode == 0
    again = run("run/done", "--", "echo", "again")
    assert (again.returncode, again.stdout) == (12, "")
    assert run("run/done", "--redo", "--", "echo", "again").stdout == "again\n"


def test_longer_than_any_server_remembers(run: Run, api: Api) -> None:
    """A time that no server takes is refused before anything is claimed or run; the longest one is taken (L5)."""
    for command in (run("run/too-long", "--remember", "31d", "--", "echo", "no"),):
        assert (command.returncode, command.stdout) == (64, "")
        assert "--remember" in command.stderr and "30d" in command.stderr
    assert api.status("run/too-long").json()["fencing_token"] == api.status("run/never").json()["fencing_token"]
    assert run("run/longest", "--remember", "30d", "--", "true").returncode == 0
    assert REMEMBER_SECONDS_MAX * 1_000 == REMEMBER_MS_MAX


def test_failed_remember_is_reported_and_frees_the_job(holdfast: Run, tmp_path: Path) -> None:
    """If the server remembers no more, the job is given back all the same, it is said, and the exit code is 75."""
    with ServerProcess.start(
        tmp_path / "data", tokens=callers.TOKENS, settings={"done_bytes_per_principal_max": 600}
    ) as small:
        given, api = environment(small, tmp_path), Api.of(small, callers.ALICE)
        assert holdfast("run", "full-1", "--remember", "1h", "--", "true", **given).returncode == 0
        both = holdfast("run", "full-2", "full-3", "--remember", "1h", "--", "true", **given)
        assert both.returncode == 75
        assert "full-3 is NOT remembered as done" in both.stderr and "full-2 is" not in both.stderr
        assert [api.status(name).json()["status"] for name in ("full-2", "full-3")] == ["done", "free"]
        assert holdfast("claim", "full-4", **given).returncode == 0
        released = holdfast("release", "full-4", "--done", "--remember", "1h", **given)
        assert released.returncode == 75 and "was released, but it is NOT remembered as done" in released.stderr
        assert is_free(api, "full-4")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_files(server: ServerProcess, tmp_path: Path, closed: str) -> None:
    """With standard input, output or error closed the command runs as ever, and finds no file of ours there."""
    look = (
        "import os; open('links', 'w').write(str([os.readlink(f'/proc/self/fd/{n}') for n in range(3)])); os._exit(7)"
    )
    command = [sys.executable, "-m", "holdfast", "run", "run/closed", "--", sys.executable, "-S", "-c", look]
    ended = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command],
        env=environment(server, tmp_path),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert ended.returncode == 7
    assert (tmp_path / "links").read_text() == str(["/dev/null"] * 3)


# Held by another.


def test_held(run: Run, api: Api) -> None:
    """A held job runs nothing: 1 with -n and who has it, 11 after -w, both replaced by -E."""
    api.acquired("run/held", owner="agent-2")
    now = run("-n", "run/held", "--", "echo", "no")
    assert (now.returncode, now.stdout) == (1, "")
    assert "run/held is held by agent-2" in now.stderr
    late = run("-w", "1s", "run/held", "--", "echo", "no")
    assert (late.returncode, late.stdout) == (11, "")
    assert "1st in line, held by agent-2" in late.stderr
    assert run("-n", "-E", "75", "run/held", "--", "echo", "no").returncode == 75
    assert run("-w", "1s", "-E", "75", "run/held", "--", "echo", "no").returncode == 75
    assert api.status("run/held").json()["waiting"] == 0


def test_job_of_the_run_around(run: Run, holdfast: Run, server: ServerProcess, tmp_path: Path) -> None:
    """A wait for the job of the run around it would never end: it is refused with 13, unless that run is over."""
    inner = [sys.executable, "-m", "holdfast", "run", "run/around", "--", "echo", "no"]
    ended = run("-q", "run/around", "--", *inner)
    assert (ended.returncode, ended.stdout) == (13, "")
    assert "the `holdfast run` around this command holds run/around already" in ended.stderr
    assert "leave out the inner `holdfast run`" in ended.stderr and "release what you hold" not in ended.stderr
    outlived = run("-q", "run/around", "--", "sh", "-c", 'echo "$HOLDFAST_JOBS"').stdout
    assert "run/around" in outlived
    for given in (outlived, "not ours"):
        later = {**environment(server, tmp_path), "HOLDFAST_JOBS": given}
        assert holdfast("run", "run/around", "--", "echo", "mine", **later).stdout == "mine\n"


def test_waits_its_turn(start: Start, api: Api) -> None:
    """Without -n and -w it stands in line until the job is free."""
    claim = api.acquired("run/turn", owner="agent-2")
    process = start("run/turn", "--", "echo", "mine")
    wait_until(lambda: api.status("run/turn").json()["waiting"] == 1, seconds_max=SECONDS_MAX)
    api.release("run/turn", claim["lease_id"])
    out, _ = process.communicate(timeout=SECONDS_MAX)
    assert (process.returncode, out) == (0, "mine\n")


@pytest.mark.parametrize("jobs", [["run/at-once"], ["run/at-once/1", "run/at-once/2"]], ids=["one", "several"])
def test_interrupted_before_the_command_starts(start: Start, api: Api, jobs: list[str]) -> None:
    """Ctrl-C between the grant and the command gives back what was got."""
    process = start(*jobs, "--ttl", "600s", "--", "sleep", "30", entry=INTERRUPTED)
    assert process.wait(SECONDS_MAX) == 130
    assert all(is_free(api, job) for job in jobs)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_wait_leaves_the_queue(start: Start, api: Api, number: signal.Signals) -> None:
    """Ctrl-C, TERM and HUP while waiting leave the line at once, and nothing was run."""
    job = f"run/interrupt-{number.name.lower()}"
    claim = api.acquired(job)
    process = start(job, "--", "echo", "no")
    wait_until(lambda: api.status(job).json()["waiting"] == 1, seconds_max=SECONDS_MAX)
    process.send_signal(number)
    out, _ = process.communicate(timeout=SECONDS_MAX)
    assert (process.returncode, out) == (128 + number, "")
    assert api.why(job).json()["waiting"] == []
    api.release(job, claim["lease_id"])
    assert is_free(api, job)


# Several jobs.


def test_every_job_or_none(run: Run, api: Api) -> None:
    """Several jobs are had together, or not at all (M2)."""
    ended = run("-n", "run/a", "run/b", "--", "sh", "-c", 'echo "$HOLDFAST_JOBS"; test -z "$HOLDFAST_JOB"')
    assert ended.returncode == 0
    assert [each["job"] for each in json.loads(ended.stdout)] == ["run/a", "run/b"]
    api.acquired("run/b", owner="agent-2")
    assert run("-n", "run/a", "run/b", "--", "true").returncode == 1
    assert is_free(api, "run/a")


def test_note_works_for_each_of_several_jobs(run: Run, api: Api) -> None:
    """In a run of several jobs `note`, `heartbeat` and `release` work for each of them, inside another run too."""
    tool = f"{sys.executable} -m holdfast"
    inner = (
        f"{tool} note run/one 'at one' && {tool} note run/two 'at two' && {tool} heartbeat run/two"
        f' && {tool} release run/one && test -z "$HOLDFAST_JOB$HOLDFAST_LEASE"'
    )
    outer = f'exec {tool} run -q run/one run/two -- sh -c "$SCRIPT"'
    ended = run("-q", "--keep-token", "run/outer", "--", "env", f"SCRIPT={inner}", "sh", "-c", outer)
    assert ended.returncode == 0, ended.stderr
    assert [api.status(name).json()["previous"]["note"] for name in ("run/one", "run/two")] == ["at one", "at two"]


def test_the_first_free_one(run: Run, api: Api) -> None:
    """With --any the first free job of the list is the command's (M1)."""
    api.acquired("run/any-1")
    ended = run("-n", "--any", "run/any-1", "run/any-2", "run/any-3", "--", "sh", "-c", 'echo "$HOLDFAST_JOB"')
    assert (ended.returncode, ended.stdout) == (0, "run/any-2\n")


# Loss.


def test_revoked_claim_stops_the_command(start: Start, server: ServerProcess, api: Api, tmp_path: Path) -> None:
    """A revoked claim ends the command, and it is said who did it and why (L7)."""
    process = start("run/revoked", "--ttl", "20s", "--", *program("beat()"))
    command = wait_for_command(tmp_path)
    assert Api.of(server, callers.OPERATOR).revoke("run/revoked", reason="wrong branch").status < 300
    _, error = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 20
    assert "wrong branch" in error and "the claim is lost" in error
    assert error.count("is lost") == 2 and "guardian" not in error, "that it was stopped, and why; each once"
    assert "stop working" not in error, "it was stopped"
    assert "time" not in error, "there was time left"
    assert is_dead(command)


def test_revoked_command_is_killed_before_its_next_renewal(
    start: Start, server: ServerProcess, api: Api, tmp_path: Path
) -> None:
    """L9: with a ttl of an hour, a command deaf to TERM is gone as soon as its claim is revoked, grace or not.

    Whoever has the job next can say how long that took: here it waits in line, and its command does not find the first
    one alive a second after it began.
    """
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    first = start(
        "run/l9", "--ttl", "1h", "--grace", "30s", "--", *program("deaf_to('SIGTERM')", "beat()"), folder=folders[0]
    )
    command = wait_for_command(folders[0])
    second = start("run/l9", "-w", "60s", "--", "sh", "-c", f"sleep 1; kill -0 {command} 2>/dev/null && echo beside")
    wait_until(lambda: api.status("run/l9").json()["waiting"] == 1, seconds_max=SECONDS_MAX)
    assert Api.of(server, callers.OPERATOR).revoke("run/l9", reason="wrong branch").status < 300
    _, error = first.communicate(timeout=SECONDS_MAX)
    assert (first.returncode, "wrong branch" in error, is_dead(command)) == (20, True, True)
    said, _ = second.communicate(timeout=SECONDS_MAX)
    assert said == ""


def test_session_exec_is_stopped_when_its_session_ends(server: ServerProcess, api: Api, tmp_path: Path) -> None:
    """L9: the command of a run whose session somebody ends is stopped then, and not at the next renewal."""
    started = subprocess.Popen(
        [sys.executable, *ENTRY, "session", "exec", "triage-l9", "--ttl", "1h", "--", *program("beat()")],
        env=environment(server, tmp_path),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    command = wait_for_command(tmp_path)
    mine = [each["session_id"] for each in api.sessions().json()["sessions"] if each["name"] == "triage-l9"]
    assert [api.end_session(session).status for session in mine] == [204]
    _, error = started.communicate(timeout=SECONDS_MAX)
    assert (started.returncode, "is lost: it has ended" in error, is_dead(command)) == (20, True, True)


def test_command_that_releases_as_its_last_act_ends_well(start: Start, api: Api) -> None:
    """A command may give its own run's claim back and end: that is no loss, and its exit code is the run's."""
    script = f'sleep 1; {sys.executable} -m holdfast release "$HOLDFAST_JOB"; exit 3'
    process = start("run/own", "--ttl", "1h", "--", "sh", "-c", script, entry=PATIENT)
    said, error = process.communicate(timeout=SECONDS_MAX)
    assert (process.returncode, "released" in said, "lost" in error) == (3, True, False)
    assert api.status("run/own").json()["status"] == "free"


def test_unreachable_server_stops_the_command_in_time(start: Start, tmp_path: Path) -> None:
    """A server that is gone for good: the command is dead before its lease can have ended, even one deaf to TERM."""
    folders = {"polite": tmp_path / "polite", "deaf": tmp_path / "deaf"}
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        running = []
        for name, folder in folders.items():
            folder.mkdir()
            lines = ["deaf_to('SIGTERM')"] if name == "deaf" else []
            job = [f"run/gone-{name}", "--ttl", "6s", "--grace", "1s"]
            running.append(
                (folder, start(*job, "--", *program(*lines, "beat()"), on=server, folder=folder, entry=IMPATIENT))
            )
        commands = [wait_for_command(folder) for folder in folders.values()]
        server.kill()
        # A renewal may have been answered up to now, so this is the earliest moment at which a lease can end.
        lease_ends = time.monotonic() + 6
        for folder, process in running:
            _, error = process.communicate(timeout=SECONDS_MAX)
            assert process.returncode == 20
            assert "could not be reached" in error or "not renewed in time" in error
            last_heartbeat = float((folder / "beats").read_text().split()[-1])
            assert last_heartbeat < lease_ends
    assert all(map(is_dead, commands))


def test_stopped_supervisor_loses_its_command_in_time(start: Start, api: Api, tmp_path: Path) -> None:
    """`holdfast run` itself stopped for twice the ttl: its command was killed in time, and it ends with 20."""
    process = start("run/stopped", "--ttl", "4s", "--grace", "1s", "--", *program("beat()"))
    command = wait_for_command(tmp_path)
    process.send_signal(signal.SIGSTOP)
    # The lease was renewed before this, if at all, so another owner cannot be there before it has ended.
    taken = api.acquire("run/stopped", owner="agent-2", wait_seconds=30).json()
    assert taken["status"] == "acquired"
    assert is_dead(command), "the command outlived its lease"
    beats_file = (tmp_path / "beats").read_text()
    process.send_signal(signal.SIGCONT)
    assert process.wait(SECONDS_MAX) == 20
    assert (tmp_path / "beats").read_text() == beats_file
    assert api.status("run/stopped").json()["owner"] == "agent-2", "the old owner released the new one's claim"


def test_killed_supervisor_takes_its_command_along(start: Start, api: Api, tmp_path: Path) -> None:
    """kill −9 of `holdfast run` ends the command too, and the job is free once its lease has ended."""
    process = start("run/killed", "--ttl", "3s", "--grace", "1s", "--", *program("beat()"))
    command = wait_for_command(tmp_path)
    process.kill()
    assert api.acquire("run/killed", wait_seconds=30).json()["status"] == "acquired"
    assert is_dead(command), "the command outlived its lease"


def test_restarted_server_costs_nothing(start: Start, tmp_path: Path) -> None:
    """A server that is killed and started again while a command runs: the claim goes on, with the same token."""
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as server:
        script = "beat_until = 'go on'\nimport os, time\nwhile not os.path.exists(beat_until): time.sleep(0.02)"
        process = start("run/restart", "--ttl", "10s", "--", *program(script), on=server)
        wait_for_command(tmp_path)
        before = Api.of(server, callers.ALICE).status("run/restart").json()
        server.kill()
        with server.restart() as again:
            api = Api.of(again, callers.ALICE)
            heartbeat_at = before["last_heartbeat_at"]
            wait_until(
                lambda: api.status("run/restart").json()["last_heartbeat_at"] > heartbeat_at,
                seconds_max=SECONDS_MAX,
            )
            assert api.status("run/restart").json()["fencing_token"] == before["fencing_token"]
            (tmp_path / "go on").touch()
            assert process.wait(SECONDS_MAX) == 0
            assert is_free(api, "run/restart")


# Mistakes.


def test_command_that_is_not_there(run: Run, api: Api) -> None:
    """A command that cannot be found ends with 127, as in a shell, and the job is given back."""
    ended = run("run/missing", "--", "no-such-command-here")
    assert ended.returncode == 127
    assert "no-such-command-here" in ended.stderr
    assert is_free(api, "run/missing")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["job"], "there is no --"),
        (["job", "--"], "nothing stands behind --"),
        (["--", "true"], "JOB"),
        (["-n", "-w", "1s", "job", "--", "true"], "use one of them"),
        (["--ttl", "soon", "job", "--", "true"], "not a time"),
        (["a b", "--", "true"], "may not stand in a name"),
        (["", "--", "true"], "is a variable not set?"),
    ],
)
def test_usage(run: Run, arguments: list[str], said: str) -> None:
    """A line that makes no sense ends with 64 and says what to write instead; nothing is run."""
    ended = run(*arguments)
    assert (ended.returncode, ended.stdout) == (64, "")
    assert said in ended.stderr


def test_unreachable_server_is_69(
    capfd: pytest.CaptureFixture[str], server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a server nothing is run, and the exit code says unreachable."""
    # In this process, because a process of its own would wait for the server as long as it really does.
    monkeypatch.setattr("holdfast.cli.shared.with_command.RETRY_SECONDS", 0.2)
    for name, value in environment(server, tmp_path).items():
        monkeypatch.setenv(name, value)
    assert main.run(["run", "--url", "http://127.0.0.1:9", "job", "--", "echo", "no"]) == 69
    shown = capfd.readouterr()
    assert shown.out == "" and "no answer from http://127.0.0.1:9" in shown.err


# Sessions.


def test_session_ends_with_its_command(holdfast: Run, server: ServerProcess, api: Api, tmp_path: Path) -> None:
    """`session exec` gives the command a run of its own; however it ends, every lock of that run is free (S2)."""
    rlock = Path(sys.executable).with_name("rlock")
    for ending, code in (("exit 0", 0), ("exit 5", 5), ("kill -KILL $$", 137)):
        script = f'{rlock} deploy://api && {rlock} deploy://web && test -n "$HOLDFAST_SESSION" && {ending}'
        ended = holdfast("session", "exec", "triage-1", "--", "sh", "-c", script, **environment(server, tmp_path))
        assert ended.returncode == code, ended.stderr
        assert ended.stdout.count('"ok":true') == 2
        assert is_free(api, "deploy://api")
        assert is_free(api, "deploy://web")
        assert api.sessions().json()["sessions"] == []
