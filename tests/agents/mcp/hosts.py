"""Hosts of agents: the official client of the SDK, over a pipe to `holdfast mcp`, and over HTTP to a server's `/mcp`.

The law of this file: every process that is started here has a home, a state and a configuration of its own, and is
gone at the end of its test.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx2
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from tests.support import callers
from tests.support.checks import wait_until
from tests.support.server import ServerProcess

SECONDS_MAX = 90
TTL = 10
"""The shortest that a session lives; so long a killed process keeps its jobs."""


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test, with a bound."""
    asyncio.run(asyncio.wait_for(test, SECONDS_MAX))


class Agent:
    """A model at its host: calls tools, and reads what they answer."""

    def __init__(self, client: Client, session: str | None = None) -> None:
        self.client = client
        self.session = session
        """Over HTTP: what it passes with each call."""

    async def call(self, tool: str, **arguments: object) -> dict[str, Any]:
        """Call a tool that must answer with a result, which the SDK compares with the tool's schema."""
        if self.session is not None:
            arguments.setdefault("session", self.session)
        answered = await self.client.call_tool(tool, arguments)
        assert not answered.is_error, answered.content
        assert answered.structured_content is not None
        result: dict[str, Any] = answered.structured_content
        self.session = result.get("session", self.session)
        return result

    async def until(self, field: str, tool: str, **arguments: object) -> dict[str, Any]:
        """Call a tool until its result has a field: what happens elsewhere takes up to a second to come here (L9)."""
        for _ in range(200):
            result = await self.call(tool, **arguments)
            if field in result:
                return result
            await asyncio.sleep(0.05)
        raise AssertionError(f"{tool} never told {field}")

    async def error(self, tool: str, **arguments: object) -> str:
        """Call a tool that must answer with an error, and return its text."""
        answered = await self.client.call_tool(tool, arguments)
        assert answered.is_error, answered.structured_content
        return "\n".join(part.text for part in answered.content if part.type == "text")


class Home:
    """Where the hosts of one test live, and how their tools reach the server."""

    def __init__(self, folder: Path, server: ServerProcess, token: str = callers.ALICE, ttl: int = TTL) -> None:
        self.folder = folder
        self.server = server
        self.token = token
        self.ttl = ttl
        """Longer, where what a killed process left must live until another one has begun."""

    def parameters(self, owner: str | None) -> StdioServerParameters:
        """How a host starts the tools of an agent."""
        named = ["--owner", owner] if owner else []
        return StdioServerParameters(
            command=sys.executable,
            args=["-m", "holdfast", "mcp", *named, "--ttl", f"{self.ttl}s"],
            env={
                "HOLDFAST_URL": self.server.url,
                "PYTHONWARNINGS": "default::ResourceWarning",
                "HOLDFAST_TOKEN": self.token,
                "HOME": str(self.folder),
                "XDG_STATE_HOME": str(self.folder / "state"),
                "XDG_CONFIG_HOME": str(self.folder / "config"),
            },
        )

    @contextlib.asynccontextmanager
    async def host(self, owner: str | None, *, mode: str = "auto") -> AsyncIterator[Agent]:
        """A host that lives for as long as the block, and then closes the input of what it has started.

        What that said on standard error must be nothing that went wrong unseen.
        """
        said = self.folder / "standard-error"
        with said.open("a") as errors:
            async with Client(stdio_client(self.parameters(owner), errlog=errors), mode=mode) as client:
                yield Agent(client)
        text = said.read_text()
        assert "Traceback" not in text and "never" not in text and "Warning" not in text, text

    @contextlib.asynccontextmanager
    async def web(self, *, mode: str = "auto", token: str | None = None, **headers: str) -> AsyncIterator[Agent]:
        """A host that asks the server's `/mcp`."""
        headers = {"Authorization": f"Bearer {token or self.token}", **headers}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(streamable_http_client(f"{self.server.url}/mcp", http_client=http), mode=mode) as client,
        ):
            yield Agent(client)

    def process_of(self, owner: str) -> int:
        """Return the id of the one process that serves the tools of an owner."""
        found = list(_processes(["--owner", owner], str(self.folder)))
        assert len(found) == 1, f"{owner} has {len(found)} processes"
        return found[0]

    def kill(self, owner: str) -> None:
        """End the process of an owner without warning."""
        pid = self.process_of(owner)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not list(_processes(["--owner", owner], str(self.folder))))


def _processes(words: list[str], home: str) -> Iterator[int]:
    """Our own processes with these words in their command line, and this home."""
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (each / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            if "mcp" not in line or not any(line[at : at + len(words)] == words for at in range(len(line))):
                continue
            if f"HOME={home}" in (each / "environ").read_bytes().decode("utf-8", "replace").split("\0"):
                yield int(each.name)
