"""Glob patterns: `*` and `?` within a path segment, `**` across segments. Compiling regular expressions is too slow.

Nothing else is special, so a rule can name a file like `[id].tsx` literally.
"""

from __future__ import annotations

from collections.abc import Sequence

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
