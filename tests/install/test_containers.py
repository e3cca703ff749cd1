"""The compose file of the examples: what it says fits together, and works in namespaces of this machine."""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast.config import TABLE
from holdfast.config.sources import OTHER_VARIABLES
from tests.support import proof
from tests.support.checks import wait_until
from tests.support.compose import services_of
from tests.support.containers import Namespaces, Network, need_namespaces
from tests.support.installed import install
from tests.support.package import build, build_wheel
from tests.support.pages import ROOT
from tests.support.program import Program

FOLDER = ROOT / "examples" / "containers"
SERVICES = services_of(FOLDER / "compose.yaml")
WORKS = r"(\S+) works with fencing token (\d+)"


def test_the_services_fit_together() -> None:
    """Variables are known to the program, mounted files are there, and everybody waits for what it needs."""
    known = {row.variable for row in TABLE} | OTHER_VARIABLES
    for service in SERVICES.values():
        assert set(service.get("environment", {})) <= known
        build_of = service["build"]
        assert (FOLDER / build_of["context"]).resolve() == ROOT and (ROOT / build_of["dockerfile"]).is_file()
        for volume in service["volumes"]:
            source, target, *_ = volume.split(":")
            assert target.startswith("/") and (not source.startswith("./") or (FOLDER / source).is_file()), volume
        assert set(service.get("depends_on", {})) <= set(SERVICES)
    host = SERVICES["worker"]["environment"]["HOLDFAST_URL"]
    assert host == SERVICES["holdfast"]["environment"]["HOLDFAST_PUBLIC_URL"] == "https://holdfast:7420"
    assert SERVICES["worker"]["deploy"]["replicas"] == 2
    for name in ("holdfast", "worker"):
        locked = {key: SERVICES[name][key] for key in ("read_only", "tmpfs", "cap_drop", "security_opt")}
        assert locked == {
            "read_only": "true",
            "tmpfs": ["/tmp"],
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges:true"],
        }


def test_image_copies_existing_files() -> None:
    """The Dockerfile copies files of the checkout that its ignore file lets through, and installs with the locks."""
    text = (FOLDER / "Dockerfile").read_text()
    let_through = {
        line[1:] for line in (FOLDER / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    copied = {word for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE) for word in line.split()[:-1]}
    assert copied == let_through and all((ROOT / name).exists() for name in copied)
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["python:3.11-slim", "python:3.11-slim"]
    assert "--require-hashes -r requirements/image.txt" in text
    # A number: whoever checks that it is not root need not look into the image for the name.
    assert "\nUSER 10001\n" in text and "--uid 10001 " in text
    assert (
        'HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python", "/opt/holdfast/health.py"]' in text
    )


def test_image_contains_the_package_sources(tmp_path: Path) -> None:
    """From what the Dockerfile copies, with links as they are, the package is built: the skill is in it too."""
    text = (FOLDER / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        *names, to = line.split()
        if to.startswith("/"):
            continue
        for name in names:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, tmp_path / to, symlinks=True, ignore=ignored)
            else:
                (tmp_path / to).mkdir(exist_ok=True)
                shutil.copy(ROOT / name, tmp_path / to)
    wheel = build_wheel(tmp_path, tmp_path / "dist")
    with zipfile.ZipFile(wheel) as made:
        assert made.read("holdfast/agents/skill/holdfast/SKILL.md") == (ROOT / "skills/holdfast/SKILL.md").read_bytes()


class Composition:
    """The services of the compose file, started as an engine would: their commands, variables, files and names."""

    def __init__(self, folder: Path, network: Network, stack: ExitStack) -> None:
        self.folder = folder
        wheel, _ = build(ROOT, folder / "dist")
        self._path = f"{install(wheel, folder / 'env')}:{os.environ['PATH']}"
        self.containers: dict[str, Namespaces] = {}
        for name, service in (("prepare", "prepare"), ("holdfast", "holdfast"), ("w-1", "worker"), ("w-2", "worker")):
            volumes = [self._volume(each) for each in SERVICES[service]["volumes"]]
            self.containers[name] = stack.enter_context(network.container(name, volumes))
        network.name_each_other(folder, list(self.containers.values()))

    def _volume(self, written: str) -> tuple[Path, str]:
        source, target, *_ = written.split(":")
        if source.startswith("./"):
            return FOLDER / source, target
        (self.folder / source).mkdir(exist_ok=True, mode=0o700)
        return self.folder / source, target

    def env(self, service: str, **more: str) -> dict[str, str]:
        fixed = {"PATH": self._path, "HOLDFAST_DATA": "/var/lib/holdfast", "HOME": "/var/lib", "OWNER": "root"}
        given: dict[str, str] = SERVICES[service].get("environment", {})
        return fixed | given | more

    def start(self, name: str, service: str, **more: str) -> Program:
        command = self.containers[name].inside(*SERVICES[service]["command"])
        return Program(command, env=self.env(service, **more), folder=self.folder)

    def do(self, name: str, service: str, *command: object, **more: str) -> Any:  # noqa: ANN401 - a finished process
        return self.containers[name].do(*command, env=self.env(service, **more))


@pytest.fixture
def composition(tmp_path: Path) -> Iterator[Composition]:
    if not proof.count("containers: turns of the workers"):
        pytest.skip("only in `make prove`")
    need_namespaces()
    with ExitStack() as stack:
        yield Composition(tmp_path, stack.enter_context(Network()), stack)


def test_two_workers_in_containers_of_their_own(composition: Composition) -> None:
    """Each in its own network, over TLS, with a CA of one's own, two workers take turns, and tokens rise. The backup of
    the server is restored, workers go on by themselves, and tokens go on beyond all before.
    """
    turns = proof.count("containers: turns of the workers")
    with composition.start("prepare", "prepare") as prepare:
        assert prepare.ended() == 0, prepare.output
    health = SERVICES["holdfast"]["healthcheck"]["test"][1:]
    with ExitStack() as stack:
        server = stack.enter_context(composition.start("holdfast", "holdfast"))
        wait_until(lambda: composition.do("holdfast", "holdfast", *health).returncode == 0, seconds_max=60)
        assert "Clients elsewhere use https://holdfast:7420" in server.output
        workers = [stack.enter_context(composition.start(name, "worker")) for name in ("w-1", "w-2")]
        said = [worker.said(WORKS, times=turns, seconds_max=60 + 10 * turns) for worker in workers]
        assert {each[1] for each in said[0]} == {"w-1"} and {each[1] for each in said[1]} == {"w-2"}
        tokens = [[int(each[2]) for each in found] for found in said]
        assert all(each == sorted(set(each)) for each in tokens) and not set(tokens[0]) & set(tokens[1])
        inside = ["holdfast", "session", "exec", "run", "--", "sh", "-c", "echo $GATEWAY_URL; rlock a:b"]
        run = composition.do("w-1", "worker", *inside)
        assert run.returncode == 0 and run.stdout.startswith("https://holdfast:7420\n"), run
        away = composition.do("w-1", "worker", "holdfast", "jobs", HOLDFAST_CA_FILE="", SSL_CERT_FILE="/dev/null")
        assert away.returncode == 69 and "not trusted" in away.stderr, away

        saved = composition.do("holdfast", "holdfast", "holdfast", "backup", "/run/secrets/server/all.backup")
        assert saved.returncode == 0, saved
        server.process.terminate()
        assert server.ended() == 0, server.output
        restored = ["holdfast", "restore", "/run/secrets/server/all.backup", "--data", "/var/lib/holdfast/restored"]
        done = composition.do("holdfast", "holdfast", *restored)
        assert done.returncode == 0, done
        again = composition.start("holdfast", "holdfast", HOLDFAST_DATA="/var/lib/holdfast/restored")
        stack.enter_context(again)
        for worker in workers:
            worker.said(r"works with fencing token \d{10,}", seconds_max=120)
        assert composition.do("holdfast", "holdfast", *health).returncode == 0
        for worker in workers:
            os.kill(worker.pid, 15)
            assert worker.ended() == 0, worker.output
        assert "example/deploy" not in composition.do("holdfast", "holdfast", "holdfast", "jobs").stdout
