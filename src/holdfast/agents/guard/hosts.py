"""Hook protocols: what each host sends, and how it expects the answer (see the table in docs/guide/guard.md).

All of them send one JSON object. opencode has no command hooks: the plugin `skills/opencode.js` sends the events under
Claude Code's names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

from holdfast.agents.guard.pipes import quoted
from holdfast.agents.guard.targets import patched

CLAUDE, CODEX, CURSOR, GEMINI, OPENCODE, QWEN = "claude", "codex", "cursor", "gemini", "opencode", "qwen"
HOSTS = (CLAUDE, CODEX, CURSOR, GEMINI, OPENCODE, QWEN)
BEFORE, AFTER, TURN_ENDS, AGENT_ENDS, SESSION_ENDS, OTHER = "before", "after", "turn", "agent", "session", "other"
PASS, REFUSE, ASK = "pass", "refuse", "ask"
BLOCKED = 2  # The exit code of a hook that refuses.

_NAMES = {
    BEFORE: "PreToolUse BeforeTool preToolUse beforeShellExecution beforeMCPExecution",
    AFTER: "PostToolUse AfterTool postToolUse",
    TURN_ENDS: "Stop AfterAgent stop",
    AGENT_ENDS: "SubagentStop subagentStop",
    SESSION_ENDS: "SessionEnd sessionEnd",
}
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_SHELLS = frozenset(
    {"Bash", "Monitor", "Shell", "bash", "exec_command", "local_shell", "run_shell_command", "run_terminal_cmd"}
    | {"shell"}
)
_COMMANDS = ("command", "cmd")
_FOLDERS = ("working_directory", "dir_path", "directory", "workdir")
_WRITERS = frozenset(
    {"Edit", "MultiEdit", "Write", "NotebookEdit", "StrReplace", "Delete", "TabWrite", "write_file", "replace"}
    | {"delete_file", "edit", "edit_file", "edit_notebook", "multiedit", "notebook_edit", "search_replace", "write"}
)
_PATHS = (
    "file_path", "filePath", "filepath", "notebook_path", "path", "paths", "relative_path", "target_file",
    "target_notebook", "source", "destination", "source_path", "destination_path", "old_path", "new_path",
)  # fmt: skip
_VERBS = frozenset(  # Words in the names of MCP tools that write files.
    {"append", "copy", "create", "delete", "edit", "insert", "modify", "move", "patch", "remove", "rename", "replace"}
    | {"save", "update", "write"}
)
_TAKES_FOLDERS = frozenset({"copy", "delete", "move", "remove", "rename"})
READERS = frozenset(  # Read-only tools. They pass even under a broken rule file, so that an agent can look at it.
    {"Read", "Glob", "Grep", "LS", "NotebookRead", "WebFetch", "WebSearch", "TodoWrite", "read_file", "list_directory"}
    | {"glob", "grep_search", "search_file_content", "read_many_files", "web_fetch", "google_web_search"}
    | {"SemanticSearch", "read", "grep", "list", "webfetch", "todowrite", "todoread", "todo_write"}
)
_PARTS_MAX = 10_000
_SERVER_WORDS_MAX = 64  # Words in a server's name, as separated by underscores.


class BadInputError(Exception):
    """What the host sent cannot be used. The text says why."""


class Event:
    def __init__(self, host: str, fields: Mapping[str, object]) -> None:
        self.host = host
        self.name = _text(fields, "hook_event_name")
        self.session = _text(fields, "conversation_id") if host == CURSOR else ""
        self.session = self.session or _text(fields, "session_id")
        self.agent = _text(fields, "agent_id") or _text(fields, "subagent_id")
        self.tool, self.use_id = _text(fields, "tool_name"), _text(fields, "tool_use_id")
        self.arguments = _arguments(fields.get("tool_input"))
        roots = fields.get("workspace_roots")
        root = roots[0] if isinstance(roots, list) and roots and isinstance(roots[0], str) else ""
        self.cwd = _text(fields, "cwd") or root or os.getcwd()
        self.kind = _KINDS.get(self.name, OTHER)
        if self.kind == OTHER and self.tool and not self.name.lower().startswith(("post", "after", "permission")):
            # An unknown event that may precede a tool call is checked rather than passed.
            self.kind = BEFORE
        self.command: str | None = None
        self.files: list[str] = []
        self.takes_folders = False  # Whether a folder among the files is moved or removed with all below it.
        if not self.name:
            raise BadInputError("there is no hook_event_name in it")
        if not self.session:
            raise BadInputError("there is no session in it, so it cannot be told who asks")
        if not os.path.isabs(self.cwd) or "\0" in self.cwd:
            raise BadInputError("its cwd is not an absolute path")
        if self.kind == BEFORE:
            self._read_tool(fields)
        self.tool_names = _spellings(host, self.tool, fields.get("mcp_context"))

    def _read_tool(self, fields: Mapping[str, object]) -> None:
        if self.name == "beforeShellExecution":
            self.tool, self.command = "Shell", _text(fields, "command")
        elif self.tool in _SHELLS:
            self.command = _first(self.arguments, _COMMANDS)
            self.cwd = os.path.join(self.cwd, _first(self.arguments, _FOLDERS))
        elif self.tool == "apply_patch":
            self.files = patched(_first(self.arguments, ("command", "input", "patchText")))
            if not self.files:
                raise BadInputError("it is a patch that names no file")
        elif self._is_mcp:
            # Any server may have such a tool. A call without a path writes no file known here.
            words = "".join(f"_{char.lower()}" if char.isupper() else char for char in self.tool)
            verbs = _VERBS & set(words.replace("-", "_").replace(":", "_").split("_"))
            self.files = self._paths() if verbs else []
            self.takes_folders = bool(verbs & _TAKES_FOLDERS)
        elif self.tool in _WRITERS:
            self.files = self._paths()
            if not self.files:
                raise BadInputError(f"it does not say which file {self.tool} writes")
        if self.command is not None and not self.command:
            raise BadInputError("it does not say which command is run")
        if any("\0" in each for each in [*self.files, self.command or ""]):
            raise BadInputError("there is a null character in it")

    @property
    def _is_mcp(self) -> bool:
        is_plain = self.tool in _SHELLS | _WRITERS | READERS
        # opencode names MCP tools SERVER_TOOL.
        is_of_server = self.host == OPENCODE and not is_plain and "_" in self.tool
        return self.name == "beforeMCPExecution" or is_of_server or self.tool.startswith(("mcp_", "MCP:"))

    def _paths(self) -> list[str]:
        values = [self.arguments.get(name) for name in _PATHS]
        texts = [text for value in values for text in (value if isinstance(value, list) else [value])]
        return [text.removeprefix("file://") for text in texts if isinstance(text, str) and text]


def parsed(content: bytes) -> Mapping[str, object]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise BadInputError("it is not JSON") from None
    if not isinstance(found, dict):
        raise BadInputError("it is not a JSON object")
    return found


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value[:_PARTS_MAX]):
        # Some versions of Codex send a command as a list of words.
        return " ".join(quoted(part) for part in value)
    return value if isinstance(value, str) else ""


def _first(fields: Mapping[str, object], names: Sequence[str]) -> str:
    return next((text for name in names if (text := _text(fields, name))), "")


def _arguments(value: object) -> Mapping[str, object]:
    if isinstance(value, str):
        try:  # Cursor sends the arguments of an MCP tool as JSON in a string.
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def _spellings(host: str, tool: str, context: object) -> set[str]:
    """Return all names by which a rule may refer to a tool: hosts name MCP tools differently.

    Claude Code, Codex and Qwen Code use `mcp__SERVER__TOOL`, Gemini CLI `mcp_SERVER_TOOL`, opencode `SERVER_TOOL`. With
    single underscores only Gemini CLI's context shows where the server's name ends; else every split counts.
    """
    known = context if isinstance(context, dict) else {}
    pairs = [(known.get("server_name"), known.get("tool_name"))]
    if not all(isinstance(each, str) for each in pairs[0]):
        pairs = []
        if tool.startswith("mcp__"):
            server, _, name = tool.removeprefix("mcp__").partition("__")
            pairs = [(server, name)]
        elif tool.startswith("mcp_") or host == OPENCODE:
            words = tool.removeprefix("mcp_").split("_", _SERVER_WORDS_MAX)
            pairs = [("_".join(words[:at]), "_".join(words[at:])) for at in range(1, len(words))]
    return {tool, *(f"mcp{separator}{server}{separator}{name}" for server, name in pairs for separator in ("_", "__"))}


def is_notification(name: str) -> bool:
    return _KINDS.get(name, BEFORE) != BEFORE


def can_ask(event: Event) -> bool:
    return event.host == CLAUDE or event.name in {"beforeShellExecution", "beforeMCPExecution"}


def render_verdict(host: str, name: str, verdict: str, text: str) -> tuple[int, str, str]:
    if verdict == REFUSE:
        if host == CURSOR:
            return 0, _line({"permission": "deny", "user_message": text, "agent_message": text}), ""
        return BLOCKED, "", text + "\n"
    if not text:
        return 0, "", ""
    if host == CURSOR:
        # Not `allow`: that could also suppress a question of Cursor's own.
        fields: dict[str, object] = {"user_message": text, "agent_message": text}
        return 0, _line({"permission": "ask", **fields} if verdict == ASK else fields), text + "\n"
    if host == GEMINI:
        return 0, _line({"systemMessage": text}), ""
    if verdict == ASK:
        specific = {"hookEventName": name, "permissionDecision": "ask", "permissionDecisionReason": text}
        return 0, _line({"hookSpecificOutput": specific}), ""
    specific = {"hookEventName": name, "additionalContext": text}
    return 0, _line({"systemMessage": text, "hookSpecificOutput": specific}), ""


def _line(fields: Mapping[str, object]) -> str:
    return json.dumps(fields) + "\n"
