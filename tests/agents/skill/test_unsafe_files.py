"""Files that cannot be read, or must not be changed, are left alone: that is said, and what to write there by hand."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.agents.skill import files, installer
from holdfast.agents.skill.hosts import HOSTS
from holdfast.agents.skill.installer import Outcome, Parts, Scope
from tests.agents.skill.conftest import Run, tree_of

CLAUDE = HOSTS[0]
OTHER_USER = 12345


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        b"\xff\xfe{\x00}\x00",
        b'{"a": "\xff"}',
        b'{"mcpServers": 1}',
        b'{"a": 1, "a": 2}',
        b"{" + b'"a": {' * 200 + b"}" * 201,
    ],
    ids=lambda content: repr(content[:20]),
)
def test_invalid_json_is_left_alone(project: Path, skill: Run, content: bytes) -> None:
    """A broken file stays byte by byte, the lines to paste are printed, and the other files get theirs."""
    path = project / ".mcp.json"
    path.write_bytes(content)
    done = skill("install", "--for", "claude")
    assert done.returncode == 2
    assert ".mcp.json is left alone: " in done.stderr and '"args": ["mcp"]' in done.stderr
    assert path.read_bytes() == content
    assert (project / ".claude/skills/holdfast/SKILL.md").exists()
    assert skill("uninstall").returncode == 0, "nothing of ours is in that file"
    assert tree_of(project).keys() == {".mcp.json"}


def test_broken_file_with_our_entry_is_reported(project: Path, skill: Run) -> None:
    """If a file cannot be understood and our name stands in it, taking away says that it is left."""
    (project / ".mcp.json").write_text('{"mcpServers": {"holdfast": {"command": "holdfast",')
    done = skill("uninstall")
    assert done.returncode == 2 and ".mcp.json is left alone: it was not understood: line 1" in done.stderr


def test_large_file_is_left_alone(project: Path, skill: Run) -> None:
    """A file that is too large to be read is left alone, and nobody says that nothing of ours is in it."""
    with (project / ".mcp.json").open("wb") as file:
        file.truncate(files.SIZE_BYTES_MAX + 1)
    for command in ("install", "uninstall"):
        done = skill(command, "--for", "claude")
        assert done.returncode == 2 and "larger than 16 MiB" in done.stderr


def test_invalid_toml_is_left_alone(project: Path, skill: Run) -> None:
    """The same for TOML: it is said where it is broken, and the table to paste is printed."""
    (project / ".codex").mkdir()
    (project / ".codex/config.toml").write_text("a = [\n")
    done = skill("install", "--for", "codex")
    assert done.returncode == 2 and "[mcp_servers.holdfast]" in done.stderr and "not understood: Invalid" in done.stderr


def pipe(path: Path) -> None:
    os.mkfifo(path)


def read_only(path: Path) -> None:
    path.write_text("{}")
    path.chmod(0o444)


def two_names(path: Path) -> None:
    path.write_text("{}")
    path.with_name("other").hardlink_to(path)


def link_out(path: Path) -> None:
    (path.parent.parent / "elsewhere.json").write_text("{}")
    path.symlink_to("../elsewhere.json")


def link_nowhere(path: Path) -> None:
    path.symlink_to("nowhere.json")


def link_to_itself(path: Path) -> None:
    path.symlink_to(".mcp.json")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Path.mkdir, "not a regular file"),
        (pipe, "not a regular file"),
        (read_only, "read-only"),
        (two_names, "2 names"),
        (link_out, "leads out of the project"),
        (link_nowhere, "leads nowhere"),
        (link_to_itself, "leads nowhere"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_protected_file_is_left_alone(project: Path, skill: Run, make: Callable[[Path], None], said: str) -> None:
    """Pipes, folders, read-only files, hard links, and links that lead out of the project are left alone."""
    make(project / ".mcp.json")
    before = (project / ".mcp.json").lstat()
    done = skill("install", "--for", "claude", "--no-skill")
    assert done.returncode == 2 and said in done.stderr
    after = (project / ".mcp.json").lstat()
    assert (before.st_ino, before.st_mode, before.st_mtime_ns) == (after.st_ino, after.st_mode, after.st_mtime_ns)
    if (elsewhere := project.parent / "elsewhere.json").exists():
        assert elsewhere.read_text() == "{}"


def test_a_link_stays_a_link(project: Path, home: Path, skill: Run) -> None:
    """Settings that are kept elsewhere, as in a repository of dotfiles, are changed there, and the link stays."""
    folder = home / "dotfiles"
    folder.mkdir()
    (folder / "claude.json").write_text('{"a": 1}')
    (home / ".claude.json").symlink_to("dotfiles/claude.json")
    assert skill("install", "--user", "--for", "claude").returncode == 0
    assert (home / ".claude.json").is_symlink() and "holdfast" in (folder / "claude.json").read_text()
    assert skill("uninstall", "--user").returncode == 0
    assert (home / ".claude.json").is_symlink() and (folder / "claude.json").read_text() == '{"a": 1}'


def test_linked_skill_is_left_alone(project: Path, skill: Run) -> None:
    """Where the skill should be is a link: what it leads to is neither replaced nor removed."""
    skill("install", "--for", "claude", "--no-mcp")
    path = project / ".claude/skills/holdfast/SKILL.md"
    path.rename(project / "kept.md")
    path.symlink_to("../../../kept.md")
    for command in ("install", "uninstall"):
        done = skill(command, "--no-mcp")
        assert done.returncode == 2 and "it is a link" in done.stderr and "holdfast skill show" in done.stderr
    assert path.is_symlink() and (project / "kept.md").exists()


def test_a_byte_order_mark_stays(project: Path, skill: Run) -> None:
    """A mark at the beginning, as some editors write it, is there before, between and after."""
    content = b'\xef\xbb\xbf{"a": 1}'
    (project / ".mcp.json").write_bytes(content)
    assert skill("install", "--for", "claude").returncode == 0
    assert (project / ".mcp.json").read_bytes().startswith(b"\xef\xbb\xbf{")
    assert skill("uninstall").returncode == 0
    assert (project / ".mcp.json").read_bytes() == content


def test_byte_order_mark_and_link_are_preserved(project: Path, skill: Run) -> None:
    """A file of ours that got a mark or became a link is somebody's by now: it stays, and is empty. A skill goes."""
    for words in (["--for", "claude"], ["--for", "codex"]):
        skill("install", *words)
    skill_file = project / ".claude/skills/holdfast/SKILL.md"
    skill_file.write_bytes(b"\xef\xbb\xbf" + skill_file.read_bytes())
    (project / ".mcp.json").write_bytes(b"\xef\xbb\xbf" + (project / ".mcp.json").read_bytes())
    (project / ".codex/config.toml").rename(project / "kept.toml")
    (project / ".codex/config.toml").symlink_to("../kept.toml")
    assert skill("uninstall").returncode == 0
    assert not skill_file.exists()
    assert (project / ".mcp.json").read_bytes() == b"\xef\xbb\xbf{}\n"
    assert (project / ".codex/config.toml").is_symlink() and (project / "kept.toml").read_bytes() == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_mode_and_owner_are_preserved(project: Path, skill: Run) -> None:
    """Root adds to a file of another user, and it stays that user's, with its mode."""
    path = project / ".mcp.json"
    path.write_text("{}")
    os.chown(path, OTHER_USER, OTHER_USER)
    path.chmod(0o604)
    assert skill("install", "--for", "claude").returncode == 0
    found = path.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (OTHER_USER, OTHER_USER, 0o604)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_file_of_another_user_is_left_alone() -> None:
    """Whoever is not root changes no file of another user, even where the folder would allow it."""
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o777)
        (folder / ".mcp.json").write_text("{}")
        os.seteuid(OTHER_USER)
        [change] = installer.plan([CLAUDE], Scope(folder), Parts(skill=False, hooks=False), is_install=True)
        applied = installer.apply_change(change, Scope(folder))
    finally:
        os.seteuid(0)
        text = (folder / ".mcp.json").read_text()
        shutil.rmtree(folder)
    assert applied.outcomes[0][1] is Outcome.SKIPPED and "another user (0)" in applied.reason
    assert text == "{}"


def test_concurrent_change_is_not_overwritten(project: Path) -> None:
    """A host that writes its file between our reading and our writing keeps what it wrote."""
    (project / ".mcp.json").write_text("{}")
    scope = Scope(project)
    [change] = installer.plan([CLAUDE], scope, Parts(skill=False, hooks=False), is_install=True)
    (project / ".mcp.json").write_text('{"theirs": 1}')
    applied = installer.apply_change(change, scope)
    assert applied.outcomes[0][1] is Outcome.SKIPPED and "meantime" in applied.reason
    assert tree_of(project).keys() == {".mcp.json"}
    assert (project / ".mcp.json").read_text() == '{"theirs": 1}'


def test_foreign_text_is_escaped_on_the_terminal(project: Path, skill: Run) -> None:
    """What stands in a file is written out in a diff: it moves no cursor and sets no colour."""
    (project / ".mcp.json").write_text('{\n  "a": "\x9b31m\u202e"\n}\n')
    shown = skill("install", "--for", "claude", "--dry-run")
    assert shown.returncode == 0 and "\x9b" not in shown.stdout and "\\x9b31m" in shown.stdout
