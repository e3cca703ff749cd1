"""Paths as the file system has them: links, `..` and case are resolved before anything is matched.

A path may not exist yet. Then the part of it that does is resolved, and the rest is as it was written.
"""

from __future__ import annotations

import os
import stat

RULES_NAME = "holdfast-guard.toml"
_DEPTH_MAX = 200


def resolved(text: str, cwd: str) -> list[str]:
    """Return the absolute paths that a write to `text` can change: what a link leads to, and the link itself."""
    path = os.path.join(cwd, os.path.expanduser(text) if text.startswith("~") else text)
    name = os.path.basename(path)
    whole = os.path.realpath(path)
    if name in {"", ".", ".."}:
        return [whole]
    # `rm` and `mv` change the link, an editor what it leads to; who can tell which one this tool does?
    entry = os.path.join(os.path.realpath(os.path.dirname(path)), name)
    return [whole] if entry == whole else [whole, entry]


def rule_files_above(path: str) -> list[str]:
    """Return the rule files of all folders above a resolved path, the nearest first.

    All of them count, so that none in a folder can switch off one further up. A folder that everybody may write to,
    as /tmp, is not asked: anybody could have put one there.
    """
    return [rules for rules, is_asked in _above(path) if is_asked]


def passed_over_above(path: str) -> list[str]:
    """Return the rule files above a resolved path that are not asked."""
    return [rules for rules, is_asked in _above(path) if not is_asked]


def is_open(folder: str) -> bool:
    """Tell whether everybody may write to a folder."""
    return bool(os.stat(folder).st_mode & stat.S_IWOTH)


def _above(path: str) -> list[tuple[str, bool]]:
    found = []
    folder = path
    for _ in range(_DEPTH_MAX):
        parent = os.path.dirname(folder)
        if parent == folder:
            break
        folder = parent
        rules = os.path.join(folder, RULES_NAME)
        if os.path.lexists(rules):
            found.append((rules, not is_open(folder)))
    return found


def ignores_case(rules: str) -> bool:
    """Tell whether the file system around a rule file ignores case: then it is also there under another name."""
    try:
        return os.path.samefile(os.path.join(os.path.dirname(rules), RULES_NAME.upper()), rules)
    except OSError:
        return False


def pieces_below(path: str, top: str, *, folded: bool) -> list[str]:
    """Return the parts of a resolved path below a folder; none for the folder itself."""
    pieces = [piece for piece in path.removeprefix(top).split("/") if piece]
    return [folded_piece(piece) for piece in pieces] if folded else pieces


def folded_piece(piece: str) -> str:
    """Return a piece as a file system that ignores case compares it. Such ones ignore the form of accents too."""
    import unicodedata

    return unicodedata.normalize("NFC", piece).casefold()
