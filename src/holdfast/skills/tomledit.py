"""Add one table to the end of a TOML text, and take it out again: every other byte stays, and the way back is exact.

The text itself says later what was there before us:

    ends with a newline, or is empty    a blank line, our lines, a newline
    ends without a newline              a blank line, our lines, and no newline at the end either
    there was no file                   our lines, and nothing before them

`insert` tries the way back before it answers, and has `tomllib` compare what both texts mean.
"""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Iterator

from holdfast.skills.jsonedit import Entry, NotUnderstood, newline_of

_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{1,2})?'
    r"|'''.*?'''(?:'{1,2})?"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|(?P<comment>\#[^\n]*)"
    r"|(?P<newline>\n)"
    r"|(?P<open>[\[{])"
    r"|(?P<close>[\]}])"
    r"""|[^"'#\n\[\]{}]+"""
    r"|.",
    re.DOTALL,
)


def insert(text: str | None, entry: Entry) -> str:
    """Return the text with the table at its end; None is a file that is not there. Raises `NotUnderstood`."""
    if text is None:
        return _lines(entry) + "\n"
    before = load(text)
    newline = newline_of(text)
    lines = _lines(entry, newline)
    ends = not text or text.endswith("\n")
    changed = text + newline + lines + newline if ends else text + newline * 2 + lines
    try:
        is_right = load(changed) == _with(before, entry) and remove(changed, entry) == text
    except NotUnderstood:
        is_right = False
    if not is_right:
        raise NotUnderstood(f"it is written so that {_header(entry)} cannot be added at its end")
    return changed


def remove(text: str, entry: Entry) -> str | None:
    """Return the text without the table; None if the file was ours as a whole.

    Raises `NotUnderstood`, also if the table is not there as lines of its own, or if a comment stands in it.
    """
    load(text)
    statements = list(_statements(text))
    path = (*entry.path, entry.key)
    at = next((at for at, (start, end) in enumerate(statements) if _path(text[start:end].strip()) == path), None)
    if at is None:
        raise NotUnderstood(f"there are no lines {_header(entry)}")
    start, end = statements[at]
    for first, last in statements[at + 1 :]:
        if text[first:last].strip().startswith("["):
            break
        end = last
    if any(found["comment"] for found in _TOKEN.finditer(text, start, end)):
        raise NotUnderstood("a comment stands in it")
    return None if _lines(entry) + "\n" == text else _cut(text, start, end)


def _header(entry: Entry) -> str:
    return f"[{'.'.join((*entry.path, str(entry.key)))}]"


def _lines(entry: Entry, newline: str = "\n") -> str:
    """Write the table, without a newline at the end. Plain strings and lists are the same in JSON and TOML."""
    values = entry.value if isinstance(entry.value, dict) else {}
    return newline.join([_header(entry), *(f"{key} = {json.dumps(value)}" for key, value in values.items())])


def load(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise NotUnderstood(str(error) or "it is nested too deep") from None


def _cut(text: str, start: int, end: int) -> str:
    """Take lines out, and the blank line that we put before them."""
    blank_lines = 1
    ending = re.compile(r"\r?\n|\Z").match(text, end)
    if ending is not None:
        # At the end of a file without a newline there was none before us either.
        blank_lines, end = (1 if ending[0] else 2), ending.end()
    before = text[:start]
    if re.search(r"(?:\A|\n)\r?\n\Z", before):
        for _ in range(blank_lines):
            before = re.sub(r"\r?\n\Z", "", before)
    return before + text[end:]


def _with(before: dict[str, object], entry: Entry) -> dict[str, object]:
    place = after = copy.deepcopy(before)
    for key in entry.path:
        found = place.setdefault(key, {})
        if not isinstance(found, dict):
            raise NotUnderstood(f"{key!r} is not a table")
        place = found
    place[str(entry.key)] = entry.value
    return after


def _statements(text: str) -> Iterator[tuple[int, int]]:
    """Find the lines of all headers and keys of a text that tomllib has taken, without the newline behind them."""
    start, depth, has_content = 0, 0, False
    for found in _TOKEN.finditer(text):
        if found["newline"] and depth == 0:
            if has_content:
                yield start, found.start() - text.endswith("\r", start, found.start())
            start, has_content = found.end(), False
            continue
        depth += bool(found["open"]) - bool(found["close"])
        has_content = has_content or not (found["comment"] or not found[0].strip())
    if has_content:
        yield start, len(text) - text.endswith("\r", start)


def _path(statement: str) -> tuple[str, ...]:
    if not statement.startswith("[") or statement.startswith("[["):
        return ()
    keys = []
    place: object = load(statement)
    while isinstance(place, dict) and place:
        [(key, place)] = place.items()
        keys.append(key)
    return tuple(keys)
