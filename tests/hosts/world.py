"""The surroundings of one test: a home directory, a repository with one guarded area, and a scripted model.

An agent runs in a process group of its own and is killed at the end of the test at the latest. Its environment has
nothing of the person who runs the tests, and all traffic except loopback goes to a closed proxy port.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.hosts.dialects import Json
from tests.hosts.hosts import Host
from tests.hosts.scripted_model import Script, ScriptedModel, Until
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.server import ServerProcess

RUN_SECONDS_MAX = 180
BARRIER_SECONDS_MAX = 90
REFUSAL = "holdfast guard"
ONE, TWO = "AGENT-ONE", "AGENT-TWO"
"""Markers of agents in their prompts."""
CONTENT = "def login():\n    return 1\n"
OLD, NEW = "    return 1", "    return 2"


class World:
    """Everything that an agent sees, and the ways to look at what it did."""

    def __init__(self, root: Path, server: ServerProcess, model: ScriptedModel) -> None:
        self.root, self.server, self.model = root, server, model
        self.home, self.repository, self.programs = root / "home", root / "repository", root / "bin"
        self.file = self.repository / "src/auth/login.py"
        self.job = ""
        self.api = Api.of(server, callers.BOB)
        for folder in (self.home, self.file.parent, self.programs, root / "tmp"):
            folder.mkdir(parents=True)
        for name in ("git", "node"):
            if found := shutil.which(name):
                (self.programs / name).symlink_to(found)
        self.holdfast_link = self.programs / "holdfast"
        self.holdfast_link.symlink_to(Path(sys.executable).with_name("holdfast"))
        self.environment = {
            "HOME": str(self.home), "PATH": f"{self.programs}:/usr/bin:/bin", "TMPDIR": str(root / "tmp"),
            "LANG": "C.UTF-8", "TERM": "dumb", "USER": "tester",
            "HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1,localhost",
            "HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": callers.ALICE,
        }  # fmt: skip
        self._agents: list[subprocess.Popen[bytes]] = []
        self._make_repository()

    def _make_repository(self) -> None:
        self.file.write_text(CONTENT)
        (self.repository / "README.md").write_text("read me\n")
        self.new_job()
        for words in (
            "init -q -b main .",
            "config user.email a@b",
            "config user.name A",
            "add .",
            "commit -q -m first",
        ):
            self.command("git", *words.split())

    def new_job(self) -> None:
        """Guard the area with a job that has no history."""
        self.job = f"{unique('area')}:auth"
        self.rules()

    def rules(self, first: str = "") -> None:
        """Write the rule file, with this line in front."""
        rule = f'[[rule]]\npaths = "src/auth/**"\njob = "{self.job}"\n'
        (self.repository / "holdfast-guard.toml").write_text(f"{first}\n{rule}")

    def command(self, *words: str) -> str:
        """Run a command in the repository as the agents' user, and return its output."""
        program = shutil.which(words[0], path=self.environment["PATH"]) or words[0]
        done = subprocess.run(
            [program, *words[1:]], cwd=self.repository, env=self.environment, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def prepare(self, host: Host) -> None:
        """Configure a host for the scripted model, and install the skill, the MCP server and the hooks for it."""
        host.configure(self.home, self.repository, self.model.url)
        self.install(host)

    def install(self, host: Host) -> None:
        """Install the skill, the MCP server and the hooks."""
        self.command("holdfast", "skill", "install", "--for", host.kind, "--hooks")

    def hold(self) -> None:
        """Claim the job for another principal."""
        self.api.acquired(self.job, ttl_seconds=600)

    def owner(self, job: str = "") -> str | None:
        """Return who has a job, by default the guarded one, if it is held."""
        status = self.api.status(job or self.job).json()
        return str(status["owner"] or status["shown_as"]) if status["status"] == "held" else None

    def is_free(self, job: str = "") -> bool:
        """Tell whether a job is free, by default the guarded one."""
        return self.owner(job) is None

    def history(self) -> list[Json]:
        """Return the journal's records of the guarded job, oldest first."""
        entries: list[Json] = self.api.history(self.job).json()["history"]
        return entries

    def grants(self) -> list[str]:
        """Return the owner of every grant of the guarded job."""
        return [str(entry["owner"] or entry["shown_as"]) for entry in self.history() if entry["event"] == "granted"]

    @staticmethod
    def until_mcp_is_ready(host: Host) -> Until:
        """Return a step after which the MCP tools respond."""
        (call,) = host.mcp("my_jobs")
        return Until(call, "listed")

    def start(
        self, host: Host, marker: str = ONE, *, options: Sequence[str] | None = None, **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start an agent whose script has this marker."""
        prompt = f"{marker}: please do your task."
        program = host.program
        assert program is not None, f"{host.title} is not installed"
        with (self.root / f"{marker}.log").open("ab") as log:
            agent = subprocess.Popen(
                [program, *(options or host.options(prompt))],
                cwd=self.repository,
                env={**self.environment, **host.environment(self.model.url), **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._agents.append(agent)
        return agent

    def run(
        self, host: Host, scripts: Script | Mapping[str, Script], *, options: Sequence[str] | None = None, **env: str
    ) -> list[str]:
        """Run one agent to its end, and return the tool results that it reported to the model."""
        self.model.follow(scripts if isinstance(scripts, Mapping) else {ONE: scripts})
        agent = self.start(host, options=options, **env)
        self.finish(agent)
        return self.model.results(ONE)

    def finish(self, *agents: subprocess.Popen[bytes]) -> None:
        """Wait for agents, and raise what went wrong in a script."""
        try:
            for agent in agents:
                agent.wait(RUN_SECONDS_MAX)
        finally:
            for agent in agents:
                kill(agent)
        if self.model.errors:
            raise self.model.errors[0]
        assert self.model.turns, f"the model was never called; the host printed:\n{self.log()}"

    def log(self, marker: str = ONE) -> str:
        """Return the end of what an agent's host printed."""
        return (self.root / f"{marker}.log").read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """Kill all agents. The guard's keeper ends with its host and releases the jobs."""
        for agent in self._agents:
            kill(agent)


def kill(agent: subprocess.Popen[bytes]) -> None:
    """Kill the process group of an agent: a host that npm installs is often the child of a launcher."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(agent.pid, signal.SIGKILL)
    agent.wait()


def kill_host(agent: subprocess.Popen[bytes]) -> None:
    """Kill the host alone. Its MCP server, which may be in the same process group, lives on and sees it end."""
    ours = Path(sys.executable).resolve()
    for process in Path("/proc").glob("[0-9]*"):
        pid = int(process.name)
        with contextlib.suppress(OSError):
            if os.getpgid(pid) == agent.pid and (process / "exe").resolve() != ours:
                os.kill(pid, signal.SIGKILL)
    agent.wait()


def meet(barrier: threading.Barrier) -> None:
    """Wait for the other agents at a barrier."""
    barrier.wait(BARRIER_SECONDS_MAX)


def contents(folder: Path) -> Mapping[str, bytes]:
    """Return every file of a repository, without those of git."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in _files(folder)}


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in sorted(folder.rglob("*")) if file.is_file() and ".git" not in file.parts)
