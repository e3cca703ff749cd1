"""Plan the changes to each file for an installation or removal, then carry them out.

An entry is ours if it equals the one we write. A different entry that runs our command was changed by somebody: it
stays, and that is reported.
"""

from __future__ import annotations

import codecs
import enum
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

from holdfast.skills import document, jsonedit, tomledit
from holdfast.skills.files import Found, LeftAlone, look, put, tidy
from holdfast.skills.hosts import FAIL_CLOSED, HOOK, MOVED, NAME, SKILL, Hooks, Host, Place
from holdfast.skills.jsonedit import Entry, Json, NotUnderstood, same

PROGRAM = "holdfast"
MCP_WORDS = ("mcp",)  # The arguments by which our entries are recognised.
HOOK_WORDS = ("guard", "hook")


class Word(enum.Enum):
    """Outcome of one piece in one file."""

    ADDED = "put in place"
    RENEWED = "brought up to date"
    THERE = "there already"
    REMOVED = "removed"
    ABSENT = "not there"
    CHANGED = "not as we wrote it, and left as it is"
    LEFT = "left alone"


@dataclass(frozen=True, slots=True)
class Work:
    """One file: what was found, the planned content, and the outcome of each of our pieces."""

    path: Path
    found: Found | None
    after: bytes | None  # None: no file.
    outcomes: tuple[tuple[str, Word], ...]
    reason: str = ""  # Why it is left alone.
    by_hand: str = ""  # What a person would write there.

    @property
    def is_change(self) -> bool:
        return self.found is not None and self.found.content != self.after

    def left(self, reason: str) -> Work:
        outcomes = tuple((what, Word.LEFT) for what, _ in self.outcomes)
        return Work(self.path, None, None, outcomes, reason, self.by_hand)


@dataclass(frozen=True, slots=True)
class Scope:
    base: Path  # A project's folder, or a user's home directory.
    is_user: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    def path(self, place: Place) -> Path | None:
        found = place.user if self.is_user else place.project
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
class _Document:
    what: str
    file: Path
    empty = None

    def added(self, text: str | None) -> tuple[str, Word]:
        ours = document.text(self.file)
        if text is None or text == ours:
            return ours, Word.ADDED if text is None else Word.THERE
        return (ours, Word.RENEWED) if document.is_unchanged(text) else (text, Word.CHANGED)

    def removed(self, text: str) -> tuple[str | None, Word]:
        return (None, Word.REMOVED) if document.is_unchanged(text) else (text, Word.CHANGED)


@dataclass(frozen=True, slots=True)
class _InFile:
    """An entry of a JSON or TOML file."""

    what: str
    entry: Entry
    words: tuple[str, ...]  # The arguments of `holdfast` that identify the entry.
    earlier: tuple[Json, ...] = ()  # Values that earlier versions wrote; none in TOML.
    is_toml: bool = False

    @property
    def empty(self) -> str:
        return "" if self.is_toml else "{}\n"

    def added(self, text: str | None) -> tuple[str, Word]:
        insert = tomledit.insert if self.is_toml else jsonedit.insert
        if text is None:
            return insert(text, self.entry), Word.ADDED
        ours, is_changed = self._found(text)
        if any(same(each, self.entry.value) for each in ours):
            return text, Word.THERE
        if ours:
            try:
                return jsonedit.replace(text, self.entry, ours[-1]), Word.RENEWED
            except NotUnderstood:  # It contains a comment.
                return text, Word.CHANGED
        return (text, Word.CHANGED) if is_changed else (insert(text, self.entry), Word.ADDED)

    def removed(self, text: str) -> tuple[str | None, Word]:
        ours, is_changed = self._found(text)
        remove = tomledit.remove if self.is_toml else jsonedit.remove
        after: str | None = text
        for value in ours:
            if after is None:
                break
            try:
                after = remove(after, replace(self.entry, value=value))
            except NotUnderstood:  # It contains a comment, or is written in another form.
                return after, Word.CHANGED
        if is_changed:
            return after, Word.CHANGED
        return after, Word.REMOVED if ours else Word.ABSENT

    def _found(self, text: str) -> tuple[list[Json], bool]:
        """Return the values of our entries, and whether a changed one or another with its name exists."""
        place: object = tomledit.load(text) if self.is_toml else jsonedit.load(text)
        for key in self.entry.path:
            place = place.get(key) if isinstance(place, dict) else None
        pairs: list[tuple[str | None, Json]] = []
        if isinstance(place, dict) and self.entry.key is not None:
            pairs = [*place.items()]
        elif isinstance(place, list) and self.entry.key is None:
            pairs = [(None, each) for each in place]
        ours, is_changed = list[Json](), False
        for name, value in pairs:
            is_named = name == self.entry.key
            if is_named and any(same(value, each) for each in (self.entry.value, *self.earlier)):
                ours.append(value)
            else:
                is_changed = is_changed or (is_named and name is not None) or runs(value, self.words)
        return ours, is_changed


_Piece = _Document | _InFile


def runs(value: object, words: tuple[str, ...]) -> bool:
    """Tell whether an entry, or a hook in it, runs `holdfast` with these arguments."""
    if not isinstance(value, dict):
        return False
    command, arguments = value.get("command"), value.get("args")
    if isinstance(command, list) and command:
        command, arguments = command[0], command[1:]
    if isinstance(command, str):
        if isinstance(arguments, list):
            found = [command, *(str(each) for each in arguments)]
        else:
            try:
                found = shlex.split(command)
            except ValueError:
                found = command.split()
        if found and PurePath(found[0]).name == PROGRAM and tuple(found[1 : len(words) + 1]) == words:
            return True
    inner = value.get("hooks")
    return isinstance(inner, list) and any(runs(each, words) for each in inner)


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
        found.append((Entry(("hooks", event), None, value, hooks.beside), earlier))
    return found


def _hook(hooks: Hooks, matcher: str | None, command: dict[str, Json]) -> Json:
    value: dict[str, Json] = {} if matcher is None else {"matcher": matcher}
    value |= command if hooks.is_flat else {"hooks": [{"type": "command", **command}]}
    return value


def _pieces(host: Host, scope: Scope, parts: Parts) -> Iterator[tuple[Path, _Piece]]:
    if parts.skill and (folder := scope.path(host.skill)):
        yield folder / SKILL, _Document("the skill", document.FILE)
    if parts.mcp and (path := scope.path(host.mcp.place)):
        entry, earlier = server_entry(host)
        yield path, _InFile("the MCP server", entry, MCP_WORDS, earlier, path.suffix == ".toml")
    if parts.hooks and host.hooks is not None and (path := scope.path(host.hooks.place)):
        if host.hooks.plugin is not None:
            yield path, _Document("the plugin of the guard", host.hooks.plugin)
        for entry, earlier in hook_entries(host):
            yield path, _InFile(f"the hook for {entry.path[-1]}", entry, HOOK_WORDS, earlier)


# --- Planning and doing -----------------------------------------------------------------------------------------------


def plan(hosts: Iterable[Host], scope: Scope, parts: Parts, *, is_install: bool) -> list[Work]:
    files: dict[Path, list[_Piece]] = {}
    for host in hosts:
        for path, piece in _pieces(host, scope, parts):
            files.setdefault(path, []).append(piece)
    return [_planned(path, scope, pieces, is_install=is_install) for path, pieces in files.items()]


def carry(work: Work, scope: Scope) -> Work:
    if work.found is None or not work.is_change:
        return work
    try:
        put(work.found, work.after)
    except LeftAlone as error:
        return work.left(str(error))
    if work.after is None:
        tidy(work.path.parent, scope.base)
    return work


def _planned(path: Path, scope: Scope, pieces: list[_Piece], *, is_install: bool) -> Work:
    by_hand: str | None = None
    for piece in pieces:  # The content of a file with these pieces alone.
        by_hand, _ = piece.added(by_hand)
    nothing = Work(path, None, None, tuple((each.what, Word.ABSENT) for each in pieces), by_hand=by_hand or "")
    content: bytes | None = None
    try:
        found = look(path, None if scope.is_user else scope.base)
        content = found.content
        after, outcomes = _changed(found, pieces, is_install=is_install)
        if after != content and found.obstacle:
            raise LeftAlone(found.obstacle)
    except (LeftAlone, NotUnderstood) as error:
        if not is_install and content is not None and PROGRAM.encode() not in content:
            return nothing  # Nothing of ours is in it.
        return nothing.left(str(error) if isinstance(error, LeftAlone) else f"it was not understood: {error}")
    return replace(nothing, found=found, after=after, outcomes=outcomes)


def _changed(
    found: Found, pieces: list[_Piece], *, is_install: bool
) -> tuple[bytes | None, tuple[tuple[str, Word], ...]]:
    content = found.content or b""
    mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
    try:
        text = None if found.content is None else content.removeprefix(mark).decode()
    except UnicodeDecodeError:
        raise NotUnderstood("it is not UTF-8") from None
    if any(isinstance(each, _Document) for each in pieces) and found.path.is_symlink():
        raise LeftAlone("it is a link; what it leads to is not ours")
    outcomes = []
    for piece in pieces:
        if is_install:
            text, word = piece.added(text)
        else:
            text, word = (None, Word.ABSENT) if text is None else piece.removed(text)
        outcomes.append((piece.what, word))
    if text is None and found.content is not None and (mark or found.path.is_symlink()):
        # We write no byte order mark and no links, so the file is somebody's: keep it, empty.
        text = pieces[0].empty
    return None if text is None else mark + text.encode(), tuple(outcomes)
