"""`rlock`, `runlock`, `rlock-heartbeat`: one line of JSON and the right exit code, whatever answers or does not."""

from __future__ import annotations

import _socket
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from holdfast.agents import rlock as commands
from holdfast.client import minihttp
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique, wait_until
from tests.support.gateway import Run, locked, resource
from tests.support.server import ServerProcess

SCRIPTS = Path(sysconfig.get_path("scripts"))
NAMES = ("rlock", "runlock", "rlock-heartbeat")
TTL = {"rlock", "rlock-heartbeat"}
VERBS = {"rlock": "acquire", "runlock": "release", "rlock-heartbeat": "heartbeat"}
GRANTED = b'{"ok":true,"resourceKey":"a:b"}'


class Done(NamedTuple):
    """How a command ended."""

    code: int
    said: Any
    """The one line on standard output, decoded."""
    text: str
    err: str


def started(name: str, *arguments: str, **environment: str) -> Done:
    """Run the installed command in an environment of its own, and insist on exactly one line of JSON."""
    clean = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LC_ALL": "C"}
    done = subprocess.run(
        [SCRIPTS / name, *arguments], env=clean | environment, capture_output=True, timeout=60, check=False
    )
    text = done.stdout.decode()
    assert text.endswith("\n") and text.count("\n") == 1, done
    return Done(done.returncode, json.loads(text), text, done.stderr.decode())


@pytest.fixture
def run(server: ServerProcess) -> Run:
    """A run on the real server."""
    return Run(Api.of(server, callers.ALICE), "ana")


@pytest.fixture
def other(server: ServerProcess) -> Run:
    """Another one."""
    return Run(Api.of(server, callers.BOB), "ben")


@pytest.fixture
def call(server: ServerProcess, run: Run) -> Callable[..., Done]:
    """Runs a command as a container of the run would."""

    def called(name: str, *arguments: str, **environment: str) -> Done:
        known = {"GATEWAY_URL": server.url, "SHUTDOWN_SECRET": run.secret}
        return started(name, *arguments, **(known | environment))

    return called


# Against a real server.


def test_lock_heartbeat_unlock(call: Callable[..., Done], run: Run) -> None:
    """The three commands have a resource, keep it and give it back: 0 each time, with the gateway's JSON."""
    key = resource()
    assert call("rlock", key)[:2] == (0, {"ok": True, "resourceKey": key})
    assert run.has(key)
    renewed = call("rlock-heartbeat", key)
    assert renewed.code == 0 and set(renewed.said) == {"ok", "expiresAt"}
    assert call("runlock", key)[:2] == (0, {"ok": True})
    assert not run.has(key)


def test_a_conflict_is_1(call: Callable[..., Done], other: Run) -> None:
    """What another run has is exit 1, for all three."""
    key = resource()
    locked(other, key)
    done = call("rlock", key)
    assert done.code == 1 and done.said["holder"] == other.name
    for name in ("runlock", "rlock-heartbeat"):
        assert call(name, key)[:2] == (1, {"ok": False, "reason": f"held by {other.name}"})


def test_a_deadlock_is_1_and_readable(call: Callable[..., Done], run: Run, other: Run) -> None:
    """D3: a circle is exit 1, and its arrows are UTF-8 whatever the locale says."""
    mine, theirs = resource(), resource()
    locked(run, mine)
    locked(other, theirs)
    other.rlock(mine)
    done = call("rlock", theirs)
    assert done.code == 1 and done.said["deadlock"] is True and " → " in done.text


def test_unknown_resource_is_2(call: Callable[..., Done]) -> None:
    """What nobody holds is exit 2."""
    for name in ("runlock", "rlock-heartbeat"):
        assert call(name, resource())[:2] == (2, {"ok": False, "reason": "lock not found"})


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_secret_is_3(name: str, call: Callable[..., Done]) -> None:
    """A secret that is not known is exit 3."""
    done = call(name, resource(), SHUTDOWN_SECRET="nobody-knows")
    assert done[:2] == (3, {"ok": False, "error": "invalid secret"})


def test_server_refusals_have_exit_codes(tmp_path: Path) -> None:
    """A wrong secret is 3 however many came before; a name that is not the server's and a request too long are 4."""
    settings = {"wrong_tokens_per_minute_max": 1}
    with ServerProcess.start(tmp_path / "data", settings=settings, tokens=callers.TOKENS) as server:
        secret = Run(Api.of(server, callers.ALICE)).secret
        for _ in range(3):
            assert started("rlock", "a:b", GATEWAY_URL=server.url, SHUTDOWN_SECRET="wrong").code == 3
        elsewhere = started("rlock", "a:b", GATEWAY_URL=f"http://2130706433:{server.port}", SHUTDOWN_SECRET=secret)
        assert elsewhere.code == 4 and "allowed_hosts" in elsewhere.said["error"]
        long = started("rlock", "a:" + "b" * 60_000, GATEWAY_URL=server.url, SHUTDOWN_SECRET=secret)
        assert long.code == 4 and long.said["ok"] is False


@pytest.mark.parametrize("name", NAMES)
def test_a_bad_request_is_4(name: str, call: Callable[..., Done]) -> None:
    """A key that is no URI, or no secret at all, is exit 4."""
    done = call(name, "not a uri")
    assert done.code == 4 and done.said["error"].startswith("Invalid URI format: ") and done.said["ok"] is False
    assert call(name, resource(), SHUTDOWN_SECRET="")[:2] == (4, {"ok": False, "error": "missing secret"})


@pytest.mark.parametrize("name", NAMES)
def test_usage_is_9(name: str, call: Callable[..., Done]) -> None:
    """No key, an empty one or an unknown option is exit 9; what stands behind the key and is no option is ignored."""
    usage = f"usage: {name} URI" + (" [--ttl TIME]" if name in TTL else "")
    assert call(name)[:2] == call(name, "")[:2] == (9, {"ok": False, "error": usage})
    wrong: list[tuple[str, ...]] = [("--ttl", "5", "a:b"), ("a:b", "--tll", "5")]
    wrong += [("a:b", "--ttl", text) for text in ("", "0", "-1", "x", "nan", "inf")] if name in TTL else []
    wrong += [("a:b", "--ttl")] if name in TTL else [("a:b", "--ttl", "5")]
    for arguments in wrong:
        done = call(name, *arguments)
        assert done.code == 9 and done.said["error"].startswith(usage), arguments
    assert call(name, resource(), "and", "more").code in {0, 2}


@pytest.mark.parametrize("name", NAMES)
def test_help_is_no_success(name: str, call: Callable[..., Done]) -> None:
    """`-h` explains on standard error and is exit 9: a script whose key is "-h" must not believe it has a lock."""
    for flag in ("-h", "--help"):
        done = call(name, flag)
        assert done.code == 9 and done.said["ok"] is False
        assert "GATEWAY_URL" in done.err and ("--ttl" in done.err) == (name in TTL)


def test_ttl(call: Callable[..., Done], run: Run) -> None:
    """`--ttl` behind the key is for how long; a fraction will do."""
    key = resource()
    assert call("rlock", key, "--ttl", "100").code == 0
    assert abs(run.locks()[0]["expiresAt"] - time.time() * 1000 - 100_000) < 10_000
    assert abs(call("rlock-heartbeat", key, "--ttl=20.5").said["expiresAt"] - time.time() * 1000 - 20_500) < 10_000


@pytest.mark.parametrize(
    "text",
    [
        'test://a","ttl":99999999,"z":"q',
        'test://x","resourceKey":"file:///other',
        'test://x","secret":"stolen',
        "test://back\\slash\\n\\u0041",
        "test://'single' $(id) `id` %s {0}".replace(" ", "_"),
        "test://größe/∆/🦙",
    ],
)
def test_a_key_is_only_a_key(text: str, call: Callable[..., Done], run: Run) -> None:
    """Whatever is in a key stays in it: nothing of it becomes a field, an escape or a command."""
    assert call("rlock", text)[:2] == (0, {"ok": True, "resourceKey": text})
    (lock,) = run.locks()
    assert lock["resourceKey"] == text
    assert lock["expiresAt"] - time.time() * 1000 < 1_800_000
    assert call("runlock", text).code == 0


def test_a_key_that_is_not_text_is_refused(call: Callable[..., Done], run: Run) -> None:
    """Newlines, control characters and bytes that are not UTF-8 are 400, and have no effect."""
    for key in ("test://new\nline", "test://tab\t", os.fsdecode(b"test://\xff\xfe")):
        assert call("rlock", key).code == 4
    assert run.locks() == []


def test_a_path_before_the_routes(call: Callable[..., Done], server: ServerProcess) -> None:
    """A slash behind the address changes nothing; a path is put before the routes, and is not there here."""
    assert call("rlock", resource(), GATEWAY_URL=f"{server.url}/").code == 0
    done = call("rlock", resource(), GATEWAY_URL=f"{server.url}/behind/proxy")
    assert done.code == 2 and done.said["ok"] is False


# Where to ask.


@pytest.mark.parametrize("name", NAMES)
def test_no_gateway_is_6(name: str, tmp_path: Path) -> None:
    """Without any address it fails loudly: never success without a lock."""
    done = started(name, "a:b", SHUTDOWN_SECRET="s", XDG_CONFIG_HOME=str(tmp_path))
    assert done.code == 6 and done.said["ok"] is False and "GATEWAY_URL" in done.said["error"]
    assert started(name, "a:b", GATEWAY_URL="", XDG_CONFIG_HOME=str(tmp_path)).code == 6
    assert started(name, XDG_CONFIG_HOME=str(tmp_path), HOLDFAST_RLOCK_STANDALONE="0").code == 6


@pytest.mark.parametrize("name", NAMES)
def test_standalone_is_asked_for(name: str, call: Callable[..., Done]) -> None:
    """`HOLDFAST_RLOCK_STANDALONE=1` without a gateway is Action Llama's success; with one it changes nothing."""
    assert started(name, HOLDFAST_RLOCK_STANDALONE="1")[:2] == (0, {"ok": True})
    assert started(name, "a:b", HOLDFAST_RLOCK_STANDALONE="1", HOLDFAST_URL="http://127.0.0.1:1")[0] == 0
    assert call(name, resource(), HOLDFAST_RLOCK_STANDALONE="1", SHUTDOWN_SECRET="x").code == 3


def test_the_clients_own_server(server: ServerProcess, run: Run, tmp_path: Path) -> None:
    """Without GATEWAY_URL the server of HOLDFAST_URL is asked, else that of `client.toml`."""
    config = tmp_path / "holdfast"
    config.mkdir()
    (config / "client.toml").write_text(f'url = "{server.url}"\ntoken_file = "token"\n')
    known = {"SHUTDOWN_SECRET": run.secret, "XDG_CONFIG_HOME": str(tmp_path)}
    assert started("rlock", resource(), **known).code == 0
    assert started("rlock", resource(), HOLDFAST_URL="http://127.0.0.1:1", **known).code == 6
    (config / "client.toml").write_text("url = ")
    assert started("rlock", resource(), HOLDFAST_URL=server.url, **known).code == 0
    done = started("rlock", resource(), **known)
    assert done.code == 6 and "client.toml" in done.said["error"]
    home = tmp_path / "home"
    shutil.copytree(config, home / ".config" / "holdfast")
    (home / ".config" / "holdfast" / "client.toml").write_text(f'url = "{server.url}"\n')
    relative = {"SHUTDOWN_SECRET": run.secret, "XDG_CONFIG_HOME": "relative", "HOME": str(home)}
    assert started("rlock", resource(), **relative).code == 0


def test_secret_is_unencrypted_only_to_loopback(tmp_path: Path) -> None:
    """Plain HTTP to another host is refused, unless it is GATEWAY_URL, which whoever started the run has set."""
    known = {"SHUTDOWN_SECRET": "s", "XDG_CONFIG_HOME": str(tmp_path)}
    for url in ("http://gateway.invalid:8080", "http://127.0.0.1.invalid", "http://128.0.0.1"):
        done = started("rlock", "a:b", HOLDFAST_URL=url, **known)
        assert done.code == 6 and "unencrypted" in done.said["error"], url
    done = started("rlock", "a:b", GATEWAY_URL="http://gateway.invalid:8080", **known)
    assert done.code == 6 and "unencrypted" not in done.said["error"]


@pytest.mark.parametrize(
    "url",
    ["ftp://h", "http://", "h:80", "http://h:x", "http://u:p@h", "http://h/?q", "http://h\r\nX: y", "http://h:999999"],
)
def test_invalid_address_is_6(url: str) -> None:
    """An address that cannot be used is said to be so, and nothing is sent."""
    done = started("rlock", "a:b", GATEWAY_URL=url, SHUTDOWN_SECRET="s")
    assert done.code == 6 and "GATEWAY_URL is not an address" in done.said["error"]


# Against servers that misbehave.


class Canned:
    """A server that gives prepared answers, one for each connection. None hangs up; a list is sent piece by piece."""

    def __init__(self, *answers: bytes | list[bytes] | None) -> None:
        self.requests: list[bytes] = []
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        for answer in self._answers:
            connection, _ = self._listener.accept()
            with connection:
                self.requests.append(_read_request(connection))
                if isinstance(answer, list):
                    self._trickle(connection, answer)
                elif answer is not None:
                    connection.sendall(answer)

    def _trickle(self, connection: socket.socket, pieces: list[bytes]) -> None:
        for piece in pieces:
            try:
                connection.sendall(piece)
            except OSError:
                return
            if self._ended.wait(0.02):
                return
        self._ended.wait(30)

    def close(self) -> None:
        self._ended.set()
        self._thread.join(10)
        self._listener.close()


def _read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65_536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split()[0])
    while len(body) < length:
        body += connection.recv(65_536)
    return head + b"\r\n\r\n" + body


@pytest.fixture
def canned() -> Iterator[Callable[..., Canned]]:
    """Makes servers with prepared answers."""
    made: list[Canned] = []

    def make(*answers: bytes | list[bytes] | None) -> Canned:
        made.append(Canned(*answers))
        return made[-1]

    yield make
    for each in made:
        each.close()


def http(status: int, body: bytes, *headers: str) -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status} Some Words", *headers, f"Content-Length: {len(body)}", "", ""])
    return head.encode() + body


def asked(server: Canned, verb: str = "acquire", seconds: float = 10.0) -> tuple[int, dict[str, object]]:
    """Ask in this process, with a time limit of our own."""
    environment = {"GATEWAY_URL": server.url, "SHUTDOWN_SECRET": "secret"}
    return commands.run(["a:b"], verb, environment, timed=True, seconds=seconds)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("status", "code"),
    [(200, 0), (409, 1), (404, 2), (403, 3), (400, 4), (503, 5), (502, 10), (504, 11), (500, 12)]
    + [(413, 4), (421, 4), (429, 3)]
    + [(status, 7) for status in (201, 204, 301, 302, 307, 401, 405, 410, 418)],
)
def test_every_status_has_its_exit_code(name: str, status: int, code: int, canned: Callable[..., Canned]) -> None:
    """The exit code follows the status; JSON is passed on as it is, and a redirect is never followed."""
    said = {"ok": status == 200, "reason": "x"}
    server = canned(http(status, json.dumps(said, indent=2).encode(), "Location: http://127.0.0.1:1/"))
    assert asked(server, VERBS[name]) == (code, said)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [200, 400, 403, 404, 409, 500, 502, 503, 504, 302])
@pytest.mark.parametrize("body", [b"<html>\nBad Gateway\n</html>", b"", b"\xff\xfe", b'{"ok":', b"[1]", b"null"])
def test_body_without_json_is_one_line(status: int, body: bytes, canned: Callable[..., Canned]) -> None:
    """What a proxy says instead of the gateway becomes one line of JSON; a 200 of that kind is 7, never success."""
    code, said = asked(canned(http(status, body)))
    assert code == (commands.EXIT.get(status, 7) or 7)
    assert said["ok"] is False and str(status) in str(said["error"])


def test_a_200_without_ok_is_no_success(canned: Callable[..., Canned]) -> None:
    """Success is said only when the gateway said it: `ok` must be true."""
    for body in (b"{}", b'{"ok":false}', b'{"ok":1}', b'{"ok":"true"}', b'{"status":"ok"}'):
        code, said = asked(canned(http(200, body)))
        assert code == 7 and said["ok"] is False


def test_an_error_without_ok_gets_one(canned: Callable[..., Canned]) -> None:
    """A refusal whose JSON lacks `ok` is printed with `ok: false`."""
    server = canned(http(403, b'{"error":"invalid secret"}'))
    assert asked(server) == (3, {"ok": False, "error": "invalid secret"})


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\n"
        + GRANTED[:5]
        + b"\r\n1a\r\n"
        + GRANTED[5:]
        + b"\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n" + GRANTED,
        b"HTTP/1.1 200\r\n\r\n" + GRANTED,
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + http(200, GRANTED),
        http(200, GRANTED) + b"HTTP/1.1 500 and more\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 31\n\n" + GRANTED,
    ],
)
def test_ways_to_say_how_long_an_answer_is(answer: bytes, canned: Callable[..., Canned]) -> None:
    """Chunks, a length or the end of the connection: an answer is read by whichever it has."""
    assert asked(canned(answer)) == (0, json.loads(GRANTED))


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 31\r\n\r\n" + GRANTED[:-1],
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1f\r\n" + GRANTED,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +31\r\n\r\n" + GRANTED,
        b"HTTP/1.1 2_0 OK\r\n\r\n" + GRANTED,
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n" + b" " * 1_100_000,
    ],
)
def test_an_answer_that_breaks_off_is_6(answer: bytes, canned: Callable[..., Canned]) -> None:
    """What is not a whole HTTP answer is none: 6, after one more try."""
    server = canned(answer, answer)
    with pytest.raises(minihttp.UnreachableError, match="may or may not have been done"):
        asked(server)
    assert len(server.requests) == 2


def test_a_lost_answer_is_asked_for_again(canned: Callable[..., Canned]) -> None:
    """C5: when the connection breaks the same request is sent once more, and its answer counts."""
    for verb in VERBS.values():
        server = canned(None, http(200, GRANTED))
        assert asked(server, verb) == (0, json.loads(GRANTED))
        assert server.requests[0] == server.requests[1], "the same request, with the same key if it has one"
        assert (b"idempotency-key: " in server.requests[0].lower()) == (verb == "release")


def test_release_with_unknown_outcome_is_reported(canned: Callable[..., Canned]) -> None:
    """A gateway that knows no keys may say "not found" to the second try of a release that the first one did."""
    for status, code in ((404, 2), (409, 1)):
        found = asked(canned(None, http(status, b'{"ok":false,"reason":"x"}')), "release")
        assert found[0] == code and found[1]["reason"] == "x" and "first try was lost" in str(found[1]["lost"])
    for verb in ("acquire", "heartbeat"):
        assert "lost" not in asked(canned(None, http(404, b'{"ok":false,"reason":"x"}')), verb)[1]


def test_a_lost_release_is_found_again(server: ServerProcess, run: Run) -> None:
    """C5: our server knows a release by its key, so the second try is told what the first one did."""
    key = resource()
    locked(run, key)
    answers: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        for is_lost in (True, False):
            connection, _ = listener.accept()
            with connection, socket.create_connection((server.host, server.port)) as upstream:
                upstream.sendall(_read_request(connection))
                answers.append(b"".join(iter(lambda: upstream.recv(65_536), b"")))
                if not is_lost:
                    connection.sendall(answers[-1])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        done = started("runlock", key, GATEWAY_URL=url, SHUTDOWN_SECRET=run.secret)
        thread.join(10)
    assert [b" 200 " in answer for answer in answers] == [True, True]
    assert done[:2] == (0, {"ok": True}) and not run.has(key)


def test_host_name_may_be_any_text(server: ServerProcess, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the machine makes the key of a release its own, and never stands in its way."""
    environment = {"GATEWAY_URL": server.url, "SHUTDOWN_SECRET": run.secret}
    for name in ("büro eins", "\udcff\r\nX: y", "x" * 64):
        key = resource()
        locked(run, key)
        monkeypatch.setattr(os, "uname", lambda name=name: SimpleNamespace(nodename=name))
        assert commands.run([key], "release", environment, timed=False) == (0, {"ok": True})


def test_unexpected_error_is_7(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever goes wrong inside is one line of JSON and exit 7: Python's own 1 would mean that another has it."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(commands, "run", fail)
    assert commands.main("rlock", "acquire", timed=True) == 7
    said = json.loads(capfd.readouterr().out)
    assert said["ok"] is False and said["error"].endswith("RuntimeError: no such thing")


def test_refused_connection_is_6() -> None:
    """A gateway that is not there is one line of JSON and exit 6."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for name in NAMES:
        done = started(name, "a:b", GATEWAY_URL=f"http://127.0.0.1:{port}", SHUTDOWN_SECRET="s")
        assert done.code == 6 and set(done.said) == {"ok", "error"} and done.said["ok"] is False
    done = started("rlock", "a:b", GATEWAY_URL="http://no-such-host.invalid", SHUTDOWN_SECRET="s")
    assert done.code == 6 and "no-such-host.invalid" in done.said["error"]


@pytest.mark.parametrize(
    "answer", [[b""], [b"HTTP/1.1 200 OK\r\n"], [b"HTTP/1.1 200 OK\r\nX: "] + [b"y"] * 5_000], ids=["", "head", "slow"]
)
def test_total_time_is_limited(answer: list[bytes], canned: Callable[..., Canned]) -> None:
    """The limit is for everything together: a server that hangs, or that sends a byte now and then, is left in time."""
    server = canned(answer)
    began = time.monotonic()
    with pytest.raises(minihttp.UnreachableError, match="no answer in time"):
        asked(server, seconds=0.3)
    assert 0.2 < time.monotonic() - began < 20
    assert len(server.requests) == 1, "no time was left for another try"


def test_hanging_lookup_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit holds for finding the address too, which nothing can interrupt."""
    ended = threading.Event()
    monkeypatch.setattr(_socket, "getaddrinfo", lambda *_: ended.wait(30) and [])
    environment = {"GATEWAY_URL": "http://slow.invalid", "SHUTDOWN_SECRET": "s"}
    with pytest.raises(minihttp.UnreachableError, match="in time"):
        commands.run(["a:b"], "acquire", environment, timed=True, seconds=0.2)
    ended.set()


def test_https_is_spoken_and_checked(canned: Callable[..., Canned]) -> None:
    """An https address that does not speak TLS gets no request, and so no secret."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        seen: list[bytes] = []

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                seen.append(connection.recv(65_536))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        done = started("rlock", "a:b", GATEWAY_URL=url, SHUTDOWN_SECRET="very-secret")
        thread.join(10)
    assert done.code == 6
    assert seen[0][:1] == b"\x16" and b"very-secret" not in seen[0], "the first byte of a TLS hello"


# What it costs, and what it shows.


def test_import_loads_few_modules() -> None:
    """The commands start on the standard library alone, and on little of that: counted, not timed."""
    listing = "import sys, holdfast.agents.rlock; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(_source())!r}); {listing}"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    heavy = {"asyncio", "click", "email", "holdfast.errors", "http", "inspect", "msgspec", "pathlib", "wcwidth"}
    heavy |= {"selectors", "socket", "ssl", "subprocess", "tempfile", "threading", "tomllib", "typing", "urllib"}
    heavy |= {"http.client", "urllib.parse", "dataclasses", "logging", "argparse", "encodings.idna"}
    assert loaded & heavy == set()
    ours = {name for name in loaded if name.startswith("holdfast")}
    assert ours == {
        "holdfast",
        "holdfast.agents",
        "holdfast.agents.rlock",
        "holdfast.client",
        "holdfast.client.minihttp",
    }


def _source() -> Path:
    return Path(commands.__file__).parents[2]


def test_the_secret_is_on_no_command_line(canned: Callable[..., Canned]) -> None:
    """While a command waits for its answer, no process of the machine shows the secret among its arguments."""
    secret = unique("very-secret")
    server = canned([b""])
    environment = {"PATH": os.environ["PATH"], "GATEWAY_URL": server.url, "SHUTDOWN_SECRET": secret}
    with subprocess.Popen([SCRIPTS / "rlock", "a:b"], env=environment, stdout=subprocess.PIPE) as process:
        wait_until(lambda: bool(server.requests))
        seen = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        process.kill()
    assert secret.encode() in server.requests[0]
    assert any(b"rlock" in line for line in seen)
    assert not any(secret.encode() in line for line in seen)


def test_a_closed_output_changes_no_exit_code(call: Callable[..., Done], server: ServerProcess, run: Run) -> None:
    """When nobody reads the line, the exit code still tells."""
    key = resource()
    environment = {"PATH": os.environ["PATH"], "GATEWAY_URL": server.url, "SHUTDOWN_SECRET": run.secret}
    done = subprocess.run(
        ["sh", "-c", f'"{SCRIPTS}/rlock" {key} >&-'], env=environment, check=False, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert run.has(key)
