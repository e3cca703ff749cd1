"""The pages of the docs, their blocks of code, and the marks above a block.

A mark is a comment that readers do not see, on a line of its own above the block:

    <!-- not run: REASON -->         nothing runs it
    <!-- before: CODE -->            set-up that the page does not show, in the language of the block
    <!-- exit codes: 1 12 -->        the codes, other than 0, with which commands of the block end, in this order
    <!-- answers: 409 -->            the statuses, other than 2xx, that curl gets
    <!-- file: NAME -->              the block is a file: it is written and made executable, not run
    <!-- whole: yes -->              a `console` block shows all that is printed; without it, it may leave lines out
    <!-- until Ctrl-C: TEXT -->      the block runs until it is interrupted, once it has printed TEXT
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")], key=lambda page: page.as_posix()
)
MARKS = {"not run", "before", "exit codes", "answers", "file", "whole", "until Ctrl-C"}

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMENTS_ABOVE = re.compile(r"(?:^<!--(?:(?!-->).)*-->\n)+\Z", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--\s*(.*?)\s*-->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One block of code: its page, its line, its language, its text, and its marks."""

    page: str
    line: int
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def runs(self) -> bool:
        return self.language in {"sh", "console", "python"} and "not run" not in self.marks


def blocks_of(page: Path, root: Path = ROOT) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(root).as_posix()
    found = []
    for fence in FENCE.finditer(text):
        line = text.count("\n", 0, fence.start()) + 1
        above = COMMENTS_ABOVE.search(text, 0, fence.start())
        marks = {}
        for comment in COMMENT.findall(above[0]) if above else ():
            kind, _, value = comment.partition(":")
            marks[kind] = value.strip()
        found.append(Block(name, line, fence[1], fence[2], marks))
    return found


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks_of(page)]
