"""The docs lead somewhere: every link, every anchor, and from the first page to all others."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from holdfast import __version__
from tests.support.pages import PAGES, ROOT

BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
VERSION = re.compile(r"Holdfast (\S+) is listening|version +(\S+) on both sides")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


@cache
def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> set[str]:
    """What a link into the page may name: its headings, in lower case, with dashes for blanks, without signs."""
    return {re.sub(r"[^\w\- ]", "", found).lower().replace(" ", "-") for found in HEADING.findall(prose(page))}


def broken_links(page: Path, root: Path = ROOT) -> list[str]:
    """Every link of the page that leads nowhere."""
    broken = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        is_ours = target.is_relative_to(root) and target.exists()
        if not is_ours or (anchor and (target.suffix != ".md" or anchor not in anchors(target))):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    """Each relative link of a page names a file of the project, and each anchor a heading of its page."""
    assert broken_links(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    """A link to a file or a heading that is not there is seen, one in a block of code or to elsewhere is not."""
    page = tmp_path / "page.md"
    page.write_text("# The `one` heading\n[a](#the-one-heading) [b](#two) [c](none.md) [d](https://e.example/f)\n")
    assert broken_links(page, tmp_path) == ["#two", "none.md"]
    assert broken_links(page)[0] == "#the-one-heading", "what is outside of the project is nowhere"
    page = tmp_path / "code.md"
    page.write_text("```\n[a](none.md)\n```\n")
    assert broken_links(page) == []


def test_every_decision_is_listed() -> None:
    """Each decision record has a row on the first page of the docs, and their numbers have no gaps."""
    records = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    rows = re.findall(r"^\| \[(\d+)\]\(decisions/([\w-]+\.md)\)", prose(ROOT / "docs" / "README.md"), re.MULTILINE)
    assert rows == [(record.name[:4], record.name) for record in records]
    for number, record in enumerate(records, start=1):
        assert record.name.startswith(f"{number:04}-") and prose(record).startswith(f"# {number:04} "), record.name


def test_every_guide_is_listed() -> None:
    """Each guide and each page of the reference has a row on the first page of the docs."""
    listed = set(LINK.findall(prose(ROOT / "docs" / "README.md")))
    for folder in ("guide", "reference"):
        assert {f"{folder}/{page.name}" for page in (ROOT / "docs" / folder).glob("*.md")} <= listed


def test_the_version_shown_is_ours() -> None:
    """Where a page shows what a command prints, the version in it is the one of this tree."""
    shown = [
        version for page in PAGES for found in VERSION.findall(page.read_text(encoding="utf-8")) for version in found
    ]
    assert {version for version in shown if version} == {__version__}


def test_issue_templates_have_their_heads() -> None:
    """Each issue template says its name and what it is about, as the page that offers them needs it."""
    templates = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md"))
    assert templates
    for template in templates:
        assert re.match(r"---\nname: \S.*\nabout: \S.*\n---\n", template.read_text(encoding="utf-8")), template.name


def test_pythons_named_are_those_tested() -> None:
    """The classifiers name only Pythons on which the whole suite passed; a new one is added here with its run."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    named = {line.rpartition(" ")[2] for line in classifiers if re.search(r":: Python :: 3\.\d+$", line)}
    assert named == {"3.11"}
