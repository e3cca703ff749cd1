"""Plan the changes to each file for an installation or removal, then carry them out.

An entry is ours if it equals the one we write. A different entry that runs our command was changed by somebody: it
stays, and that is reported.

Codex runs a hook only if the user's `config.toml` has its hash, which a person adds with `/hooks`. Codex and Gemini CLI
ignore the files of an untrusted project; `--skip-trust` starts Gemini CLI there without hooks and MCP servers.
"""

from __future__ import annotations

import codecs
import enum
import hashlib
import json
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

from holdfast.agents.skill import files, jsonedit, tomledit
from holdfast.agents.skill.files import FileSkipped, FileState, read_file, remove_empty_folders, write_file
from holdfast.agents.skill.hosts import FAIL_CLOSED, HOOK, HOSTS, MOVED, NAME, SKILL, ConfigFile, Hooks, Host
from holdfast.agents.skill.jsonedit import Entry, Json, UnsupportedSyntax, load, same

PROGRAM = "holdfast"
MCP_WORDS = ("mcp",)  # The arguments by which our entries are recognised.
HOOK_WORDS = ("guard", "hook")


class Outcome(enum.Enum):
    """Outcome of one piece in one file."""

    ADDED = "put in place"
    RENEWED = "brought up to date"
    PRESENT = "there already"
    REMOVED = "removed"
    ABSENT = "not there"
    CHANGED = "not as we wrote it, and left as it is"
    SKIPPED = "left alone"


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file: what was found, the planned content, and the outcome of each of our pieces."""

    path: Path
    found: FileState | None
    after: bytes | None  # None: no file.
    outcomes: tuple[tuple[str, Outcome], ...]
    reason: str = ""  # Why it is left alone.
    manual_text: str = ""  # What a person would write there.

    @property
    def is_change(self) -> bool:
        return self.found is not None and self.found.content != self.after

    def skipped(self, reason: str) -> FileChange:
        outcomes = tuple((what, Outcome.SKIPPED) for what, _ in self.outcomes)
        return FileChange(self.path, None, None, outcomes, reason, self.manual_text)


@dataclass(frozen=True, slots=True)
class Scope:
    base: Path  # A project's folder, or a user's home directory.
    is_user: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    def path(self, config_file: ConfigFile) -> Path | None:
        found = config_file.user if self.is_user else config_file.project
        if found is not None and self.is_user:
            for variable, folder in MOVED.items():
                if found.startswith(folder) and (moved := self.environment.get(variable)):
                    return Path(moved) / found.removeprefix(folder + "/")
        return None if found is None else self.base / found

    def uses(self, host: Host) -> bool:
        return (self.base / ((self.is_user and host.user_folder) or host.folder)).is_dir()


def project_of(folder: Path) -> Scope:
    """Return the git repository around a folder, else the folder itself."""
    return Scope(next((each for each in (folder, *folder.parents) if (each / ".git").exists()), folder))


@dataclass(frozen=True, slots=True)
class Parts:
    skill: bool = True
    mcp: bool = True
    hooks: bool = True


# --- Pieces: added to or removed from a file's text, where None is no file. `empty` is an empty file of the kind. -----


@dataclass(frozen=True, slots=True)
class _DocumentPiece:
    what: str
    file: Path
    empty = None

    def added(self, text: str | None) -> tuple[str, Outcome]:
        ours = files.text(self.file)
        if text is None or text == ours:
            return ours, Outcome.ADDED if text is None else Outcome.PRESENT
        return (ours, Outcome.RENEWED) if files.is_unchanged(text) else (text, Outcome.CHANGED)

    def removed(self, text: str) -> tuple[str | None, Outcome]:
        return (None, Outcome.REMOVED) if files.is_unchanged(text) else (text, Outcome.CHANGED)


@dataclass(frozen=True, slots=True)
class _EntryPiece:
    """An entry of a JSON or TOML file."""

    what: str
    entry: Entry
    arguments: tuple[str, ...]  # The arguments of `holdfast` that identify the entry.
    earlier: tuple[Json, ...] = ()  # Values that earlier versions wrote; none in TOML.
    is_toml: bool = False

    @property
    def empty(self) -> str:
        return "" if self.is_toml else "{}\n"

    def added(self, text: str | None) -> tuple[str, Outcome]:
        insert = tomledit.insert if self.is_toml else jsonedit.insert
        if text is None:
            return insert(text, self.entry), Outcome.ADDED
        ours, is_changed = self._found(text)
        if any(same(each, self.entry.value) for each in ours):
            return text, Outcome.PRESENT
        if ours:
            try:
                return jsonedit.replace(text, self.entry, ours[-1]), Outcome.RENEWED
            except UnsupportedSyntax:  # It contains a comment.
                return text, Outcome.CHANGED
        return (text, Outcome.CHANGED) if is_changed else (insert(text, self.entry), Outcome.ADDED)

    def removed(self, text: str) -> tuple[str | None, Outcome]:
        ours, is_changed = self._found(text)
        remove = tomledit.remove if self.is_toml else jsonedit.remove
        after: str | None = text
        for value in ours:
            if after is None:
                break
            try:
                after = remove(after, replace(self.entry, value=value))
            except UnsupportedSyntax:  # It contains a comment, or is written in another form.
                return after, Outcome.CHANGED
        if is_changed:
            return after, Outcome.CHANGED
        return after, Outcome.REMOVED if ours else Outcome.ABSENT

    def _found(self, text: str) -> tuple[list[Json], bool]:
        """Return the values of our entries, and whether a changed one or another with its name exists."""
        container: object = tomledit.load(text) if self.is_toml else jsonedit.load(text)
        for key in self.entry.path:
            container = container.get(key) if isinstance(container, dict) else None
        pairs: list[tuple[str | None, Json]] = []
        if isinstance(container, dict) and self.entry.key is not None:
            pairs = [*container.items()]
        elif isinstance(container, list) and self.entry.key is None:
            pairs = [(None, each) for each in container]
        ours, is_changed = list[Json](), False
        for name, value in pairs:
            is_named = name == self.entry.key
            if is_named and any(same(value, each) for each in (self.entry.value, *self.earlier)):
                ours.append(value)
            else:
                is_changed = is_changed or (is_named and name is not None) or runs(value, self.arguments)
        return ours, is_changed


_Piece = _DocumentPiece | _EntryPiece


def runs(value: object, arguments: tuple[str, ...]) -> bool:
    """Tell whether an entry, or a hook in it, runs `holdfast` with these arguments."""
    if not isinstance(value, dict):
        return False
    command, given_arguments = value.get("command"), value.get("args")
    if isinstance(command, list) and command:
        command, given_arguments = command[0], command[1:]
    if isinstance(command, str):
        if isinstance(given_arguments, list):
            found = [command, *(str(each) for each in given_arguments)]
        else:
            try:
                found = shlex.split(command)
            except ValueError:
                found = command.split()
        if found and PurePath(found[0]).name == PROGRAM and tuple(found[1 : len(arguments) + 1]) == arguments:
            return True
    inner = value.get("hooks")
    return isinstance(inner, list) and any(runs(each, arguments) for each in inner)


def server_entry(host: Host) -> tuple[Entry, tuple[Json, ...]]:
    value: dict[str, Json] = {key: each if isinstance(each, str) else [*each] for key, each in host.mcp.value.items()}
    if not host.mcp.env:
        return Entry((host.mcp.key,), NAME, value), ()
    return Entry((host.mcp.key,), NAME, {**value, "env": {name: f"${name}" for name in host.mcp.env}}), (value,)


def hook_entries(host: Host) -> list[tuple[Entry, tuple[Json, ...]]]:
    """Return the guard's hook for each event, with the values that earlier versions wrote."""
    if host.hooks is None or host.hooks.plugin is not None:
        return []
    hooks, command = host.hooks, HOOK.format(host.name)
    found = []
    for at, (event, matcher) in enumerate(hooks.events):
        value, earlier = _hook(hooks, matcher, {"command": command}), tuple[Json, ...]()
        if at == 0:
            value = _hook(hooks, matcher, {"command": command + FAIL_CLOSED, **dict(hooks.strict)})
            # Earlier versions let a call pass without `holdfast` on the PATH, the first ones on any failure.
            earlier = tuple(_hook(hooks, matcher, {"command": command, **dict(each)}) for each in (hooks.strict, ()))
        found.append((Entry(("hooks", event), None, value, hooks.siblings), earlier))
    return found


def _hook(hooks: Hooks, matcher: str | None, command: dict[str, Json]) -> Json:
    value: dict[str, Json] = {} if matcher is None else {"matcher": matcher}
    value |= command if hooks.is_flat else {"hooks": [{"type": "command", **command}]}
    return value


def _pieces(host: Host, scope: Scope, parts: Parts) -> Iterator[tuple[Path, _Piece]]:
    if parts.skill and (folder := scope.path(host.skill)):
        yield folder / SKILL, _DocumentPiece("the skill", files.FILE)
    if parts.mcp and (path := scope.path(host.mcp.config_file)):
        entry, earlier = server_entry(host)
        yield path, _EntryPiece("the MCP server", entry, MCP_WORDS, earlier, path.suffix == ".toml")
    if parts.hooks and host.hooks is not None and (path := scope.path(host.hooks.config_file)):
        if host.hooks.plugin is not None:
            yield path, _DocumentPiece("the plugin of the guard", host.hooks.plugin)
        for entry, earlier in hook_entries(host):
            yield path, _EntryPiece(f"the hook for {entry.path[-1]}", entry, HOOK_WORDS, earlier)


# --- Planning and doing -----------------------------------------------------------------------------------------------


def plan(hosts: Iterable[Host], scope: Scope, parts: Parts, *, is_install: bool) -> list[FileChange]:
    files: dict[Path, list[_Piece]] = {}
    for host in hosts:
        for path, piece in _pieces(host, scope, parts):
            files.setdefault(path, []).append(piece)
    return [_planned(path, scope, pieces, is_install=is_install) for path, pieces in files.items()]


def apply_change(change: FileChange, scope: Scope) -> FileChange:
    if change.found is None or not change.is_change:
        return change
    try:
        write_file(change.found, change.after)
    except FileSkipped as error:
        return change.skipped(str(error))
    if change.after is None:
        remove_empty_folders(change.path.parent, scope.base)
    return change


def _planned(path: Path, scope: Scope, pieces: list[_Piece], *, is_install: bool) -> FileChange:
    manual_text: str | None = None
    for piece in pieces:  # The content of a file with these pieces alone.
        manual_text, _ = piece.added(manual_text)
    unchanged = FileChange(
        path, None, None, tuple((each.what, Outcome.ABSENT) for each in pieces), manual_text=manual_text or ""
    )
    content: bytes | None = None
    try:
        found = read_file(path, None if scope.is_user else scope.base)
        content = found.content
        after, outcomes = _changed(found, pieces, is_install=is_install)
        if after != content and found.obstacle:
            raise FileSkipped(found.obstacle)
    except (FileSkipped, UnsupportedSyntax) as error:
        if not is_install and content is not None and PROGRAM.encode() not in content:
            return unchanged  # Nothing of ours is in it.
        return unchanged.skipped(str(error) if isinstance(error, FileSkipped) else f"it was not understood: {error}")
    return replace(unchanged, found=found, after=after, outcomes=outcomes)


def _changed(
    found: FileState, pieces: list[_Piece], *, is_install: bool
) -> tuple[bytes | None, tuple[tuple[str, Outcome], ...]]:
    content = found.content or b""
    byte_order_mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
    try:
        text = None if found.content is None else content.removeprefix(byte_order_mark).decode()
    except UnicodeDecodeError:
        raise UnsupportedSyntax("it is not UTF-8") from None
    if any(isinstance(each, _DocumentPiece) for each in pieces) and found.path.is_symlink():
        raise FileSkipped("it is a link; what it leads to is not ours")
    outcomes = []
    for piece in pieces:
        if is_install:
            text, outcome = piece.added(text)
        else:
            text, outcome = (None, Outcome.ABSENT) if text is None else piece.removed(text)
        outcomes.append((piece.what, outcome))
    if text is None and found.content is not None and (byte_order_mark or found.path.is_symlink()):
        # We write no byte order mark and no links, so the file is somebody's: keep it, empty.
        text = pieces[0].empty
    return None if text is None else byte_order_mark + text.encode(), tuple(outcomes)


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
