"""Detect hosts that silently skip the installed hooks.

Codex runs a hook only if the user's `config.toml` has its hash, which a person adds with `/hooks`. Codex and Gemini CLI
ignore the files of an untrusted project; `--skip-trust` starts Gemini CLI there without hooks and MCP servers.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

from holdfast.agents.skill.files import FileSkipped, read_file
from holdfast.agents.skill.hosts import HOSTS, Host
from holdfast.agents.skill.installer import HOOK_WORDS, MCP_WORDS, Scope, runs
from holdfast.agents.skill.jsonedit import UnsupportedSyntax, load

_CODEX_TIMEOUT_SECONDS = 600  # Codex hashes a hook without a timeout with this one.


def problems(scope: Scope, user: Scope) -> list[str]:
    """Return why hosts skip the hooks in `scope`; `user` has the user's own settings."""
    hosts = {host.name: host for host in HOSTS}
    return [*_of_codex(hosts["codex"], scope, user), *_of_gemini(hosts["gemini"], scope, user)]


def codex_hash(matcher: str | None, command: str) -> str:
    """Return the hash that Codex stores for an approved PreToolUse hook."""
    hook = {"type": "command", "command": command, "timeout": _CODEX_TIMEOUT_SECONDS, "async": False}
    identity = {"event_name": "pre_tool_use", "hooks": [hook], **({} if matcher is None else {"matcher": matcher})}
    content = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"


def _of_codex(host: Host, scope: Scope, user: Scope) -> Iterator[str]:
    file, config_file = scope.path(host.hooks.config_file) if host.hooks else None, user.path(host.mcp.config_file)
    if file is None or config_file is None:
        return
    if not (found := _codex_hooks(file)):
        return
    try:
        config = tomllib.loads((read_file(config_file).content or b"").decode())
    except (FileSkipped, ValueError) as error:
        yield f"cannot tell whether Codex runs the hook in {file}, because {config_file} cannot be read: {error}"
        return
    if not scope.is_user and _at(config, "projects", str(scope.base.resolve()), "trust_level") != "trusted":
        yield (
            f"Codex ignores {file} without a message, because it does not trust the project. Start `codex` there, trust"
            " the project, and approve the hooks with /hooks"
        )
        return
    for key, expected in found.items():
        names = {f"{each}:pre_tool_use:{key}" for each in (file, file.resolve())}
        state = next((each for each in (_at(config, "hooks", "state", name) for name in names) if each), {})
        if _at(state, "enabled") is False:
            yield f"Codex skips the hook in {file} without a message, because it is disabled. Enable it with /hooks"
        elif not isinstance(approved := _at(state, "trusted_hash"), str):
            yield f"Codex skips the hook in {file} without a message until you start `codex` and approve it with /hooks"
        elif approved != expected:
            yield (
                f"Codex skips the hook in {file} without a message, because it was changed after you approved it. Start"
                " `codex` and approve it again with /hooks"
            )


def _codex_hooks(file: Path) -> dict[str, str]:
    """Return the hashes of the guard's hooks by Codex's key: indices of group and hook."""
    found: dict[str, str] = {}
    for at, group in enumerate(_list(_at(_read(file), "hooks", "PreToolUse"))):
        matcher = _at(group, "matcher")
        for index, hook in enumerate(_list(_at(group, "hooks"))):
            if runs(hook, HOOK_WORDS):
                command = str(_at(hook, "command"))
                found[f"{at}:{index}"] = codex_hash(matcher if isinstance(matcher, str) else None, command)
    return found


def _of_gemini(host: Host, scope: Scope, user: Scope) -> Iterator[str]:
    file = scope.path(host.mcp.config_file)
    if file is None or scope.is_user or user.environment.get("GEMINI_CLI_TRUST_WORKSPACE") == "true":
        return
    settings = _read(file)
    servers = _at(settings, "mcpServers")
    entries = [*(servers.values() if isinstance(servers, dict) else ()), *_list(_at(settings, "hooks", "BeforeTool"))]
    if not any(runs(each, words) for each in entries for words in (HOOK_WORDS, MCP_WORDS)):
        return
    own = user.path(host.mcp.config_file)
    if own is not None and _at(_read(own), "security", "folderTrust", "enabled") is False:
        return
    folders = user.environment.get("GEMINI_CLI_TRUSTED_FOLDERS_PATH") or user.base / ".gemini/trustedFolders.json"
    if not _is_trusted(scope.base.resolve(), _read(Path(folders))):
        yield (
            f"Gemini CLI ignores the hooks and MCP servers in {file}, because it does not trust the folder, and with"
            " --skip-trust it says nothing. Trust the folder (start `gemini` there), or install with --user"
        )


def _is_trusted(folder: Path, rules: object) -> bool:
    """Apply the rule for the longest path that contains the folder."""
    best, trusted = -1, False
    for name, level in rules.items() if isinstance(rules, dict) else ():
        path = Path(name).resolve()
        path = path.parent if level == "TRUST_PARENT" else path
        if folder.is_relative_to(path) and len(path.parts) > best:
            best, trusted = len(path.parts), level in {"TRUST_FOLDER", "TRUST_PARENT"}
    return trusted


def _read(file: Path) -> object:
    try:
        content = read_file(file).content
        return None if content is None else load(content.decode("utf-8-sig"))
    except (FileSkipped, UnsupportedSyntax, ValueError):
        return None


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _at(value: object, *keys: str) -> object:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
