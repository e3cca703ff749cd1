"""The docs lead somewhere: every link, every anchor, and from the first page to all others."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from functools import cache
from pathlib import Path

import pytest

from holdfast import __version__
from tests.support.pages import PAGES, ROOT
from tests.support.pythons import supported_versions

BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
VERSION = re.compile(r"Holdfast (\S+) is listening|version +(\S+) on both sides")
MODULE = re.compile(r"(?<![\w./*-])((?:\w+/)*\w+\.py)\b")
NAME = re.compile(r"`(?:\w+\.)*(_?[a-z]+(?:_[a-z]+)+)(?:\(\))?`")
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
    """Each decision record has a row on the first page of the docs, and a number of its own."""
    records = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    rows = re.findall(r"^\| \[(\d+)\]\(decisions/([\w-]+\.md)\)", prose(ROOT / "docs" / "README.md"), re.MULTILINE)
    assert rows == [(record.name[:4], record.name) for record in records]
    assert len({record.name[:4] for record in records}) == len(records)
    for record in records:
        assert prose(record).startswith(f"# {record.name[:4]} "), record.name


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


def test_classifiers_and_docs_name_the_supported_pythons() -> None:
    """The Makefile, the classifiers, `requires-python` and the docs agree on the supported versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r":: Python :: 3\.\d+$", line)]
    oldest, *_, newest = named
    assert (named, project["requires-python"]) == (supported_versions(), f">={oldest}")
    listed = f"Python {', '.join(named[:-1])} or {newest}"
    assert all(
        listed in (ROOT / page).read_text() for page in ("README.md", "CONTRIBUTING.md", "docs/guide/first-minute.md")
    )
    assert f"Python {oldest} to {newest}" in (ROOT / "docs/guide/install.md").read_text()


# --- What the prose names ---------------------------------------------------------------------------------------------

SOURCES = sorted((ROOT / "src").rglob("*.py"))
ABOUT_THE_CODE = [ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs" / "decisions").glob("*.md"))]


@cache
def said_and_named(path: Path) -> tuple[str, frozenset[str]]:
    """The prose of a Python file (comments, docstrings), and every word of the rest of it."""
    text = path.read_text(encoding="utf-8")
    docstrings = {
        (node.lineno, node.col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    said, named = [""], set[str]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or token.start in docstrings:
            said.append(token.string)
        else:
            named.update(re.findall(r"\w+", token.string))
    return "\n".join(said), frozenset(named)


@cache
def prose_about_the_code() -> dict[str, str]:
    """What is said of the code, by the file that says it."""
    files = {path: prose(path) for path in ABOUT_THE_CODE} | {path: said_and_named(path)[0] for path in SOURCES}
    return {path.relative_to(ROOT).as_posix(): text for path, text in files.items()}


def test_every_named_module_exists() -> None:
    """A file that a comment, a docstring, ARCHITECTURE or a decision names, with or without its folder, exists."""
    tops = ("src", "tests", "examples")
    paths = ["/" + path.relative_to(ROOT).as_posix() for top in tops for path in (ROOT / top).rglob("*.py")]
    missing = [
        f"{page}: {named}"
        for page, text in prose_about_the_code().items()
        for named in MODULE.findall(text)
        if not any(path.endswith("/" + named) for path in paths)
    ]
    assert missing == []


def test_every_named_symbol_exists() -> None:
    """A name with an underscore that they put between backticks is one of the code, not one that it had before."""
    known = set(re.findall(r"\w+", (ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    for path in [*SOURCES, *(ROOT / "tests").rglob("*.py")]:
        known |= said_and_named(path)[1]
    for path in (ROOT / "src").rglob("*.sql"):
        known.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    missing = [
        f"{page}: {name}"
        for page, text in prose_about_the_code().items()
        for name in NAME.findall(text)
        if name not in known
    ]
    assert missing == []


def test_a_name_that_is_gone_is_found() -> None:
    """The patterns see modules and names as people write them, and no version, number or path of elsewhere."""
    assert MODULE.findall("`core/queue.py`, line.py; tests/*.py x.pyc") == ["core/queue.py", "line.py"]
    assert NAME.findall("`may_touch`, `rights.may_touch()`, `Lane._answer_it`, `held`, `10_000`, may_touch") == [
        "may_touch",
        "may_touch",
        "_answer_it",
    ]
