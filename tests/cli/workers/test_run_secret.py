"""What a command under `holdfast run` and `holdfast session exec` has in place of the token: real processes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.server import ServerProcess

Run = Callable[..., subprocess.CompletedProcess[str]]
HOLDFAST = f"{sys.executable} -m holdfast"
NOT_ALLOWED, LOST, DEADLOCK = 77, 20, 13


@pytest.fixture
def run(server: ServerProcess, holdfast: Run) -> Run:
    """Runs `holdfast …` with alice's token."""

    def with_token(*arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
        return holdfast(*arguments, **{"HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": callers.ALICE, **more})

    return with_token


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{callers.ALICE}\n", "ascii")
    file.chmod(0o600)
    return file


def _sh(script: str) -> tuple[str, str, str, str]:
    return ("--", "sh", "-c", script)


def test_the_command_has_no_token(server: ServerProcess, run: Run, holdfast: Run, token_file: Path) -> None:
    """Neither in its environment, nor by the file that the environment names, nor on any command line."""
    shown = run("run", unique(), "-q", *_sh("env; tr '\\0' ' ' < /proc/$PPID/cmdline"))
    assert shown.returncode == 0, shown.stderr
    assert callers.ALICE not in shown.stdout + shown.stderr
    assert "HOLDFAST_TOKEN=holdc_" in shown.stdout
    assert shown.stdout.count("holdc_") == 1, "in the environment alone"
    by_file = holdfast("run", unique(), "-q", *_sh("env"), HOLDFAST_URL=server.url, HOLDFAST_TOKEN_FILE=str(token_file))
    assert by_file.returncode == 0, by_file.stderr
    assert "HOLDFAST_TOKEN_FILE" not in by_file.stdout and "HOLDFAST_TOKEN=holdc_" in by_file.stdout


def test_an_option_reaches_the_command_too(server: ServerProcess, holdfast: Run, token_file: Path) -> None:
    """Where the server and the token come from options, the command still finds the server and its own secret."""
    job = unique()
    script = f'{HOLDFAST} note "$HOLDFAST_JOB" "by options"'
    done = holdfast("run", job, "--url", server.url, "--token-file", token_file, *_sh(script))
    assert done.returncode == 0, done.stderr


def test_the_command_works_on_its_job(server: ServerProcess, run: Run) -> None:
    """Note, heartbeat, owner and release of the job work in it, and the note stays for the next owner."""
    job = unique()
    script = (
        f'{HOLDFAST} note "$HOLDFAST_JOB" "half way" && {HOLDFAST} heartbeat "$HOLDFAST_JOB" --ttl 90s'
        f' && {HOLDFAST} owner "$HOLDFAST_JOB" --json'
    )
    done = run("run", job, "-q", *_sh(script))
    assert done.returncode == 0, done.stderr
    owner = json.loads(done.stdout[done.stdout.index("{") :])["owner"]
    assert owner["note"] == "half way"
    assert Api.of(server, callers.ALICE).status(job).json()["previous"]["note"] == "half way"
    released = run("run", job, "-q", *_sh(f'{HOLDFAST} release "$HOLDFAST_JOB" --done --result ok'))
    assert Api.of(server, callers.ALICE).status(job).json()["status"] == "done", released.stderr


def test_the_command_can_do_nothing_else(server: ServerProcess, run: Run) -> None:
    """Other jobs, claims, lists and tokens are refused, with the way to have more."""
    other = unique()
    lease = Api.of(server, callers.ALICE).acquired(other, key=unique())
    asks = (
        f"owner {other}",
        f"release {other} --lease {lease['lease_id']}",
        f"claim {unique()}",
        f"run {unique()} -- true",
        f"run --any {unique()} {unique()} -- true",
        "jobs",
        "session start more",
    )
    for ask in asks:
        done = run("run", unique(), "-q", *_sh(f"{HOLDFAST} {ask}"))
        assert done.returncode == NOT_ALLOWED, (ask, done.stdout, done.stderr)
        assert "--keep-token" in done.stderr, (ask, done.stderr)
    assert Api.of(server, callers.ALICE).status(other).json()["status"] == "held"


def test_keep_token_leaves_everything(run: Run) -> None:
    """With --keep-token the command has its caller's environment as it is, and can claim."""
    inner = unique()
    done = run("run", unique(), "-q", "--keep-token", *_sh(f"env; {HOLDFAST} run {inner} -q -- echo inner"))
    assert done.returncode == 0, done.stderr
    assert f"HOLDFAST_TOKEN={callers.ALICE}" in done.stdout and done.stdout.endswith("inner\n")


def test_a_run_in_itself_is_a_deadlock(run: Run) -> None:
    """A `holdfast run` for the job of the run around it is told so, with the secret as with the token."""
    job = unique()
    for more in ((), ("--keep-token",)):
        done = run("run", job, "-q", *more, *_sh(f"{HOLDFAST} run {job} -- true"))
        assert done.returncode == DEADLOCK, done.stderr
        assert "the `holdfast run` around this command holds" in done.stderr


def test_several_jobs_have_one_secret(server: ServerProcess, run: Run) -> None:
    """All jobs of one run are within reach of its command."""
    one, other = sorted((unique(), unique()))
    done = run(
        "run", one, other, "-q", *_sh(f"{HOLDFAST} owner {one} -q; {HOLDFAST} owner {one} && {HOLDFAST} owner {other}")
    )
    assert done.returncode == 0, done.stderr
    assert f"{one} is held" in done.stdout and f"{other} is held" in done.stdout
    assert Api.of(server, callers.ALICE).status(one).json()["status"] == "free"


def test_lost_claim_is_reported(server: ServerProcess, run: Run) -> None:
    """A command whose claim was revoked hears from `heartbeat` that it is lost, and not that it may not ask."""
    job = unique()
    script = 'echo "$HOLDFAST_TOKEN $HOLDFAST_LEASE"'
    done = run("run", job, "-q", *_sh(f"{script}; {HOLDFAST} release {job} --failed"))
    secret, lease_id = done.stdout.splitlines()[0].split()
    for ask in ("heartbeat", "release"):
        late = run(ask, job, "--lease", lease_id, HOLDFAST_TOKEN=secret)
        assert late.returncode == (LOST if ask == "heartbeat" else 0), late.stderr
    revoked = unique()
    held = Api.of(server, callers.ALICE).acquired(revoked, key="the-key-of-" + revoked)
    asked = {"lock_name": revoked, "lease_id": held["lease_id"]}
    secret = Api.of(server, callers.ALICE).post("/claims/secret", asked).json()["claim_secret"]
    assert Api.of(server, callers.OPERATOR).revoke(revoked, reason="stop it").status == 204
    late = run("heartbeat", revoked, "--lease", held["lease_id"], HOLDFAST_TOKEN=secret)
    assert late.returncode == LOST and "stop it" in late.stderr, late.stderr


def test_session_exec_gives_the_secret_of_the_session(server: ServerProcess, run: Run) -> None:
    """The command claims for its session, without the token; what it claimed is gone with the session."""
    job = unique()
    script = f"env; {HOLDFAST} claim {job} && {HOLDFAST} note {job} 'in a session' && {HOLDFAST} owner {job}"
    done = run("session", "exec", "review", *_sh(script))
    assert done.returncode == 0, done.stderr
    assert callers.ALICE not in done.stdout + done.stderr
    assert "HOLDFAST_TOKEN=holds_" in done.stdout and "session" in done.stdout
    before = Api.of(server, callers.ALICE).status(job).json()
    assert (before["status"], before["previous"]["ended"]) == ("free", "session_ended")
    refused = run("session", "exec", "review", *_sh(f"{HOLDFAST} session start another"))
    assert refused.returncode == NOT_ALLOWED, refused.stderr
    with_token = run("session", "exec", "review", "--keep-token", *_sh("env"))
    assert f"HOLDFAST_TOKEN={callers.ALICE}" in with_token.stdout


def test_a_run_in_a_session_exec(run: Run) -> None:
    """A `holdfast run` inside of a session's command has a claim of that session, and a secret for it."""
    job = unique()
    inner = f'{HOLDFAST} note "$HOLDFAST_JOB" deep && env | grep ^HOLDFAST_TOKEN='
    done = run("session", "exec", "outer", *_sh(f"{HOLDFAST} run {job} -q -- sh -c '{inner}'"))
    assert done.returncode == 0, done.stderr
    assert "HOLDFAST_TOKEN=holdc_" in done.stdout


# A server of an earlier release.


_NEWER = {"/claims/secret", "/leases/watch"}
"""Routes that it does not know. The second has no end while a claim lives, so it could not be passed on whole."""


class _Older(BaseHTTPRequestHandler):
    """Passes everything on but the routes that it does not know."""

    server: Any

    def do_POST(self) -> None:
        self._pass_on("POST")

    def do_GET(self) -> None:
        self._pass_on("GET")

    def _pass_on(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0"))) or None
        path = "/no/such/route" if self.path in _NEWER else self.path
        headers = {name: self.headers[name] for name in ("Idempotency-Key", "Content-Type") if name in self.headers}
        answer = Api.of(self.server.target, callers.ALICE).request(method, path, body, headers=headers)
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def older(server: ServerProcess) -> Iterator[str]:
    front: Any = HTTPServer(("127.0.0.1", 0), _Older)
    front.target = server
    thread = threading.Thread(target=front.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{front.server_port}"
    front.shutdown()
    front.server_close()


def test_nothing_runs_without_the_secret(server: ServerProcess, run: Run, older: str, tmp_path: Path) -> None:
    """The token is not given away because a server has no secrets: the command does not run, and the job is free."""
    job, ran = unique(), tmp_path / "ran"
    done = run("run", job, "--url", older, *_sh(f"touch {ran}"))
    assert done.returncode not in {0, LOST}, done.stderr
    assert not ran.exists()
    left = Api.of(server, callers.ALICE).status(job).json()
    assert left["status"] == "free" and left["previous"]["ended"] == "released"
    assert run("run", job, "--url", older, "--keep-token", *_sh(f"touch {ran}")).returncode == 0
    assert ran.exists()
