"""The world of the demonstration: a real server with two access tokens, a ledger, and a way to run commands.

Everything it writes is below the folder of its server, which goes with it, however this process ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from examples.demo.backlog import ISSUES, RESOURCES
from examples.demo.ledger import Ledger
from examples.demo.proof import Event, Evidence
from holdfast.testing import server

PROJECT = Path(__file__).resolve().parents[2]
HISTORY_MAX = 1_000
COMMAND_SECONDS_MAX = 30.0


class World:
    """What there is before the first agent is started. Closing `stack` ends it."""

    def __init__(self, stack: ExitStack) -> None:
        self._server = stack.enter_context(server())
        self.folder = self._server.data.parent / "world"
        self.folder.mkdir()
        admin = self._server.client()
        self._tokens = {
            "agents": admin.create_token("agents", scopes=["read", "claim"]).token,
            "operator": admin.create_token("operator", scopes=["read", "admin"]).token,
        }
        self.ledger = Ledger(self.folder / "ledger.sqlite3")
        self.ledger.create()

    @property
    def url(self) -> str:
        return self._server.url

    def env(self, token: str) -> dict[str, str]:
        """The environment of whoever has this access token."""
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        paths = f"{PROJECT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep)
        return self._server.env(HOLDFAST_TOKEN=self._tokens[token], PATH=programs, PYTHONPATH=paths)

    def run(self, command: Sequence[str], token: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            command,
            env=self.env(token),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS_MAX,
            start_new_session=True,  # Ctrl-C is for us; this ends by itself.
        )

    def evidence(self) -> Evidence:
        """Read all that the proof is made of."""
        client = self._server.client()
        journal = {
            job: [
                Event(happened.seq, happened.event, happened.owner, happened.token)
                for happened in reversed(client.history(job, limit=HISTORY_MAX))
            ]
            for job in (*ISSUES, *RESOURCES)
        }
        return Evidence(list(ISSUES), journal, self.ledger.read())
