"""Messages that misled once: each with the situation that makes it, against real servers.

A message says what is so, and what to do next. None shows how Python writes a value.
"""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import durations
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique, wait_until
from tests.support.server import ServerProcess

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def alice(server: ServerProcess) -> Api:
    return Api.of(server, callers.ALICE)


@pytest.fixture
def confined(server: ServerProcess) -> str:
    """An access token for names that start with repo/."""
    body = {"name": unique(), "scopes": ["read", "claim", "admin"], "prefix": "repo/"}
    token: str = Api.of(server, callers.OPERATOR).post("/tokens", body).json()["token"]
    return token


@pytest.fixture
def other_program() -> Iterator[str]:
    """Some other HTTP program: its health looks like ours, and it is not."""

    class Handler(http.server.BaseHTTPRequestHandler):
        server_version = "Strange/1"
        sys_version = ""

        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/readyz" else 404)
            self.end_headers()
            self.wfile.write(b'{"status": "ok"}')

        def do_POST(self) -> None:
            self.send_response(502 if "/proxied/" in self.path else 501)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the standard library
            pass

    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listener.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{listener.server_address[1]}"
    listener.shutdown()
    thread.join()
    listener.server_close()


COMMANDS: list[tuple[list[str], int, list[str]]] = [
    (["claim", "a b"], 64, ["' ' (U+0020) may not stand in a name", "Invalid lock name: ' '"]),
    (["claim", "a/b:c"], 64, ["':' (U+003A) may not stand in a name", "as in github://acme/app/issues/42"]),
    (["claim", ":x"], 64, ["a name does not begin with ':'", "as in github://acme/app/issues/42"]),
    (["claim", "a//b"], 64, ["a part between slashes is empty", "no two in a row"]),
    (["claim", "list"], 64, ["'list' is reserved for a route: take a longer name"]),
    (["claim", "j", "--ttl", "500ms"], 64, ["'500ms' is not a whole number of seconds; write 120, 90s"]),
    (["watch", "a b"], 64, ["no job has a blank in its name"]),
    (["serve", "--set", "nosuch=1"], 64, ["there is no such setting; `holdfast serve --help` lists all of them"]),
    (["claim", "j", "--ttl", "0"], 64, ["'0' is too short; 1s is the least"]),
    (["claim", "j", "-w", "9000w"], 64, ["'9000w' is too long; 7000w is the most"]),
    (["claim", "j", "--ttl", "30d"], 64, ["--ttl is 1 to 86400 seconds"]),
    (["claim", "j", "--ttl", "soon"], 64, ["'soon' is not a time; write 120, 90s, 15m, 1h30m, 30d or 2w"]),
    (["check", "j", "abc"], 64, ["a fencing token is a number, as `holdfast claim`"]),
    (["check", "j", callers.ALICE], 64, ["a fencing token is a number"]),
    (["check", "j", "hold_x"], 64, ["a fencing token is a number"]),
    (["check", "j", "9" * 5_000], 64, ["a fencing token is a number"]),
    (["token", "list"], 77, ["This needs an access token with the scope 'admin'; this one has read+claim."]),
]


@pytest.mark.parametrize(("words", "code", "said"), COMMANDS, ids=[" ".join(each[0])[:40] for each in COMMANDS])
def test_commands(holdfast: Run, server: ServerProcess, words: list[str], code: int, said: list[str]) -> None:
    """What a command says of a mistake of its user."""
    done = holdfast(*words, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.ALICE)
    assert done.returncode == code
    assert [each for each in said if each not in done.stderr] == [], done.stderr


def test_a_token_with_a_prefix(holdfast: Run, server: ServerProcess, confined: str) -> None:
    """Another name or another access token helps, and no scope does."""
    for words in (["claim", "other"], ["history", "other"], ["watch", "other"], ["revoke", "other", "--reason", "x"]):
        done = holdfast(*words, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=confined)
        assert done.returncode == 77
        assert "may only be used for names that start with 'repo/'. Take such a name" in done.stderr
        assert "scope" not in done.stderr


def test_a_token_of_another_server(holdfast: Run, server: ServerProcess) -> None:
    """It is said that this server does not know it, and that it may be another's; so does `doctor`."""
    done = holdfast("claim", "j", HOLDFAST_URL=server.url, HOLDFAST_TOKEN="elsewhere-0123456789abcdef")
    said = "This server does not know the access token: it is another server's, was revoked, or has expired."
    assert (done.returncode, said in done.stderr, "one of this server" in done.stderr) == (77, True, True)
    done = holdfast("doctor", HOLDFAST_URL=server.url, HOLDFAST_TOKEN="elsewhere-0123456789abcdef")
    assert said in done.stdout and "put one of this server into HOLDFAST_TOKEN" in done.stdout


def test_no_token(holdfast: Run, server: ServerProcess) -> None:
    """Whoever types commands sends no headers: what is missing is an access token, and where it goes is said."""
    done = holdfast("claim", "j", HOLDFAST_URL=server.url)
    assert done.returncode == 77
    assert "there is none for it here. Put one of this server into HOLDFAST_TOKEN" in done.stderr
    assert "header" not in done.stderr


def test_missing_token_file_is_reported(holdfast: Run, tmp_path: Path) -> None:
    """What named the file is said with it: a variable that was set long ago is hard to find."""
    done = holdfast("jobs", HOLDFAST_TOKEN_FILE="/nonexist")
    assert done.returncode == 64
    assert "token file (/nonexist, from HOLDFAST_TOKEN_FILE): cannot be read: No such file" in done.stderr
    assert "allowed: a file of yours that holds an access token" in done.stderr
    folder = tmp_path / "config" / "holdfast"
    folder.mkdir(parents=True)
    (folder / "client.toml").write_text('token_file = "gone"\n')
    assert f"from {folder / 'client.toml'})" in holdfast("jobs").stderr
    assert "token file (/nonexist):" in holdfast("jobs", "--token-file", "/nonexist").stderr


def test_another_program(holdfast: Run, other_program: str) -> None:
    """A program that is no Holdfast server is called so, and by its name, although its health looks like ours."""
    done = holdfast("doctor", HOLDFAST_URL=other_program, HOLDFAST_TOKEN=callers.ALICE)
    assert done.returncode == 69
    assert done.stdout.count("\n") == 1
    assert "another program (Strange/1) answers at" in done.stdout and "check host and port" in done.stdout
    done = holdfast("claim", "j", HOLDFAST_URL=other_program, HOLDFAST_TOKEN=callers.ALICE)
    assert "another program (Strange/1) answers at this address" in done.stderr
    done = holdfast("claim", "j", HOLDFAST_URL=f"{other_program}/proxied", HOLDFAST_TOKEN=callers.ALICE)
    assert "a proxy answers, and the server behind it does not" in done.stderr


def test_https_to_a_plain_server(holdfast: Run, server: ServerProcess) -> None:
    """What answers is known not to speak https, so nobody is asked whether it does."""
    url = server.url.replace("http://", "https://")
    for words in (["claim", "j"], ["doctor"]):
        done = holdfast(*words, HOLDFAST_URL=url, HOLDFAST_TOKEN=callers.ALICE)
        assert done.returncode == 69
        assert "does not speak https: write http:// in its address" in done.stdout + done.stderr


def test_data_on_a_file(holdfast: Run, tmp_path: Path) -> None:
    """`serve --data FILE` says that it is no directory."""
    file = tmp_path / "notes.txt"
    file.touch()
    done = holdfast("serve", "--data", file, "--listen", "127.0.0.1:0")
    assert done.returncode != 0
    assert f"{file} is not a directory" in done.stderr and "name one, or a path" in done.stderr


ROUTES = [
    ("POST", "/locks/j/heartbeat", 405, "Did you mean POST /locks/{name}/renew (heartbeat: keep a lease alive)?"),
    ("POST", "/locks/j/unlock", 405, "Did you mean POST /locks/{name}/release (give a name back)?"),
    ("POST", "/locks/j/aquire", 405, "Did you mean POST /locks/{name}/acquire (claim a name)?"),
    ("PUT", "/locks/j", 405, "Did you mean POST /locks/{name}/acquire (claim a name)?"),
    ("DELETE", "/locks/j", 405, "Did you mean POST /locks/{name}/release (give a name back)?"),
    ("GET", "/locks/j/acquire", 405, "This route takes POST. Did you mean POST /locks/{name}/acquire"),
    ("POST", "/lock/j/acquire", 404, "Did you mean POST /locks/{name}/acquire (claim a name)?"),
    ("POST", "/sessions/1/heartbeat", 404, "Did you mean POST /sessions/{id}/keepalive (keep a session alive)?"),
    ("POST", "/session", 404, "Did you mean GET /sessions ("),
    ("GET", "/nothing-like-it", 404, "No such route. GET /docs lists them."),
    ("GET", "/" + "x" * 5_000, 404, "No such route. GET /docs lists them."),
]


@pytest.mark.parametrize(
    ("method", "path", "status", "said"), ROUTES, ids=[f"{each[0]} {each[1][:30]}" for each in ROUTES]
)
def test_routes(alice: Api, method: str, path: str, status: int, said: str) -> None:
    """A request without a route is told which one was meant, with its method and what it does."""
    answer = alice.request(method, path, {} if method in {"POST", "PUT"} else None)
    assert answer.status == status
    assert said in answer.json()["details"]


def test_a_name_may_end_with_any_word(alice: Api) -> None:
    """N2: a word that other systems take for a verb is still a part of a name here."""
    name = f"{unique()}/heartbeat"
    assert alice.request("GET", f"/locks/{name}").json()["status"] == "free"
    assert alice.request("POST", f"/locks/{name}/acquire", {}).status == 200


@pytest.mark.parametrize("settings", [{}, {"tokens": ""}], ids=["static", "made"])
def test_the_greeting_after_a_restart(tmp_path: Path, settings: dict[str, str]) -> None:
    """The line to paste works as it is: with the file of the access token, or with the variable that holds it."""
    data = tmp_path / "data"
    with ServerProcess.start(data, tokens=settings.get("tokens", callers.TOKENS)):
        pass
    with ServerProcess.start(data, tokens=settings.get("tokens", callers.TOKENS)) as server:
        wait_until(lambda: "curl" in server.log)
        shown = server.log
    assert "YOUR_TOKEN" not in shown
    if settings:
        assert "Your access token is in " in shown and "Bearer $(cat '" in shown
    else:
        assert "Put your access token into HOLDFAST_TOKEN" in shown and "Bearer $HOLDFAST_TOKEN" in shown


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("120", 120_000),
        ("1.5", 1_500),
        ("120s", 120_000),
        ("2m", 120_000),
        ("1h30m", 5_400_000),
        ("500ms", 500),
        ("1m500ms", 60_500),
        ("2w", 1_209_600_000),
        ("0", 0),
        ("", None),
        ("m", None),
        ("1h30", None),
        ("1.2.3s", None),
        ("-5s", None),
        ("5 s", None),
        ("5S", None),
        ("٣s", None),
        ("1e9", None),
        ("99999999999s", None),
        ("nan", None),
    ],
)
def test_durations(text: str, milliseconds: int | None) -> None:
    """A number alone is seconds; with units it can have several parts. All else is no time."""
    assert durations.milliseconds(text) == milliseconds


def test_a_wait_of_0_does_not_wait(holdfast: Run, server: ServerProcess, alice: Api) -> None:
    """`-w 0` says that somebody else has the job, at once, as without `-w`; `run -w 0` as `-n`."""
    name = unique()
    alice.acquired(name, owner="ana")
    known = {"HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": callers.ALICE}
    assert holdfast("claim", name, "-w", "0", "--owner", "b", **known).returncode == 1
    assert (
        holdfast("run", name, "-w", "0", "--", "true", **known).returncode
        == holdfast("run", name, "-n", "--", "true", **known).returncode
    )


@pytest.mark.parametrize("ttl", ["120", "120s", "2m", "0h2m"])
def test_a_ttl_is_written_in_both_ways(holdfast: Run, server: ServerProcess, alice: Api, ttl: str) -> None:
    """`--ttl 120` and `--ttl 2m` are the same, for `claim` and for `rlock`."""
    job = unique()
    assert holdfast("claim", job, "--ttl", ttl, HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.BOB).returncode == 0
    assert 110_000 < alice.status(job).json()["expires_in_ms"] <= 120_000
    secret = alice.post("/sessions", {"ttl_seconds": 300}).json()["session_secret"]
    key = f"test://{unique()}"
    code = "import sys; from holdfast.agents.rlock import rlock; sys.argv[0] = 'rlock'; rlock()"
    done = subprocess.run(
        [sys.executable, "-c", code, key, "--ttl", ttl],
        env={"GATEWAY_URL": server.url, "SHUTDOWN_SECRET": secret},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert 110_000 < alice.status(key).json()["expires_in_ms"] <= 120_000
