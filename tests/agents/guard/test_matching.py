"""Paths and rules: a path is resolved before it is matched, and only the text that was parsed is used."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from holdfast.agents.guard import paths
from holdfast.agents.guard.decision import Matcher
from holdfast.agents.guard.hosts import Event
from holdfast.agents.guard.rules import BrokenRulesError
from tests.agents.guard.conftest import RULES


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with rules."""
    top = tmp_path / "repo"
    (top / "src" / "auth").mkdir(parents=True)
    (top / "src" / "auth" / "login.py").write_text("a")
    (top / ".git").mkdir()
    (top / ".git" / "HEAD").write_text("ref: refs/heads/topic/x\n")
    (top / "holdfast-guard.toml").write_text(RULES)
    return top


def jobs(repository: Path, path: str | Path, cwd: Path | None = None, *, is_below: bool = False) -> list[str]:
    """The jobs that writing a path needs."""
    found = Matcher(str(repository.parent / "state")).of_path(str(path), str(cwd or repository), is_below=is_below)
    return sorted({requirement.job for requirement in found})


def jobs_of_line(repository: Path, line: str, cwd: Path | None = None) -> list[str]:
    """The jobs that a command line needs; a problem stands for itself."""
    found = Matcher(str(repository.parent / "state")).of_command_line(line, str(cwd or repository))
    return sorted({requirement.problem or requirement.job for requirement in found})


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("src/auth/**", "src/auth/a/b.py", True),
        ("src/auth/**", "src/auth", True),
        ("src/auth/**", "src/authority/a", False),
        ("src/auth/", "src/auth/a/b", True),
        ("src/*/a.py", "src/x/a.py", True),
        ("src/*/a.py", "src/x/y/a.py", False),
        ("**/*.sql", "a.sql", True),
        ("**/*.sql", "x/y/a.sql", True),
        ("*.sql", "x/a.sql", False),
        ("a/**/b/**/c", "a/x/b/b/y/c", True),
        ("a/**/b/**/c", "a/x/y/c", False),
        ("**", "anything/at/all", True),
        ("app/[id]/page.tsx", "app/[id]/page.tsx", True),
        ("app/[id]/page.tsx", "app/i/page.tsx", False),
        ("a?c*", "abcd", True),
        ("a?c", "ac", False),
        ("/README.md", "README.md", True),
    ],
)
def test_patterns(pattern: str, path: str, fits: bool) -> None:
    """`*` and `?` stay within a folder, `**` does not, and nothing else is special."""
    assert paths.path_fits(paths.pieces_of(pattern), path.split("/")) is fits


def test_pattern_matching_is_not_exponential() -> None:
    """Stars upon stars are matched in a bounded number of steps."""
    assert not paths.fits("*a" * 30 + "b", "a" * 5_000)
    assert not paths.path_fits(["**", "a"] * 30 + ["b"], ["a"] * 2_000)


def test_paths_are_resolved_before_matching(repository: Path) -> None:
    """Links, `..`, relative paths and new files come to the same place; a link of a folder too."""
    auth = ["area:auth"]
    assert jobs(repository, "src/auth/login.py") == auth
    assert jobs(repository, repository / "docs/../src/auth/new/deep.py") == auth
    assert jobs(repository, "../auth/x", repository / "src" / "billing") == auth
    (repository / "docs").mkdir()
    (repository / "docs" / "link.py").symlink_to("../src/auth/login.py")
    (repository / "docs" / "folder").symlink_to("../src")
    assert jobs(repository, "docs/link.py") == auth
    assert jobs(repository, "docs/folder/auth/new.py") == auth
    assert jobs(repository, "docs/folder/../README.md") == [], "`..` behind a link leads to where the link leads"
    (repository.parent / "way").symlink_to(repository)
    assert jobs(repository, repository.parent / "way" / "src" / "auth" / "x") == auth
    (repository / "docs" / "dangling").symlink_to("../src/auth/not-there")
    assert jobs(repository, "docs/dangling") == auth


def test_link_out_of_an_area_needs_its_job(repository: Path) -> None:
    """Who removes a link in an area changes the area, wherever the link leads."""
    (repository / "src" / "auth" / "out").symlink_to("/tmp")
    assert jobs(repository, "src/auth/out") == ["area:auth"]


def test_rules_do_not_apply_outside_the_repository(repository: Path) -> None:
    """A file elsewhere is under no rule, and another repository has its own."""
    assert jobs(repository, "/tmp/x.sql") == []
    assert jobs(repository, "../x.sql") == []
    other = repository.parent / "other"
    other.mkdir()
    (other / "holdfast-guard.toml").write_text('[[rule]]\npaths = "**"\njob = "other:all"\n')
    assert jobs(repository, other / "x") == ["other:all"], "also for an agent that works elsewhere"


def test_nested_rule_file_does_not_disable_the_outer_one(repository: Path) -> None:
    """Rule files of all folders above count."""
    (repository / "src" / "auth" / "holdfast-guard.toml").write_text('[[rule]]\npaths = "x"\njob = "x:y"\n')
    assert jobs(repository, "src/auth/login.py") == ["area:auth"]
    assert jobs(repository, "src/auth/x") == ["area:auth", "x:y"]


def test_rule_file_in_a_world_writable_folder_is_ignored(repository: Path) -> None:
    """A rule file in a place as /tmp could be anybody's: it is not read, and not even its errors count."""
    (repository.parent / "holdfast-guard.toml").write_text("broken")
    repository.parent.chmod(0o1777)
    assert jobs(repository, "README.md") == []


def test_matching_ignores_case_as_the_file_system_does(repository: Path) -> None:
    """The rule file that is also there in capitals shows such a file system; a second name shows it here.

    The form of accents is then ignored too.
    """
    assert jobs(repository, "SRC/Auth/login.py") == []
    os.link(repository / "holdfast-guard.toml", repository / "HOLDFAST-GUARD.TOML")
    assert jobs(repository, "SRC/Auth/new.py") == ["area:auth"]
    (repository / "holdfast-guard.toml").write_text('[[rule]]\npaths = "caf\u00e9/**"\njob = "a:b"\n')
    assert jobs(repository, "Cafe\u0301/x") == ["a:b"]


def test_commands_match_folders_and_patterns(repository: Path) -> None:
    """Removing a folder touches all below it; a pattern touches the folder that it is in."""
    (repository / "src" / "billing").mkdir()
    both = ["area:auth", "area:billing"]
    assert jobs_of_line(repository, "rm -rf src/auth") == both, "there may be SQL below"
    assert jobs_of_line(repository, "rm -rf src") == both
    assert jobs_of_line(repository, "rm src/auth/*.py") == both
    assert jobs_of_line(repository, "mv src/auth/login.py docs.py") == ["area:auth"]
    assert jobs_of_line(repository, "cp a.sql src/auth") == both
    assert jobs_of_line(repository, "cp a.py src/auth") == ["area:auth"]
    assert jobs_of_line(repository, "cp a.py src") == []
    assert jobs_of_line(repository, "cd src && echo x > auth/y") == ["area:auth"]
    assert jobs_of_line(repository, "echo x > README.md") == []


def test_rules_cover_the_folder_of_their_file(repository: Path) -> None:
    """Who removes all of a repository needs all its areas, by whatever name; what has another form there does not."""
    both = ["area:auth", "area:billing"]
    for line in (
        "rm -rf *",
        "rm -rf .",
        f"rm -rf {repository}",
        "git checkout .",
        "rm -rf s*/auth",
        "cd src; rm -rf ..",
    ):
        assert jobs_of_line(repository, line) == both, line
    assert jobs_of_line(repository, "rm s*") == both
    assert jobs_of_line(repository, "rm [r-t]rc -r") == both
    for line in (
        "rm *.log",
        "rm -f ./*.pyc README*",
        "touch {a,b}.txt",
        "find /elsewhere -exec rm {} +",
        "xargs -I{} rm {}",
    ):
        assert "area:auth" not in jobs_of_line(repository, line), line


def test_parent_folder_after_a_link_is_resolved_as_in_a_shell(repository: Path) -> None:
    """`cd link; cd ..` leads back to where the link is, and not to where it leads."""
    (repository / "link").symlink_to(repository.parent)
    assert jobs_of_line(repository, "cd link && make && cd .. && rm src/auth/login.py") == ["area:auth"]


def test_unreadable_line_needs_the_jobs_of_paths_it_names(repository: Path) -> None:
    """What cannot be read is refused if it names an area; so is one that names more files than can be looked at."""
    for line in ("rm src/auth/a 'x", "cat <(rm src/auth/login.py", "rm " + "x " * 20_001 + "src/auth/login.py"):
        assert any("cannot be read" in each for each in jobs_of_line(repository, line)), line[:40]
    assert jobs_of_line(repository, "rm docs/a 'x") == []


@pytest.mark.parametrize("kind", ["pipe", "null", "folder"])
def test_irregular_rule_file_is_broken(repository: Path, kind: str) -> None:
    """A pipe and /dev/null have no rules in them, and are not taken for a file without rules."""
    file = repository / "holdfast-guard.toml"
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "null":
        file.symlink_to("/dev/null")
    else:
        file.mkdir()
    with pytest.raises(BrokenRulesError):
        jobs(repository, "src/auth/login.py")


def test_rules_apply_at_any_depth(repository: Path) -> None:
    """A rule file counts however many folders are in between."""
    assert jobs(repository, "src/auth/" + "d/" * 1_500 + "x") == ["area:auth"]


def test_lone_surrogate_in_a_name_is_matched(repository: Path) -> None:
    """What a host sends may be cut in the middle of a character; that is no reason to refuse what no rule names."""
    assert jobs(repository, "src/auth/\ud800") == ["area:auth"]
    assert jobs(repository, "docs/\ud800") == []
    line = "cd \ud800; git -C \ud800 push; rm -r \ud800 ../src/auth"
    assert jobs_of_line(repository, line) == ["area:auth", "push-topic/x"]


def test_worktree_uses_the_rule_file_of_its_repository(repository: Path) -> None:
    """A branch from before the rules is guarded too, with paths from the top of the worktree."""
    linked, git_folder = repository.parent / "linked", repository / ".git" / "worktrees" / "linked"
    linked.mkdir()
    git_folder.mkdir(parents=True)
    (linked / ".git").write_text(f"gitdir: {git_folder}\n")
    (git_folder / "HEAD").write_text("ref: refs/heads/other\n")
    (git_folder / "commondir").write_text("../..\n")
    assert jobs(repository, "src/auth/x", linked) == ["area:auth"]
    assert jobs_of_line(repository, "git push", linked) == ["push-other"]
    (linked / "holdfast-guard.toml").write_text('[[rule]]\npaths = "x"\njob = "x:y"\n')
    assert jobs(repository, "src/auth/x", linked) == [], "what is checked out there counts"
    (linked / "holdfast-guard.toml").unlink()
    (git_folder / "commondir").unlink()
    assert jobs(repository, "src/auth/x", linked) == [], "a submodule is another repository"


def test_pushes(repository: Path) -> None:
    """The job of a push is named after its branches; where they cannot be told it is refused, not let through."""
    assert jobs_of_line(repository, "git push") == ["push-topic/x"]
    assert jobs_of_line(repository, "cd /; git -C " + str(repository) + " push origin a b") == ["push-a", "push-b"]
    for line in ("git push --all", "git push origin $BRANCH", "git push origin 'unclosed"):
        (problem,) = jobs_of_line(repository, line)
        assert "cannot be" in problem
    assert jobs_of_line(repository, "echo 'unclosed") == [], "what no rule could mean is not held up"
    assert jobs_of_line(repository, "git push", repository.parent) == [], "another place, other rules"


def test_the_branch_of_a_worktree(repository: Path) -> None:
    """A linked worktree has its own branch."""
    linked, git_folder = repository.parent / "linked", repository / ".git" / "worktrees" / "linked"
    linked.mkdir()
    git_folder.mkdir(parents=True)
    (linked / ".git").write_text(f"gitdir: {git_folder}\n")
    (git_folder / "HEAD").write_text("ref: refs/heads/other\n")
    assert paths.current(str(linked)) == "other" and paths.current("/") == ""


def test_cached_rules_apply_to_their_exact_text_only(repository: Path) -> None:
    """What was parsed is kept, and another text is parsed again; what is kept and is not ours is not believed."""
    file, state = repository / "holdfast-guard.toml", repository.parent / "state"
    assert jobs(repository, "src/auth/x") == ["area:auth"]
    (cache_file,) = (state / "rules").glob("*.json")
    assert cache_file.stat().st_mode & 0o077 == 0 and json.loads(cache_file.read_text())["text"] == RULES
    planted = cache_file.read_text().replace("area:auth", "area:kept")
    cache_file.write_text(planted.replace(RULES, RULES))
    assert jobs(repository, "src/auth/x") == ["area:auth"], "the text differs now"
    said = json.loads(cache_file.read_text())
    said["table"]["rules"][0]["job"] = "area:kept"
    cache_file.write_text(json.dumps(said))
    assert jobs(repository, "src/auth/x") == ["area:kept"], "so it is what was kept that is used"
    cache_file.chmod(0o666)
    assert jobs(repository, "src/auth/x") == ["area:auth"], "others could have written that"
    file.write_text(RULES.replace("area:auth", "area:other"))
    assert jobs(repository, "src/auth/x") == ["area:other"]


def test_rule_cache_is_bounded(tmp_path: Path) -> None:
    """A hundred rule files leave at most 64 behind, and so do processes that were killed while they wrote them."""
    (tmp_path / "state" / "rules").mkdir(parents=True)
    for number in range(100):
        (tmp_path / "state" / "rules" / f".1-2.json.{number}").write_text("")
    for number in range(100):
        top = tmp_path / str(number)
        top.mkdir()
        (top / "holdfast-guard.toml").write_text("")
        assert jobs(top, "x") == []
    assert 0 < len(list((tmp_path / "state" / "rules").iterdir())) <= 64


@pytest.mark.parametrize(
    ("host", "tool", "context", "pattern", "fits"),
    [
        ("claude", "mcp__deploy__run", None, "mcp__deploy__*", True),
        ("claude", "mcp__deploy__run", None, "mcp_deploy_*", True),
        ("claude", "mcp__deploy_x__run", None, "mcp__deploy__*", False),
        ("qwen", "mcp__deploy__run", None, "mcp__deploy__run", True),
        ("gemini", "mcp_deploy_run", None, "mcp__deploy__*", True),
        ("gemini", "mcp_deploy_run", None, "mcp_deploy_*", True),
        ("gemini", "mcp_my_app_roll_back", None, "mcp__my_app__roll_back", True),
        ("gemini", "mcp_deploy_x_run", {"server_name": "deploy-x", "tool_name": "run"}, "mcp__deploy-x__*", True),
        ("gemini", "mcp_deploy_x_run", {"server_name": "deploy-x", "tool_name": "run"}, "mcp__deploy__*", False),
        ("gemini", "mcp_deploy_run", {"server_name": 1}, "mcp__deploy__*", True),
        ("opencode", "deploy_run", None, "mcp__deploy__*", True),
        ("opencode", "deploy_run", None, "deploy_*", True),
        ("opencode", "read", None, "mcp__*", False),
        ("gemini", "read_file", None, "mcp__*", False),
    ],
)
def test_rules_name_mcp_tools_in_every_spelling(
    repository: Path, host: str, tool: str, context: object, pattern: str, *, fits: bool
) -> None:
    """One rule names an MCP tool in all hosts, however the host spells it."""
    (repository / "holdfast-guard.toml").write_text(f'[[rule]]\ntool = "{pattern}"\njob = "deploy"\n')
    fields = {"hook_event_name": "PreToolUse", "session_id": "s", "cwd": str(repository), "tool_name": tool}
    event = Event(host, {**fields, "tool_input": {}, "mcp_context": context})
    assert [requirement.job for requirement in Matcher(str(repository.parent / "state")).of_tool(event)] == [
        "deploy"
    ] * fits


@pytest.mark.parametrize(
    ("host", "tool", "arguments"),
    [
        ("opencode", "edit", {"filePath": "src/auth/a", "oldString": "a", "newString": "b"}),
        ("opencode", "write", {"filePath": "src/auth/a", "content": ""}),
        ("opencode", "apply_patch", {"patchText": "*** Begin Patch\n*** Delete File: src/auth/a\n*** End Patch"}),
        ("opencode", "bash", {"command": "rm a", "workdir": "src/auth"}),
        ("qwen", "edit", {"file_path": "src/auth/a", "old_string": "a", "new_string": "b"}),
        ("qwen", "write_file", {"file_path": "src/auth/a", "content": ""}),
        ("qwen", "run_shell_command", {"command": "rm a", "directory": "src/auth", "is_background": False}),
    ],
)
def test_tools_of_opencode_and_qwen_name_their_files(
    repository: Path, host: str, tool: str, arguments: dict[str, object]
) -> None:
    """Every tool that writes needs the job of the file, by the names that the host gives to tools and arguments."""
    fields = {"hook_event_name": "PreToolUse", "session_id": "s", "cwd": str(repository), "tool_name": tool}
    event = Event(host, {**fields, "tool_input": arguments})
    assert {requirement.job for requirement in Matcher(str(repository.parent / "state")).of_event(event)} == {
        "area:auth"
    }
