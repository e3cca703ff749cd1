"""Resolve links, `..` and case in paths before matching; of a new path, the part that exists.

Glob patterns have `*` and `?` within a path segment and `**` across segments, so a rule can name `[id].tsx` literally.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from holdfast.agents.guard.programs import has_option, parsed
from holdfast.agents.guard.syntax import Word

RULES_NAME = "holdfast-guard.toml"
_DEPTH_MAX = 3_000  # A path of 4,096 characters has at most 2,048 folders.


def resolved(text: str, cwd: str) -> list[str]:
    """Return the absolute paths that a write to `text` can change: a link's target, and the link itself."""
    text = usable(text)
    path = os.path.join(cwd, os.path.expanduser(text) if text.startswith("~") else text)
    name = os.path.basename(path)
    real_path = os.path.realpath(path)
    if name in {"", ".", ".."}:
        return [real_path]
    # `rm` and `mv` change the link, an editor its target; any tool may do either.
    entry = os.path.join(os.path.realpath(os.path.dirname(path)), name)
    return [real_path] if entry == real_path else [real_path, entry]


def usable(text: str) -> str:
    """Replace lone surrogates, which no file name can contain, as programs do when they write."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def rule_files_above(path: str) -> list[tuple[str, str]]:
    """Return the rule files above a resolved path, nearest first, each with its folder.

    All of them apply, so a nested one cannot disable an outer one. A linked worktree without one uses its repository's.
    World-writable folders like /tmp are skipped: anybody could put a rule file there.
    """
    return [(file, folder) for file, folder in found_above(path) if not is_open(file)]


def found_above(path: str) -> list[tuple[str, str]]:
    """Return the same, with the files in world-writable folders."""
    found, folder = [], path
    for _ in range(_DEPTH_MAX):
        if os.path.dirname(folder) == folder:
            break
        folder = os.path.dirname(folder)
        rules = os.path.join(folder, RULES_NAME)
        if os.path.lexists(rules):
            found.append((rules, folder))
        elif main := main_folder(folder):
            rules = os.path.join(main, RULES_NAME)
            found += [(rules, folder)] if os.path.lexists(rules) else []
    return found


def is_open(file: str) -> bool:
    return bool(os.stat(os.path.dirname(file)).st_mode & stat.S_IWOTH)


def ignores_case(rules: str) -> bool:
    try:
        return os.path.samefile(os.path.join(os.path.dirname(rules), RULES_NAME.upper()), rules)
    except OSError:
        return False


def folded(piece: str) -> str:
    """Normalise a segment as a case-insensitive file system does, including the form of accents."""
    import unicodedata

    return unicodedata.normalize("NFC", piece).casefold()


ANY_DEPTH = "**"


def fits(pattern: str, text: str) -> bool:
    at = resume = for_next = 0
    star = -1
    while for_next < len(text):
        if at < len(pattern) and pattern[at] == "*":
            star, resume = at, for_next
            at += 1
        elif at < len(pattern) and pattern[at] in {"?", text[for_next]}:
            at += 1
            for_next += 1
        elif star >= 0:
            # Backtrack: the last star takes one more character. Earlier stars need no retry.
            resume += 1
            at, for_next = star + 1, resume
        else:
            return False
    return all(char == "*" for char in pattern[at:])


def pieces_of(pattern: str) -> list[str]:
    text = pattern.removeprefix("./").lstrip("/")
    return [*text.rstrip("/").split("/"), *([ANY_DEPTH] if text.endswith("/") else [])]


def path_fits(pattern: Sequence[str], path: Sequence[str], *, below: bool = False, entry: str = "") -> bool:
    """Match a path, or with `below` anything below it too; `entry` is a shell pattern for its direct children."""
    positions = _with_empty(pattern, {0})
    for is_entry, piece in [*((False, each) for each in path), *([(True, _widened(entry))] if entry else [])]:
        reached = set()
        for at in positions:
            if at < len(pattern):
                if pattern[at] == ANY_DEPTH:
                    reached.add(at)
                elif _may_meet(pattern[at], piece) if is_entry else fits(pattern[at], piece):
                    reached.add(at + 1)
        positions = _with_empty(pattern, reached)
    return len(pattern) in positions or (below and bool(positions))


def may_fit(entry: str, name: str) -> bool:
    return not entry or fits(_widened(entry), name)


def _widened(entry: str) -> str:
    """Translate a shell pattern into one of ours that matches at least as much."""
    if "(" in entry or "\\" in entry:
        return "*"
    for first, last in ("{}", "[]"):
        if first in entry:
            entry = entry[: entry.index(first)] + "*" + (entry[entry.rindex(last) + 1 :] if last in entry else "")
    return entry


def _may_meet(piece: str, entry: str) -> bool:
    """Tell whether a name can match both; two patterns are assumed to overlap."""
    return "*" in piece or "?" in piece or fits(entry, piece)


def _with_empty(pattern: Sequence[str], positions: set[int]) -> set[int]:
    """Add the positions reached because `**` also matches no segment."""
    for at in sorted(positions):
        after = at
        while after < len(pattern) and pattern[after] == ANY_DEPTH:
            after += 1
            positions.add(after)
    return positions


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
