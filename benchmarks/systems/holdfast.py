"""Our own server, as `holdfast serve` starts it, and what a measurement asks of it beforehand."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.load.generator import Plan
from benchmarks.load.http import Target, raw_post
from benchmarks.load.press import press
from benchmarks.systems.base import ROOT, TTL_SECONDS, HttpSystem, Tools, ask
from benchmarks.systems.process import Child, output_of
from benchmarks.systems.usage import Usage, usage_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.load.generator import Run

TOKEN = "0123456789abcdefbench"
NAMES_PER_CALL = 1_000
_CREATED = 201
_QUIET_SECONDS = 0.5
_QUIET_SHARE = 0.05
_QUIET_SECONDS_MAX = 120.0


class Holdfast(HttpSystem):
    """Our server, with the limit on leases of one caller out of the way.

    `settings` are other settings that a measurement needs. `tree` is a checkout with an environment of its own, to
    measure another version than this one.
    """

    key = "holdfast"
    title = "Holdfast"
    how_to_get = "run `make install`, then `make bench`"
    health_path = "/readyz"

    def __init__(
        self, tools: Tools | None = None, settings: Mapping[str, object] | None = None, tree: Path | None = None
    ) -> None:
        super().__init__(tools or Tools.find())
        self._settings: Mapping[str, object] = {"leases_per_principal_max": 100_000_000, **(settings or {})}
        self._tree = tree or ROOT
        self._python = sys.executable if tree is None else str(tree / ".venv" / "bin" / "python")

    def missing(self) -> str | None:
        return None if (self._tree / "src/holdfast/__main__.py").exists() else "the holdfast package is not here"

    def version(self) -> str:
        try:
            version = importlib.metadata.version("holdfast-jobs")
        except importlib.metadata.PackageNotFoundError:
            version = "from source"
        commit = output_of("git", "-C", str(self._tree), "describe", "--always", "--dirty")
        return f"{version} ({commit})" if commit and "fatal" not in commit else version

    def _launch(self, folder: Path) -> Child:
        command = [self._python, "-m", "holdfast", "serve"]
        command += ["--listen", f"127.0.0.1:{self.port}", "--data", str(self.data(folder))]
        command += [word for name, value in self._settings.items() for word in ("--set", f"{name}={value}")]
        env = {
            "HOLDFAST_TOKENS": f"bench:{TOKEN}:read+claim+admin",
            "XDG_CONFIG_HOME": str(folder / "config"),
            "PYTHONPATH": self._python_path(),
        }
        return Child(command, log=folder / "log", env=env)

    def _python_path(self) -> str:
        others = os.environ.get("PYTHONPATH", "") if self._tree == ROOT else ""
        return os.pathsep.join(part for part in (str(self._tree / "src"), others) if part)

    @staticmethod
    def data(folder: Path) -> Path:
        """Return the data directory of a server that runs on a folder."""
        return folder / "data"

    @property
    def authorization(self) -> str:
        return f"Bearer {TOKEN}"

    def target(self) -> Target:
        return lock_target(self.port, self.authorization)

    # --- What a measurement asks ------------------------------------------------------------------------------------

    def plan(self, script: str, *, connections: int, seconds: float, **more: Any) -> Plan:  # noqa: ANN401
        """Plan a run of the generator against this server. What the plan has no field for is the script's."""
        fields = {name: more.pop(name) for name in list(more) if name in Plan.__dataclass_fields__}
        return Plan(self.port, script, connections, seconds, authorization=self.authorization, arguments=more, **fields)

    def press_plan(self, plan: Plan, *, until_quiet: bool = False) -> tuple[Run, Usage]:
        """Run the generator; return what it saw, and what the server used meanwhile, or until it had no more to do."""
        before = self.usage()
        run = press(plan)
        if until_quiet:
            self.rest()
        after = self.usage()
        spent = Usage(
            own_seconds=after.own_seconds - before.own_seconds,
            children_seconds=after.children_seconds - before.children_seconds,
            own_bytes=after.own_bytes,
            children_bytes=after.children_bytes,
        )
        return run, spent

    def rest(self) -> None:
        """Wait until the server has no more work to do in the background."""
        deadline = time.monotonic() + _QUIET_SECONDS_MAX
        used = self.usage().seconds
        while time.monotonic() < deadline:
            time.sleep(_QUIET_SECONDS)
            now = self.usage().seconds
            if now - used < _QUIET_SHARE * _QUIET_SECONDS:
                return
            used = now

    def usage(self) -> Usage:
        """Return what the running server and its children have used so far."""
        if self.child is None:
            raise OSError("the server does not run")
        return usage_of(self.child.pid)

    def retained_records(self, folder: Path) -> int:
        """Count the records that a stopped server has kept, as `holdfast doctor` does: history, and what is newer."""
        command = [self._python, "-m", "holdfast", "doctor", "--data", str(self.data(folder)), "--json"]
        env = {**os.environ, "PYTHONPATH": self._python_path()}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
        found = re.search(r"(\d+) records, all whole", done.stdout)
        if found is None:
            raise OSError(f"the records could not be counted: {(done.stdout or done.stderr).strip()[-300:]}")
        return int(found[1])

    def hold(self, prefix: str, count: int, ttl_seconds: int = TTL_SECONDS) -> dict[str, str]:
        """Claim so many names, a thousand with each call; return their lease ids."""
        held: dict[str, str] = {}
        for first in range(0, count, NAMES_PER_CALL):
            names = [f"{prefix}-{number:07d}" for number in range(first, min(first + NAMES_PER_CALL, count))]
            answer = self.ask("POST", "/claims", {"all": names, "ttl_seconds": ttl_seconds})
            held |= {claim["name"]: claim["lease_id"] for claim in answer["claims"]}
        return held

    def open_sessions(self, count: int) -> dict[str, str]:
        """Open so many sessions; return them by their ids."""
        ids = (self.ask("POST", "/sessions", {"ttl_seconds": TTL_SECONDS})["session_id"] for _ in range(count))
        return dict.fromkeys(ids, "-")

    def ask(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        """Ask once; return what was answered. Raises `OSError` for an answer that is no success."""
        headers = {"Authorization": self.authorization}
        if body is not None:
            headers["Content-Type"] = "application/json"
        status, text = ask(self.port, method, path, None if body is None else json.dumps(body), headers)
        if status not in {200, _CREATED}:
            raise OSError(f"{method} {path}: {status} {text[:200]}")
        return json.loads(text)


def lock_target(port: int, authorization: str) -> Target:
    """Return the acquire of every server that speaks OctoStore's API."""
    body = json.dumps({"ttl_seconds": TTL_SECONDS})
    headers = {"Authorization": authorization}
    template = raw_post(port, "/locks/{name}/acquire", body, headers)
    return Target(port, template, '"status":"acquired"')
