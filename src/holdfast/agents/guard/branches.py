"""The branch that is checked out, and the branches that a `git push` names, without running git."""

from __future__ import annotations

import os
from collections.abc import Sequence

from holdfast.agents.guard.programs import has_option, parsed
from holdfast.agents.guard.syntax import Word

HEADS = "refs/heads/"
_HEAD_CHARS_MAX = 4_096


def top_level(folder: str) -> str:
    at = os.path.realpath(folder)
    while not os.path.lexists(os.path.join(at, ".git")):
        if at == os.path.dirname(at):
            return ""
        at = os.path.dirname(at)
    return at


def current(folder: str) -> str:
    """Return the branch checked out in a folder; "" on a detached HEAD or outside a repository."""
    top = top_level(folder)
    line = _first_line(os.path.join(_git_folder(top) or os.path.join(top, ".git"), "HEAD")) if top else ""
    return line.removeprefix("ref: " + HEADS) if line.startswith("ref: " + HEADS) else ""


def _git_folder(top: str) -> str:
    """Return the folder that the `.git` file of a linked worktree or submodule names; "" without such a file."""
    git_path = os.path.join(top, ".git")
    return os.path.join(top, _first_line(git_path).removeprefix("gitdir: ")) if os.path.isfile(git_path) else ""


def main_folder(folder: str) -> str:
    """Return the main working tree of a linked worktree; "" for any other folder."""
    git_path = _git_folder(folder)
    common = _first_line(os.path.join(git_path, "commondir")) if git_path else ""  # A submodule has none.
    shared = os.path.realpath(os.path.join(git_path, common)) if common else ""
    return os.path.dirname(shared) if os.path.basename(shared) == ".git" else ""


def _first_line(file: str) -> str:
    try:
        with open(file, encoding="utf-8", errors="surrogateescape") as opened:
            return opened.read(_HEAD_CHARS_MAX).partition("\n")[0].strip()
    except OSError:
        return ""


def pushed(words: Sequence[str], checked_out: str) -> list[str]:
    """Return the remote branches that `git push WORDS` changes, other refs in full (`refs/tags/v1`); [] if unclear."""
    options, operands = parsed("git push", [Word(word) for word in words])
    if has_option(options, "--all", "--branches", "--mirror", "--tags"):
        return []
    if len(operands) <= 1:
        return [checked_out] if checked_out and not has_option(options, "-d", "--delete") else []
    refs, found = iter([word.text for word in operands[1:]]), []
    for ref in refs:
        if ref == "tag":
            found += [f"refs/tags/{name}" for name in [next(refs, "")] if name]
            continue
        source, colon, target = ref.removeprefix("+").partition(":")
        name = target if colon else source
        name = checked_out if name in {"HEAD", "@"} else name
        if not name or "*" in name:
            return []
        is_branch = name.startswith((HEADS, "heads/"))
        found.append(name.removeprefix("refs/").removeprefix("heads/") if is_branch else name)
    return found
