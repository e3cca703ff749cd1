"""The branch that is checked out, and the branches that a `git push` names, without running git."""

from __future__ import annotations

import os
from collections.abc import Sequence

HEADS = "refs/heads/"
_HEAD_CHARS_MAX = 4_096
_WITH_VALUE = frozenset({"-o", "--push-option", "--repo", "--receive-pack", "--exec", "--recurse-submodules"})
_MANY = frozenset({"--all", "--branches", "--mirror", "--tags"})


def top_level(folder: str) -> str:
    """Return the top folder of the working tree around a folder; "" if there is none."""
    at = os.path.realpath(folder)
    while not os.path.lexists(os.path.join(at, ".git")):
        if at == os.path.dirname(at):
            return ""
        at = os.path.dirname(at)
    return at


def current(folder: str) -> str:
    """Return the branch that is checked out around a folder; "" if there is none or it cannot be told."""
    top = top_level(folder)
    place = os.path.join(top, ".git")
    if os.path.isfile(place):
        # A linked worktree, or a submodule: the file says where its HEAD is.
        place = os.path.join(top, _first_line(place).removeprefix("gitdir: "))
    line = _first_line(os.path.join(place, "HEAD")) if top else ""
    return line.removeprefix("ref: " + HEADS) if line.startswith("ref: " + HEADS) else ""


def main_folder(folder: str) -> str:
    """Return the main folder of the repository that a folder is a linked worktree of; "" if it is none."""
    place = os.path.join(folder, ".git")
    if not os.path.isfile(place):
        return ""
    place = os.path.join(folder, _first_line(place).removeprefix("gitdir: "))
    common = _first_line(os.path.join(place, "commondir"))  # A submodule has none.
    shared = os.path.realpath(os.path.join(place, common)) if common else ""
    return os.path.dirname(shared) if os.path.basename(shared) == ".git" else ""


def _first_line(file: str) -> str:
    try:
        with open(file, encoding="utf-8", errors="surrogateescape") as opened:
            return opened.read(_HEAD_CHARS_MAX).partition("\n")[0].strip()
    except OSError:
        return ""


def is_branch(name: str) -> bool:
    return name.startswith((HEADS, "heads/"))


def pushed(words: Sequence[str], checked_out: str) -> list[str] | None:
    """Return the branches that `git push` with these words (behind `push`) changes there; None if that is not clear.

    What is not a branch is named whole, as `refs/tags/v1`.
    """
    operands, deletes = [], False
    rest = iter(words)
    for word in rest:
        if word in _MANY:
            return None
        deletes = deletes or word in {"-d", "--delete"}
        if word in _WITH_VALUE:
            next(rest, None)
        elif not word.startswith("-"):
            operands.append(word)
    refs = operands[1:]
    if not refs:
        return [checked_out] if checked_out and not deletes else None
    found = []
    after_tag = False
    for ref in refs:
        if after_tag or ref == "tag":
            if after_tag:
                found.append(f"refs/tags/{ref}")
            after_tag = not after_tag
            continue
        source, colon, target = ref.removeprefix("+").partition(":")
        name = target if colon else source
        name = checked_out if name in {"HEAD", "@"} else name
        if not name or "*" in name:
            return None
        found.append(name.removeprefix("refs/").removeprefix("heads/") if is_branch(name) else name)
    return found
