"""The hooks of git: the second net for every agent, put in place beside other hooks and taken away to the byte."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from pathlib import Path

import pytest

from tests.agents.guard.agents import SCRIPT, World
from tests.support.api import Api
from tests.support.checks import wait_until

HOOKS = ("pre-commit", "pre-push")


def install(world: World, *words: str) -> str:
    done = world.holdfast("guard", "git", "install", *words)
    assert done.returncode == 0, done
    return done.stdout


def uninstall(world: World) -> str:
    done = world.holdfast("guard", "git", "uninstall")
    assert done.returncode == 0, done
    return done.stdout


def staged(world: World, *files: str) -> None:
    for file in files:
        path = world.repository / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{path.read_text() if path.exists() else ''}x\n")
        world.git("add", file)


def with_remote(world: World) -> None:
    world.git("init", "-q", "--bare", str(world.folder / "remote.git"))
    world.git("remote", "add", "origin", str(world.folder / "remote.git"))
    staged(world, "README.md")
    world.git("commit", "-qm", "first", "--no-verify")


def test_commit_in_a_held_area_is_refused(world: World, api: Api) -> None:
    """Staged files in an area that another has stop the commit, with who has it; other files do not."""
    install(world)
    held = api.acquired("area:auth", owner="ben", ttl_seconds=60)
    staged(world, "src/auth/login.py")
    done = world.git("commit", "-m", "x", check=False)
    assert done.returncode == 1 and "owner ben" in done.stderr and "Instead:" in done.stderr
    world.git("rm", "-q", "--cached", "src/auth/login.py")
    staged(world, "README.md")
    world.git("commit", "-qm", "docs")
    staged(world, "src/auth/login.py")
    api.release("area:auth", held["lease_id"])
    world.git("commit", "-qm", "auth")
    wait_until(lambda: api.status("area:auth").json()["status"] == "free")


def test_both_names_of_a_renamed_file_count(world: World, api: Api) -> None:
    """Moving a file out of an area changes the area, and so does removing it."""
    staged(world, "src/auth/login.py")
    world.git("commit", "-qm", "first", "--no-verify")
    install(world)
    api.acquired("area:auth", owner="ben", ttl_seconds=60)
    world.git("mv", "src/auth/login.py", "login.py")
    assert "owner ben" in world.git("commit", "-m", "x", check=False).stderr


def test_committed_link_needs_the_job_of_the_link(world: World, api: Api) -> None:
    """A link into another's area changes nothing there; one that lies in the area does, wherever it leads."""
    staged(world, "src/auth/login.py", "README.md")
    world.git("commit", "-qm", "first", "--no-verify")
    install(world)
    api.acquired("area:auth", owner="ben", ttl_seconds=60)
    (world.repository / "login").symlink_to("src/auth/login.py")
    world.git("add", "login")
    world.git("commit", "-qm", "a link from outside")
    (world.repository / "src/auth/readme").symlink_to("../../README.md")
    world.git("add", "src/auth/readme")
    assert "owner ben" in world.git("commit", "-m", "x", check=False).stderr


def test_parallel_commits_are_different_owners(world: World, api: Api) -> None:
    """The claim of a commit lives as long as its process of git, and another commit of the same user is refused."""
    install(world)
    slow = world.repository / ".git" / "hooks" / "commit-msg"
    slow.write_text('#!/bin/sh\ntouch "$GO.at"\nwhile [ ! -e "$GO" ]; do sleep 0.05; done\n')
    slow.chmod(0o755)
    staged(world, "src/auth/login.py")
    go = world.folder / "go"
    ana = world.host(GO=str(go))
    first = threading.Thread(target=ana.run, args=("git commit -qm x", ""))
    first.start()
    try:
        wait_until(Path(f"{go}.at").exists)
        status = api.status("area:auth").json()
        assert status["status"] == "held" and status["owner"].startswith("git:")
        clone = world.folder / "clone"
        world.git("clone", "-q", str(world.repository), str(clone), check=False)
        (clone / "holdfast-guard.toml").write_text((world.repository / "holdfast-guard.toml").read_text())
        (clone / "src" / "auth").mkdir(parents=True)
        (clone / "src" / "auth" / "b").write_text("b")
        world.git("add", "src/auth/b", cwd=clone)
        world.holdfast("guard", "git", "install", cwd=clone)
        assert "git:" in world.git("commit", "-m", "y", check=False, cwd=clone).stderr
    finally:
        go.touch()
        first.join(30)
    wait_until(lambda: api.status("area:auth").json()["status"] == "free")
    assert world.git("log", "--oneline").stdout.count("\n") == 1


def test_an_owner_from_the_environment(world: World, api: Api) -> None:
    """HOLDFAST_OWNER says in whose name a commit claims."""
    install(world)
    staged(world, "src/auth/login.py")
    hook = world.repository / ".git" / "hooks" / "commit-msg"
    hook.write_text(f'#!/bin/sh\n"{SCRIPT}" owner area:auth --json >"{world.folder}/seen"\n')
    hook.chmod(0o755)
    world.git("commit", "-qm", "x", HOLDFAST_OWNER="agent-7")
    assert json.loads((world.folder / "seen").read_text())["owner"]["owner"] == "agent-7"


def test_commit_uses_the_jobs_of_its_agent(world: World, api: Api) -> None:
    """git that an agent runs is that agent: what it has passes, what is free is claimed for it, and stays its own."""
    install(world)
    ana = world.host()
    assert ana.edit("src/auth/login.py").passed
    token = api.status("area:auth").json()["fencing_token"]
    staged(world, "src/auth/login.py", "db/a.sql")
    done = ana.run("git commit -qm x")
    assert done.code == 0, done
    assert api.status("area:auth").json()["fencing_token"] == token
    assert api.status("area:billing").json()["owner"] == ana.owner
    staged(world, "src/auth/login.py")
    assert ana.owner in world.git("commit", "-m", "y", check=False).stderr, "a person beside it is another"


def test_commit_uses_the_jobs_of_subagents(world: World, api: Api) -> None:
    """A process of git does not show which of a host's agents started it: the job of any of them passes."""
    install(world)
    ana = world.host()
    assert ana.edit("src/auth/login.py", agent="agent-1").passed and ana.edit("db/a.sql").passed
    staged(world, "src/auth/login.py", "db/a.sql")
    assert ana.run("git commit -qm x").code == 0
    assert api.status("area:auth").json()["owner"] == f"{ana.owner}/agent-1"


def test_commit_needs_the_consent_of_a_person(world: World, api: Api) -> None:
    """Where a rule says `ask`, an agent's commit is stopped until a person agreed; a person's own commit is not."""
    world.rules(
        '[[rule]]\npaths = "src/auth/**"\njob = "area:auth"\nwhen_free = "ask"\n[[rule]]\npaths = "b"\njob = "area:b"\n'
    )
    install(world)
    ana = world.host()
    assert ana.edit("b").passed, "so that it is known as an agent"
    staged(world, "src/auth/login.py")
    assert "holdfast guard agree area:auth" in ana.run("git commit -m x").err
    assert world.holdfast("guard", "agree", "area:auth").returncode == 0
    assert ana.run("git commit -qm x").code == 0
    ana.hook(ana.fields("SessionEnd", reason="exit"))
    staged(world, "src/auth/login.py")
    world.git("commit", "-qm", "y")
    wait_until(lambda: api.status("area:auth").json()["status"] == "free")


def test_pushes(world: World, api: Api) -> None:
    """pre-push has the branches as they are named there, whatever the command line said."""
    with_remote(world)
    install(world)
    api.acquired("push-release", owner="ben", ttl_seconds=60)
    done = world.git("push", "origin", "main:release", check=False)
    assert done.returncode and "owner ben" in done.stderr
    world.git("push", "-q", "origin", "main:other")
    world.git("tag", "v1")
    api.acquired("push-refs/tags/v1", owner="ben", ttl_seconds=60)
    assert "push-refs/tags/v1" in world.git("push", "origin", "v1", check=False).stderr
    assert "owner ben" in world.host().bash("git push origin main:release").refused
    wait_until(lambda: api.status("push-other").json()["status"] == "free")


def test_commit_is_refused_without_server_or_with_broken_rules(world: World) -> None:
    """A commit that a rule names is stopped when nobody can be asked, and any commit when the rules are broken."""
    install(world)
    staged(world, "src/auth/login.py")
    done = world.git("commit", "-m", "x", check=False, HOLDFAST_URL="http://127.0.0.1:9")
    assert done.returncode == 1 and "cannot be asked" in done.stderr
    rules = (world.repository / "holdfast-guard.toml").read_text()
    world.rules("broken")
    done = world.git("commit", "-m", "x", check=False)
    assert done.returncode == 1 and "not TOML" in done.stderr
    world.rules(rules.replace("[[rule]]", 'when_away = "let-pass"\n[[rule]]', 1))
    done = world.git("commit", "-m", "x", HOLDFAST_URL="http://127.0.0.1:9")
    assert "WITHOUT a claim" in done.stderr and "WITHOUT a claim" in world.log()


def test_missing_program_stops_git(world: World) -> None:
    """If there is no holdfast to ask, the commit does not pass."""
    install(world)
    for name in HOOKS:
        hook = world.repository / ".git" / "hooks" / name
        hook.write_text(hook.read_text().replace(str(SCRIPT), "/nowhere/holdfast"))
    staged(world, "README.md")
    path = world.folder / "bin"
    path.mkdir()
    for program in ("git", "sh", "cat"):
        (path / program).symlink_to(shutil.which(program) or program)
    done = world.git("commit", "-m", "x", check=False, PATH=str(path))
    assert done.returncode == 1


# In place, and away again.

SHELL_HOOK = b'#!/bin/sh\n# Mine.\necho "mine $(basename "$0")" >&2\ncat >&2 </dev/stdin\nexit 0'
PYTHON_HOOK = f"#!{sys.executable}\nimport sys\nsys.stderr.write('mine ' + sys.stdin.read())\n".encode()


@pytest.mark.parametrize(
    "content", [SHELL_HOOK, PYTHON_HOOK, b"#!/usr/bin/env bash\r\necho mine\n"], ids=["sh", "python", "crlf"]
)
def test_uninstall_leaves_other_hooks_byte_for_byte(content: bytes, world: World) -> None:
    """A hook that was there is the same afterwards: its bytes, its mode, and nothing beside it."""
    folder = world.repository / ".git" / "hooks"
    before = {}
    for name in HOOKS:
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o750)
    for path in folder.iterdir():
        before[path.name] = (path.read_bytes(), path.stat().st_mode)
    install(world)
    assert "already" in install(world)
    uninstall(world)
    assert {path.name: (path.read_bytes(), path.stat().st_mode) for path in folder.iterdir()} == before
    assert "no guard" in uninstall(world)


def test_uninstall_removes_hooks_that_only_the_guard_had(world: World) -> None:
    """Where there was no hook, there is none afterwards."""
    folder = world.repository / ".git" / "hooks"
    before = sorted(folder.iterdir())
    install(world)
    assert {folder / name for name in HOOKS} <= set(folder.iterdir())
    uninstall(world)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("content", [SHELL_HOOK, PYTHON_HOOK], ids=["sh", "python"])
def test_install_keeps_other_hooks_running(content: bytes, world: World, api: Api) -> None:
    """A hook that was there runs after the guard, with its name and its input; what the guard stops it does not see."""
    with_remote(world)
    folder = world.repository / ".git" / "hooks"
    for name in HOOKS:
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o755)
    install(world)
    staged(world, "README.md")
    assert "mine" in world.git("commit", "-m", "x").stderr
    pushed = world.git("push", "origin", "main:other").stderr
    assert "mine" in pushed and "refs/heads/main" in pushed and "refs/heads/other" in pushed
    if content == SHELL_HOOK:
        assert "mine pre-push" in pushed, "some hooks look at their own name"
    api.acquired("area:auth", owner="ben", ttl_seconds=60)
    staged(world, "src/auth/login.py")
    assert "mine" not in world.git("commit", "-m", "x", check=False).stderr


def test_inactive_hook_stays_inactive(world: World) -> None:
    """One that is not executable stays so; and a hook that is a link stays that link."""
    folder = world.repository / ".git" / "hooks"
    (folder / "pre-commit").write_bytes(SHELL_HOOK)
    (folder / "pre-commit").chmod(0o644)
    mine = world.folder / "mine.sh"
    mine.write_bytes(SHELL_HOOK)
    mine.chmod(0o755)
    (folder / "pre-push").symlink_to(mine)
    install(world)
    staged(world, "README.md")
    assert "mine" not in world.git("commit", "-m", "x").stderr
    uninstall(world)
    assert (folder / "pre-commit").read_bytes() == SHELL_HOOK and not os.access(folder / "pre-commit", os.X_OK)
    assert (folder / "pre-push").readlink() == mine and mine.read_bytes() == SHELL_HOOK


def test_edited_block_is_not_removed(world: World) -> None:
    """A part of ours that somebody changed is not removed by guess: it is said."""
    install(world)
    hook = world.repository / ".git" / "hooks" / "pre-commit"
    changed = hook.read_text().replace("|| exit 1", "|| exit 3")
    hook.write_text(changed)
    assert "changed by hand" in uninstall(world) and hook.read_text() == changed
    assert "changed by hand" in install(world)


def test_worktrees_share_their_hooks(world: World, api: Api) -> None:
    """A linked worktree has the hooks of its repository, and its files are in the same areas."""
    world.git("add", "-A")
    world.git("commit", "-qm", "first", "--no-verify")
    linked = world.folder / "linked"
    world.git("worktree", "add", "-q", str(linked))
    assert world.holdfast("guard", "git", "install", cwd=linked).returncode == 0
    assert (world.repository / ".git" / "hooks" / "pre-commit").exists()
    api.acquired("area:auth", owner="ben", ttl_seconds=60)
    (linked / "src" / "auth" / "login.py").write_text("b")
    world.git("add", "-A", cwd=linked)
    assert "owner ben" in world.git("commit", "-m", "x", check=False, cwd=linked).stderr
    assert "owner ben" in world.host().edit(linked / "src" / "auth" / "login.py").refused


def test_the_configured_folder_is_respected(world: World) -> None:
    """core.hooksPath of the repository is where the hooks go; one for all repositories only if that is said."""
    world.git("config", "core.hooksPath", ".githooks")
    install(world)
    assert (world.repository / ".githooks" / "pre-commit").exists()
    uninstall(world)
    world.git("config", "--unset", "core.hooksPath")
    shared = world.folder / "all"
    world.git("config", "--global", "core.hooksPath", str(shared))
    done = world.holdfast("guard", "git", "install")
    assert done.returncode == 64 and "all your repositories" in done.stderr and not shared.exists()
    install(world, "--shared")
    assert (shared / "pre-commit").exists()
    uninstall(world)
    assert list(shared.iterdir()) == []


def test_outside_of_a_repository(world: World) -> None:
    """Where there is no repository, that is said."""
    done = world.holdfast("guard", "git", "install", cwd=world.folder)
    assert done.returncode == 64 and "not a git repository" in done.stderr
