"""A container's worth of separation, without an engine: namespaces for the network, the mounts and the host's name.

The law of this file: what is made here is gone when the process that holds it is, and that one is ended here. It needs
root, `unshare`, `nsenter` and `ip`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

NETWORK = "10.77.0"
TOOLS = ("unshare", "nsenter", "ip", "mount", "openssl")


def need_namespaces() -> None:
    """Skip the test where namespaces cannot be made."""
    if os.geteuid() != 0:
        pytest.skip("only root can make such namespaces")
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"not installed here: {missing}")


class Namespaces:
    """A process that holds namespaces open, and commands that run in them."""

    def __init__(self, name: str, *kinds: str) -> None:
        self.name = name
        flags = ["--net", "--mount", "--uts", "--propagation", "private"] if not kinds else list(kinds)
        self.process = subprocess.Popen(
            ["unshare", *flags, "sh", "-c", "echo ready; exec sleep infinity"], stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def inside(self, *command: object) -> list[str]:
        """Return a command line that runs this one inside."""
        enter = ["nsenter", "--target", str(self.process.pid), "--net", "--mount", "--uts", "--"]
        return [*enter, *(str(word) for word in command)]

    def do(self, *command: object, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command inside and wait for it."""
        return subprocess.run(self.inside(*command), env=env, capture_output=True, text=True, timeout=60, check=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Network(Namespaces):
    """A switch of its own that containers are plugged into. Nothing leads from it to this machine or anywhere else."""

    def __init__(self) -> None:
        super().__init__("switch")
        self._hosts: dict[str, str] = {}
        for words in ("link add switch type bridge", "link set switch up", "link set lo up"):
            _check(self.do("ip", *words.split()))

    def container(self, name: str, volumes: Sequence[tuple[Path, str]]) -> Namespaces:
        """Make a container with a name and an address of its own. Volumes: a file or folder, and where it is seen."""
        made = Namespaces(name)
        number = len(self._hosts) + 2
        self._hosts[name] = f"{NETWORK}.{number}"
        cable = f"cable{number}"
        _check(self.do("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", made.process.pid))
        _check(self.do("ip", "link", "set", cable, "master", "switch", "up"))
        steps = [
            ["ip", "addr", "add", f"{NETWORK}.{number}/24", "dev", "eth0"],
            ["ip", "link", "set", "eth0", "up"],
            ["ip", "link", "set", "lo", "up"],
            ["hostname", name],
            # The container's own: what the host has there is not seen.
            *(["mount", "-t", "tmpfs", "tmpfs", path] for path in ("/run", "/var/lib")),
        ]
        for source, target in volumes:
            steps.append(["mkdir", "-p", str(Path(target).parent if source.is_file() else target)])
            steps += [["touch", target]] if source.is_file() else []
            steps.append(["mount", "--bind", str(source), target])
        for step in steps:
            _check(made.do(*step))
        return made

    def name_each_other(self, folder: Path, containers: Sequence[Namespaces]) -> None:
        """Let every container know the names of all of them."""
        hosts = folder / "hosts"
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{at} {name}\n" for name, at in self._hosts.items()))
        for each in containers:
            _check(each.do("mount", "--bind", hosts, "/etc/hosts"))


def _check(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, f"{done.args}: {done.stdout}{done.stderr}"
