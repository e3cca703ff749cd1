"""Commands and TLS: a private certificate, another name, the wrong scheme. Nobody is told to start what runs."""

from __future__ import annotations

import os
import subprocess
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


def test_a_certificate_that_nobody_vouches_for(secured: ServerProcess, asked: Callable[..., None]) -> None:
    """A self-signed certificate is not trusted, and the way out is SSL_CERT_FILE."""
    asked(secured.url, "its certificate is not trusted (self-signed certificate)", "name a file with its CA's")


def test_a_certificate_that_is_named(secured: ServerProcess, pem: Path, holdfast: Run) -> None:
    """With SSL_CERT_FILE all is well: what the hint says helps."""
    known = {"HOLDFAST_URL": secured.url, "HOLDFAST_TOKEN": callers.ALICE, "SSL_CERT_FILE": str(pem)}
    assert holdfast("jobs", **known).returncode == 0
    assert holdfast("doctor", **known).returncode == 0


def test_a_certificate_for_another_name(secured: ServerProcess, pem: Path, asked: Callable[..., None]) -> None:
    """A trusted certificate of another name is said to be that."""
    problem = "its certificate is for another name (Hostname mismatch, certificate is not valid for 'localhost')"
    asked(f"https://localhost:{secured.port}", problem, "use the name that is in", SSL_CERT_FILE=str(pem))


def test_the_wrong_scheme(secured: ServerProcess, server: ServerProcess, asked: Callable[..., None]) -> None:
    """https to a server of plain HTTP, and http to one of TLS, are asked whether that is meant."""
    asked(f"https://127.0.0.1:{server.port}", "the encrypted connection failed (wrong version number)", "does it speak")
    asked(f"http://127.0.0.1:{secured.port}", "the connection broke", "does it speak https? Then write https://")


def test_rlock_says_the_same(secured: ServerProcess) -> None:
    """`rlock` is 6, with the same words."""
    environment = {"PATH": os.environ["PATH"], "GATEWAY_URL": secured.url, "SHUTDOWN_SECRET": "s"}
    done = subprocess.run([RLOCK, "a:b"], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 6
    assert "its certificate is not trusted (self-signed certificate); name a file with its CA's" in done.stdout
