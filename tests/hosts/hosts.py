"""The agent hosts of this ring: how each is installed, configured for a scripted model, started and driven.

A host runs with an empty environment and a home directory of its own. Its model is on loopback, its key is a dummy, and
every other address goes to a closed proxy port.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tests.hosts.dialects import ToolCall
from tests.support.server import PROJECT

VARIABLE = "HOLDFAST_TEST_HOSTS"
"""Names a folder with installed hosts."""
FOLDER = PROJECT / ".hosts"


@dataclass(frozen=True)
class Package:
    """A pinned npm package, installed in a folder of its own."""

    name: str
    version: str
    folder: str

    @property
    def path(self) -> Path:
        """Return where the package is installed."""
        return Path(os.environ.get(VARIABLE) or FOLDER).resolve() / f"{self.folder}-{self.version}"


class Host(ABC):
    """One host. The methods that make steps return tool calls in the words of this host."""

    name: ClassVar[str]
    title: ClassVar[str]
    kind: ClassVar[str]
    """The name for `holdfast skill install --for`."""
    package: ClassVar[Package]
    binary: ClassVar[str]
    """A pattern below the package folder. A native binary is named directly: install scripts do not run."""
    files: ClassVar[Mapping[str, str]]
    """Unusual but valid configuration files of a project, which an uninstall must restore."""

    @property
    def program(self) -> Path | None:
        """Return the executable, if it is installed."""
        return next(iter(sorted(self.package.path.glob(self.binary))), None)

    @abstractmethod
    def configure(self, home: Path, repository: Path, model_url: str) -> None:
        """Write the user's configuration."""

    @abstractmethod
    def environment(self, model_url: str) -> dict[str, str]:
        """Return the variables that this host needs."""

    @abstractmethod
    def options(self, prompt: str) -> list[str]:
        """Return the command line after the program."""

    def unapproved_options(self, home: Path, prompt: str) -> list[str]:
        """Withdraw approval of the project's hooks, if the host knows it, and return the command line."""
        return self.options(prompt)

    @abstractmethod
    def edit(self, path: Path, old: str, new: str) -> list[ToolCall]:
        """Replace a line of a file."""

    @abstractmethod
    def write(self, path: Path, content: str) -> list[ToolCall]:
        """Create a file."""

    @abstractmethod
    def shell(self, command: str) -> list[ToolCall]:
        """Run a command line."""

    @abstractmethod
    def mcp(self, tool: str, **arguments: object) -> list[ToolCall]:
        """Call a tool of Holdfast's MCP server."""

    @abstractmethod
    def subagent(self, prompt: str) -> list[ToolCall]:
        """Start a subagent and wait for its end."""

    def interactive_shell(self, line: str) -> list[ToolCall]:
        """Start a shell, then type a line into it. Empty where the host has no such tool."""
        return []


class Claude(Host):
    """Claude Code, with `onFailure` for hooks."""

    name, title, kind = "claude", "Claude Code 2.1.326", "claude"
    package = Package("@anthropic-ai/claude-code", "2.1.326", "claude")
    binary = "node_modules/@anthropic-ai/claude-code-*/claude"
    files: ClassVar = {
        ".claude/settings.json": '{\r\n  "permissions" : {"allow": ["Read"]},\r\n\t"hooks": {"Stop": []} }',
        ".mcp.json": '{"mcpServers": {}}',
    }
    _TOOLS = "Bash,Edit,Write,Read,Agent,Task,ToolSearch,mcp__holdfast"

    def configure(self, home: Path, repository: Path, model_url: str) -> None:
        (home / ".claude").mkdir()

    def environment(self, model_url: str) -> dict[str, str]:
        return {
            "ANTHROPIC_API_KEY": "sk-ant-dummy",
            "ANTHROPIC_BASE_URL": model_url,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }

    def options(self, prompt: str) -> list[str]:
        return ["-p", prompt, "--output-format", "stream-json", "--verbose", "--allowedTools", self._TOOLS]

    def edit(self, path: Path, old: str, new: str) -> list[ToolCall]:
        arguments = {"file_path": str(path), "old_string": old, "new_string": new}
        return [ToolCall("Read", {"file_path": str(path)}), ToolCall("Edit", arguments)]

    def write(self, path: Path, content: str) -> list[ToolCall]:
        return [ToolCall("Write", {"file_path": str(path), "content": content})]

    def shell(self, command: str) -> list[ToolCall]:
        return [ToolCall("Bash", {"command": command, "description": "x"})]

    def mcp(self, tool: str, **arguments: object) -> list[ToolCall]:
        return [ToolCall(f"mcp__holdfast__{tool}", arguments)]

    def subagent(self, prompt: str) -> list[ToolCall]:
        arguments = {"description": "x", "prompt": prompt, "subagent_type": "general-purpose",
                     "run_in_background": False}  # fmt: skip
        return [ToolCall("Agent", arguments)]


class OlderClaude(Claude):
    """Claude Code before `onFailure`."""

    name, title = "claude-older", "Claude Code 2.1.197"
    package = Package("@anthropic-ai/claude-code", "2.1.197", "claude")


class Codex(Host):
    """Codex with a model that calls each tool directly."""

    name, title, kind = "codex", "Codex 0.169.0", "codex"
    package = Package("@openai/codex", "0.169.0", "codex")
    binary = "node_modules/.bin/codex"
    files: ClassVar = {
        ".codex/config.toml": '# mine\nmodel_reasoning_effort = "low"',
        ".codex/hooks.json": '{"hooks": {}}',
    }
    model = "gpt-5.5"

    def configure(self, home: Path, repository: Path, model_url: str) -> None:
        (home / ".codex").mkdir()
        (home / ".codex/config.toml").write_text(
            f'model = "{self.model}"\nmodel_provider = "scripted"\n'
            '[model_providers.scripted]\nname = "scripted"\nwire_api = "responses"\nenv_key = "MODEL_KEY"\n'
            f'base_url = "{model_url}/v1"\nrequest_max_retries = 0\nstream_max_retries = 0\n'
            f'[projects."{repository}"]\ntrust_level = "trusted"\n'
        )

    def environment(self, model_url: str) -> dict[str, str]:
        return {"MODEL_KEY": "dummy"}

    def options(self, prompt: str) -> list[str]:
        # Approval with /hooks needs a terminal.
        return self._options("--dangerously-bypass-hook-trust", prompt)

    def unapproved_options(self, home: Path, prompt: str) -> list[str]:
        return self._options(prompt)

    @staticmethod
    def _options(*more: str) -> list[str]:
        return ["exec", "--json", "-s", "danger-full-access", *more]

    def edit(self, path: Path, old: str, new: str) -> list[ToolCall]:
        removed, added = _prefixed("-", old), _prefixed("+", new)
        return self._patch(f"*** Update File: {path}\n@@\n{removed}{added}")

    def write(self, path: Path, content: str) -> list[ToolCall]:
        return self._patch(f"*** Add File: {path}\n{_prefixed('+', content)}")

    def _patch(self, text: str) -> list[ToolCall]:
        return self._calls(ToolCall("apply_patch", f"*** Begin Patch\n{text}*** End Patch\n"))

    def shell(self, command: str) -> list[ToolCall]:
        return self._calls(ToolCall("exec_command", {"cmd": command}))

    def mcp(self, tool: str, **arguments: object) -> list[ToolCall]:
        return self._calls(ToolCall(tool, arguments, "mcp__holdfast"))

    def subagent(self, prompt: str) -> list[ToolCall]:
        arguments = {"targets": ["AGENT"], "timeout_ms": 60_000}
        return self._calls(
            ToolCall("spawn_agent", {"message": prompt}, "multi_agent_v1"),
            ToolCall("wait_agent", arguments, "multi_agent_v1", {"AGENT": r'agent_id\\*": ?\\*"([^"\\]+)'}),
        )

    def interactive_shell(self, line: str) -> list[ToolCall]:
        start = {"cmd": "bash --norc", "tty": True, "yield_time_ms": 500}
        typed = {"session_id": "SESSION", "chars": line + "\n", "yield_time_ms": 1000}
        session = {'"SESSION"': r"session[_ ]?(?:id|ID)\D{1,5}(\d+)"}
        return self._calls(ToolCall("exec_command", start), ToolCall("write_stdin", typed, found=session))

    def _calls(self, *calls: ToolCall) -> list[ToolCall]:
        return list(calls)


class CodexWithCode(Codex):
    """Codex with a model whose only tool runs JavaScript that calls the others."""

    name, title = "codex-js", "Codex 0.169.0, code mode"
    model = "gpt-6.1-sol"

    def subagent(self, prompt: str) -> list[ToolCall]:
        arguments = {"task_name": prompt.partition(":")[0], "message": prompt, "fork_turns": "none"}
        return [
            ToolCall("spawn_agent", arguments, "collaboration"),
            ToolCall("wait_agent", {"timeout_ms": 60_000}, "collaboration"),
        ]

    def _calls(self, *calls: ToolCall) -> list[ToolCall]:
        return [self._wrapped(call) for call in calls]

    @staticmethod
    def _wrapped(call: ToolCall) -> ToolCall:
        name = f"{call.namespace}__{call.tool}" if call.namespace else call.tool
        code = f"text(await tools.{name}({json.dumps(call.arguments)}));"
        caught = f"try {{ {code} }} catch (error) {{ text('ERROR ' + error); }}"
        return ToolCall("exec", caught, "functions", call.found)


class Gemini(Host):
    """Gemini CLI in a trusted folder."""

    name, title, kind = "gemini", "Gemini CLI 0.61.0", "gemini"
    package = Package("@google/gemini-cli", "0.61.0", "gemini")
    binary = "node_modules/.bin/gemini"
    files: ClassVar = {".gemini/settings.json": '{ "ui": {"hideTips": true} }\n\n'}

    def configure(self, home: Path, repository: Path, model_url: str) -> None:
        (home / ".gemini").mkdir()
        settings = {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "privacy": {"usageStatisticsEnabled": False},
            "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
        }
        (home / ".gemini/settings.json").write_text(json.dumps(settings))
        (home / ".gemini/trustedFolders.json").write_text(json.dumps({str(repository): "TRUST_FOLDER"}))

    def environment(self, model_url: str) -> dict[str, str]:
        return {"GEMINI_API_KEY": "dummy", "GOOGLE_GEMINI_BASE_URL": model_url}

    def options(self, prompt: str) -> list[str]:
        return ["-p", prompt, "--yolo", "-m", "gemini-2.5-pro", "-o", "stream-json"]

    def unapproved_options(self, home: Path, prompt: str) -> list[str]:
        (home / ".gemini/trustedFolders.json").unlink()
        return [*self.options(prompt), "--skip-trust"]

    def edit(self, path: Path, old: str, new: str) -> list[ToolCall]:
        arguments = {"file_path": str(path), "instruction": "x", "old_string": old, "new_string": new}
        return [ToolCall("replace", arguments)]

    def write(self, path: Path, content: str) -> list[ToolCall]:
        return [ToolCall("write_file", {"file_path": str(path), "content": content})]

    def shell(self, command: str) -> list[ToolCall]:
        return [ToolCall("run_shell_command", {"command": command, "description": "x"})]

    def mcp(self, tool: str, **arguments: object) -> list[ToolCall]:
        return [ToolCall(f"mcp_holdfast_{tool}", arguments)]

    def subagent(self, prompt: str) -> list[ToolCall]:
        return [ToolCall("invoke_agent", {"agent_name": "generalist", "prompt": prompt})]


class OpenCode(Host):
    """opencode."""

    name, title, kind = "opencode", "opencode 1.18.33", "opencode"
    package = Package("opencode-ai", "1.18.33", "opencode")
    binary = "node_modules/opencode-*/bin/opencode"
    # The host itself adds a missing `$schema`.
    files: ClassVar = {"opencode.json": '{\n\t"$schema" : "https://opencode.ai/config.json", "share":"disabled"\n}'}

    def configure(self, home: Path, repository: Path, model_url: str) -> None:
        options = {"baseURL": f"{model_url}/v1", "apiKey": "dummy"}
        models = {"scripted": {"name": "scripted", "tool_call": True}}
        provider = {"npm": "@ai-sdk/openai-compatible", "name": "scripted", "models": models, "options": options}
        settings = {
            "model": "scripted/scripted",
            "small_model": "scripted/scripted",
            "autoupdate": False,
            "share": "disabled",
            "permission": "allow",
            "provider": {"scripted": provider},
        }
        # It installs dependencies of plugins at its start, and retries for more than a minute without a network.
        (home / ".npmrc").write_text("fetch-retries=0\n")
        folder = home / ".config/opencode"
        folder.mkdir(parents=True)
        (folder / "opencode.json").write_text(json.dumps(settings))

    def environment(self, model_url: str) -> dict[str, str]:
        return {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}

    def options(self, prompt: str) -> list[str]:
        return ["run", "--print-logs", "--log-level", "INFO", prompt]

    def edit(self, path: Path, old: str, new: str) -> list[ToolCall]:
        arguments = {"filePath": str(path), "oldString": old, "newString": new}
        return [ToolCall("read", {"filePath": str(path)}), ToolCall("edit", arguments)]

    def write(self, path: Path, content: str) -> list[ToolCall]:
        return [ToolCall("write", {"filePath": str(path), "content": content})]

    def shell(self, command: str) -> list[ToolCall]:
        return [ToolCall("bash", {"command": command, "description": "x"})]

    def mcp(self, tool: str, **arguments: object) -> list[ToolCall]:
        return [ToolCall(f"holdfast_{tool}", arguments)]

    def subagent(self, prompt: str) -> list[ToolCall]:
        return [ToolCall("task", {"description": "x", "prompt": prompt, "subagent_type": "general"})]


HOSTS: Sequence[Host] = (Claude(), OlderClaude(), Codex(), CodexWithCode(), Gemini(), OpenCode())


def _prefixed(sign: str, text: str) -> str:
    return "".join(f"{sign}{line}\n" for line in text.splitlines())
