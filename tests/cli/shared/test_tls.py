"""Commands and TLS: a private certificate, another name, the wrong scheme. Nobody is told to start what runs."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import callers
from tests.support.server import ServerProcess

Run = Callable[..., subprocess.CompletedProcess[str]]

RLOCK = Path(sysconfig.get_path("scripts")) / "rlock"


@pytest.fixture
def asked(holdfast: Run) -> Callable[..., None]:
    """Asks for a server by `jobs` and `doctor`: both fail with 69 and say what is wrong and what to do."""

    def ask(url: str, problem: str, hint: str, **environment: str) -> None:
        known = {"HOLDFAST_URL": url, "HOLDFAST_TOKEN": callers.ALICE, **environment}
        for command, between in (("jobs", "; "), ("doctor", " (the address is from HOLDFAST_URL) -> ")):
            done = holdfast(command, **known)
            assert done.returncode == 69, done
            assert f"{problem}{between}{hint}" in done.stdout + done.stderr
            assert "holdfast serve" not in done.stdout + done.stderr

    return ask


def test_untrusted_certificate_is_refused(secured: ServerProcess, asked: Callable[..., None]) -> None:
    """A self-signed certificate is not trusted, and the way out is HOLDFAST_CA_FILE."""
    asked(secured.url, "its certificate is not trusted (self-signed certificate)", "name a file with its CA's")


def test_a_certificate_that_is_named(secured: ServerProcess, pem: Path, holdfast: Run) -> None:
    """With HOLDFAST_CA_FILE all is well: what the hint says helps. SSL_CERT_FILE does too."""
    for variable in ("HOLDFAST_CA_FILE", "SSL_CERT_FILE"):
        known = {"HOLDFAST_URL": secured.url, "HOLDFAST_TOKEN": callers.ALICE, variable: str(pem)}
        assert holdfast("jobs", **known).returncode == 0
        assert holdfast("doctor", **known).returncode == 0


def test_a_certificate_for_another_name(secured: ServerProcess, pem: Path, asked: Callable[..., None]) -> None:
    """A trusted certificate of another name is said to be that."""
    problem = "its certificate is for another name (Hostname mismatch, certificate is not valid for 'localhost')"
    asked(f"https://localhost:{secured.port}", problem, "use the name that is in", SSL_CERT_FILE=str(pem))


def test_the_wrong_scheme(secured: ServerProcess, server: ServerProcess, asked: Callable[..., None]) -> None:
    """https to a server of plain HTTP, and http to one of TLS, are asked whether that is meant."""
    asked(f"https://127.0.0.1:{server.port}", "the encrypted connection failed (wrong version number)", "what answers")
    asked(f"http://127.0.0.1:{secured.port}", "the connection broke", "does it speak https? Then write https://")


def test_rlock_says_the_same(secured: ServerProcess) -> None:
    """`rlock` is 6, with the same words."""
    environment = {"PATH": os.environ["PATH"], "GATEWAY_URL": secured.url, "SHUTDOWN_SECRET": "s"}
    done = subprocess.run([RLOCK, "a:b"], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 6
    assert "its certificate is not trusted (self-signed certificate); name a file with its CA's" in done.stdout


def test_an_own_ca_is_named_on_the_command_line(secured: ServerProcess, pem: Path, holdfast: Run) -> None:
    """`--ca-file` helps every command that asks a server, and what runs inside `run` and `session exec` has it too."""
    known = {"HOLDFAST_URL": secured.url, "HOLDFAST_TOKEN": callers.ALICE}
    for command in (["jobs"], ["doctor"], ["session", "list"], ["token", "list"]):
        done = holdfast(*command, "--ca-file", pem, **known)
        assert done.returncode in {0, 77} and "not trusted" not in done.stdout + done.stderr, done
    inner = ["--", sys.executable, "-m", "holdfast", "note", "own-ca", "half done"]
    assert holdfast("run", "own-ca", "--ca-file", pem, *inner, **known).returncode == 0
    inner = ["--", "sh", "-c", f"{RLOCK} own:ca && {sys.executable} -m holdfast jobs"]
    assert holdfast("session", "exec", "own-ca", "--ca-file", pem, *inner, **known).returncode == 0
    done = holdfast("jobs", "--ca-file", pem.parent / "none.pem", **known)
    assert done.returncode == 64 and "none.pem" in done.stderr


def test_rlock_knows_an_own_ca(secured: ServerProcess, pem: Path, tmp_path: Path) -> None:
    """`rlock` takes `--ca-file`, HOLDFAST_CA_FILE and the `ca_file` of client.toml, and says which one is not there."""
    path = {"PATH": os.environ["PATH"], "SHUTDOWN_SECRET": "wrong", "XDG_CONFIG_HOME": str(tmp_path)}

    def asked(*arguments: str, **environment: str) -> tuple[int, str]:
        command = [str(RLOCK), "a:b", *arguments]
        done = subprocess.run(command, env=path | environment, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout

    for url in ({"GATEWAY_URL": secured.url}, {"HOLDFAST_URL": secured.url}):
        assert asked("--ca-file", str(pem), **url)[0] == 3  # The server was reached, and does not know the secret.
        assert asked(f"--ca-file={pem}", HOLDFAST_CA_FILE="/none", **url)[0] == 3
        assert asked(HOLDFAST_CA_FILE=str(pem), **url)[0] == 3
        assert asked(**url)[0] == 6
        code, said = asked(HOLDFAST_CA_FILE="/none.pem", **url)
        assert code == 6 and "the CA file /none.pem cannot be used: no such file" in said
    assert asked("--ca-file", GATEWAY_URL=secured.url)[0] == 9
    (tmp_path / "holdfast").mkdir()
    (tmp_path / "holdfast" / "ours.pem").write_bytes(pem.read_bytes())
    (tmp_path / "holdfast" / "client.toml").write_text(f'url = "{secured.url}"\nca_file = "ours.pem"\n')
    assert asked()[0] == 3


def test_plain_http_to_another_machine_is_warned_about(holdfast: Run) -> None:
    """Without a word it is refused with 64. With the flag or the variable it is tried, and said on standard error."""
    known = {"HOLDFAST_URL": "http://holdfast.invalid:7420", "HOLDFAST_TOKEN": callers.ALICE}
    refused = holdfast("jobs", **known)
    assert refused.returncode == 64 and "HOLDFAST_ALLOW_INSECURE_HTTP=1" in refused.stderr
    flag = [sys.executable, "-m", "holdfast", "jobs", "--allow-insecure-http"]
    clean = {"PATH": os.environ["PATH"], **known}
    done = subprocess.run(flag, env=clean, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 69 and done.stderr.count("unencrypted") == 1, done
    clean |= {"SHUTDOWN_SECRET": "s"}
    for more in ({"HOLDFAST_ALLOW_INSECURE_HTTP": "1"}, {}):
        done = subprocess.run([RLOCK, "a:b"], env=clean | more, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 6 and ("cannot find the address" in done.stdout) == bool(more), done
        assert ("unencrypted" in done.stderr) == bool(more)
    del clean["HOLDFAST_URL"]
    clean["GATEWAY_URL"] = "http://holdfast.invalid:7420"
    done = subprocess.run([RLOCK, "a:b"], env=clean, capture_output=True, text=True, timeout=60, check=False)
    assert "holdfast.invalid (GATEWAY_URL, in a session the public_url of the server): " in done.stdout, done
    assert "Errno" not in done.stdout
