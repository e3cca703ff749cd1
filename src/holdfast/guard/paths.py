"""Paths as the file system has them: links, `..` and case are resolved before anything is matched.

A path may not exist yet. Then the part of it that does is resolved, and the rest is as it was written.
"""

from __future__ import annotations

import os
import stat

from holdfast.guard import branches

RULES_NAME = "holdfast-guard.toml"
_DEPTH_MAX = 3_000
"""More folders than a path can have: one character and a slash for each, of 4,096 characters."""


def resolved(text: str, cwd: str) -> list[str]:
    """Return the absolute paths that a write to `text` can change: what a link leads to, and the link itself."""
    text = usable(text)
    path = os.path.join(cwd, os.path.expanduser(text) if text.startswith("~") else text)
    name = os.path.basename(path)
    whole = os.path.realpath(path)
    if name in {"", ".", ".."}:
        return [whole]
    # `rm` and `mv` change the link, an editor what it leads to; who can tell which one this tool does?
    entry = os.path.join(os.path.realpath(os.path.dirname(path)), name)
    return [whole] if entry == whole else [whole, entry]


def usable(text: str) -> str:
    """Return a text that can be the name of a file. Half a character cannot: this is what programs write instead."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def rule_files_above(path: str) -> list[tuple[str, str]]:
    """Return the rule files of all folders above a resolved path, the nearest first, each with the folder it is for.

    All of them count, so that none in a folder can switch off one further up. A linked worktree without one has that of
    its repository. A folder that everybody may write to, as /tmp, is not asked: anybody could have put one there.
    """
    return [(file, folder) for file, folder in found_above(path) if not is_open(file)]


def found_above(path: str) -> list[tuple[str, str]]:
    """Return the same with those that are not asked."""
    found = []
    folder = path
    for _ in range(_DEPTH_MAX):
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
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
    """Tell whether the file system around a rule file ignores case: then it is also there under another name."""
    try:
        return os.path.samefile(os.path.join(os.path.dirname(rules), RULES_NAME.upper()), rules)
    except OSError:
        return False


def folded(piece: str) -> str:
    """Return a piece as a file system that ignores case compares it. Such ones ignore the form of accents too."""
    import unicodedata

    return unicodedata.normalize("NFC", piece).casefold()
