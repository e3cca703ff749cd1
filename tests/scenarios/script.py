"""How a script of scenarios is read: its lines, the remarks in them, and what each line asks and wants to hear."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

_REMARK = re.compile(r"(^|\s)#.*$")


class Step(msgspec.Struct, frozen=True):
    """One played line: its number, what it asks, what it wants to hear (None: anything) and what it heard."""

    line: int
    words: tuple[str, ...]
    wanted: str | None
    got: str = ""


def read_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line with its number, together with those that go on with its answer."""
    joined, first = "", 1
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith(";"):
            joined = _REMARK.sub("", joined).rstrip() + line.strip()
        else:
            yield first, joined
            joined, first = line, number
    yield first, joined


def read_step(number: int, line: str) -> Step | None:
    """Return what a line asks and wants to hear; None if there is nothing in it."""
    asked, arrow, wanted = _REMARK.sub("", line).partition("->")
    words = shlex.split(asked)
    if not words:
        if arrow:
            raise ValueError("an answer needs a command")
        return None
    return Step(number, tuple(words), wanted.strip() if arrow else None)
