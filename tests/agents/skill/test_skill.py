"""The skill: valid by the specification of Agent Skills, every command in it runs, and the package has it."""

from __future__ import annotations

import re
import subprocess
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.agents.skill import files
from holdfast.cli.shared import output
from holdfast.testing import server
from tests.support.package import build
from tests.support.page_session import PageSession
from tests.support.pages import ROOT, blocks_of

FILE = ROOT / "skills" / "holdfast" / "SKILL.md"
IN_PACKAGE = "src/holdfast/agents/skill/holdfast/SKILL.md"

# Set-up and exit codes of the blocks that need some, by a line of theirs. The skill itself shows none of this: every
# word of it is read by a model.
AROUND = {
    "holdfast release github-issue-1843": {"before": "holdfast claim github-issue-1843 github-issue-1844"},
    "holdfast claim deploy-main ": {
        "before": "HOLDFAST_OWNER=agent-2 holdfast claim deploy-main --ttl 2s",
        "exit codes": "1",
    },
    "rlock github": {"before": 'eval "$(holdfast session start agent-3)"'},
}


def header_of(text: str) -> tuple[dict[str, object], str]:
    """The fields of a skill, and its body. Small: plain lines `key: value`, and one level below a key."""
    found = re.match(r"---\n(.*?)\n---\n(.*)\Z", text, re.DOTALL)
    assert found, "it begins with --- and fields"
    fields: dict[str, object] = {}
    inner: dict[str, object] = {}
    for line in found[1].splitlines():
        key, colon, value = line.strip().partition(":")
        assert colon and ": " not in value and " #" not in value, f"not a plain line: {line}"
        if line.startswith("  "):
            inner[key] = value.strip().strip('"')
        elif value:
            fields[key] = value.strip()
        else:
            inner = {}
            fields[key] = inner
    return fields, found[2]


def complaints(text: str, folder: str) -> list[str]:
    """What the specification of Agent Skills does not allow."""
    fields, body = header_of(text)
    name, description = fields.get("name", ""), fields.get("description", "")
    assert isinstance(name, str) and isinstance(description, str)
    found = []
    if not re.fullmatch(r"(?=.{1,64}\Z)[a-z0-9]+(-[a-z0-9]+)*", name) or name != folder:
        found.append("name")
    if not 1 <= len(description) <= 1024:
        found.append("description")
    if not 1 <= len(str(fields.get("compatibility", "-"))) <= 500:
        found.append("compatibility")
    if not isinstance(fields.get("metadata", {}), dict):
        found.append("metadata")
    if set(fields) - {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}:
        found.append("unknown fields")
    if len(text.splitlines()) > 500 or not body.strip():
        found.append("length")
    return found


def test_skill_has_valid_front_matter() -> None:
    """Its fields are those of the specification, within their limits; it is short. A bad one is found out."""
    text = FILE.read_text(encoding="utf-8")
    assert complaints(text, FILE.parent.name) == []
    assert len(text) < 6_000, "every agent that uses it reads all of it"
    assert complaints(text, "other") == ["name"]
    assert complaints(text.replace("name: holdfast", "name: Hold--fast"), "Hold--fast") == ["name"]
    assert complaints(text.replace("license:", "licence:"), "holdfast") == ["unknown fields"]
    assert complaints(re.sub("description: .*", f"description: {'x' * 1025}", text), "holdfast") == ["description"]


@pytest.mark.parametrize("file", [files.FILE, files.PLUGIN], ids=["skill", "plugin"])
def test_skill_digest_is_current(file: Path) -> None:
    """The digest in the header is that of the text, so that a copy can be known; any change of a copy shows."""
    text = files.text(file)
    assert files.is_unchanged(text), f'write into its header: digest: "{files.digest_of(text)}"'
    assert files.is_unchanged(text.replace("\n", "\r\n"))
    assert not files.is_unchanged(text + "\n")
    assert not files.is_unchanged(text.replace("digest", "digests"))


def test_every_command_in_the_skill_runs(tmp_path: Path) -> None:
    """All blocks run in order, in one shell, against a real server, and end as the skill says."""
    blocks = blocks_of(FILE)
    assert {block.language for block in blocks} == {"sh"}
    used = set()
    with server() as running, PageSession(tmp_path, running) as session:
        for block in blocks:
            around = {line: marks for line, marks in AROUND.items() if line in block.text}
            used |= set(around)
            marks = {name: value for each in around.values() for name, value in each.items()}
            session.run(replace(block, marks=marks))
    assert used == set(AROUND)


def test_exit_codes_in_the_skill_are_those_of_the_commands() -> None:
    """Its table has every exit code that a command can answer an agent with, and no other."""
    shown = {int(code) for code in re.findall(r"^\| (\d+) \|", FILE.read_text(encoding="utf-8"), re.MULTILINE)}
    names = ("OK", "HELD", "NOT_IN_TIME", "DONE", "DEADLOCK", "LOST", "USAGE", "UNREACHABLE", "LIMIT", "NOT_ALLOWED")
    assert shown == {getattr(output, name) for name in names}


def test_skill_in_the_repository_is_a_link() -> None:
    """The package has a link to the file in `skills`, also in a clone; there is no second copy."""
    assert not FILE.is_symlink()
    assert (ROOT / IN_PACKAGE).is_symlink() and (ROOT / IN_PACKAGE).samefile(FILE)
    if not (ROOT / ".git").exists():
        pytest.skip("only a checkout knows what a clone gets")
    listed = subprocess.run(
        ["git", "ls-files", "-s", IN_PACKAGE, "skills"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["100644", "120000"]


def test_package_contains_the_skill(tmp_path: Path) -> None:
    """The wheel has it as a file beside the code, the source distribution in both places."""
    wheel, sdist = build(ROOT, tmp_path)
    with zipfile.ZipFile(wheel) as opened:
        assert opened.read("holdfast/agents/skill/holdfast/SKILL.md").decode() == files.text()
        assert opened.read("holdfast/agents/skill/opencode.js").decode() == files.text(files.PLUGIN)
    with tarfile.open(sdist) as opened_sdist:
        [top] = {name.partition("/")[0] for name in opened_sdist.getnames()}
        for path in (IN_PACKAGE, "skills/holdfast/SKILL.md"):
            member = opened_sdist.extractfile(f"{top}/{path}")
            assert member is not None and member.read().decode() == files.text()
