"""Resolve links, `..` and case in paths before matching; of a new path, the part that exists."""

from __future__ import annotations

import os
import stat

from holdfast.agents.guard import branches

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
        elif main := branches.main_folder(folder):
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
