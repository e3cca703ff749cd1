"""The word "token" never means two things: it is an access token or a fencing token, and the pages say which.

In a paragraph, a list or a table that speaks of one kind only, the full word stands first, and may be short after that.
Where a piece has both kinds in it, each mention is full. Code is left out, and so are headings: links name them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pages import PAGES, ROOT

CODE = re.compile(r"^( *)```.*?^\1```|`[^`]*`|<!--.*?-->|\]\([^)]*\)", re.MULTILINE | re.DOTALL)
TOKEN = re.compile(r"(?:\b(access|fencing)\s+)?(?<![\w/.$-])tokens?\b(?![\w-])", re.IGNORECASE)
USERS = [
    page
    for page in PAGES
    if page.relative_to(ROOT).as_posix() == "README.md"
    or page.relative_to(ROOT).parts[:2] in {("docs", "guide"), ("docs", "reference")}
]


def pieces(text: str) -> Iterator[str]:
    """Each paragraph, list or table of a page, without its code."""
    plain = CODE.sub(lambda found: "\n" * found[0].count("\n") + " _ ", text)
    for piece in re.split(r"\n\s*\n|^#.*$", plain, flags=re.MULTILINE):
        yield piece.strip()


def unclear(text: str) -> list[str]:
    """Each piece in which a token is not said to be the one or the other."""
    found = []
    for piece in pieces(text):
        mentions = [(each[1] or "").lower() for each in TOKEN.finditer(piece)]
        if "" in mentions and (not mentions[0] or len(set(mentions) - {""}) > 1):
            found.append(piece)
    return found


@pytest.mark.parametrize("page", USERS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_token_is_of_one_kind(page: Path) -> None:
    """Whoever reads a page that people use knows which token is meant."""
    assert unclear(page.read_text(encoding="utf-8")) == []


def test_an_unclear_one_is_found() -> None:
    """The rule can fail: without the full word, with it too late, and with both kinds in one piece."""
    assert unclear("Send the token.") != []
    assert unclear("Send the token, which is an access token.") != []
    assert unclear("An access token, a fencing token. The token is old.") != []
    assert unclear("An access token. The token is old.\n\n`holdfast token create`, `token`\n\n# Tokens") == []
