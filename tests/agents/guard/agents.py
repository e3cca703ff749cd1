"""Agents under the guard: a real process as the host, and the documented inputs of each host's hooks."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.checks import unique, wait_until

SCRIPT = Path(sys.executable).parent / "holdfast"
FAKE_HOST = Path(__file__).parent / "fakehost.py"
SECONDS_MAX = 60.0


class Answer(NamedTuple):
    """How a hook answered."""

    code: int
    out: str
    err: str

    @property
    def passed(self) -> bool:
        """Did it let the call pass without a word on whether to ask?"""
        said = json.loads(self.out) if self.out else {}
        specific = said.get("hookSpecificOutput", {})
        return self.code == 0 and "permission" not in said and "permissionDecision" not in specific

    @property
    def refused(self) -> str:
        """The reason of a refusal; a test that asks for it insists on one."""
        if self.code == 0:
            said = json.loads(self.out)
            assert said["permission"] == "deny", self
            assert said["user_message"] == said["agent_message"]
            return str(said["agent_message"])
        assert (self.code, self.out) == (2, ""), self
        return self.err


class World:
    """A repository, a server and a state folder that agents share."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.repository = folder / "repo"
        self.repository.mkdir()
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder / "home"),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "GIT_CONFIG_GLOBAL": str(folder / "gitconfig"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "LC_ALL": "C.UTF-8",
            **environment,
        }
        (folder / "gitconfig").write_text(
            "[user]\n\tname = Ana\n\temail = ana@example.org\n[init]\n\tdefaultBranch = main\n"
        )
        (folder / "home").mkdir()
        self.hosts: list[Host] = []

    @property
    def state(self) -> Path:
        """The guard's own folder."""
        return self.folder / "state" / "holdfast" / "guard"

    def rules(self, text: str) -> Path:
        """Write the rule file."""
        file = self.repository / "holdfast-guard.toml"
        file.write_text(text, encoding="utf-8")
        return file

    def host(self, kind: str = "claude", **environment: str) -> Host:
        """Start a host."""
        self.hosts.append(Host(self, kind, environment))
        return self.hosts[-1]

    def daemons(self) -> list[int]:
        """The processes of daemons of this world."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
            except OSError:
                continue
            if b"holdfast.agents.guard.renewal_daemon" in words and str(self.folder).encode() in b" ".join(words):
                found.append(int(path.parent.name))
        return found

    def wait_for_daemons(self, count: int) -> list[int]:
        """Wait until there are so many: one that has just been started is none before it runs its own program."""
        return wait_until(lambda: found if len(found := self.daemons()) == count else [])

    def git(
        self, *words: str, check: bool = True, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run git in the repository, as a person would."""
        return subprocess.run(
            ["git", *words],
            cwd=cwd or self.repository,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            check=check,
            timeout=SECONDS_MAX,
        )

    def holdfast(self, *words: str, cwd: Path | None = None, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run the command in the repository, as a person would."""
        return subprocess.run(
            [SCRIPT, *words],
            cwd=cwd or self.repository,
            env=self.environment,
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_MAX,
        )

    def log(self) -> str:
        """What the guard's log says."""
        file = self.state / "log"
        return file.read_text() if file.exists() else ""

    def close(self) -> None:
        """Kill the hosts, and insist that every daemon ends by itself."""
        for host in self.hosts:
            host.kill()
        wait_until(lambda: not self.daemons(), seconds_max=30)


class Host:
    """A running host. Its agents' calls go through real hooks."""

    def __init__(self, world: World, kind: str, environment: Mapping[str, str]) -> None:
        self.world, self.kind = world, kind
        self.session = unique("session")
        self.process = subprocess.Popen(
            [sys.executable, FAKE_HOST],
            env={**world.environment, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._ids = itertools.count()
        self._answers: dict[str, Answer] = {}
        self._news = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def owner(self) -> str:
        """In whose name its main agent claims."""
        return f"{self.kind}:{self.session}"

    def _listen(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            said = json.loads(line)
            with self._news:
                self._answers[said["id"]] = Answer(said["code"], said["out"], said["err"])
                self._news.notify_all()

    def run(self, command: str, text: str = "", cwd: Path | None = None) -> Answer:
        """Run a command as the host does."""
        return self._order({"command": command, "input": text, "cwd": str(cwd or self.world.repository)})

    def _order(self, fields: Mapping[str, object]) -> Answer:
        assert self.process.stdin
        number = str(next(self._ids))
        with self._news:
            self.process.stdin.write(json.dumps({"id": number, **fields}) + "\n")
            self.process.stdin.flush()
            assert self._news.wait_for(lambda: number in self._answers, SECONDS_MAX), f"no answer to {fields}"
            return self._answers.pop(number)

    def start_mcp(self, *options: str, name: str = "holdfast", prefix: str = "") -> None:
        """Start `holdfast mcp` as the host does; `prefix` are words before the command."""
        command = " ".join([*prefix.split(), str(SCRIPT), "mcp", *options])
        self._order({"mcp": name, "command": command, "cwd": str(self.world.repository)})

    def stop_mcp(self, name: str = "holdfast") -> None:
        """Close the input of `holdfast mcp` and wait until it has ended."""
        assert self._order({"mcp": name}).out == "0"

    def tool(
        self, tool: str, *, agent: str = "", hooked: bool = True, server: str = "holdfast", **arguments: object
    ) -> dict[str, Any]:
        """The agent calls a tool of `holdfast mcp`: first the hook, if one is installed, then the tool itself."""
        if hooked:
            assert self.before(f"mcp__{server}__{tool}", arguments, agent=agent, use=unique("use")).passed
        answer = self._order({"mcp": server, "tool": tool, "arguments": arguments})
        result: dict[str, Any] = json.loads(answer.out)
        if result.get("isError"):
            return {"error": " ".join(part["text"] for part in result["content"])}
        found: dict[str, Any] = result["structuredContent"]
        return found

    def hook(self, fields: Mapping[str, Any]) -> Answer:
        """Let the hook have this input."""
        return self.run(f"exec {SCRIPT} guard hook --host {self.kind}", json.dumps(fields))

    def fields(self, event: str, *, agent: str = "", cwd: Path | None = None, **more: object) -> dict[str, Any]:
        """What Claude Code and Codex send with every event."""
        common = {
            "session_id": self.session,
            "transcript_path": "/home/ana/transcript.jsonl",
            "cwd": str(cwd or self.world.repository),
            "permission_mode": "default",
            "hook_event_name": event,
        }
        return {**common, **({"agent_id": agent, "agent_type": "worker"} if agent else {}), **more}

    def before(
        self, tool: str, arguments: object, *, agent: str = "", use: str = "toolu_1", cwd: Path | None = None
    ) -> Answer:
        """PreToolUse of Claude Code."""
        more = {"tool_name": tool, "tool_input": arguments, "tool_use_id": use}
        return self.hook(self.fields("PreToolUse", agent=agent, cwd=cwd, **more))

    def edit(self, file: str | Path, *, agent: str = "", cwd: Path | None = None) -> Answer:
        """The agent is about to edit a file."""
        arguments = {"file_path": str(self.world.repository / file), "old_string": "a", "new_string": "b"}
        return self.before("Edit", arguments, agent=agent, cwd=cwd)

    def bash(self, command: str, *, agent: str = "", cwd: Path | None = None) -> Answer:
        """The agent is about to run a command."""
        return self.before("Bash", {"command": command, "description": "does it"}, agent=agent, cwd=cwd)

    def kill(self) -> None:
        """Kill the host, as the system does when memory runs out."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()
