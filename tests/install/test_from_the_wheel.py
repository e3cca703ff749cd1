"""From an empty folder with only the built wheel: install, serve with TLS, claim, back up, restore, doctor."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.installed import install
from tests.support.package import build
from tests.support.pages import ROOT
from tests.support.program import Program

PREPARE = ROOT / "examples" / "containers" / "prepare.sh"
TOKEN_GAP = 2**32


def own_address() -> str:
    """An address of this machine that is not loopback; where there is none, a second one that is."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as request:
        try:
            request.connect(("203.0.113.1", 9))  # Nothing is sent: the kernel only chooses where it would go out.
        except OSError:
            return "127.0.0.2"
        address: str = request.getsockname()[0]
        return address


class Installation:
    """An empty folder with the wheel installed in it, and the environment of somebody who has nothing else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        wheel, _ = build(ROOT, folder / "dist")
        self.bin = install(wheel, folder / "env")
        self.base = {"PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": str(folder)}

    def run(self, *command: object, **env: str) -> subprocess.CompletedProcess[str]:
        words = [str(word) for word in command]
        return subprocess.run(
            words, cwd=self.folder, env=self.base | env, capture_output=True, text=True, timeout=60, check=False
        )

    @contextmanager
    def serving(self, port: int, data: str) -> Iterator[tuple[Program, int]]:
        """Serve on all addresses, over TLS; port 0 takes any, and says which."""
        command = ["holdfast", "serve", "--listen", f"0.0.0.0:{port}", "--data", data]
        command += ["--tls-cert", "server/cert.pem", "--tls-key", "server/key.pem"]
        env = self.base | {"HOLDFAST_TOKENS_FILE": "server/tokens"}
        with Program([self.bin / command[0], *command[1:]], env=env, folder=self.folder) as server:
            [found] = server.said(r"listening on https://0\.0\.0\.0:(\d+)")
            yield server, int(found[1])


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation(tmp_path_factory.mktemp("empty"))


def test_wheel_declares_its_dependencies(installation: Installation) -> None:
    """What is installed is the wheel and what it declares: nothing of the checkout, nothing for tests."""
    where = installation.run("python", "-P", "-c", "import holdfast; print(holdfast.__file__)")
    assert where.stdout.startswith(str(installation.folder / "env")), where
    assert installation.run("python", "-c", "import pytest").returncode == 1
    assert installation.run("python", "-c", "import aiohttp").returncode == 1
    lacking = installation.run("python", "-P", "-c", "import holdfast; holdfast.AsyncHoldfast('http://127.0.0.1:1')")
    assert f"pip --python {installation.bin / 'python'} install 'WHEEL[async]'" in lacking.stderr
    shown = installation.run("holdfast", "--version")
    version = installation.run(
        "python", "-c", "from importlib.metadata import version as v; print(v('holdfast-jobs'))"
    ).stdout
    assert version.strip() in shown.stdout
    assert {each.name for each in installation.bin.iterdir()} >= {"holdfast", "rlock", "runlock", "rlock-heartbeat"}


def test_the_wheel_has_the_skill(installation: Installation) -> None:
    """It can be shown, put in place and taken away without the checkout, from the wheel alone."""
    text = (ROOT / "skills" / "holdfast" / "SKILL.md").read_text(encoding="utf-8")
    assert installation.run("holdfast", "skill", "show").stdout == text
    (installation.folder / "project").mkdir()
    for command in ("install", "uninstall"):
        done = installation.run("holdfast", "skill", command, "--for", "codex", "--hooks", "--dir", "project")
        assert done.returncode == 0, done.stderr
        put = installation.folder / "project/.agents/skills/holdfast/SKILL.md"
        assert put.exists() == (command == "install")
    assert list((installation.folder / "project").iterdir()) == []


def test_installed_package_works_over_two_addresses(installation: Installation) -> None:
    """Two workers claim over TLS, by two addresses of this machine; the backup is restored, and tokens go on beyond."""
    addresses = ["127.0.0.1", own_address()]
    names = ",".join(f"IP:{address}" for address in addresses)
    made = installation.run("sh", PREPARE, "server", "workers", OWNER=str(os.getuid()), NAMES=names)
    assert made.returncode == 0, made.stderr

    def by(number: int, port: int, token: str = "workers/worker.token") -> dict[str, str]:
        return {
            "HOLDFAST_URL": f"https://{addresses[number]}:{port}",
            "HOLDFAST_CA_FILE": "workers/ca.pem",
            "HOLDFAST_TOKEN_FILE": token,
            "XDG_STATE_HOME": str(installation.folder / f"state-{number}"),
        }

    with installation.serving(0, "data") as (server, port):
        one, two, admin = by(0, port), by(1, port), by(0, port, "server/admin.token")
        first = installation.run("holdfast", "claim", "deploy", "--owner", "one", "--ttl", "10m", "--json", **one)
        assert first.returncode == 0, first
        token = json.loads(first.stdout)["fencing_token"]
        held = installation.run("holdfast", "claim", "deploy", "--owner", "two", **two)
        assert held.returncode == 1 and "one" in held.stderr + held.stdout, held
        with Program(
            [
                installation.bin / "holdfast",
                "run",
                "deploy",
                "--owner",
                "two",
                "--",
                "sh",
                "-c",
                "echo token=$HOLDFAST_FENCING_TOKEN",
            ],
            env=installation.base | two,
            folder=installation.folder,
        ) as waiting:
            waiting.said("in line")
            assert installation.run("holdfast", "release", "deploy", **one).returncode == 0
            [after] = waiting.said(r"token=(\d+)")
            assert int(after[1]) > token and waiting.ended() == 0
        inside = ["--", "sh", "-c", "rlock github://acme/app && runlock github://acme/app"]
        assert installation.run("holdfast", "session", "exec", "run", *inside, **two).returncode == 0
        stored = installation.run("holdfast", "claim", "kept", "--owner", "one", "--ttl", "10m", "--json", **one)
        assert stored.returncode == 0, stored
        assert installation.run("holdfast", "doctor", **admin).returncode == 0
        assert installation.run("holdfast", "backup", "all.backup", **one).returncode == 77, "workers are no operators"
        saved = installation.run("holdfast", "backup", "all.backup", **admin)
        assert saved.returncode == 0, saved
        server.process.terminate()
        assert server.ended() == 0

    assert installation.run("holdfast", "doctor", "--data", "data").returncode == 0
    restored = installation.run("holdfast", "restore", "all.backup", "--data", "data-2")
    assert restored.returncode == 0, restored
    assert installation.run("holdfast", "doctor", "--data", "data-2").returncode == 0
    with installation.serving(port, "data-2"):
        assert installation.run("holdfast", "doctor", **admin).returncode == 0
        owner = installation.run("holdfast", "owner", "kept", **two)
        assert "one" in owner.stdout, owner
        assert installation.run("holdfast", "heartbeat", "kept", **one).returncode == 0
        again = installation.run("holdfast", "claim", "deploy", "--json", **two)
        assert json.loads(again.stdout)["fencing_token"] > TOKEN_GAP, again
