"""The world of the demonstration: a real server with two access tokens, a ledger, and a repository.

Everything it writes is below the folder of its server, which goes with it, however this process ends.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from examples.demo import repository
from examples.demo.backlog import ISSUES, PUSHED, RESOURCES
from examples.demo.errors import FailedError
from examples.demo.ledger import Ledger
from examples.demo.proof import Event, Evidence
from examples.demo.repository import Repository
from holdfast.testing import server

PROJECT = Path(__file__).resolve().parents[2]
TOKEN_VARIABLE = "HOLDFAST_TOKEN"
HISTORY_MAX = 1_000
KEEPERS_SECONDS_MAX = 3.0
LOOK_SECONDS = 0.02


class World:
    """What there is before the first agent is started. Closing `stack` ends it."""

    def __init__(self, stack: ExitStack) -> None:
        if shutil.which("git") is None:
            raise FailedError("git was not found, and one of the agents pushes a commit; install git")
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
        self._repository = Repository(self.folder)
        stack.callback(self._await_keepers)

    def env(self, token: str) -> dict[str, str]:
        """The environment of whoever has this access token."""
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        paths = f"{PROJECT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep)
        return self._server.env(PATH=programs, PYTHONPATH=paths, **{TOKEN_VARIABLE: self._tokens[token]})

    def run(self, command: Sequence[str], token: str) -> None:
        """Run a command to its end."""
        repository.run(command, self.folder, self.env(token))

    def make_repository(self) -> None:
        self._repository.create(repository.environment(self.env("agents")))

    def evidence(self) -> Evidence:
        """Read all that the proof is made of."""
        client = self._server.client()
        journal = {
            job: [
                Event(happened.seq, happened.event, happened.owner, happened.fencing_token)
                for happened in reversed(client.history(job, limit=HISTORY_MAX))
            ]
            for job in (*ISSUES, *RESOURCES)
        }
        commits = self._repository.commits(repository.environment(self.env("agents")))
        return Evidence(list(ISSUES), journal, self.ledger.read(), list(PUSHED), commits)

    def _await_keepers(self) -> None:
        """Wait for the keepers of the guard. They end by themselves when git has, if the server still answers them."""
        owners = Path(self.env("agents")["XDG_STATE_HOME"]) / "holdfast" / "guard" / "owners"
        give_up_at = time.monotonic() + KEEPERS_SECONDS_MAX
        while any(owners.glob("*/*")) and time.monotonic() < give_up_at:
            time.sleep(LOOK_SECONDS)
