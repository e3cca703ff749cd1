"""Add one table to the end of a TOML text, and take it out again: every other byte stays, and the way back is exact.

The text itself says later what was there before us:

    ends with a newline, or is empty    a blank line, our lines, a newline
    ends without a newline              a blank line, our lines, and no newline at the end either
    there was no file                   our lines, and nothing before them

`insert` tries the way back before it answers, and has `tomllib` compare what both texts mean.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from holdfast.skills.jsonedit import NotUnderstood, newline_of

Value = str | list[str]

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


@dataclass(frozen=True, slots=True)
class Table:
    """A table of plain values, by the path of its header."""

    path: tuple[str, ...]
    values: Mapping[str, Value]

    def lines(self, newline: str = "\n") -> str:
        """Write it, without a newline at the end."""
        pairs = (f"{key} = {_written(value)}" for key, value in self.values.items())
        return newline.join([f"[{'.'.join(self.path)}]", *pairs])


@dataclass(frozen=True, slots=True)
class _Statement:
    """A header, or a key with its value, from the begin of its line to its end, without the newline."""

    start: int
    end: int
    text: str


def insert(text: str | None, table: Table) -> str:
    """Return the text with the table at its end; None is a file that is not there. Raises `NotUnderstood`."""
    if text is None:
        return table.lines() + "\n"
    before = load(text)
    newline = newline_of(text)
    lines = table.lines(newline)
    ends = not text or text.endswith("\n")
    changed = text + newline + lines + newline if ends else text + newline * 2 + lines
    try:
        is_right = load(changed) == _with(before, table) and remove(changed, table) == text
    except NotUnderstood:
        is_right = False
    if not is_right:
        raise NotUnderstood(f"it is written so that [{'.'.join(table.path)}] cannot be added at its end")
    return changed


def remove(text: str, table: Table) -> str | None:
    """Return the text without the table; None if the file was ours as a whole.

    Raises `NotUnderstood`, also if the table is not there as lines of its own, or if a comment stands in it.
    """
    load(text)
    statements = list(_statements(text))
    at = next((at for at, each in enumerate(statements) if _path(each.text) == table.path), None)
    if at is None:
        raise NotUnderstood(f"there are no lines [{'.'.join(table.path)}]")
    last = at
    while last + 1 < len(statements) and not statements[last + 1].text.startswith("["):
        last += 1
    start, end = statements[at].start, statements[last].end
    if any(found["comment"] for found in _TOKEN.finditer(text, start, end)):
        raise NotUnderstood("a comment stands in it")
    if table.lines() + "\n" == text:
        return None
    return _cut(text, start, end)


def load(text: str) -> dict[str, object]:
    """Read what a text means. Raises `NotUnderstood`."""
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


def _with(before: dict[str, object], table: Table) -> dict[str, object]:
    """Return what a text will mean with the table in it."""
    after = copy.deepcopy(before)
    place = after
    for key in table.path:
        found = place.setdefault(key, {})
        if not isinstance(found, dict):
            raise NotUnderstood(f"{key!r} is not a table")
        place = found
    place.update(table.values)
    return after


def _written(value: Value) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return "[" + ", ".join(_written(each) for each in value) + "]"


def _statements(text: str) -> Iterator[_Statement]:
    """Find all headers and keys of a text that tomllib has taken."""
    start, depth, has_content = 0, 0, False
    for found in _TOKEN.finditer(text):
        if found["newline"] and depth == 0:
            if has_content:
                yield _statement(text, start, found.start())
            start, has_content = found.end(), False
            continue
        depth += bool(found["open"]) - bool(found["close"])
        has_content = has_content or not (found["comment"] or not found[0].strip())
    if has_content:
        yield _statement(text, start, len(text))


def _statement(text: str, start: int, end: int) -> _Statement:
    end -= text[start:end].endswith("\r")
    return _Statement(start, end, text[start:end].strip())


def _path(statement: str) -> tuple[str, ...]:
    """Return the keys of a header of one table; of anything else, none."""
    if not statement.startswith("[") or statement.startswith("[["):
        return ()
    keys = []
    place: object = load(statement)
    while isinstance(place, dict) and place:
        [(key, place)] = place.items()
        keys.append(key)
    return tuple(keys)
