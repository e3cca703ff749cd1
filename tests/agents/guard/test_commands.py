"""`holdfast guard` for people: rules are written, tried, and what agents have is shown and given back."""

from __future__ import annotations

import json
import re
import tomllib

from tests.agents.guard.agents import SCRIPT, World
from tests.support.api import Api
from tests.support.checks import wait_until
from tests.support.pages import ROOT, blocks_of


def test_init_writes_rules_that_work(world: World) -> None:
    """The file that `init` writes is sound, speaks of this repository, and is never written over."""
    file = world.repository / "holdfast-guard.toml"
    done = world.holdfast("guard", "init")
    assert done.returncode == 64 and "there already" in done.stderr
    file.unlink()
    inside = world.repository / "src"
    assert world.holdfast("guard", "init", cwd=inside).returncode == 0
    rules = tomllib.loads(file.read_text())["rule"]
    assert [rule["job"] for rule in rules] == ["repo:auth", "repo:push/{branch}"]
    done = world.holdfast("guard", "check", "src/auth/x", "--command", "git push", "--json")
    assert [requirement["job"] for requirement in json.loads(done.stdout)["wants"]] == ["repo:auth", "repo:push/main"]


def test_hooks_of_git_never_end_as_a_held_job(world: World) -> None:
    """A hook that cannot ask git stops it, with the code of everything that failed."""
    done = world.holdfast("guard", "git", "pre-commit", cwd=world.folder)
    assert done.returncode == 2 and "git rev-parse failed" in done.stderr


def test_check_says_what_would_happen(world: World, api: Api) -> None:
    """It names the jobs and who has them, claims nothing, and its exit code says whether something is in the way."""
    done = world.holdfast("guard", "check", "src/auth/login.py")
    assert done.returncode == 0 and "area:auth" in done.stdout and "free" in done.stdout
    api.acquired("area:auth", owner="ben", ttl_seconds=60)
    done = world.holdfast("guard", "check", "src/auth/login.py", "README.md", "--json")
    assert done.returncode == 2
    (requirement,) = json.loads(done.stdout)["wants"]
    assert (requirement["what"], requirement["job"], requirement["status"], requirement["owner"]) == (
        "src/auth/login.py",
        "area:auth",
        "held",
        "ben",
    )
    done = world.holdfast("guard", "check", "--command", "git push --all", "--json")
    assert done.returncode == 2 and json.loads(done.stdout)["wants"][0]["status"] == "refused"
    done = world.holdfast("guard", "check", "README.md")
    assert done.returncode == 0 and "no rule names that" in done.stderr
    assert "can be used" in world.holdfast("guard", "check").stderr
    assert "nothing is guarded" in world.holdfast("guard", "check", cwd=world.folder).stderr
    world.rules("rule = 1")
    done = world.holdfast("guard", "check")
    assert done.returncode == 64 and "[[rule]]" in done.stderr


def test_check_reports_an_ignored_rule_file(world: World) -> None:
    """In a folder that everybody may write to it does not count; `init` and `check` say so, and how to mend it."""
    world.repository.chmod(0o777)
    said = world.holdfast("guard", "check", "src/auth/x").stderr
    assert "is not asked" in said and f"chmod o-w {world.repository}" in said
    (world.repository / "holdfast-guard.toml").unlink()
    assert "is not asked" in world.holdfast("guard", "init").stderr
    world.repository.chmod(0o755)
    assert "is not asked" not in world.holdfast("guard", "check", "src/auth/x").stderr


def test_status_and_release(world: World, api: Api) -> None:
    """What each agent has is listed with its daemon and its host; a person gives it back for one of them or for all."""
    assert "no agent" in world.holdfast("guard", "status").stderr
    ana, ben = world.host(), world.host("codex")
    assert ana.edit("src/auth/x").passed and ben.edit("src/billing/x").passed
    done = world.holdfast("guard", "status", "--json")
    rows = {row["owner"]: row for row in json.loads(done.stdout)["owners"]}
    assert rows[ana.owner]["jobs"] == ["area:auth"] and rows[ben.owner]["jobs"] == ["area:billing"]
    assert all(row["keeper"] and row["host"] and row["problem"] is None for row in rows.values())
    assert ana.owner in world.holdfast("guard", "status").stdout
    assert world.holdfast("guard", "release").returncode == 64, "this is no agent"
    assert world.holdfast("guard", "release", "--owner", "nobody").returncode == 64
    assert world.holdfast("guard", "release", "--owner", ana.owner).returncode == 0
    assert api.status("area:auth").json()["status"] == "free"
    assert api.status("area:billing").json()["status"] == "held"
    assert world.holdfast("guard", "release", "--all").returncode == 0
    assert api.status("area:billing").json()["status"] == "free"
    wait_until(lambda: not world.daemons())


def test_agent_releases_its_jobs(world: World, api: Api) -> None:
    """`holdfast guard release` that an agent runs is for that agent."""
    ana, ben = world.host(), world.host()
    assert ana.edit("src/auth/x").passed and ben.edit("src/billing/x").passed
    assert ana.run(f"{SCRIPT} guard release").code == 0
    assert api.status("area:auth").json()["status"] == "free"
    assert api.status("area:billing").json()["owner"] == ben.owner


def test_the_checks_have_help(world: World) -> None:
    """`--help` of what hosts and git run is help, and not a check."""
    for words in (("hook",), ("git", "pre-commit"), ("git", "pre-push"), ("git", "install"), ()):
        done = world.holdfast("guard", *words, "--help")
        assert done.returncode == 0 and "Usage: holdfast guard" in done.stdout


def test_documented_hook_entry_covers_all_guarded_tools() -> None:
    """The settings of Claude Code that the guide shows run the hook before every tool that writes, and at the ends."""
    (shown,) = [json.loads(block.text) for block in blocks_of(ROOT / "docs/guide/guard.md") if block.language == "json"]
    (before,) = shown["hooks"]["PreToolUse"]
    for tool in ("Edit", "MultiEdit", "Write", "NotebookEdit", "Bash", "mcp__deploy__start"):
        assert re.fullmatch(before["matcher"], tool)
    assert not re.fullmatch(before["matcher"], "Read")
    assert set(shown["hooks"]) == {"PreToolUse", "PostToolUse", "Stop", "SubagentStop", "SessionEnd"}
    commands = {hook["command"] for groups in shown["hooks"].values() for group in groups for hook in group["hooks"]}
    hook = "holdfast guard hook --host claude"
    assert commands == {hook, f"{hook} || exit 2"}
