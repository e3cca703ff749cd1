"""Install and remove git hooks: additively, and byte-exact in reverse.

An existing shell script stays in place, because some look at their own name and folder; it gets a block after its first
line. Any other hook is moved aside (`pre-commit.before-holdfast`) and run by our script. Edited blocks are not removed.
"""

from __future__ import annotations

import os
import stat

from holdfast.agents.guard.githooks import HOOKS, PRE_PUSH, git_output
from holdfast.agents.guard.pipes import quoted

RENAMED_SUFFIX = ".before-holdfast"
_SHELLS = (b"sh", b"bash", b"dash", b"zsh", b"ksh")
_BEGIN, _END = "# >>> holdfast guard >>>", "# <<< holdfast guard <<<"
_FIRST = b"#!/bin/sh\n"
_THEN = (
    f'[ ! -x "$0{RENAMED_SUFFIX}" ] || exec "$0{RENAMED_SUFFIX}" "$@"\n'.encode()
)  # Runs the earlier hook, if git would have.
_EXECUTABLE = 0o755


class HooksError(Exception):
    """The hooks cannot be changed; the text says why and what to do."""


def folder_of_hooks(repository: str, *, shared: bool) -> str:
    """Return the folder from which git runs the repository's hooks. Raises `GitError` and `HooksError`.

    A global or system `core.hooksPath` affects all repositories, so it needs `shared`.
    """
    found = os.fsdecode(git_output(["rev-parse", "--git-path", "hooks"], repository).rstrip(b"\n"))
    folder = os.path.realpath(os.path.join(repository, found))
    common = os.fsdecode(git_output(["rev-parse", "--git-common-dir"], repository).rstrip(b"\n"))
    if os.path.realpath(os.path.join(repository, common, "hooks")) == folder or shared:
        return folder
    origin = os.fsdecode(git_output(["config", "--show-scope", "--get", "core.hooksPath"], repository)).split("\t")[0]
    if origin in {"global", "system"}:
        raise HooksError(
            f"{folder} has the hooks of all your repositories (core.hooksPath, {origin} configuration); where there is"
            " no rule file the guard passes everything. Say --shared if it is meant"
        )
    return folder


def install(folder: str, name: str, program: str) -> str:
    os.makedirs(folder, exist_ok=True)
    path = f"{folder}/{name}"
    block = _block(name, program).encode()
    if not os.path.lexists(path):
        _write(path, _FIRST + block + _THEN, _EXECUTABLE)
        return f"{path} is made"
    if not os.path.islink(path):
        content, mode = _read(path)
        if _BEGIN.encode() in content:
            before, found, after = _split_at_block(content)
            if found == block:
                return f"{path} has the guard already"
            if not found:
                return (
                    f"{path} is left alone: its part for the guard was changed by hand; remove that part, and try again"
                )
            _write(path, before + block + after, mode)
            return f"{path} had the guard, and names this program now"
        first, newline, rest = content.partition(b"\n")
        words = [os.path.basename(word) for word in first.removeprefix(b"#!").split()] if first[:2] == b"#!" else []
        shell = words[1:2] if words[:1] == [b"env"] and words[1:] else words[:1]
        if newline and mode & stat.S_IXUSR and shell and shell[0] in _SHELLS:
            _write(path, first + newline + block + rest, mode)
            return f"{path} asks the guard first now; the rest of it is as it was"
    if os.path.lexists(path + RENAMED_SUFFIX):
        return f"{path} is left alone: {path + RENAMED_SUFFIX} is in the way; look what it is, and remove or rename it"
    os.rename(path, path + RENAMED_SUFFIX)
    _write(path, _FIRST + block + _THEN, _EXECUTABLE)
    return f"{path} asks the guard and then runs what was there, now {name + RENAMED_SUFFIX}"


def uninstall(folder: str, name: str) -> str:
    path = f"{folder}/{name}"
    if not os.path.lexists(path) or os.path.islink(path):
        return f"{path} has no guard"
    content, mode = _read(path)
    before, found, after = _split_at_block(content)
    if not found and (_BEGIN.encode() in content or _END.encode() in content):
        return f"{path} is left alone: its part for the guard was changed by hand"
    if not found:
        return f"{path} has no guard"
    if (before, after) != (_FIRST, _THEN):
        _write(path, before + after, mode)
        return f"{path} is as it was before the guard"
    os.unlink(path)
    if os.path.lexists(path + RENAMED_SUFFIX):
        os.rename(path + RENAMED_SUFFIX, path)
        return f"{path} is again what it was before the guard"
    return f"{path} is removed"


def _split_at_block(content: bytes) -> tuple[bytes, bytes, bytes]:
    """Split a hook at our block; the block is b"" unless it is exactly as we write it."""
    start, end = content.find(_BEGIN.encode() + b"\n"), content.find(_END.encode() + b"\n")
    if start < 0 or end < start:
        return content, b"", b""
    end += len(_END) + 1
    block = content[start:end]
    line = next((each for each in block.split(b"\n") if each.startswith(b"holdfast_guard=")), b"")
    program = os.fsdecode(line.removeprefix(b"holdfast_guard=")).replace("'\\''", "\0").strip("'").replace("\0", "'")
    if block not in {_block(name, program).encode() for name in HOOKS}:
        return content, b"", b""
    return content[:start], block, content[end:]


def _block(name: str, program: str) -> str:
    """Return the part of a hook that runs the guard. git stops if the program is missing."""
    lines = [
        _BEGIN,
        "# `holdfast guard git uninstall` removes these lines.",
        f"holdfast_guard={quoted(program)}",
        '[ -x "$holdfast_guard" ] || holdfast_guard=holdfast',
    ]
    if name == PRE_PUSH:
        lines += [
            "holdfast_refs=$(cat)",
            f'printf "%s\\n" "$holdfast_refs" | "$holdfast_guard" guard git {name} "$@" || exit 1',
            # Standard input can be read only once, so restore it for the rest of the hook.
            'if [ -n "$holdfast_refs" ]; then',
            "exec <<REFS_OF_THIS_PUSH",
            "$holdfast_refs",
            "REFS_OF_THIS_PUSH",
            "else",
            "exec </dev/null",
            "fi",
        ]
    else:
        lines.append(f'"$holdfast_guard" guard git {name} "$@" || exit 1')
    return "\n".join([*lines, _END, ""])


def _read(path: str) -> tuple[bytes, int]:
    with open(path, "rb") as opened:
        return opened.read(), stat.S_IMODE(os.fstat(opened.fileno()).st_mode)


def _write(path: str, content: bytes, mode: int) -> None:
    """Replace a hook atomically: git may run it at any moment."""
    unfinished = f"{path}.{os.getpid()}.new"
    try:
        with open(unfinished, "xb") as opened:
            opened.write(content)
        os.chmod(unfinished, mode)
        os.replace(unfinished, path)
    except OSError:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
        raise
