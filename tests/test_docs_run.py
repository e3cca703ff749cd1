"""What the docs show works: commands and programs are run against a real server, everything else is parsed."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import sqlite3
import subprocess
import tomllib
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from holdfast import clientconfig, config
from holdfast.agents.guard import rules
from holdfast.testing import server
from holdfast.wire import replies, requests
from tests.support.page_session import PageSession
from tests.support.pages import MARKS, PAGES, ROOT, Block, all_blocks, blocks_of

LANGUAGES = {"caddy", "console", "haproxy", "ini", "json", "nginx", "python", "sh", "sql", "text", "toml", "yaml"}
DROP_IN = "nodes.conf"
UNITS = (DROP_IN, "holdfast.service", "holdfast-backup.service", "holdfast-backup.timer")
"""In the order of the pages."""
RUNNING = [page for page in PAGES if any(block.runs for block in blocks_of(page))]

# Every block that nothing runs, and why: page, reason, how many.
NOT_RUN = {
    ("docs/guide/airflow.md", "needs Airflow"): 1,
    ("docs/guide/apscheduler.md", "needs APScheduler"): 1,
    ("docs/guide/benchmarks.md", "takes minutes"): 7,
    ("docs/guide/celery.md", "needs Celery"): 1,
    ("docs/guide/containers.md", "needs a container engine"): 1,
    ("docs/guide/install.md", "needs a package index"): 3,
    ("docs/guide/metrics.md", "needs systemd and root"): 1,
    ("docs/guide/kubernetes.md", "needs a cluster"): 5,
    ("docs/guide/kubernetes.md", "needs a container engine"): 1,
    ("docs/guide/mcp.md", "it is a command of Claude Code"): 2,
    ("docs/guide/nodes.md", "needs a PostgreSQL of your own"): 3,
    ("docs/guide/nodes.md", "needs systemd and root"): 3,
    ("docs/guide/nodes.md", "needs three machines"): 1,
    ("docs/guide/nodes.md", "starts a PostgreSQL and runs until Ctrl-C"): 1,
    ("docs/guide/operating.md", "needs a server with such a certificate"): 1,
    ("docs/guide/operating.md", "needs systemd and root"): 5,
    ("docs/guide/proxies.md", "needs a name, a certificate and a proxy"): 1,
}


def blocks_in(language: str) -> list[Block]:
    return [block for block in all_blocks() if block.language == language]


# --- Run --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_documented_commands_run(page: Path, tmp_path: Path) -> None:
    """The `sh`, `console` and `python` blocks of a page run in order against a real server, and end as they should."""
    with server() as running, PageSession(tmp_path, running) as session:
        for block in blocks_of(page):
            if block.runs:
                session.run(block)


def test_skipped_blocks_are_listed() -> None:
    """Each block that nothing runs says why, and is listed here."""
    found = Counter((block.page, block.marks["not run"]) for block in all_blocks() if "not run" in block.marks)
    assert dict(found) == NOT_RUN


def test_every_block_has_a_language_and_known_marks() -> None:
    """No block escapes: its language is one of those below, and above it stand only marks that mean something."""
    for block in all_blocks():
        assert block.language in LANGUAGES, block
        assert set(block.marks) <= MARKS, block
        assert block.marks.get("not run") != "", f"{block}: a block that is not run says why"


# --- Parse ------------------------------------------------------------------------------------------------------------


def as_json(text: str) -> object:
    """JSON, where `…` outside of strings stands for what is left out."""
    parts = re.split(r'("(?:[^"\\]|\\.)*")', text)
    parts[::2] = [re.sub(r",?\s*…", "", part) for part in parts[::2]]
    return json.loads("".join(parts))


@pytest.mark.parametrize("block", blocks_in("json"), ids=str)
def test_json_is_json(block: Block) -> None:
    """Each `json` block is a JSON object, but for what is left out."""
    assert isinstance(as_json(block.text), dict)


def is_like(struct: type[msgspec.Struct], keys: set[str]) -> bool:
    """Could an answer with these fields be this struct? What is unset is left out of an answer."""
    config = struct.__struct_config__
    fields = msgspec.structs.fields(struct)
    always = [field for field in fields if field.default is not msgspec.UNSET]
    needed = {field.encode_name for field in always if field.required or not config.omit_defaults}
    tag = {config.tag_field} if config.tag_field else set()
    return needed | tag <= keys <= {field.encode_name for field in fields} | tag


def test_answers_shown_have_every_field() -> None:
    """Each JSON block of the HTTP reference has all the fields of an answer, and no other; or those of a problem.

    The body of a request that has a block of its own has all its fields too.
    """
    kinds = [*vars(replies).values(), requests.LeaseWatchBody]
    structs = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
    for block in blocks_in("json"):
        if block.page == "docs/reference/http.md":
            shown = as_json(block.text)
            assert isinstance(shown, dict)
            keys = set(shown)
            problem = keys >= {"error", "code", "details", "request_id"}
            assert problem or any(is_like(struct, keys) for struct in structs), block


# `tests/agents/mcp` has those of agents' hosts.
@pytest.mark.parametrize("block", [block for block in blocks_in("toml") if "[mcp_servers" not in block.text], ids=str)
def test_toml_is_taken(block: Block, tmp_path: Path) -> None:
    """Each `toml` block of ours is taken: as a configuration of client or server, or as rules of the guard."""
    if "rule" in tomllib.loads(block.text):
        assert rules.parse(str(block), block.text)["rules"]
    elif "token_file" in tomllib.loads(block.text):
        (tmp_path / "holdfast").mkdir()
        (tmp_path / "holdfast" / "client.toml").write_text(block.text)
        assert clientconfig.read({"XDG_CONFIG_HOME": str(tmp_path)}).url
    else:
        (tmp_path / "holdfast.toml").write_text(block.text)
        config.load(overrides={}, environment={}, file=tmp_path / "holdfast.toml")


def _unit(block: Block, *, strict: bool = True) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None, strict=strict)
    unit.optionxform = str  # type: ignore[assignment, method-assign]  # Names of systemd have capitals.
    unit.read_string(block.text)
    return unit


def test_units_are_units() -> None:
    """The `ini` blocks are units of systemd: the server, its backup, and the timer of that, no line twice; and what a
    node of several adds to the server.
    """
    nodes, *blocks = blocks_in("ini")
    server, backup, timer = map(_unit, blocks)
    assert _unit(nodes, strict=False).sections() == ["Unit", "Service"]
    assert server.sections() == ["Unit", "Service", "Install"]
    assert server["Service"]["ExecStart"].startswith("/opt/holdfast/bin/holdfast serve --config ")
    assert backup.sections() == ["Unit", "Service"]
    assert "/opt/holdfast/bin/holdfast backup --force " in backup["Service"]["ExecStart"]
    assert server["Service"]["User"] == backup["Service"]["User"] == "holdfast"
    assert timer.sections() == ["Unit", "Timer", "Install"]


def test_units_are_those_of_the_folder() -> None:
    """The guide shows the files of `deploy/systemd`, letter by letter."""
    for name, block in zip(UNITS, blocks_in("ini"), strict=True):
        assert block.text == (ROOT / "deploy" / "systemd" / name).read_text(), name
    assert {path.name for path in (ROOT / "deploy" / "systemd").iterdir()} == set(UNITS)


def test_units_hand_over_what_they_name() -> None:
    """Each variable of a unit is one that the program reads, and names a credential that the unit loads, or a file that
    a block of the guides makes for the server's user.
    """
    known = {row.variable for row in config.TABLE} | {"PGPASSFILE", "HOLDFAST_URL", "HOLDFAST_TOKEN_FILE"}
    made = [block.text for block in all_blocks() if "install -m 0400 -o holdfast" in block.text]
    for block in blocks_in("ini"):
        loaded = set(re.findall(r"^LoadCredential=(\w+):/etc/holdfast/[\w.-]+$", block.text, re.MULTILINE))
        given = dict(re.findall(r"(?:^Environment=| )([A-Z_]+)=(\S+)", block.text, re.MULTILINE))
        assert set(given) <= known, block
        files = {value for value in given.values() if not value.startswith("http")}
        assert {f"%d/{name}" for name in loaded} == {value for value in files if value.startswith("%d/")}, block
        for path in (value for value in files if value.startswith("/")):
            assert any(f"{path} <<" in text for text in made), (block, path)


def test_systemd_finds_little_open() -> None:
    """By `systemd-analyze security` the server is exposed by less than 2 of 10: what it does not need is closed."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    unit = ROOT / "deploy" / "systemd" / "holdfast.service"
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", "--threshold=20", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """`systemd-analyze verify` has nothing to say about them."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    names = UNITS
    (tmp_path / "holdfast.service.d").mkdir()
    for name, block in zip(names, blocks_in("ini"), strict=True):
        # The program is not installed where the unit says.
        text = block.text.replace("ExecStart=/opt/holdfast/bin/holdfast", f"ExecStart={shutil.which('true')}")
        (tmp_path / ("holdfast.service.d" if name == DROP_IN else "") / name).write_text(text)
    command = ["systemd-analyze", "verify", *(str(tmp_path / name) for name in names if name != DROP_IN)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    about_ours = [line for line in done.stderr.splitlines() if any(name in line for name in names)]
    assert (done.returncode, about_ours) == (0, []), done.stderr


def test_sql_runs() -> None:
    """The `sql` blocks run, in order, on SQLite, and let no smaller token in."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE reports (id INTEGER PRIMARY KEY, body TEXT)")
    database.execute("INSERT INTO reports VALUES (7, 'old')")
    for token, body in ((9, "new"), (4, "stale")):
        values = {"id": 7, "token": token, "body": body}
        for block in blocks_in("sql"):
            for statement in filter(str.strip, block.text.split(";")):
                if token == 9 or not statement.lstrip().startswith(("ALTER", "CREATE")):
                    database.execute(statement, values)
    assert database.execute("SELECT body, fence FROM reports").fetchall() == [("new", 9)]
    database.close()


def test_scripts_are_plain_sh() -> None:
    """Each `sh` block is taken by `sh`, and not only by the bash that the test runs it with."""
    for block in blocks_in("sh"):
        checked = subprocess.run(["sh", "-n"], input=block.text, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, f"{block}: {checked.stderr}"


def test_targets_and_extras_exist() -> None:
    """Every `make` target and every extra of the package that a page names is there."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"(?:`|^|&& )make ([a-z-]+)", text, re.MULTILINE)) <= targets, page
        named = re.findall(r"(?:WHEEL|\.whl\)|'\.)\[([\w,]+)\]", text)
        assert {extra for several in named for extra in several.split(",")} <= extras, page


# --- The tools of this file -------------------------------------------------------------------------------------------


def page_with(tmp_path: Path, text: str) -> list[Block]:
    page = tmp_path / "page.md"
    page.write_text(text)
    return blocks_of(page, tmp_path)


def test_marks_are_read(tmp_path: Path) -> None:
    """Comments right above a block are its marks; a comment further up is none."""
    first, second = page_with(
        tmp_path,
        "<!-- far: away -->\n\n<!-- exit codes: 1 -->\n<!-- before: a\nb -->\n```sh\nfalse\n```\n\n```\nx\n```\n",
    )
    assert (first.line, first.language, first.text) == (6, "sh", "false\n")
    assert first.marks == {"exit codes": "1", "before": "a\nb"}
    assert (second.language, second.marks) == ("", {})


def test_failing_block_is_detected(tmp_path: Path) -> None:
    """A command that fails, a refusal that curl hides, and an exception each fail the page, unless a mark says so."""
    with server() as running:
        cases = [
            ("```sh\nfalse\ntrue\n```\n", "ended with 1"),
            ("```sh\nholdfast owner nobody | cat\n```\n", "ended with 1"),
            ("```sh\nholdfast owner nobody || true\n```\n", None),
            ("<!-- exit codes: 1 3 -->\n```sh\nfalse\n(exit 3)\n```\n", None),
            ("<!-- exit codes: 1 -->\n```sh\ntrue\n```\n", "ended with 0"),
            ("```sh\nexit 0\n```\n", "the whole session"),
            ("```sh\ncurl -sS http://127.0.0.1:7420/locks\n```\n", "answered .'401'"),
            ("<!-- answers: 401 -->\n```sh\ncurl -sS http://127.0.0.1:7420/locks\n```\n", None),
            ("```console\n$ printf 'a\\nb\\n'\na\n```\n", None),
            ("<!-- whole: yes -->\n```console\n$ printf 'a\\nb\\n'\na\n```\n", "more than is shown: {'b'}"),
            ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
            ("<!-- before: x = 1 -->\n```python\nassert x == 1\n```\n", None),
            ("<!-- before: x = y -->\n```python\nassert x == 1\n```\n", "set-up failed"),
            ("```python\nimport asyncio\nawait asyncio.sleep(0)\n```\n", None),
        ]
        for number, (text, complaint) in enumerate(cases):
            (tmp_path / f"{number}").mkdir()
            with PageSession(tmp_path / f"{number}" / "s", running) as session:
                [block] = page_with(tmp_path, text)
                if complaint is None:
                    session.run(block)
                else:
                    with pytest.raises(AssertionError, match=complaint):
                        session.run(block)


def test_elided_json_is_accepted() -> None:
    """`…` outside of strings is left out; JSON that is broken otherwise is refused."""
    assert as_json('{"a": {…}, "b": "…", …}') == {"a": {}, "b": "…"}
    with pytest.raises(json.JSONDecodeError):
        as_json('{"a": 1 "b": 2}')
