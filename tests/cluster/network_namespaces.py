"""Nodes that each have a network of their own, with a cable to one switch: cuts as between machines. It needs root.

The law of this file: what is made here is gone at the end of the block. Clients and the store are on this machine, at
the switch; a node reaches them, and the other nodes, over its cable. A cut loses every packet without a word, in one
direction: that is enough for TCP to pass nothing.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from types import TracebackType
from typing import Self

from tests.support.containers import Namespaces, need_namespaces

NETWORK = "10.98"
NOBODY = "02:00:00:00:00:01"
"""An address that no card has: what is sent there is lost."""


class Spaces:
    """A switch on this machine, and a node's network for each number from 1 on."""

    def __init__(self, count: int) -> None:
        need_namespaces()
        self._network = f"{NETWORK}.{os.getpid() % 250}"
        self._switch = f"hf{os.getpid()}"
        self._stack = contextlib.ExitStack()
        self._count = count
        self._spaces: list[Namespaces] = []

    @property
    def here(self) -> str:
        """The address of this machine at the switch."""
        return f"{self._network}.254"

    @property
    def subnet(self) -> str:
        return f"{self._network}.0/24"

    def address(self, number: int) -> str:
        return f"{self._network}.{number}"

    def __enter__(self) -> Self:
        _ip("link", "add", self._switch, "type", "bridge")
        self._stack.callback(_ip, "link", "del", self._switch)
        _ip("addr", "add", f"{self.here}/24", "dev", self._switch)
        _ip("link", "set", self._switch, "up")
        for number in range(1, self._count + 1):
            space = self._stack.enter_context(Namespaces(f"space-{number}", "--net"))
            self._spaces.append(space)
            cable = f"{self._switch}c{number}"
            _ip("link", "add", cable, "type", "veth", "peer", "name", "e0", "netns", str(space.process.pid))
            _ip("link", "set", cable, "master", self._switch, "up")
            for words in (f"addr add {self.address(number)}/24 dev e0", "link set e0 up", "link set lo up"):
                self._inside(number, *words.split())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def wrapper(self, number: int) -> list[str]:
        """What to put before a command that is to run in a node's network."""
        return self._spaces[number - 1].inside()

    def cut(self, number: int, address: str) -> None:
        """Lose all that a node sends to an address."""
        self._inside(number, "neigh", "replace", address, "lladdr", NOBODY, "dev", "e0", "nud", "permanent")

    def restore(self, number: int, address: str) -> None:
        """Let it find its way again."""
        self._inside(number, "neigh", "del", address, "dev", "e0")

    def _inside(self, number: int, *words: str) -> None:
        done = self._spaces[number - 1].do("ip", *words)
        assert done.returncode == 0, f"ip {words}: {done.stderr}"


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {words}: {done.stderr}"
