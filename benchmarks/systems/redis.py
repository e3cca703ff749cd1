"""Redis with an fsync before every answer."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from benchmarks.load.tools import RedisPress
from benchmarks.systems.base import System, Tools, find_program
from benchmarks.systems.process import Child, StartError, output_of

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.load.tools import Load


class Redis(System):
    """Redis with an fsync before every answer: `SET name token NX PX ttl`, the usual Redis lock."""

    key = "redis"
    title = "Redis, appendfsync always"
    how_to_get = "apt install redis-server redis-tools"

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._runs = 0

    def missing(self) -> str | None:
        absent = [tool for tool in ("redis-server", "redis-benchmark") if not find_program(tool)]
        return f"no `{'`, no `'.join(absent)}` on the PATH" if absent else None

    def version(self) -> str:
        words = output_of(find_program("redis-server") or "redis-server", "--version").split()
        return next((word[2:] for word in words if word.startswith("v=")), "version unknown")

    def press(self, *, connections: int, seconds: int) -> Load:
        return self._tool().for_seconds(self._next_prefix(), connections=connections, seconds=seconds)

    def press_exactly(self, count: int, *, connections: int = 1) -> Load:
        return self._tool().exactly(self._next_prefix(), connections=connections, requests=count)

    def _launch(self, folder: Path) -> Child:
        command = [find_program("redis-server") or "redis-server", "--bind", "127.0.0.1", "--port", str(self.port)]
        command += ["--dir", str(folder), "--save", "", "--appendonly", "yes"]
        command += ["--appendfsync", "always"]
        return Child(command, log=folder / "log")

    def _is_ready(self) -> bool:
        try:
            return self._ask("PING") == "+PONG"
        except OSError:
            return False

    def _prepare(self) -> None:
        # Asked back, because a Redis that answers before its fsync would be another contest.
        if "always" not in self._ask("CONFIG GET appendfsync"):
            raise StartError("it did not take `appendfsync always`")

    def _keys_now(self) -> int:
        return int(self._ask("DBSIZE").removeprefix(":"))

    def _ask(self, command: str) -> str:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as wire:
            wire.sendall(command.encode() + b"\r\n")
            return wire.recv(4096).decode().strip()

    def _tool(self) -> RedisPress:
        return RedisPress(self.tools.redis_benchmark or "redis-benchmark", self.port, self._keys_now)

    def _next_prefix(self) -> str:
        self._runs += 1
        return f"{self._runs:03d}"
