"""OctoStore, whose API is ours too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.systems.base import RUNS_PER_START, USERS_PER_RUN, HttpSystem, find_program
from benchmarks.systems.holdfast import TOKEN, lock_target
from benchmarks.systems.process import Child

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.load.http import Target


class OctoStore(HttpSystem):
    """It allows 100 leases per user, so every hundred names come from a new user."""

    key = "octostore"
    title = "OctoStore"
    how_to_get = "build it from its own repository (octostore/octostore.io) and put `octostore` on the PATH"
    health_path = "/health"

    def missing(self) -> str | None:
        return None if find_program("octostore") else "no `octostore` on the PATH"

    def version(self) -> str:
        # Not asked: the binary takes no flags, and starting it would open a database here.
        return "version unknown"

    def _launch(self, folder: Path) -> Child:
        tokens = folder / "tokens"
        users = range(USERS_PER_RUN * RUNS_PER_START)
        tokens.write_text("".join(f"bench{n:06d}:{TOKEN}{n:06d}\n" for n in users))
        env = {
            "BIND_ADDR": f"127.0.0.1:{self.port}",
            "DATABASE_URL": str(folder / "octostore.db"),
            "STATIC_TOKENS_FILE": str(tokens),
        }
        self._runs = 0
        return Child([find_program("octostore") or "octostore"], log=folder / "log", env=env)

    def target(self) -> Target:
        return lock_target(self.port, f"Bearer {TOKEN}{{user}}")
