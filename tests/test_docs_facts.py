"""What the pages say in numbers and names is what the code has: counts, times, files, and lines of the log."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from holdfast.api.auth import secrets
from holdfast.api.handlers import health
from holdfast.cli.operators import nodes as nodes_command
from holdfast.cluster import election
from holdfast.journal.sqlite import archive, journal, store, watermark
from holdfast.server import first_access_token
from tests.support.pages import PAGES, ROOT, Block, all_blocks
from tests.support.server import serving

GUIDE, REFERENCE = ROOT / "docs" / "guide", ROOT / "docs" / "reference"
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def flat(page: Path) -> str:
    """A page whose lines are one: a sentence goes over the end of a line."""
    return " ".join(page.read_text(encoding="utf-8").split())


def section(page: Path, heading: str) -> str:
    """What stands below a heading, up to the next one of any kind."""
    found = re.split(rf"^#+ {re.escape(heading)}$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(found) == 2, f"{page} has {len(found) - 1} headings {heading!r}"
    return re.split(r"^#+ ", found[1], flags=re.MULTILINE)[0]


def first_column(text: str) -> list[str]:
    """The first cells of all rows of tables, without their heads."""
    rows = [line.split(" | ")[0].removeprefix("| ") for line in text.splitlines() if line.startswith("| ")]
    heads = [line.split(" | ")[0].removeprefix("| ") for line in re.findall(r"^(\|.*)\n\|---", text, re.MULTILINE)]
    return [row for row in rows if row not in heads]


# --- How it is shown --------------------------------------------------------------------------------------------------


def odd_spans(text: str) -> list[str]:
    """Each backtick that a reader would see, in a span of code or outside of it."""
    tokens = [child for token in MarkdownIt("commonmark").enable("table").parse(text) for child in token.children or ()]
    meant = [token for token in tokens if token.type == "code_inline" and len(token.markup) > 1]
    return [token.content for token in tokens if "`" in token.content and token not in meant]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_backtick_is_shown(page: Path) -> None:
    """Each span of code begins and ends where its author thought: none is open, and no two touch."""
    assert odd_spans(page.read_text(encoding="utf-8")) == []


def test_a_backtick_that_is_shown_is_found() -> None:
    """Two spans that touch are seen in a table too, and so is one that is open; a backtick that is meant is not."""
    assert odd_spans("| a |\n|---|\n| `holdfast_info``{version}` |\n") == ["holdfast_info``{version}"]
    assert odd_spans("Run `make\n\nand wait.") == ["Run `make"]
    assert odd_spans("`a`, ``a`b``, [`c`](d.md)") == []


# --- How many, how long -----------------------------------------------------------------------------------------------

WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def test_examples_are_counted() -> None:
    """Both first pages say how many small programs there are, and the page of the examples has a row for each."""
    programs = {path.name for path in (ROOT / "examples").iterdir() if path.suffix in {".py", ".sh"}}
    rows = re.findall(r"^\| \[([\w.]+)\]\(([\w.]+)\) ", (ROOT / "examples" / "README.md").read_text(), re.MULTILINE)
    assert {name for name, _ in rows} == {target for _, target in rows} == programs
    for page in (ROOT / "README.md", ROOT / "docs" / "README.md"):
        assert re.findall(r"(\w+) small programs", flat(page)) == [WORDS[len(programs)]], page


def test_cookie_lifetime_is_documented_once() -> None:
    """The guide and the reference say the same of the page's cookie: that for which the server lets it live."""
    hours, days = secrets.LIFETIME_MS // 3_600_000, secrets.SIGNED_IN_MS_MAX // 86_400_000
    minutes = secrets.RENEWED_AFTER_MS // 60_000
    guide, reference = flat(GUIDE / "page.md"), flat(REFERENCE / "http.md")
    assert f"good for {hours} hours, and each use of the page makes it good for {hours} more" in guide
    assert f"until {days} days after you signed in" in guide
    assert f"over {hours} hours after it was made" in reference
    assert f"a cookie older than {minutes} minutes gives the browser a new one, until {days} days after" in reference


def test_node_silence_limit_is_documented() -> None:
    """The reference says how often nodes tell of themselves, when that is now, when they are silent, and forgotten."""
    every, now, silent = election.REPORT_SECONDS, nodes_command.NOW_MS / 1000, health.SILENT_MS / 1000
    documented = flat(REFERENCE / "commands.md")
    assert (
        f"It does that every {every:g} s; less than {now:g} s ago is `now`. One that has not for {silent:g} s is"
        in documented
    )
    documented = flat(REFERENCE / "http.md")
    assert (
        f"heard of it for {silent:g} seconds" in documented
        and f"tell of themselves every {every:g} seconds" in documented
    )
    sql = (ROOT / "src" / "holdfast" / "journal" / "sql" / "postgres.sql").read_text(encoding="utf-8")
    assert "DELETE FROM {s}.node WHERE seen < now() - interval '1 day'" in sql, "both pages say: a day"


# --- Files ------------------------------------------------------------------------------------------------------------


def test_every_file_of_a_data_directory_is_documented(tmp_path: Path) -> None:
    """The table has each file that a server leaves, and each that only a failure, a move or a restore does."""
    rows = first_column(section(GUIDE / "operating.md", "The data directory").split("**The two databases")[0])
    documented = set(re.findall(r"`([^`]+)`", " ".join(rows)))
    with serving(tmp_path / "data") as server:
        while_it_runs = {path.name for path in (tmp_path / "data").iterdir()}
        assert server.terminate() == 0
    made = while_it_runs | {path.name for path in (tmp_path / "data").iterdir()}
    at_times = {
        watermark.FILE,
        watermark.MOVED,
        watermark.RESTORING,
        watermark.ARCHIVE,
        journal.RESERVE_FILE,
        store.UNSYNCED,
    }
    at_times |= {archive.LOCK, archive.UNSYNCED, secrets.KEY_FILE, first_access_token.TOKEN_FILE}
    assert len(made) > 3 and (made | at_times) - documented == set()


# --- In production ----------------------------------------------------------------------------------------------------

AS_ROOT = [block for block in all_blocks() if block.marks.get("not run") == "needs systemd and root"]


def _settings_block() -> Block:
    (block,) = [block for block in AS_ROOT if "holdfast.toml <<" in block.text]
    return block


def test_only_secrets_are_closed_to_others(tmp_path: Path) -> None:
    """The block that makes `/etc/holdfast` leaves the settings readable to the server's user, and the secrets to root
    alone: also in a shell that goes on.
    """
    script = _settings_block().text.replace("/etc/holdfast", f"{tmp_path}/etc")
    script += f"touch {tmp_path}/etc/later\n"
    done = subprocess.run(["sh", "-eu"], input=f"umask 022\n{script}", text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "etc").iterdir()}
    secret = dict.fromkeys(("ops.token", "agents.token", "backup.token", "tokens"), 0o600)
    assert modes == {**secret, "holdfast.toml": 0o644, "later": 0o644}
    assert len((tmp_path / "etc" / "tokens").read_text().splitlines()) == 3


def test_no_block_closes_what_is_made_after_it() -> None:
    """A page sets the umask in a shell of its own: what the same reader makes later is as open as it was to be."""
    scripts = [block for block in all_blocks() if block.language in {"sh", "console"}]
    assert [str(block) for block in scripts if re.search(r"^umask\b", block.text, re.MULTILINE)] == []


def test_data_commands_run_as_its_user() -> None:
    """Where a page is root and names the server's directory to `holdfast`, the command runs as the server's user:
    root is refused, for the files are not its own.
    """
    lines = [line for block in AS_ROOT for line in block.text.splitlines()]
    ours = [
        line for line in lines if re.search(r"\bholdfast (backup|restore|move|doctor)\b.* /var/lib/holdfast\b", line)
    ]
    assert len(ours) >= 3
    assert [line for line in ours if not line.startswith("runuser -u holdfast -- holdfast ")] == []


# --- Lines of the log -------------------------------------------------------------------------------------------------

LOG = {"debug", "info", "warning", "error", "exception", "critical", "log", "warn"}
ANY = "\0"
"""What may be anything: a placeholder of the code, or what a page leaves out."""
VIEWS = (
    "holdfast/engine",
    "holdfast/journal",
    "holdfast/http",
    "holdfast/api",
    "holdfast/observability",
    "holdfast/cluster",
    "holdfast/server",
    "holdfast/config",
)
"""Where texts are made that are logged elsewhere."""


def _text_of(node: ast.expr) -> str | None:
    """A text of the code, with `ANY` for each placeholder; None if it is no text."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else ANY for part in node.values)  # type: ignore[misc]  # A constant of such a text is a text.
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%0?\d*[sdro]", ANY, node.value)
    return None


def _texts_in(tree: ast.AST, *, of_the_log: bool) -> Iterator[str]:
    for node in ast.walk(tree):
        if not of_the_log and isinstance(node, ast.expr):
            yield from filter(None, [_text_of(node)])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOG:
            yield from filter(None, map(_text_of, node.args))


@cache
def texts(*folders: str, of_the_log: bool = True) -> frozenset[str]:
    """The texts that are logged below these folders, or all of them; of those that say something by themselves."""
    below = [path for path in SOURCES if not folders or path.relative_to(ROOT / "src").as_posix().startswith(folders)]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in below]
    found = {text for tree in trees for text in _texts_in(tree, of_the_log=of_the_log)}
    return frozenset(text for text in found if len(text.replace(ANY, "")) >= 10)


def share(one: str, other: str) -> bool:
    """Is there a piece between two holes, of one of them, that is in both?"""
    pieces = [(piece.strip(" .;:"), there) for here, there in ((one, other), (other, one)) for piece in here.split(ANY)]
    return any(len(piece) >= 8 and piece in there for piece, there in pieces)


def meet(one: str, other: str) -> bool:
    """Are both the same line? `ANY` stands for any text; but two that share nothing else are not."""
    if not share(one, other):
        return False

    @cache
    def from_here(i: int, j: int) -> bool:
        if one[i:] == other[j:]:
            return True
        if one[i : i + 1] == ANY:
            return from_here(i + 1, j) or (j < len(other) and from_here(i, j + 1))
        if other[j : j + 1] == ANY:
            return from_here(i, j + 1) or (i < len(one) and from_here(i + 1, j))
        return i < len(one) and j < len(other) and one[i] == other[j] and from_here(i + 1, j + 1)

    return from_here(0, 0)


def shown(heading: str) -> list[str]:
    """The lines that a table of the guide explains."""
    spans = re.findall(r"`([^`]+)`", "\n".join(first_column(section(GUIDE / "operating.md", heading))))
    return [span.replace("…", ANY) for span in spans]


@pytest.mark.parametrize("heading", ["Logs", "Lines of several nodes"])
def test_every_line_that_is_explained_is_written(heading: str) -> None:
    """Each line in the tables of the log is one that the code writes, word by word, but for what is left out."""
    everything = texts() | texts(*VIEWS, of_the_log=False)
    rows = [line for line in shown(heading) if "=" not in line]
    assert len(rows) > 15
    assert [line for line in rows if not any(meet(line, text) for text in everything)] == []


def test_every_line_of_a_node_is_explained() -> None:
    """What a node says of itself, of the others and of the seat has a row, unless it is a bug: that is reported."""
    explained = [*shown("Logs"), *shown("Lines of several nodes")]
    said = texts("holdfast/cluster", "holdfast/journal/postgres/leadership")
    unexplained = [text for text in said if not any(meet(text, line) for line in explained)]
    assert [text for text in unexplained if "a bug" not in text and "could not be ended in order" not in text] == []


def test_documented_log_line_without_a_writer_is_found() -> None:
    """Two texts with holes are the same line only if what stands between the holes fits."""
    assert meet(f"a turn took {ANY} ms, {ANY}", f"a turn took 80 ms, and {ANY} is the budget")
    assert meet(f"{ANY} nothing of it happened", f"{ANY}; nothing of it happened")
    assert not meet(f"the store is {ANY} again", "the store answers again")
    assert not meet(f"{ANY} is over", f"this node leads since {ANY}")
