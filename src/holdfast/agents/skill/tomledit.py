"""Append one table to a TOML text, and remove it: byte-exact in both directions.

The form of the edit encodes the earlier text:

    ends with a newline, or is empty    a blank line, our lines, a newline
    ends without a newline              a blank line, our lines, and no newline at the end either
    there was no file                   our lines, and nothing before them

`insert` checks that `remove` reverses it, and `remove` compares both texts as parsed by `tomllib`.
"""

from __future__ import annotations

import copy
import json
import re
import tomllib

from holdfast.agents.skill.jsonedit import Entry, UnsupportedSyntax, newline_of


def insert(text: str | None, entry: Entry) -> str:
    """Append the table; None means no file. Raises `UnsupportedSyntax`."""
    if text is None:
        return _lines(entry) + "\n"
    load(text)
    newline = newline_of(text)
    lines = _lines(entry, newline)
    ends = not text or text.endswith("\n")
    changed = text + newline + lines + newline if ends else text + newline * 2 + lines
    try:
        if remove(changed, entry) == text:
            return changed
    except UnsupportedSyntax:
        pass
    raise UnsupportedSyntax(f"it is written so that {_header(entry)} cannot be added at its end")


def remove(text: str, entry: Entry) -> str | None:
    """Remove the table as `insert` wrote it, else raise `UnsupportedSyntax`; None if it was the whole file."""
    meant = load(text)
    for lines in (_lines(entry), _lines(entry, "\r\n")):
        start = text.find(lines)
        while start >= 0:
            end = start + len(lines)
            if text[:start][-1:] in {"", "\n"} and text[end : end + 1] in {"", "\r", "\n"}:
                after = _cut(text, start, end)
                if _restores(after, entry, meant):  # Not if the lines are in a string.
                    return None if lines + "\n" == text else after
            start = text.find(lines, start + 1)
    raise UnsupportedSyntax(f"there are no lines {_header(entry)} as they were added")


def _restores(text: str, entry: Entry, meant: dict[str, object]) -> bool:
    try:
        return _with_entry(load(text), entry) == meant
    except UnsupportedSyntax:
        return False


def _header(entry: Entry) -> str:
    return f"[{'.'.join((*entry.path, str(entry.key)))}]"


def _lines(entry: Entry, newline: str = "\n") -> str:
    """Render the table without a final newline. Plain strings and lists are equal in JSON and TOML."""
    values = entry.value if isinstance(entry.value, dict) else {}
    return newline.join([_header(entry), *(f"{key} = {json.dumps(value)}" for key, value in values.items())])


def load(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UnsupportedSyntax(str(error) or "it is nested too deep") from None


def _cut(text: str, start: int, end: int) -> str:
    """Remove lines, and the blank line that we put before them."""
    blank_lines = 1
    ending = re.compile(r"\r?\n|\Z").match(text, end)
    if ending is not None:
        # Without a newline at the end, there was none before us either.
        blank_lines, end = (1 if ending[0] else 2), ending.end()
    before = text[:start]
    if re.search(r"(?:\A|\n)\r?\n\Z", before):
        for _ in range(blank_lines):
            before = re.sub(r"\r?\n\Z", "", before)
    return before + text[end:]


def _with_entry(before: dict[str, object], entry: Entry) -> dict[str, object]:
    table = after = copy.deepcopy(before)
    for key in entry.path:
        found = table.setdefault(key, {})
        if not isinstance(found, dict):
            raise UnsupportedSyntax(f"{key!r} is not a table")
        table = found
    table[str(entry.key)] = entry.value
    return after
