"""The table of hosts: where each keeps skills, MCP servers and hooks, according to its documentation.

A part that a host does not document is None here, and the guide says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast.agents.skill.files import PLUGIN

SKILL = "holdfast/SKILL.md"
NAME = "holdfast"  # Of our MCP server entry.
MCP: dict[str, str | list[str]] = {"command": "holdfast", "args": ["mcp"]}
# The variables that `holdfast mcp` reads, for hosts that pass on only listed ones.
VARIABLES = [
    "HOLDFAST_OWNER", "HOLDFAST_URL", "HOLDFAST_TOKEN", "HOLDFAST_TOKEN_FILE", "HOLDFAST_CA_FILE",
    "HOLDFAST_ALLOW_INSECURE_HTTP", "XDG_CONFIG_HOME", "XDG_STATE_HOME",
]  # fmt: skip
HOOK = "holdfast guard hook --host {}"
FAIL_CLOSED = " || exit 2"  # Hosts block a call on code 2 alone; a shell that does not find `holdfast` exits with 127.
_CLAUDE_TOOLS = "Edit|MultiEdit|Write|NotebookEdit|Bash|Monitor|mcp__.*"
_QWEN_TOOLS = "edit|write_file|notebook_edit|run_shell_command|mcp__.*"
# Variables that override these folders of the home directory.
MOVED = {"CLAUDE_CONFIG_DIR": ".claude", "CODEX_HOME": ".codex", "XDG_CONFIG_HOME": ".config"}


@dataclass(frozen=True, slots=True)
class ConfigFile:
    project: str | None  # Relative to the project.
    user: str | None  # Relative to the home directory.


@dataclass(frozen=True, slots=True)
class McpServers:
    config_file: ConfigFile
    key: str
    value: dict[str, str | list[str]]
    env: tuple[str, ...] = ()  # Variables that a JSON entry passes on; `install` replaces older entries without them.


@dataclass(frozen=True, slots=True)
class Hooks:
    config_file: ConfigFile
    events: tuple[tuple[str, str | None], ...]  # Each with a matcher or None; the first one precedes a tool call.
    is_flat: bool = False  # A hook is a command and not a group of commands.
    siblings: tuple[tuple[str, int], ...] = ()  # Members that the file must have.
    strict: tuple[tuple[str, int | str], ...] = ()  # Members of the first hook that block the call if it fails.
    plugin: Path | None = None  # `config_file` is this program for the host, instead of a list of commands.


@dataclass(frozen=True, slots=True)
class Host:
    name: str
    title: str
    folder: str  # Its existence shows that the host is in use.
    skill: ConfigFile
    mcp: McpServers
    hooks: Hooks | None
    after: str = ""  # What is left to do by hand.
    user_folder: str = ""  # In the home directory, if it differs from `folder`.


def _in_both(path: str) -> ConfigFile:
    return ConfigFile(path, path)


def _events(**matchers: str | None) -> tuple[tuple[str, str | None], ...]:
    return tuple(matchers.items())


HOSTS = (
    Host(
        "claude",
        "Claude Code",
        ".claude",
        _in_both(".claude/skills"),
        McpServers(ConfigFile(".mcp.json", ".claude.json"), "mcpServers", MCP),
        Hooks(
            _in_both(".claude/settings.json"),
            _events(PreToolUse=_CLAUDE_TOOLS, PostToolUse=_CLAUDE_TOOLS, Stop=None, SubagentStop=None, SessionEnd=None),
            strict=(("timeout", 30), ("onFailure", "block")),
        ),
        "Claude Code asks once whether it may use the MCP server of a project.",
    ),
    Host(
        "codex",
        "Codex",
        ".codex",
        _in_both(".agents/skills"),
        McpServers(_in_both(".codex/config.toml"), "mcp_servers", {**MCP, "env_vars": VARIABLES}),
        Hooks(
            _in_both(".codex/hooks.json"),
            _events(PreToolUse="Bash|apply_patch|mcp__.*", SubagentStop=None, SessionEnd=None),
        ),
        "Codex reads the files of a project only if you trust it, and runs a hook only after you allow it with /hooks.",
    ),
    Host(
        "cursor",
        "Cursor",
        ".cursor",
        _in_both(".cursor/skills"),
        McpServers(_in_both(".cursor/mcp.json"), "mcpServers", MCP),
        Hooks(
            _in_both(".cursor/hooks.json"),
            _events(preToolUse=None, subagentStop=None, sessionEnd=None),
            is_flat=True,
            siblings=(("version", 1),),
            strict=(("failClosed", True),),
        ),
    ),
    Host(
        "gemini",
        "Gemini CLI",
        ".gemini",
        _in_both(".gemini/skills"),
        # Gemini CLI withholds variables whose names look like secrets, except those that the entry names.
        McpServers(_in_both(".gemini/settings.json"), "mcpServers", MCP, ("HOLDFAST_TOKEN", "HOLDFAST_TOKEN_FILE")),
        Hooks(
            _in_both(".gemini/settings.json"),
            _events(BeforeTool="write_file|replace|run_shell_command|mcp_.*", SessionEnd=None),
        ),
        "Gemini CLI reads the files of a project only in a trusted folder. With --skip-trust it ignores them without a"
        " message: for headless use, trust the folder or install with --user.",
    ),
    Host(
        "opencode",
        "opencode",
        ".opencode",
        ConfigFile(".opencode/skills", ".config/opencode/skills"),
        McpServers(
            ConfigFile("opencode.json", ".config/opencode/opencode.json"),
            "mcp",
            {"type": "local", "command": ["holdfast", "mcp"]},
        ),
        Hooks(
            ConfigFile(".opencode/plugins/holdfast.js", ".config/opencode/plugins/holdfast.js"),
            (("tool.execute.before", None), ("session.idle", None), ("session.deleted", None)),
            plugin=PLUGIN,
        ),
        user_folder=".config/opencode",
    ),
    Host(
        "qwen",
        "Qwen Code",
        ".qwen",
        _in_both(".qwen/skills"),
        McpServers(_in_both(".qwen/settings.json"), "mcpServers", MCP),
        Hooks(
            _in_both(".qwen/settings.json"),
            _events(PreToolUse=_QWEN_TOOLS, Stop=None, SubagentStop=None, SessionEnd=None),
        ),
    ),
    Host(
        "vscode",
        "VS Code",
        ".vscode",
        ConfigFile(".github/skills", ".copilot/skills"),
        McpServers(ConfigFile(".vscode/mcp.json", None), "servers", {"type": "stdio", **MCP}),
        None,
    ),
)
